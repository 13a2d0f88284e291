"""Plugin of the pytest that runs tests of Theano's time: modules and names that they expect.

It changes nothing in Theano or dnnops.
"""

from __future__ import annotations

import random
import sys
import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from pytensor.compile import mode

import dnnops.theano


def _module(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def attr(*names: str, **values: Any) -> Callable[[Any], Any]:
    """Leave a test as it is; nose selected tests by these attributes."""
    return lambda test: test


def install() -> None:
    """Provide modules that have been dropped or don't run on today's Python."""
    # The last release of nose is of 2015.
    case = unittest.TestCase()
    _module("nose")
    _module(
        "nose.tools",
        assert_equals=case.assertEqual,
        assert_raises=case.assertRaises,
        assert_true=case.assertTrue,
    )
    _module("nose.plugins")
    _module("nose.plugins.attrib", attr=attr)
    _module("nose.plugins.skip", SkipTest=unittest.SkipTest)


def pytest_addoption(parser: Any) -> None:
    """Declare the option for a sample of the tests."""
    parser.addoption("--sample", default="", help="NUMBER:SEED of tests to run, by default all")


def pytest_configure(config: Any) -> None:
    """Declare the markers that tests use without declaring them."""
    config.addinivalue_line("markers", "slow: skipped without --runslow")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep only the sample, in order."""
    if config.option.sample:
        number, seed = map(int, config.option.sample.split(":"))
        kept = set(random.Random(seed).sample(range(len(items)), min(number, len(items))))
        config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i not in kept])
        items[:] = [item for i, item in enumerate(items) if i in kept]


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[Any] | None:
    """Leave out classes that a module only imports, as nose did."""
    if isinstance(obj, type) and obj.__module__ != collector.obj.__name__:
        return [] if vars(sys.modules[obj.__module__]).get(name) is obj else None
    return None


@pytest.fixture(autouse=True)
def methods_of_nose(request: Any) -> None:
    """Call ``setUp`` of classes that are not derived from `unittest.TestCase`, as nose did."""
    if not isinstance(request.instance, unittest.TestCase):
        getattr(request.instance, "setUp", lambda: None)()


install()
# PyTensor knows what the mode FAST_RUN means for other linkers, but not for this one.
mode.fast_run_linkers_to_mode["py"] = mode.Mode("py", "fast_run")
# For the processes of pytest-xdist, which ``python -m dnnops theano`` starts but does not run.
dnnops.theano.install()
