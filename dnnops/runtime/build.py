"""The runtime libraries: C++ sources of ``c_code/runtime``, compiled once and kept.

A library lies in PyTensor's compiledir under a name that holds a hash of all that it was made of,
so that a change of source, compiler, flags or library version makes a new one beside it. A file
with its size and checksum lies there too: a damaged library, which could crash the process that
loads it, is made anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dnnops.errors import DnnBusyError, DnnUnavailableError
from dnnops.runtime.find import Library, find_cuda, find_cudnn, find_onednn

__all__ = ["CUDNN", "ONEDNN", "RuntimeLibrary", "c_code_dir"]


def c_code_dir() -> Path:
    """Directory of the C and C++ sources that the package ships."""
    return Path(__file__).resolve().parents[1] / "c_code"


_INSTALL_COMPILER = (
    "install g++ (on Debian and Ubuntu `apt install g++`), or point PyTensor's flag cxx to one"
)
#: How much a failed compilation's message quotes of what the compiler said.
_REASON_LINES = 12


def _checksum_file(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _checksum(library: Path) -> str:
    content = library.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def _is_intact(library: Path) -> bool:
    """Whether a library is there and is what was built."""
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except (OSError, UnicodeDecodeError):
        return False


@dataclass(frozen=True)
class RuntimeLibrary:
    """One runtime library: its sources and what it is linked with.

    Attributes
    ----------
    name : str
        Directory below ``c_code/runtime`` and part of the file's name.
    find : callable
        Finds the libraries that it is linked with.
    on_load : list of callable
        Called once with the loaded library, to register what it needs from Python.
    """

    name: str
    find: Callable[[], tuple[Library, ...]]
    compile_args: tuple[str, ...] = ()
    on_load: list[Callable[[ctypes.CDLL], None]] = field(default_factory=list)

    @cached_property
    def sources(self) -> list[Path]:
        """The library's C++ files."""
        runtime = c_code_dir() / "runtime"
        return [
            source
            for part in (self.name, "common")
            for source in sorted((runtime / part).glob("*.cpp"))
        ]

    @cached_property
    def source_hash(self) -> str:
        """Hash of the sources and headers: enters the key of every C module that links it."""
        runtime = c_code_dir() / "runtime"
        digest = hashlib.sha256()
        for directory in (runtime, runtime / "common", runtime / self.name):
            for file in sorted(directory.glob("*.[hc]*")):
                digest.update(file.name.encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    @cached_property
    def path(self) -> Path:
        """The shared library, compiled at the first use.

        Raises
        ------
        DnnUnavailableError
            If a library, the compiler, or a writable compiledir is missing, or if compiling fails.
        DnnBusyError
            If another process is compiling for longer than the flag ``compile__timeout`` allows.
        """
        target = self._recipe[-1]
        if not _is_intact(target):
            self._build(keep_intact=True)
        return target

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library.

        Raises
        ------
        DnnUnavailableError
            If it cannot be made (see `path`) or loaded.
        """
        name = str(self.path)
        try:
            loaded = ctypes.CDLL(name)
        except OSError:
            # Once more from its sources: what it was linked with may have changed since.
            self._build(keep_intact=False)
            try:
                loaded = ctypes.CDLL(name)
            except OSError as error:
                raise DnnUnavailableError(
                    f"the runtime library of {self.name} cannot be loaded: {error}"
                ) from error
        loaded.dnnops_last_error.restype = ctypes.c_char_p
        for register in self.on_load:
            register(loaded)
        return loaded

    @property
    def is_loaded(self) -> bool:
        """Whether `library` has been asked for, so that it is there at no cost."""
        return "library" in self.__dict__

    @cached_property
    def _recipe(self) -> tuple[str, list[str], tuple[Library, ...], Path]:
        """Compiler, its arguments, the libraries to link, and the file to make of that."""
        from pytensor import config

        if not config.cxx:
            raise DnnUnavailableError(f"dnnops needs a C++ compiler: {_INSTALL_COMPILER}")
        if shutil.which(config.cxx) is None:
            raise DnnUnavailableError(
                f"the C++ compiler {config.cxx}, which PyTensor's flag cxx names, was not found:"
                f" {_INSTALL_COMPILER}"
            )
        libraries = self.find()
        try:
            arguments = self._arguments(libraries)
        except OSError as error:
            raise self._unusable_compiler(config.cxx, error) from error
        digest = hashlib.sha256(
            repr(
                (
                    self.source_hash,
                    config.cxx,
                    config.gcc_version_str,
                    arguments,
                    [(lib.library, lib.version) for lib in libraries],
                )
            ).encode()
        ).hexdigest()[:16]
        target = Path(config.compiledir) / "dnnops" / f"libdnnops_{self.name}_{digest}.so"
        return config.cxx, arguments, libraries, target

    def _build(self, keep_intact: bool) -> None:
        """Make the library under PyTensor's lock, unless another process just has.

        A process that has loaded the old file is not disturbed: the new one takes its name only.
        """
        from filelock import Timeout
        from pytensor import config
        from pytensor.compile.compilelock import lock_ctx

        directory = self._recipe[-1].parent
        try:
            with lock_ctx():
                if keep_intact and _is_intact(self._recipe[-1]):
                    return
                directory.mkdir(parents=True, exist_ok=True)
                # Who holds the lock is the only one who builds: these are of killed processes.
                for leftover in directory.glob("building_*"):
                    shutil.rmtree(leftover, ignore_errors=True)
                self._compile(*self._recipe)
        except Timeout as error:  # an OSError, too
            raise DnnBusyError(
                f"another process is compiling in {config.compiledir}: its lock was not free after"
                f" {config.compile__timeout} seconds; try again later, or wait for longer with"
                " PyTensor's flag compile__timeout"
            ) from error
        except OSError as error:
            raise DnnUnavailableError(
                f"the runtime library of {self.name} cannot be written to {directory}: {error};"
                " point PyTensor's flag base_compiledir to a directory that is writable and has"
                " space"
            ) from error

    @staticmethod
    def _unusable_compiler(cxx: str, error: OSError) -> DnnUnavailableError:
        return DnnUnavailableError(
            f"the C++ compiler {cxx} cannot be run: {error}; {_INSTALL_COMPILER}"
        )

    def _arguments(self, libraries: tuple[Library, ...]) -> list[str]:
        from pytensor.link.c.cmodule import GCC_compiler

        # PyTensor's own flags hold -march of this machine, so that a shared home stays right.
        own = [flag for flag in GCC_compiler.compile_args() if not flag.startswith("-fvisibility")]
        includes = [f"-I{directory}" for lib in libraries for directory in lib.include_dirs]
        return [
            *own,
            "-std=c++17",
            "-O3",
            "-fPIC",
            "-fvisibility=hidden",
            *self.compile_args,
            *includes,
        ]

    def _compile(
        self, cxx: str, arguments: list[str], libraries: tuple[Library, ...], target: Path
    ) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="building_") as scratch:
            objects = [Path(scratch) / f"{source.stem}.o" for source in self.sources]
            commands = [
                [cxx, *arguments, "-c", str(source), "-o", str(made)]
                for source, made in zip(self.sources, objects, strict=True)
            ]
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._run, commands))
            linked = Path(scratch) / target.name
            rpaths = dict.fromkeys(f"-Wl,-rpath,{lib.library.parent}" for lib in libraries)
            self._run(
                [
                    cxx,
                    "-shared",
                    "-Wl,-Bsymbolic",
                    f"-Wl,-soname,{target.name}",
                    *self.compile_args,
                    *map(str, objects),
                    *(str(lib.library) for lib in libraries),
                    *rpaths,
                    "-ldl",
                    "-o",
                    str(linked),
                ]
            )
            checksum = _checksum_file(linked)
            checksum.write_text(_checksum(linked))
            linked.replace(target)
            checksum.replace(_checksum_file(target))

    def _run(self, command: list[str]) -> None:
        try:
            finished = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise self._unusable_compiler(command[0], error) from error
        if finished.returncode:
            said = finished.stderr.strip().splitlines()[-_REASON_LINES:]
            reason = "\n".join(said) or f"the compiler's exit status is {finished.returncode}"
            raise DnnUnavailableError(
                f"the runtime library of {self.name} failed to compile: {reason}\n"
                f"The command was: {' '.join(command)}"
            )

    def __hash__(self) -> int:
        return hash(self.name)


def _register_dgemm(library: ctypes.CDLL) -> None:
    """Give the float64 convolution SciPy's BLAS, which is there wherever PyTensor is."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["dgemm"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library.dnnops_onednn_set_dgemm(ctypes.c_void_p(pointer(capsule, name(capsule))))


# Without errno, which nobody reads, a loop over square roots becomes vector code.
ONEDNN = RuntimeLibrary(
    "onednn", lambda: (find_onednn(),), ("-fopenmp", "-fno-math-errno"), [_register_dgemm]
)
CUDNN = RuntimeLibrary("cudnn", lambda: (find_cudnn(), find_cuda()))
