"""Theano's names, so that code written for Theano runs as it is.

After :func:`install`, ``import theano`` and its submodules give objects of PyTensor and dnnops
under Theano's names. ``python -m dnnops theano script.py`` runs a script that way, and reads
``THEANO_FLAGS`` and ``.theanorc`` before PyTensor does.

Nothing happens without either. The tables in `dnnops.theano.tables` say what each name stands for.
Functions whose arguments differ are defined here, in modules named after Theano's.
"""

from __future__ import annotations

from dnnops.theano.hook import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
