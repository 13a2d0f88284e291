"""The runtime libraries: C++ sources of ``c_code/runtime``, compiled once and kept.

A wheel brings the CPU's library (see `dnnops.runtime.prebuilt`). Otherwise it is compiled at first
use and kept in PyTensor's compiledir, under a name that holds a hash of all that it was made of, so
that a change of source, compiler, options or library version makes a new one beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import sys
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

#: What the runtime libraries are compiled with, whatever the user's flags for PyTensor's modules
#: are: PyMC switches exceptions off there.
_ARGUMENTS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-frtti")
#: How long a process waits for another one's build before it says so.
_SILENCE = 2.0  # seconds


def c_code_dir() -> Path:
    """Directory of the C and C++ sources that the package ships."""
    return Path(__file__).resolve().parents[1] / "c_code"


@cache
def abi_hash() -> str:
    """Hash of the headers that emitted C includes: enters the key of every C module of an Op.

    Such a module finds the functions that it calls when it is instantiated, so that it need not be
    compiled again when a runtime library is.
    """
    headers = [c_code_dir() / "runtime" / name for name in ("dnnops_emit.h", "dnnops_runtime.h")]
    headers += sorted((c_code_dir() / "gpuarray").glob("*.h"))
    headers += sorted((c_code_dir() / "cudnn").glob("*.h"))
    return hash_files(headers)


class Recipe(NamedTuple):
    """What a runtime library is compiled with.

    Attributes
    ----------
    compiler : str
        The C++ compiler.
    arguments : list of str
        Its options.
    libraries : tuple of Library
        What the runtime library is linked with.
    target : Path
        The file to make.
    """

    compiler: str
    arguments: list[str]
    libraries: tuple[Library, ...]
    target: Path


@dataclass(frozen=True, eq=False)
class RuntimeLibrary:
    """One runtime library: its sources and what it is linked with.

    Attributes
    ----------
    name : str
        Directory below ``c_code/runtime`` and part of the file's name.
    find : callable
        Finds the libraries that it is linked with.
    compile_args : tuple of str
        Options of the compiler and the linker besides those of all runtime libraries.
    cpu_seconds : float
        How long compiling it takes one core, roughly, for the line that announces it.
    on_load : list of callable
        Called once with the loaded library, to register what it needs from Python.
    """

    name: str
    find: Callable[[], tuple[Library, ...]]
    compile_args: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    on_load: list[Callable[[ctypes.CDLL], None]] = field(default_factory=list)

    @cached_property
    def sources(self) -> list[Path]:
        """The library's C++ files."""
        return [file for directory in self._directories for file in sorted(directory.glob("*.cpp"))]

    @cached_property
    def source_hash(self) -> str:
        """Hash of the sources and headers."""
        return hash_files([*self._headers, *self.sources])

    @property
    def _directories(self) -> list[Path]:
        return [c_code_dir() / "runtime" / part for part in (self.name, "common")]

    @property
    def _headers(self) -> list[Path]:
        directories = [*self._directories, c_code_dir() / "runtime"]
        return [file for folder in directories for file in sorted(folder.glob("*.h*"))]

    @cached_property
    def path(self) -> Path:
        """The shared library: one that the package brought, or one compiled at the first use.

        Raises
        ------
        DnnUnavailableError
            If a library, the compiler, or a writable compiledir is missing, or if compiling fails.
        """
        return self._prebuilt() or self._built()

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library.

        Raises
        ------
        DnnUnavailableError
            If it cannot be made (see `path`) or loaded.
        """
        loaded = self._load()
        loaded.dnnops_last_error.restype = ctypes.c_char_p
        for register in self.on_load:
            register(loaded)
        return loaded

    @property
    def is_loaded(self) -> bool:
        """Whether `library` has been asked for, so that it is there at no cost."""
        return "library" in self.__dict__

    def address(self, function: str) -> int:
        """The address of an exported function."""
        return ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value or 0

    def _load(self) -> ctypes.CDLL:
        prebuilt = self._prebuilt()
        if prebuilt is not None:
            try:
                # It was linked elsewhere: what is loaded already, it finds by name.
                for library in self.find():
                    ctypes.CDLL(str(library.library))
                return ctypes.CDLL(str(prebuilt))
            except OSError:
                pass  # another release than it was made with: compiling knows better
        try:
            return ctypes.CDLL(str(self._built()))
        except OSError:
            # Once more from its sources: what it was linked with may have changed since.
            self._build(keep_intact=False)
        try:
            return ctypes.CDLL(str(self.recipe.target))
        except OSError as error:
            raise DnnUnavailableError(
                f"the runtime library of {self.name} cannot be loaded: {error}"
            ) from error

    def _prebuilt(self) -> Path | None:
        names = [prebuilt_name(self.name, level, self.source_hash) for level in supported_levels()]
        return next((PREBUILT_DIR / n for n in names if is_intact(PREBUILT_DIR / n)), None)

    def _built(self) -> Path:
        target = self.recipe.target
        if not (_is_private(target.parent) and is_intact(target)):
            self._build(keep_intact=True)
        return target

    @cached_property
    def recipe(self) -> Recipe:
        """What it is compiled with, and the file to make.

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
                f"compiled code cannot be kept: {error} Point PyTensor's flag base_compiledir to a"
                " directory that is writable"
            ) from error
        target = directory / f"libdnnops_{self.name}_{digest}.so"
        return Recipe(config.cxx, arguments, libraries, target)

    def arguments(self, libraries: tuple[Library, ...]) -> list[str]:
        """The compiler's options, but for those that choose the processor.

        Parameters
        ----------
        libraries : tuple of Library
            What `find` found.

        Returns
        -------
        list of str
        """
        includes = [f"-I{directory}" for lib in libraries for directory in lib.include_dirs]
        return [*_ARGUMENTS, *self.compile_args, *includes]

    def link_arguments(self, libraries: tuple[Library, ...], rpath: bool) -> list[str]:
        """The linker's options.

        Parameters
        ----------
        libraries : tuple of Library
            What `find` found.
        rpath : bool
            Whether the file shall remember where these libraries lie.

        Returns
        -------
        list of str
        """
        rpaths = dict.fromkeys(f"-Wl,-rpath,{lib.library.parent}" for lib in libraries if rpath)
        return [*self.compile_args, *(str(lib.library) for lib in libraries), *rpaths, "-ldl"]

    def _build(self, keep_intact: bool) -> None:
        """Make the library, unless another process just has.

        A process that has loaded the old file is not disturbed: the new one takes its name only.
        """
        compiler, arguments, libraries, target = self.recipe
        directory = target.parent
        try:
            _make_private(directory)
            with _lock(directory / "build.lock", self.name):
                if keep_intact and is_intact(target):
                    return
                remove_leftovers(directory)
                objects = directory / "objects"
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
                    f"{config.gcc_version_str} {hash_files(self._headers)}",
                )
        except OSError as error:
            raise DnnUnavailableError(
                f"the runtime library of {self.name} cannot be written to {directory}: {error};"
                " point PyTensor's flag base_compiledir to a directory that is writable and has"
                " space"
            ) from error

    def _announce(self, directory: Path) -> None:
        seconds = self.cpu_seconds / len(os.sched_getaffinity(0))
        _say(
            f"compiling the runtime library of {self.name} into {directory}, once for this machine;"
            f" this takes about {max(1, round(seconds))} s"
        )


def _say(message: str) -> None:
    print(f"dnnops: {message}", file=sys.stderr, flush=True)


def _machine_arguments(given: list[str]) -> list[str]:
    """Of PyTensor's options those that say what processor this is.

    They spell out what ``-march=native`` stands for, so that a home that several machines share has
    a library for each.
    """
    chosen = []
    for i, argument in enumerate(given):
        if argument.startswith("-m"):
            chosen.append(argument)
        elif argument == "--param":
            chosen += given[i : i + 2]
    return chosen


def _is_private(directory: Path) -> bool:
    """Whether nobody but this user or root can put files into a directory."""
    try:
        status = directory.stat()
    except OSError:
        return False
    return _is_own(status) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _make_private(directory: Path) -> None:
    """Make a directory of mode 0700.

    From one that others could write to, everything is removed: whatever is loaded from there runs.

    Raises
    ------
    DnnUnavailableError
        If it belongs to another user.
    OSError
        If it cannot be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise
    if _is_private(directory):
        return
    if not _is_own(directory.stat()):
        raise DnnUnavailableError(
            f"{directory} belongs to another user, who could put libraries there that this process"
            " would load; point PyTensor's flag base_compiledir to a directory of your own"
        )
    directory.chmod(0o700)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    """Hold a lock that ends with the process that holds it, as long as that may take.

    It is not PyTensor's, which is given up after a time, and then counts as held.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_SILENCE)
        except Timeout:
            _say(f"another process is compiling the runtime library of {name}; waiting for it")
            lock.acquire()
    except NotImplementedError:
        # A file system without locks. Two processes may then do the same work; a library appears
        # as a whole either way.
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _register_dgemm(library: ctypes.CDLL) -> None:
    """Register SciPy's dgemm for the float64 convolution: PyTensor always depends on SciPy."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["dgemm"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library.dnnops_onednn_set_dgemm(ctypes.c_void_p(pointer(capsule, name(capsule))))


def _set_scratch_limit(library: ctypes.CDLL) -> None:
    """Tell the library how much scratch memory a thread may keep."""
    from dnnops.config import flag_value

    library.dnnops_onednn_set_scratch_limit(ctypes.c_int64(flag_value("onednn.scratch_limit")))


# Without errno, which nobody reads, a loop over square roots becomes vector code; without traps,
# which nobody sets, loops that choose between two numbers do so for AVX2, too: five times as fast.
ONEDNN = RuntimeLibrary(
    "onednn",
    lambda: (find_onednn(),),
    ("-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    50.0,
    [_register_dgemm, _set_scratch_limit],
)
CUDNN = RuntimeLibrary("cudnn", lambda: (find_cudnn(), find_cuda()), cpu_seconds=60.0)
#: The runtime libraries by name, as emitted C asks for them.
LIBRARIES = {library.name: library for library in (ONEDNN, CUDNN)}
