"""Compiling the C modules of a graph at once, on all cores, before PyTensor asks for each.

PyTensor makes one module after the other, and the compiler takes a quarter of a second or more for
each: for a small network, most of the time to its first result. Modules are compiled by PyTensor's
own function with its own arguments, and it finds and keeps them as it would have without.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytensor import config
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker, get_module_cache
from pytensor.link.c.cmodule import (
    GCC_compiler,
    dlimport,
    get_lib_extension,
    get_module_hash,
)
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["ParallelVMLinker", "cores"]

_log = logging.getLogger(__name__)


def cores() -> int:
    """How many modules are compiled at a time; with one, PyTensor compiles them as ever."""
    return len(os.sched_getaffinity(0))


class ParallelVMLinker(VMLinker):
    """PyTensor's virtual machine, with the C modules of its nodes compiled in parallel."""

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        fgraph = self.fgraph
        assert fgraph is not None  # PyTensor's linkers have accepted one by now
        with _compiled_ahead(self.schedule(fgraph)):
            return super().make_all(*args, **kwargs)


class _Module:
    """What PyTensor compiles of one node, if it is not in its cache."""

    def __init__(self, node: Apply):
        self.linker = CLinker().accept(FunctionGraph(node.inputs, node.outputs), no_recycling=[])
        self.key = self.linker.cmodule_key()

    def is_cached(self) -> bool:
        """Whether PyTensor has it; asked without waiting for PyTensor's lock."""
        cache = get_module_cache()
        return self.key in cache.entry_from_key or (
            get_module_hash(self.linker.get_src_code(), self.key) in cache.module_hash_to_key_data
        )

    def arguments(self) -> dict[str, Any]:
        """The arguments that `CLinker.compile_cmodule` passes to the compiler."""
        module = self.linker.get_dynamic_module()
        source = module.code()
        return {
            "module_name": module.code_hash,
            "src_code": source,
            "include_dirs": self.linker.header_dirs(),
            "lib_dirs": self.linker.lib_dirs(),
            "libs": self.linker.libraries(),
            "preargs": self.linker.compile_args(),
        }


def _missing_modules(nodes: Sequence[Apply]) -> dict[str, dict[str, Any]]:
    """The arguments of the compilations that PyTensor is about to do for nodes, each one once."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        op = node.op
        # An Op with a way of its own may not compile anything, or other things.
        if not isinstance(op, COp) or type(op).make_thunk is not COp.make_thunk:
            continue
        try:
            op.prepare_node(node, None, None, "c")
            module = _Module(node)
            if module.key is not None and not module.is_cached():
                arguments = module.arguments()
                found.setdefault(_identity(arguments), arguments)
        except Exception as error:  # it has no C code, or PyTensor is about to say what is wrong
            _log.debug("%s is not compiled ahead: %r", op, error)
    return found


def _identity(arguments: dict[str, Any]) -> str:
    """All that a compilation depends on."""
    return repr([(name, arguments.get(name)) for name in _ARGUMENTS])


_ARGUMENTS = ("module_name", "src_code", "include_dirs", "lib_dirs", "libs", "preargs")
#: Compilations under way, for `_compile_str` to take.
_pending: dict[str, Future[Path]] = {}


@contextmanager
def _compiled_ahead(nodes: Sequence[Apply]) -> Iterator[None]:
    missing = _missing_modules(nodes) if config.cxx and cores() > 1 else {}
    if len(missing) < 2:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor

    _install()
    with tempfile.TemporaryDirectory(prefix="dnnops_") as scratch:
        pool = ThreadPoolExecutor(cores())
        pool.submit(_compile_virtual_machine)
        jobs = {}
        for number, (identity, arguments) in enumerate(missing.items()):
            location = Path(scratch, str(number))
            location.mkdir()
            jobs[identity] = pool.submit(_compile, arguments, location)
        _pending.update(jobs)
        try:
            yield
        finally:
            pool.shutdown(cancel_futures=True)
            for identity in jobs:
                _pending.pop(identity, None)


def _compile(arguments: dict[str, Any], location: Path) -> Path:
    # PyTensor asks for debugging information, which takes a tenth of the time.
    options = {**arguments, "preargs": [*arguments["preargs"], "-g0"]}
    _original(**options, location=str(location), py_module=False)
    return location


def _compile_virtual_machine() -> None:
    """Have PyTensor compile the loop that calls the modules, which it does when first imported."""
    importlib.import_module("pytensor.link.c.cvm")


_original: Callable[..., Any] = GCC_compiler.compile_str


def _compile_str(*args: Any, **kwargs: Any) -> Any:
    """Take what was compiled ahead; otherwise compile it, as PyTensor does."""
    job = None
    if not args and kwargs.get("py_module", True) and kwargs.get("hide_symbols", True):
        job = _pending.pop(_identity(kwargs), None)
    if job is None or not _moved(job, Path(kwargs["location"])):
        return _original(*args, **kwargs)
    Path(kwargs["location"], "__init__.py").touch()
    return dlimport(
        os.path.join(kwargs["location"], f"{kwargs['module_name']}.{get_lib_extension()}")
    )


def _moved(job: Future[Path], location: Path) -> bool:
    """Wait for a compilation and move its files; False if it failed, for PyTensor to say why."""
    try:
        for file in job.result().iterdir():
            shutil.move(file, location / file.name)
    except Exception as error:
        _log.debug("compiled ahead in vain: %r", error)
        return False
    return True


def _install() -> None:
    """Make PyTensor ask for modules here; without pending ones that changes nothing."""
    if GCC_compiler.compile_str is not _compile_str:
        GCC_compiler.compile_str = staticmethod(_compile_str)  # type: ignore[method-assign]
