"""Find the libraries and their headers.

Wheels are searched first, then the environment variables that the installers of NVIDIA and Intel
set, conda, and the system directories. For cuDNN, the flags ``dnn.base_path``,
``dnn.include_path`` and ``dnn.library_path`` take precedence over all of these if they are set.

No library is loaded here: versions are read from the headers.
"""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from dnnops.errors import DnnUnavailableError

__all__ = ["Library", "find_cuda", "find_cudnn", "find_onednn"]


#: Where NVIDIA's installers put CUDA.
_TOOLKIT = "/usr/local/cuda"


@dataclass(frozen=True)
class Library:
    """A library with its headers.

    Attributes
    ----------
    name : str
        Name of the library, as its authors spell it.
    include_dirs : tuple of Path
        Directories for ``-I``.
    library : Path
        Shared library to link and load.
    version : tuple of int
        Major, minor and patch number, from the headers.
    origin : str
        Where the library was found: ``wheel``, ``flag dnn.base_path``, ``CUDNN_PATH``, ...
    """

    name: str
    include_dirs: tuple[Path, ...]
    library: Path
    version: tuple[int, int, int]
    origin: str

    @property
    def version_text(self) -> str:
        """Version as text, separated by dots."""
        return ".".join(map(str, self.version))


def _roots(variables: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield directories that may contain ``include`` and ``lib``, best first."""
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix, site.USER_BASE or sys.prefix)):
        yield Path(prefix), "wheel"
    # `uv pip install --target` puts a wheel's lib and include beside the packages.
    for entry in sys.path:
        if entry and Path(entry).is_dir():
            yield Path(entry), "wheel"
    for variable in (*variables, "CONDA_PREFIX"):
        if value := os.environ.get(variable):
            yield Path(value), variable
    for prefix in (_TOOLKIT, "/usr/local", "/usr"):
        yield Path(prefix), "system"


def _wheel_files(distribution: str, name: str) -> list[Path]:
    """Return the paths of the files with this name in an installed distribution.

    The distribution's metadata gives these paths, so the files are found wherever it was installed.
    """
    from importlib import metadata

    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(file.locate()).resolve() for file in files if file.name == name]


def _library_dirs(root: Path) -> list[Path]:
    machine = f"{os.uname().machine}-linux-gnu"
    return [
        root / "lib",
        root / "lib64",
        root / "lib" / machine,
        root / "targets" / machine / "lib",
    ]


def _first_file(directories: Iterable[Path], names: Iterable[str]) -> Path | None:
    names = tuple(names)
    for directory in directories:
        for name in names:
            if (candidate := directory / name).is_file():
                return candidate.resolve()
    return None


def _version(header: Path, prefix: str) -> tuple[int, int, int]:
    text = header.read_text(encoding="utf-8", errors="replace")

    def number(part: str) -> int:
        match = re.search(rf"^\s*#\s*define\s+{prefix}_{part}\w*\s+(\d+)", text, re.MULTILINE)
        if match is None:
            raise DnnUnavailableError(f"{header} does not define {prefix}_{part}")
        return int(match[1])

    return number("MAJOR"), number("MINOR"), number("PATCH")


_ONEDNN = "libdnnl.so.3"
#: The wheels that contain the library and its headers.
_ONEDNN_WHEELS = ("onednn-cpu-gomp", "onednn-devel-cpu-gomp")


@lru_cache(maxsize=1)
def find_onednn() -> Library:
    """Find oneDNN 3 and its headers.

    Returns
    -------
    Library
        The first installation that has both.

    Raises
    ------
    DnnUnavailableError
        If no installation is found. The message says how to install oneDNN.
    """
    for libraries, includes, origin in _onednn_places():
        library = _first_file(libraries, (_ONEDNN,))
        header = _first_file([d / "oneapi" / "dnnl" for d in includes], ("dnnl_version.h",))
        if library is None or header is None:
            continue
        include = header.parents[2]
        # Debian has the version numbers in a separate header.
        for name in ("dnnl_version.h", "dnnl_config.h"):
            try:
                version = _version(header.parent / name, "DNNL_VERSION")
            except (DnnUnavailableError, OSError):
                continue
            if version[0] == 3:
                return Library("oneDNN", (include,), library, version, origin)
    from importlib import metadata

    wheel = _ONEDNN_WHEELS[0]
    installed = next(iter(metadata.distributions(name=wheel)), None) is not None
    lost = installed and not any(path.is_file() for path in _wheel_files(wheel, _ONEDNN))
    raise DnnUnavailableError(
        "oneDNN 3 and its headers were not found in wheels, DNNLROOT, CONDA_PREFIX or the system"
        " directories; "
        + (
            f"{wheel} is installed without its {_ONEDNN}, which `pip install --target` leaves "
            "out: install it with `pip install --prefix`, `uv pip install --target`, or in a "
            "virtual environment"
            if lost
            else f"`pip install {' '.join(_ONEDNN_WHEELS)}` installs both"
        )
    )


def _onednn_places() -> Iterator[tuple[list[Path], list[Path], str]]:
    """Yield directories that may contain the library, directories of headers, and the origin."""
    libraries, headers = (
        _wheel_files(distribution, name)
        for distribution, name in zip(_ONEDNN_WHEELS, (_ONEDNN, "dnnl_version.h"), strict=True)
    )
    yield (
        [path.parent for path in libraries],
        [path.parents[2] for path in headers if path.parts[-3:-1] == ("oneapi", "dnnl")],
        "wheel",
    )
    for root, origin in _roots(("DNNLROOT", "ONEAPI_ROOT")):
        yield _library_dirs(root), [root / "include"], origin


def _flag(name: str) -> str:
    from pytensor import config

    return str(getattr(config, f"dnn__{name}", "") or "")


def _nvidia_wheels() -> Iterator[Path]:
    """Yield the ``nvidia`` directories that NVIDIA's wheels share."""
    for entry in dict.fromkeys([*sys.path, *site.getsitepackages()]):
        directory = Path(entry or ".") / "nvidia"
        if directory.is_dir():
            yield directory


def find_cudnn() -> Library:
    """Find cuDNN 9 and its headers.

    Returns
    -------
    Library
        The first installation that has both.

    Raises
    ------
    DnnUnavailableError
        If no installation is found. The message says where it was searched for and how to install
        it.
    """
    return _find_cudnn(_flag("base_path"), _flag("include_path"), _flag("library_path"))


@lru_cache(maxsize=8)
def _find_cudnn(base_path: str, include_path: str, library_path: str) -> Library:
    names = ("libcudnn.so.9", "libcudnn.so")
    places: list[tuple[list[Path], list[Path], str]] = []
    if base_path or include_path or library_path:
        base = [Path(base_path)] if base_path else []
        includes = [Path(include_path)] if include_path else [root / "include" for root in base]
        libraries = (
            [Path(library_path)]
            if library_path
            else [directory for root in base for directory in _library_dirs(root)]
        )
        places.append(
            (includes, libraries, "flag dnn.base_path, dnn.include_path or dnn.library_path")
        )
    for nvidia in _nvidia_wheels():
        places.append(([nvidia / "cudnn" / "include"], [nvidia / "cudnn" / "lib"], "wheel"))
    for root, origin in _roots(("CUDNN_PATH", "CUDNN_HOME", "CUDA_PATH", "CUDA_HOME")):
        includes = [root / "include", root / "include" / f"{os.uname().machine}-linux-gnu"]
        places.append((includes, _library_dirs(root), origin))
    for includes, libraries, origin in places:
        header = _first_file(includes, ("cudnn_version.h",))
        library = _first_file(libraries, names)
        if header is None or library is None:
            if origin.startswith("flag"):
                raise DnnUnavailableError(
                    f"cuDNN: no cudnn_version.h in {list(map(str, includes))} or no {names[0]} in"
                    f" {list(map(str, libraries))}, where the flags dnn.base_path, dnn.include_path"
                    " and dnn.library_path point"
                )
            continue
        version = _version(header, "CUDNN")
        if version[0] >= 9:
            return Library("cuDNN", (header.parent,), library, version, origin)
    raise DnnUnavailableError(
        "cuDNN 9 and its headers were not found in wheels, CUDNN_PATH, CUDA_PATH, CONDA_PREFIX or"
        " the system directories; `pip install dnnops[cuda13]` (or [cuda12]) installs both"
    )


#: Headers from other wheels than the runtime's. The runtime's headers include the first; cuBLASLt's
#: header includes the last, which belongs to CUDA's C++ core libraries (CCCL).
_OTHER_HEADERS = ("crt/host_defines.h", "cublasLt.h", "nv/target")


@lru_cache(maxsize=1)
def find_cuda() -> Library:
    """Find the CUDA runtime library, its headers and cuBLASLt's, in CuPy's major version of CUDA.

    Returns
    -------
    Library
        ``libcudart`` and the header directories.

    Raises
    ------
    DnnUnavailableError
        If CuPy, the library or a header is missing. The message says which.
    """
    major = _cupy_cuda_major()
    name = f"libcudart.so.{major}"
    missing: list[str] = []
    for places, libraries, origin in _cuda_places(major):
        includes = [*places, *_cupy_cccl()]
        library = _first_file(libraries, (name,))
        header = _first_file(includes, ("cuda_runtime_api.h",))
        if library is None or header is None:
            continue
        lacking = [other for other in _OTHER_HEADERS if _first_file(includes, (other,)) is None]
        if lacking:
            missing.append(f"{header.parent} lacks {', '.join(lacking)}")
            continue
        text = header.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
        number = int(match[1]) if match else 0
        if number // 1000 != major:
            missing.append(f"{header} is for CUDA {number // 1000}, CuPy for CUDA {major}")
            continue
        version = (number // 1000, number % 1000 // 10, number % 10)
        found = tuple(d for d in includes if d.is_dir())
        return Library("CUDA runtime", found, library, version, origin)
    detail = f" ({'; '.join(missing)})" if missing else ""
    raise DnnUnavailableError(
        f"CUDA {major}: the runtime library {name} and its headers were not found{detail};"
        f" `pip install dnnops[cuda{major}]` installs both"
    )


def _cupy_cuda_major() -> int:
    try:
        from cupy_backends.cuda.api import runtime
    except ImportError as error:
        raise DnnUnavailableError(
            f"CuPy cannot be imported ({error}); `pip install dnnops[cuda13]` or dnnops[cuda12]"
            " installs it"
        ) from error
    return runtime.runtimeGetVersion() // 1000


def _cupy_cccl() -> list[Path]:
    """Return the directory of CCCL's headers in CuPy, which compiles its kernels with them."""
    spec = find_spec("cupy")
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder, "_core/include/cupy/_cccl/libcudacxx") for folder in folders or ()]


def _cuda_places(major: int) -> Iterator[tuple[list[Path], list[Path], str]]:
    for nvidia in _nvidia_wheels():
        # Since CUDA 13, all wheels share one directory; before, each had its own.
        shared, runtime = nvidia / f"cu{major}", nvidia / "cuda_runtime"
        cublas = [nvidia / "cublas" / "include", nvidia / "cuda_cccl" / "include"]
        own = [runtime / "include", nvidia / "cuda_nvcc" / "include", *cublas]
        yield [shared / "include"], [shared / "lib"], "wheel"
        yield own, [runtime / "lib"], "wheel"
        # Libraries from a wheel, headers from a toolkit, which may lack those of cuBLASLt.
        for toolkit in (_TOOLKIT, os.environ.get("CUDA_PATH", "")):
            if toolkit:
                includes = [Path(toolkit) / "include", shared / "include", *cublas]
                yield includes, [shared / "lib", runtime / "lib"], "wheel and toolkit"
    for root, origin in _roots(("CUDA_PATH", "CUDA_HOME")):
        yield [root / "include"], _library_dirs(root), origin
