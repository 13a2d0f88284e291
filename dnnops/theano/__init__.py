"""Compatibility layer that runs code written for Theano without changes.

After :func:`install`, ``import theano`` and its submodules provide objects of PyTensor and dnnops
under Theano's names. ``python -m dnnops theano script.py`` runs a script that way, and applies
``THEANO_FLAGS`` and ``.theanorc`` before PyTensor is imported.

The layer is inactive unless the function or the command is used. The tables in
`dnnops.theano.tables` map Theano's names to objects. Functions whose arguments differ are defined
in this package, in modules named like those of Theano.
"""

from __future__ import annotations

from dnnops.theano.hook import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
