"""Keep the C modules that PyTensor compiles, for all test processes and later runs.

Each process has its own directory of modules, because PyTensor locks it. Which process runs a test
differs from run to run, so a process would compile again what another has compiled. The contents of
headers count, not their folders: another checkout and its virtual environment use the same modules.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.link.c import cmodule

from dnnops.runtime.build import c_code_dir
from dnnops.runtime.compiling import hash_files

__all__ = ["remove_old", "share_modules"]

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
    remove_old(folder, KEPT)
    # What the modules include.
    headers = {
        c_code_dir(): hash_files(sorted(c_code_dir().rglob("*.h"))),
        Path(np.get_include()): version("numpy"),
        Path(cmodule.__file__).with_name("c_code"): version("pytensor"),
    }
    cmodule.output_subprocess_Popen = _Sharing(folder, headers, cmodule.output_subprocess_Popen)


def remove_old(folder: Path, count: int) -> None:
    """Remove the oldest files of a folder that has more than `count`."""
    with suppress(OSError):  # another process may remove the same files
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[count:]:
            path.unlink()


class _Sharing:
    """The function by which PyTensor runs a command.

    Parameters
    ----------
    folder : Path
        Folder of the modules.
    headers : mapping of Path to str
        A hash or version of the headers in a folder, which counts instead of where they are.
    run : callable
        PyTensor's function.
    """

    def __init__(self, folder: Path, headers: Mapping[Path, str], run: Callable[..., Any]):
        self.folder, self.headers, self.run = folder, headers, run

    def __call__(self, command: Any, **options: Any) -> Any:
        sources = [word for word in command if word.endswith(f"{os.sep}mod.cpp")]
        if len(sources) != 1 or options or "-o" not in command:
            return self.run(command, **options)
        target = Path(command[command.index("-o") + 1])
        same = [word.replace(f"{target.parent}{os.sep}", "") for word in self._by_contents(command)]
        key = hashlib.sha256(repr((list(self.headers.values()), same)).encode())
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

    def _by_contents(self, command: Sequence[str]) -> Iterator[str]:
        """Yield the words of a command without the folders of headers whose contents are known.

        Other paths stay: those of libraries become part of the module.
        """
        before = ""
        for word in command:
            if before == "-include":
                yield Path(word).read_text()
            elif word.startswith("-I"):
                yield f"-I{self._place(Path(word[2:]))}"
            else:
                yield word
            before = word

    def _place(self, folder: Path) -> str:
        """Return a folder of headers by what it contains, if that is known."""
        for known, contents in self.headers.items():
            if folder.is_relative_to(known):
                return f"{contents}/{folder.relative_to(known)}"
        return str(folder)
