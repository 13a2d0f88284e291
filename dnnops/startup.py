"""Let a program import PyTensor before dnnops even if dnnops flags are set.

While it is imported, PyTensor warns about unknown flags and rejects unknown modes. The installation
therefore puts a file with the line `PTH` into ``site-packages``, which Python executes at startup.
If flags might concern dnnops, that line loads this module and calls `install`, which waits for
PyTensor to be imported. It then makes the preparations that ``dnnops/__init__.py`` makes if dnnops
is imported first.

This module is loaded by its path and not as part of the package, which would import PyTensor. It
imports only a few modules of the standard library, since processes that never import PyTensor also
pay for it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["PTH", "PTH_NAME", "install"]

#: Python reads .pth files in the order of their names. This one comes after ``__editable__.*.pth``,
#: which makes an editable installation importable.
PTH_NAME = "dnnops-flags.pth"
#: A single line, because Python executes each line of a .pth file separately. Errors in it are not
#: reported, since they would appear in every process of the environment.
PTH = (
    "import os; _given = os.environ.get; ("
    "'dnn' in _given('PYTENSOR_FLAGS', '').lower() or 'device' in _given('PYTENSOR_FLAGS', '') "
    "or 'mode' in _given('DNNOPS_FLAGS', '') or 'PYTENSORRC' in os.environ "
    "or os.path.exists(os.path.expanduser('~/.pytensorrc'))) and exec('''try:\\n"
    " from importlib import util as _util\\n"
    " _folder = _util.find_spec('dnnops').submodule_search_locations[0]\\n"
    " _spec = _util.spec_from_file_location('_dnnops_startup', _folder + '/startup.py')\\n"
    " _module = _util.module_from_spec(_spec)\\n"
    " _spec.loader.exec_module(_module)\\n"
    " _module.install()\\n"
    "except Exception: pass''')\n"
)


def install() -> None:
    """Wait for PyTensor to be imported; do nothing if it has been, or if this was called before.

    Python may execute the startup line twice, for one environment or for two.
    """
    waiting = any(type(finder).__module__ == __name__ for finder in sys.meta_path)
    if "pytensor" not in sys.modules and not waiting:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """A finder that locates PyTensor with the other finders and prepares its import for dnnops."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        # dnnops, imported first, makes its own preparations.
        if name != "pytensor" or "dnnops" in sys.modules:
            return None
        try:
            return self._prepared(name, path, target)
        except Exception:
            return None  # fall back to the other finders

    def _prepared(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _import_pytensor(lambda: execute(module))

        # Keep the loader object, since it also reads sources and resources.
        loader.exec_module = exec_module
        return spec


def _import_pytensor(execute: Any) -> None:
    """Import PyTensor, and then dnnops if a dnnops mode is the requested default."""
    from contextlib import ExitStack, suppress

    wanted = ""
    with ExitStack() as stack:
        # PyTensor or dnnops will report errors in the flags.
        with suppress(Exception):
            config, mode_flag = _modules("config", "mode_flag")
            stack.enter_context(config.quiet_unknown_flag_warnings())
            wanted = mode_flag.wanted_mode()
            stack.enter_context(mode_flag.mode_kept_back())
        execute()
    if wanted:
        import dnnops  # noqa: F401


def _modules(*names: str) -> list[ModuleType]:
    """Load the dnnops modules that do not need PyTensor, without importing the package.

    The modules are removed from ``sys.modules`` at once, so that the package is imported afresh.
    """
    folder = __file__.rpartition("/")[0]
    loaded: list[ModuleType] = []
    try:
        for name in ("errors", "flag_values", *names):
            spec = spec_from_file_location(f"dnnops.{name}", f"{folder}/{name}.py")
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[spec.name] = module_from_spec(spec)
            loaded.append(module)
            spec.loader.exec_module(module)
    finally:
        for module in loaded:
            sys.modules.pop(module.__name__, None)
    return loaded[-len(names) :]
