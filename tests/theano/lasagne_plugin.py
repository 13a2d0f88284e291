"""Adapt Lasagne 0.1, of 2015, to today's Python and pytest.

This is a plugin of the pytest that runs Lasagne's tests. It changes nothing in Theano or dnnops.
In addition, `tests.theano.test_lasagne` leaves out Lasagne's ``lasagne/conftest.py``, whose hook
has a parameter that pytest has dropped, and its ``setup.cfg``, which requires plugins of the time.
Lasagne's tests import the package ``mock``. They cannot use Python's ``unittest.mock``, which since
Python 3.8 reads the properties of the objects that it imitates; some of Lasagne's properties raise.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace


def install() -> None:
    """Provide the modules that Lasagne imports."""
    # lasagne/__init__.py reads its version with this module, which setuptools 82 dropped.
    pkg_resources = ModuleType("pkg_resources")
    pkg_resources.get_distribution = lambda name: SimpleNamespace(version="0.1")  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = pkg_resources


def pytest_configure(config: object) -> None:
    """Declare the marker that Lasagne's tests use without declaring it."""
    config.addinivalue_line("markers", "slow: skipped without --runslow")  # type: ignore[attr-defined]


install()
