"""Build, cache and load the runtime libraries from the C++ sources in ``c_code``.

Wheels contain the CPU library (see `dnnops.runtime.prebuilt`). Otherwise a library is compiled at
first use and cached in PyTensor's compiledir. Its file name contains a hash of everything it was
built from, so that changing the sources, compiler, options or library versions builds a new file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.compiling import (
    INSTALL_COMPILER,
    compile_library,
    hash_files,
    is_intact,
    remove_leftovers,
    unusable_compiler,
)
from dnnops.runtime.find import Library, find_cuda, find_cudnn, find_onednn
from dnnops.runtime.folder import LOCK, OBJECTS, holds_own, make_private
from dnnops.runtime.headers import CHOSEN, CPU, GPU, RUNTIME, declare
from dnnops.runtime.prebuilt import PREBUILT_DIR, prebuilt_name, supported_levels

__all__ = [
    "CUDNN",
    "LIBRARIES",
    "ONEDNN",
    "Recipe",
    "RuntimeLibrary",
    "abi_hash",
    "c_code_dir",
]

#: Compiler options of all runtime libraries. They ignore the user's flags for PyTensor's modules,
#: in which PyMC disables exceptions.
_ARGUMENTS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-frtti")
#: Directories of the libraries' sources below ``c_code``.
_FOLDERS = {"onednn": "cpu", "cudnn": "gpu"}
#: How long to wait for another process's build before printing a message.
_NOTICE_AFTER = 2.0  # seconds


def c_code_dir() -> Path:
    """Return the directory of the C and C++ sources that are shipped with the package."""
    return Path(__file__).resolve().parents[1] / "c_code"


@cache
def abi_hash() -> str:
    """Return a hash of the headers that emitted C code includes.

    The hash is part of the cache key of every Op's C module. The sources of the runtime library are
    not part of it: a module looks up the functions that it calls when it is instantiated, so that
    rebuilding the library doesn't require recompiling the module.
    """
    return hash_files(sorted((c_code_dir() / "abi").glob("*.h")))


class Recipe(NamedTuple):
    """Inputs and output of a runtime library's build.

    Attributes
    ----------
    compiler : str
        C++ compiler.
    arguments : list of str
        Compiler options.
    libraries : tuple of Library
        Libraries to link with.
    target : Path
        File to create.
    """

    compiler: str
    arguments: list[str]
    libraries: tuple[Library, ...]
    target: Path


@dataclass(frozen=True, eq=False)
class RuntimeLibrary:
    """A runtime library: its sources, and how to build and load it.

    Attributes
    ----------
    name : str
        Name of the library, which is part of its file name. `_FOLDERS` gives its source directory.
    find : callable
        Function that finds the libraries to link with.
    compile_args : tuple of str
        Compiler and linker options, in addition to those of all runtime libraries.
    cpu_seconds : float
        Approximate time to compile the library on one core, for the message before a build.
    headers : tuple of str
        Headers of the functions that Python calls, in addition to ``dnnops_runtime.h``.
    on_load : list of callable
        Functions to call once with the loaded library, which register what it needs from Python.
    includes_python : bool
        Whether the sources include the headers of the interpreter.
    """

    name: str
    find: Callable[[], tuple[Library, ...]]
    compile_args: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    headers: tuple[str, ...] = ()
    on_load: list[Callable[[ctypes.CDLL], None]] = field(default_factory=list)
    includes_python: bool = False

    @cached_property
    def sources(self) -> list[Path]:
        """C++ source files of the library."""
        return [
            file for directory in self._directories for file in sorted(directory.rglob("*.cpp"))
        ]

    @cached_property
    def source_hash(self) -> str:
        """Hash of the sources and headers."""
        return hash_files([*self._headers, *self.sources])

    @property
    def _directories(self) -> list[Path]:
        return [c_code_dir() / part for part in (_FOLDERS.get(self.name, self.name), "common")]

    @property
    def _headers(self) -> list[Path]:
        directories = [*self._directories, c_code_dir() / "abi"]
        return [file for folder in directories for file in sorted(folder.rglob("*.h*"))]

    @cached_property
    def path(self) -> Path:
        """Path of the shared library, either prebuilt or compiled at first use.

        Raises
        ------
        DnnUnavailableError
            If a library, the compiler or a writable compiledir is missing, or if the compilation
            fails.
        """
        return self._prebuilt() or self._built()

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library.

        Raises
        ------
        DnnUnavailableError
            If the library can't be built (see `path`) or loaded.
        """
        loaded = self._load()
        for register in self.on_load:
            register(loaded)
        return loaded

    @property
    def is_loaded(self) -> bool:
        """Whether the library has been loaded, so that accessing `library` costs nothing."""
        return "library" in self.__dict__

    def address(self, function: str) -> int:
        """Return the address of an exported function."""
        return ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value or 0

    def _load(self) -> ctypes.CDLL:
        prebuilt = self._prebuilt()
        if prebuilt is not None:
            try:
                # It was linked on another machine, and finds libraries that are already loaded
                # by name.
                for library in self.find():
                    ctypes.CDLL(str(library.library))
                return self._open(prebuilt)
            except OSError:
                pass  # built with another release of the library: compile for this one
        try:
            return self._open(self._built())
        except OSError:
            # Rebuild it: the libraries that it was linked with may have changed.
            self._build(keep_intact=False)
        try:
            return self._open(self.recipe.target)
        except OSError as error:
            raise DnnUnavailableError(
                f"the runtime library of {self.name} cannot be loaded: {error}"
            ) from error

    def _open(self, path: Path) -> ctypes.CDLL:
        opened = ctypes.CDLL(str(path))
        for header in (RUNTIME, *self.headers):
            declare(opened, str(path), header)
        return opened

    def _prebuilt(self) -> Path | None:
        names = [prebuilt_name(self.name, level, self.source_hash) for level in supported_levels()]
        return next((PREBUILT_DIR / n for n in names if is_intact(PREBUILT_DIR / n)), None)

    def _built(self) -> Path:
        target = self.recipe.target
        if not holds_own(target):
            self._build(keep_intact=True)
        return target

    @cached_property
    def recipe(self) -> Recipe:
        """Compiler, options and libraries of the build, and the file to create.

        Raises
        ------
        DnnUnavailableError
            If the compiler or a library is missing.
        """
        from pytensor import config
        from pytensor.link.c.cmodule import GCC_compiler

        if not config.cxx:
            raise DnnUnavailableError(f"dnnops needs a C++ compiler: {INSTALL_COMPILER}")
        if shutil.which(config.cxx) is None:
            raise DnnUnavailableError(
                f"the C++ compiler {config.cxx}, which PyTensor's flag cxx names, was not found:"
                f" {INSTALL_COMPILER}"
            )
        libraries = self.find()
        try:
            given = GCC_compiler.compile_args()
        except OSError as error:
            raise unusable_compiler(config.cxx, error) from error
        arguments = [*_machine_arguments(given), *self.arguments(libraries)]
        key = (self.source_hash, config.cxx, config.gcc_version_str, arguments)
        linked = [(lib.library, lib.version) for lib in libraries]
        digest = hashlib.sha256(repr((*key, linked)).encode()).hexdigest()[:16]
        try:
            directory = Path(config.compiledir) / "dnnops"
        except (OSError, ValueError) as error:  # PyTensor checks it when it is read
            raise DnnUnavailableError(
                f"compiled code cannot be stored: {error} Point PyTensor's flag base_compiledir to"
                " a writable directory"
            ) from error
        target = directory / f"libdnnops_{self.name}_{digest}.so"
        return Recipe(config.cxx, arguments, libraries, target)

    def arguments(self, libraries: tuple[Library, ...]) -> list[str]:
        """Return the compiler options, except those that select the processor.

        Parameters
        ----------
        libraries : tuple of Library
            Libraries returned by `find`.

        Returns
        -------
        list of str
        """
        includes = [f"-I{directory}" for lib in libraries for directory in lib.include_dirs]
        if self.includes_python:
            includes.append(f"-I{sysconfig.get_path('include')}")
        return [*_ARGUMENTS, *self.compile_args, *includes]

    def link_arguments(self, libraries: tuple[Library, ...], rpath: bool) -> list[str]:
        """Return the linker options.

        Parameters
        ----------
        libraries : tuple of Library
            Libraries returned by `find`.
        rpath : bool
            Whether to store the paths of these libraries in the file.

        Returns
        -------
        list of str
        """
        rpaths = dict.fromkeys(f"-Wl,-rpath,{lib.library.parent}" for lib in libraries if rpath)
        return [*self.compile_args, *(str(lib.library) for lib in libraries), *rpaths, "-ldl"]

    def _build(self, keep_intact: bool) -> None:
        """Build the library, unless another process has just built it.

        Processes that have loaded the old file are not affected: the new file only takes over its
        name.
        """
        compiler, arguments, libraries, target = self.recipe
        directory = target.parent
        try:
            make_private(directory)
            with _lock(directory / LOCK, self.name):
                if keep_intact and holds_own(target):
                    return
                remove_leftovers(directory)
                objects = directory / OBJECTS
                objects.mkdir(exist_ok=True)
                self._announce(directory)
                from pytensor import config

                compile_library(
                    target,
                    self.sources,
                    compiler,
                    arguments,
                    self.link_arguments(libraries, rpath=True),
                    objects,
                    config.gcc_version_str,
                )
        except OSError as error:
            raise DnnUnavailableError(
                f"the runtime library of {self.name} cannot be written to {directory}: {error};"
                " point PyTensor's flag base_compiledir to a writable directory with enough space"
            ) from error

    def _announce(self, directory: Path) -> None:
        seconds = self.cpu_seconds / len(os.sched_getaffinity(0))
        _print_notice(
            f"compiling the runtime library of {self.name} into {directory}, once for this machine;"
            f" this takes about {max(1, round(seconds))} s"
        )


def _print_notice(message: str) -> None:
    print(f"dnnops: {message}", file=sys.stderr, flush=True)


def _machine_arguments(given: list[str]) -> list[str]:
    """Return the PyTensor compiler options that describe the processor.

    They spell out the meaning of ``-march=native``, so that machines that share a home directory
    each get their own library.
    """
    chosen = []
    for i, argument in enumerate(given):
        if argument.startswith("-m"):
            chosen.append(argument)
        elif argument == "--param":
            chosen += given[i : i + 2]
    return chosen


@contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    """Hold a lock, after waiting for it without a time limit; it is released if the process dies.

    PyTensor's lock can't be used, since after a timeout it is treated as acquired.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_NOTICE_AFTER)
        except Timeout:
            _print_notice(
                f"another process is compiling the runtime library of {name}; waiting for it"
            )
            lock.acquire()
    except NotImplementedError:
        # The file system has no locks. Two processes may then build the same library, but its file
        # still appears atomically.
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _register_dgemm(library: ctypes.CDLL) -> None:
    """Register dgemm of SciPy, a dependency of PyTensor, for the float64 convolution."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["dgemm"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library.dnnops_onednn_set_dgemm(pointer(capsule, name(capsule)))


def _set_scratch_limit(library: ctypes.CDLL) -> None:
    """Set how much scratch memory a thread of the library may keep."""
    from dnnops.config import flag_value

    library.dnnops_onednn_set_scratch_limit(flag_value("onednn.scratch_limit"))


def _keep_freed_memory(library: ctypes.CDLL) -> None:
    """Let the process keep freed memory, as much as the flag says."""
    from dnnops.config import flag_value

    library.dnnops_onednn_keep_freed_memory(flag_value("onednn.kept_memory"))


# Neither errno nor floating-point traps are used. Without errno, loops over square roots are
# vectorized. Without traps, loops that select between two numbers are vectorized for AVX2, too,
# which makes them five times as fast.
ONEDNN = RuntimeLibrary(
    "onednn",
    lambda: (find_onednn(),),
    ("-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    50.0,
    (CHOSEN, CPU),
    [_register_dgemm, _set_scratch_limit, _keep_freed_memory],
)
CUDNN = RuntimeLibrary(
    "cudnn",
    lambda: (find_cudnn(), find_cuda()),
    # PyTensor calls some of its functions, which read Python objects.
    includes_python=True,
    cpu_seconds=60.0,
    headers=(CHOSEN, GPU),
)
#: The runtime libraries by the name that emitted C code uses.
LIBRARIES = {library.name: library for library in (ONEDNN, CUDNN)}
