"""Configuration of Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import dnnops

project = "dnnops"
author = "The dnnops developers"
copyright = f"2026, {author}"
release = version = dnnops.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "dnnops_docs"]
exclude_patterns = ["_build"]
default_role = "py:obj"
nitpicky = False

autodoc_member_order = "bysource"
# PyTensor documents the methods that all Ops have.
autodoc_inherit_docstrings = False
# The docstrings give the types.
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"dnnops {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["dnnops.css"]
