"""Keep the C modules that PyTensor compiles, for all test processes and later runs.

Each process has its own directory of modules, because PyTensor locks it. Which process runs a test
differs from run to run, so a process would compile again what another has compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytensor.link.c import cmodule

from dnnops.runtime.build import c_code_dir
from dnnops.runtime.compiling import hash_files

__all__ = ["share_modules"]

#: Number of modules to keep. The tests have about 500.
KEPT = 1500


def share_modules(folder: Path) -> None:
    """Let PyTensor's compiler copy a module from a folder if it is there, else store it there.

    Parameters
    ----------
    folder : Path
        Folder of the modules.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # another process may remove the same files
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[KEPT:]:
            path.unlink()
    # What the modules include.
    headers = hash_files(sorted(c_code_dir().rglob("*.h")))
    versions = [headers, *(version(name) for name in ("numpy", "pytensor"))]
    cmodule.output_subprocess_Popen = _Sharing(folder, versions, cmodule.output_subprocess_Popen)


class _Sharing:
    """The function by which PyTensor runs a command."""

    def __init__(self, folder: Path, versions: Sequence[str], run: Callable[..., Any]):
        self.folder, self.versions, self.run = folder, versions, run

    def __call__(self, command: Any, **options: Any) -> Any:
        sources = [word for word in command if word.endswith(f"{os.sep}mod.cpp")]
        if len(sources) != 1 or options or "-o" not in command:
            return self.run(command, **options)
        target = Path(command[command.index("-o") + 1])
        same = [word.replace(f"{target.parent}{os.sep}", "") for word in command]
        key = hashlib.sha256(repr((self.versions, same)).encode())
        key.update(Path(sources[0]).read_bytes())
        stored = self.folder / key.hexdigest()[:32]
        with suppress(OSError):
            shutil.copyfile(stored, target)
            return b"", b"", 0
        result = self.run(command)
        if result[2] == 0:
            new = stored.with_name(f"{stored.name}.{os.getpid()}.{id(result)}")
            shutil.copyfile(target, new)
            os.replace(new, stored)
        return result
