"""Describe the machine of a measurement."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "resident_mib"]


def describe_machine(threads: int) -> dict[str, Any]:
    """Describe the processor and the date, without loading any library.

    Parameters
    ----------
    threads : int
        Number of threads that the libraries use.

    Returns
    -------
    dict
        First entries of ``machine`` in a benchmark's file.
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
