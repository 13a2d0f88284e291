"""Runtime libraries that were compiled when the package was built, for levels of x86-64.

A wheel holds the CPU's library once for each level, so that its users need no compiler and wait for
none. Its name holds a hash of the sources: in a checkout whose C++ has changed since, it no longer
fits, and the library is compiled at first use as if there were none.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

__all__ = ["LEVELS", "PREBUILT_DIR", "levels_of", "prebuilt_name", "supported_levels"]

#: Where they lie in the installed package.
PREBUILT_DIR = Path(__file__).resolve().parents[1] / "lib"

#: Levels of the x86-64 psABI, best first, and what ``/proc/cpuinfo`` calls their instructions.
_V3 = frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
LEVELS = {
    "x86-64-v4": _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
    "x86-64-v3": _V3,
}


@lru_cache(maxsize=1)
def supported_levels() -> tuple[str, ...]:
    """The levels of `LEVELS` that this machine's processor has, best first.

    Returns
    -------
    tuple of str
        Empty on other processors, and where they cannot be told.
    """
    return levels_of(Path("/proc/cpuinfo")) if platform.machine() == "x86_64" else ()


def levels_of(cpuinfo: Path) -> tuple[str, ...]:
    """The levels that a file of the form of ``/proc/cpuinfo`` stands for, best first."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return ()
    lines = (line.partition(":") for line in text.splitlines())
    found = next((set(value.split()) for name, _, value in lines if name.strip() == "flags"), set())
    return tuple(level for level, features in LEVELS.items() if features <= found)


def prebuilt_name(library: str, level: str, source_hash: str) -> str:
    """Name the file of a library.

    Parameters
    ----------
    library : str
        Name of the `RuntimeLibrary`.
    level : str
        One of `LEVELS`.
    source_hash : str
        Of its sources and headers.

    Returns
    -------
    str
    """
    return f"libdnnops_{library}_{level}_{source_hash}.so"
