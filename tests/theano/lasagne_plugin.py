"""What Lasagne 0.1, of 2015, needs to be imported and tested by today's Python and pytest.

A plugin of the pytest that runs Lasagne's tests. Nothing of it concerns Theano, or dnnops. Also,
`tests.theano.test_lasagne` leaves out Lasagne's own ``lasagne/conftest.py``, whose hook has a
parameter that pytest has dropped, and its ``setup.cfg``, which asks for plugins of the time.
Its tests import the package ``mock``, and cannot use Python's own ``unittest.mock`` instead, which
since Python 3.8 reads the properties of what it imitates; some of Lasagne's raise then.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace


def install() -> None:
    """Put the modules in place that Lasagne imports."""
    # lasagne/__init__.py reads its version with it; setuptools dropped it in release 82.
    pkg_resources = ModuleType("pkg_resources")
    pkg_resources.get_distribution = lambda name: SimpleNamespace(version="0.1")  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = pkg_resources


def pytest_configure(config: object) -> None:
    """Declare the marker that Lasagne's tests use undeclared."""
    config.addinivalue_line("markers", "slow: skipped without --runslow")  # type: ignore[attr-defined]


install()
