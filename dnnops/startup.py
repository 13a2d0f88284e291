"""What lets a program import PyTensor before dnnops, whatever flags of dnnops are set.

PyTensor warns of flags that it does not know, and refuses modes that it does not know, while it is
imported. An installation therefore puts a file with the line `PTH` into ``site-packages``, which
Python executes when it starts. Where flags could concern dnnops, that line loads this module, whose
`install` waits for PyTensor to be imported. It does by then what ``dnnops/__init__.py`` does when
dnnops is imported first.

Python loads this module by its path, without the package, whose import would be that of PyTensor.
So it imports nothing but the standard library, and little of that: processes that never import
PyTensor pay for it, too.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

__all__ = ["PTH", "PTH_NAME", "install"]

#: Python reads these files in the order of their names: after ``__editable__.*.pth``, which makes
#: an editable installation known.
PTH_NAME = "dnnops-flags.pth"
#: One line, or Python would take the next one for a line of its own. Nothing that goes wrong in it
#: is reported, since it would be in every process of the environment.
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
    """Wait for PyTensor to be imported; do nothing if it has been, or if that is done already.

    Python may read two start-up files: of two environments, or twice in one.
    """
    waiting = any(type(finder).__module__ == __name__ for finder in sys.meta_path)
    if "pytensor" not in sys.modules and not waiting:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds PyTensor where the others do, and has it imported with the flags of dnnops in mind."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        # dnnops, imported first, makes its own preparations.
        if name != "pytensor" or "dnnops" in sys.modules:
            return None
        try:
            return self._prepared(name, path, target)
        except Exception:
            return None  # as if there were no such finder

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

        # The loader stays the same object: it also reads sources and resources.
        loader.exec_module = exec_module
        return spec


def _import_pytensor(execute: Any) -> None:
    """Import PyTensor, and then dnnops if one of its modes is to be the default."""
    from contextlib import ExitStack, suppress

    wanted = ""
    with ExitStack() as stack:
        # What is wrong with the flags, PyTensor or dnnops says.
        with suppress(Exception):
            config, mode_flag = _modules("config", "mode_flag")
            stack.enter_context(config.quiet_unknown_flag_warnings())
            wanted = mode_flag.wanted_mode()
            stack.enter_context(mode_flag.mode_kept_back())
        execute()
    if wanted:
        import dnnops  # noqa: F401


def _modules(*names: str) -> list[ModuleType]:
    """Load modules of dnnops that need no PyTensor without their package, which does.

    They are forgotten at once, so that the package finds none of itself imported.
    """
    folder = __file__.rpartition("/")[0]
    loaded: list[ModuleType] = []
    try:
        for name in ("errors", *names):
            spec = spec_from_file_location(f"dnnops.{name}", f"{folder}/{name}.py")
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[spec.name] = module_from_spec(spec)
            loaded.append(module)
            spec.loader.exec_module(module)
    finally:
        for module in loaded:
            sys.modules.pop(module.__name__, None)
    return loaded[1:]
