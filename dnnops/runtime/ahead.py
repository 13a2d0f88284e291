"""Compile the C modules of a graph in parallel, before PyTensor requests them one by one.

PyTensor compiles modules sequentially, and each takes a quarter of a second or more. For a small
network, this is most of the time to the first result. The modules are compiled by PyTensor's own
function with the same arguments, and PyTensor loads and caches them as usual. Processes that need a
module at the same time compile it once, and none waits for a compilation while it holds PyTensor's
lock.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytensor import config
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker, get_module_cache
from pytensor.link.c.cmodule import (
    GCC_compiler,
    ModuleCache,
    dlimport,
    get_lib_extension,
    get_module_hash,
)
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker

from dnnops.runtime.shared_compiles import compile_once, remove_old_modules, shared_folder

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["ParallelVMLinker", "cores"]

_log = logging.getLogger(__name__)


def cores() -> int:
    """Return how many modules to compile at a time; 1 leaves compilation to PyTensor."""
    return len(os.sched_getaffinity(0))


class ParallelVMLinker(VMLinker):
    """PyTensor's virtual machine linker, which compiles the C modules of its nodes in parallel."""

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        fgraph = self.fgraph
        assert fgraph is not None  # accept() has been called
        with _compiled_ahead(self.schedule(fgraph)):
            return super().make_all(*args, **kwargs)


class _Module:
    """The C module of one node."""

    def __init__(self, node: Apply):
        self.linker = CLinker().accept(FunctionGraph(node.inputs, node.outputs), no_recycling=[])
        self.key = self.linker.cmodule_key()

    def is_cached(self) -> bool:
        """Return whether PyTensor has cached the module, without waiting for PyTensor's lock."""
        cache = get_module_cache()
        return self.key in cache.entry_from_key or (
            get_module_hash(self.linker.get_src_code(), self.key) in cache.module_hash_to_key_data
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that `CLinker.compile_cmodule` passes to the compiler."""
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


@dataclass
class _Compilation:
    """A compilation: the arguments of the compiler, and the keys of the modules that it makes."""

    arguments: dict[str, Any]
    keys: list[Any] = field(default_factory=list)


def _missing_modules(nodes: Sequence[Apply]) -> dict[str, _Compilation]:
    """Return all compilations that the nodes need, by their identities."""
    found: dict[str, _Compilation] = {}
    for node in nodes:
        op = node.op
        # An Op that overrides make_thunk may compile something else, or nothing.
        if not isinstance(op, COp) or type(op).make_thunk is not COp.make_thunk:
            continue
        try:
            op.prepare_node(node, None, None, "c")
            module = _Module(node)
            if module.key is not None and not module.is_cached():
                arguments = module.arguments()
                compilation = found.setdefault(_identity(arguments), _Compilation(arguments))
                compilation.keys.append(module.key)
        except Exception as error:  # no C code, or an error that PyTensor will raise again
            _log.debug("%s is not compiled ahead: %r", op, error)
    return found


def _identity(arguments: dict[str, Any]) -> str:
    """Return a string that contains everything a compilation depends on."""
    return repr([(name, arguments.get(name)) for name in _ARGUMENTS])


_ARGUMENTS = ("module_name", "src_code", "include_dirs", "lib_dirs", "libs", "preargs")
#: Running compilations, whose results `_compile_str` uses, and the same by the keys of modules.
_pending: dict[str, Future[Path]] = {}
_pending_keys: dict[Any, Future[Path]] = {}


@contextmanager
def _compiled_ahead(nodes: Sequence[Apply]) -> Iterator[None]:
    missing = _missing_modules(nodes) if config.cxx and cores() > 1 else {}
    if len(missing) < 2:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor

    _install()
    shared = shared_folder(Path(config.compiledir))
    # Beside the modules, so that these are linked rather than copied.
    with tempfile.TemporaryDirectory(prefix="dnnops_", dir=shared) as scratch:
        pool = ThreadPoolExecutor(cores())
        pool.submit(_compile_virtual_machine)
        jobs, keys = {}, {}
        for number, (identity, compilation) in enumerate(missing.items()):
            location = Path(scratch, str(number))
            location.mkdir()
            jobs[identity] = pool.submit(_compile, compilation.arguments, location, shared)
            keys.update(dict.fromkeys(compilation.keys, jobs[identity]))
        _pending.update(jobs)
        _pending_keys.update(keys)
        try:
            yield
        finally:
            pool.shutdown(cancel_futures=True)
            for identity in jobs:
                _pending.pop(identity, None)
            for key in keys:
                _pending_keys.pop(key, None)
    if shared is not None:
        remove_old_modules(shared)


def _compile(arguments: dict[str, Any], location: Path, shared: Path | None = None) -> Path:
    # PyTensor requests debugging information, which accounts for a tenth of the time.
    options = {**arguments, "preargs": [*arguments["preargs"], "-g0"]}

    def compile_into(folder: Path) -> None:
        _original(**options, location=str(folder), py_module=False)

    if shared is None:
        compile_into(location)
    else:
        identity = repr((config.cxx, config.gcc_version_str, _identity(options)))
        compile_once(shared, identity, compile_into, location)
    return location


def _compile_virtual_machine() -> None:
    """Compile PyTensor's C virtual machine, which is built when it is first imported."""
    importlib.import_module("pytensor.link.c.cvm")


_original: Callable[..., Any] = GCC_compiler.compile_str
_original_module_from_key: Callable[..., Any] = ModuleCache.module_from_key


def _module_from_key(self: ModuleCache, key: Any, lnk: Any) -> Any:
    """Wait for the module's compilation before PyTensor locks its cache, so that others can go on.

    A failed compilation is repeated by PyTensor, which reports the error.
    """
    if job := _pending_keys.get(key):
        job.exception()
    return _original_module_from_key(self, key, lnk)


def _compile_str(*args: Any, **kwargs: Any) -> Any:
    """Load the module if it was compiled ahead; otherwise compile it as PyTensor does."""
    job = None
    if not args and kwargs.get("py_module", True) and kwargs.get("hide_symbols", True):
        job = _pending.pop(_identity(kwargs), None)
    if job is None or not _moved(job, Path(kwargs["location"])):
        return _original(*args, **kwargs)
    location = Path(kwargs["location"])
    (location / "__init__.py").touch()
    try:
        return dlimport(str(location / f"{kwargs['module_name']}.{get_lib_extension()}"))
    except ImportError as error:  # another process shared a file that a power failure damaged
        _log.debug("a module that was compiled ahead cannot be loaded: %r", error)
        return _original(*args, **kwargs)


def _moved(job: Future[Path], location: Path) -> bool:
    """Wait for a compilation and move its files.

    Return False if it failed: PyTensor then compiles again and reports the error.
    """
    try:
        for file in job.result().iterdir():
            shutil.move(file, location / file.name)
    except Exception as error:
        _log.debug("compiling ahead failed: %r", error)
        return False
    return True


def _install() -> None:
    """Make PyTensor call these functions, which have no effect unless compilations are pending."""
    if GCC_compiler.compile_str is not _compile_str:
        GCC_compiler.compile_str = staticmethod(_compile_str)  # type: ignore[method-assign]
        ModuleCache.module_from_key = _module_from_key  # type: ignore[method-assign]
