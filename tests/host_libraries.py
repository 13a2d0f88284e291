"""Keep the libraries that tests compile, for all test processes and later runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pytensor import config

from dnnops.runtime.build import c_code_dir
from tests.shared_modules import remove_old

__all__ = ["OWN_SYMBOLS", "compile_once"]

ROOT = Path(__file__).parents[1]
#: Folders whose files a source may include.
SOURCES = (c_code_dir(), Path(__file__).with_name("emulation"))
#: By default, GCC lets all libraries of a process share the static variables of inline functions of
#: the same name. But the same kernel, compiled with other macros, has other variables.
OWN_SYMBOLS = "-fno-gnu-unique"
#: Number of libraries to keep. The tests have about 60.
KEPT = 200


def compile_once(command: Sequence[str], folder: Path) -> None:
    """Run a compiler, or copy what it made in an earlier run from the same sources.

    Parameters
    ----------
    command : sequence of str
        Compiler, options, sources, and ``-o`` with the file to create. What they include must be in
        `SOURCES`, in `folder`, or belong to the compiler. `OWN_SYMBOLS` is added.
    folder : Path
        Where to run it.

    Raises
    ------
    subprocess.CalledProcessError
        If the compilation fails.
    ValueError
        If other headers may be included: nothing would show that they have changed.
    """
    command = [command[0], OWN_SYMBOLS, *command[1:]]
    target = folder / command[command.index("-o") + 1]
    shared = Path(config.base_compiledir) / "dnnops_test_host_libraries"
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = [_hash_of_sources(), _version(command[0]), *_by_contents(command, folder)]
    stored = shared / hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    with suppress(OSError):
        shutil.copy(stored, target)
        return
    subprocess.run(command, cwd=folder, check=True)
    new = stored.with_name(f"{stored.name}.{os.getpid()}")
    shutil.copy(target, new)
    os.replace(new, stored)
    remove_old(shared, KEPT)


def _by_contents(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the words of a command, with the contents of files instead of their places."""
    for before, word in zip(("", *command), command, strict=False):
        file = folder / word.removeprefix("-I")
        if before == "-o":
            yield "output"
        elif word.startswith("-I"):
            known = [str(number) for number, place in enumerate(SOURCES) if place == file]
            if not known:
                raise ValueError(f"{word} is none of {', '.join(map(str, SOURCES))}")
            yield f"-I{known[0]}"
        elif before != "" and not word.startswith("-") and file.is_file():
            yield file.read_text()
        else:
            yield word


@cache
def _hash_of_sources() -> str:
    """Hash the names and contents of all files that a source may include."""
    digest = hashlib.sha256()
    for place in SOURCES:
        for file in sorted(path for path in place.rglob("*") if path.is_file()):
            if file.suffix in (".h", ".hpp", ".cuh", ".cu", ".cpp"):
                digest.update(f"{file.relative_to(ROOT)}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout
