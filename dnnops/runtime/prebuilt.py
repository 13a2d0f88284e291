"""Find runtime libraries that were compiled for a level of x86-64 when the package was built.

A wheel contains the CPU library for each level, so that users don't need a compiler. The file name
contains a hash of the sources. If the C++ sources of a checkout have changed since the build, the
file is ignored and the library is compiled at first use.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

__all__ = ["LEVELS", "PREBUILT_DIR", "levels_of", "prebuilt_name", "supported_levels"]

#: Directory of the prebuilt libraries in the installed package.
PREBUILT_DIR = Path(__file__).resolve().parents[1] / "lib"

#: Levels of the x86-64 psABI, best first, and the names of their instructions in ``/proc/cpuinfo``.
_V3 = frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
LEVELS = {
    "x86-64-v4": _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
    "x86-64-v3": _V3,
}


@lru_cache(maxsize=1)
def supported_levels() -> tuple[str, ...]:
    """Return the levels of `LEVELS` that this machine's processor supports, best first.

    Returns
    -------
    tuple of str
        Empty on other processors, or if the levels can't be determined.
    """
    return levels_of(Path("/proc/cpuinfo")) if platform.machine() == "x86_64" else ()


def levels_of(cpuinfo: Path) -> tuple[str, ...]:
    """Return the levels supported according to a file like ``/proc/cpuinfo``, best first."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return ()
    lines = (line.partition(":") for line in text.splitlines())
    found = next((set(value.split()) for name, _, value in lines if name.strip() == "flags"), set())
    return tuple(level for level, features in LEVELS.items() if features <= found)


def prebuilt_name(library: str, level: str, source_hash: str) -> str:
    """Return the file name of a prebuilt library.

    Parameters
    ----------
    library : str
        Name of the `RuntimeLibrary`.
    level : str
        One of `LEVELS`.
    source_hash : str
        Hash of its sources and headers.

    Returns
    -------
    str
    """
    return f"libdnnops_{library}_{level}_{source_hash}.so"
