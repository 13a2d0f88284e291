"""Compile C++ sources into a shared library, in parallel, and only the files that have changed.

This module doesn't import PyTensor, so that the build of the package can use it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.trust import distrust_file

__all__ = [
    "INSTALL_COMPILER",
    "MADE_IN_SCRATCH",
    "MADE_OBJECT",
    "SCRATCH",
    "compile_library",
    "hash_files",
    "is_intact",
    "is_own",
    "remove_leftovers",
    "unusable_compiler",
]

INSTALL_COMPILER = (
    "install g++ (on Debian and Ubuntu `apt install g++`), or point PyTensor's flag cxx to one"
)
#: Number of lines of compiler output that the message of a failed compilation quotes.
_REASON_LINES = 12
#: Number of compiled files to keep for later builds; beyond that the oldest are removed.
_KEPT_OBJECTS = 200
#: Beginning of the names of folders in which libraries are being built.
SCRATCH = "building_"
#: Names of the files in these folders, and in the folder of compiled files.
MADE_IN_SCRATCH = re.compile(r"[\w.-]+\.(o|so)(\.sha256)?")
MADE_OBJECT = re.compile(r"[\w.-]+_[0-9a-f]{16}\.o(\.sha256)?")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def hash_files(files: Iterable[Path]) -> str:
    """Hash the names and contents of files.

    Parameters
    ----------
    files : iterable of Path

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _with_headers(source: Path) -> list[Path]:
    """Return a C++ file and all files that it includes by relative paths, directly or not."""
    found = {source: None}
    pending = [source]
    while pending:
        file = pending.pop()
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            header = Path(os.path.normpath(file.parent / name))
            if header not in found and header.is_file():
                found[header] = None
                pending.append(header)
    return list(found)


def _checksum_file(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _checksum(library: Path) -> str:
    content = library.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def is_intact(library: Path) -> bool:
    """Return whether a library exists and its content matches its checksum.

    A damaged library could crash the process that loads it.
    """
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except (OSError, UnicodeDecodeError):
        return False


def is_own(library: Path) -> bool:
    """Return whether a library is intact, and others could write neither it nor its checksum.

    Only files are examined: others must not be able to write to the directory either.

    Parameters
    ----------
    library : Path

    Returns
    -------
    bool
        False also if a file is missing.
    """
    try:
        own = not any(distrust_file(f.lstat()) for f in (library, _checksum_file(library)))
    except OSError:
        return False
    return own and is_intact(library)


def remove_leftovers(directory: Path) -> None:
    """Remove the scratch folders of builds whose processes were killed.

    The scratch folders of running processes, and of other machines that share the directory, are
    kept.

    Parameters
    ----------
    directory : Path
        Directory of the builds.
    """
    prefix = f"{SCRATCH}{os.uname().nodename}_"
    for leftover in directory.glob(f"{prefix}*"):
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(leftover.name.removeprefix(prefix).split("_")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(leftover, ignore_errors=True)


def compile_library(
    target: Path,
    sources: Sequence[Path],
    compiler: str,
    arguments: Sequence[str],
    link_arguments: Sequence[str],
    objects: Path | None = None,
    key: str = "",
) -> None:
    """Compile sources and link them into a shared library, which is created atomically.

    Parameters
    ----------
    target : Path
        Library to create, in an existing folder. A file with its checksum is created beside it.
    sources : sequence of Path
        C++ files, which are compiled in parallel on all cores.
    compiler : str
        C++ compiler.
    arguments : sequence of str
        Compiler options.
    link_arguments : sequence of str
        Arguments after the compiled files in the linker command.
    objects : Path, optional
        Folder in which to keep compiled files for later builds.
    key : str
        Version of the compiler. The other dependencies of a compiled file are its source, the
        headers that it includes by relative paths, the compiler's name and `arguments`.

    Raises
    ------
    DnnUnavailableError
        If the compiler can't be run or fails. The message quotes its output.
    OSError
        If a file can't be written.
    """
    prefix = f"{SCRATCH}{os.uname().nodename}_{os.getpid()}_"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as name:
        scratch = Path(name)

        def compiled(source: Path) -> Path:
            made = scratch / f"{source.stem}.o"
            command = [compiler, *arguments, "-c", str(source), "-o", str(made)]
            if objects is None:
                _run(command, target.name)
                return made
            digest = hashlib.sha256(repr((key, compiler, list(arguments))).encode())
            digest.update(hash_files(_with_headers(source)).encode())
            kept = objects / f"{source.stem}_{digest.hexdigest()[:16]}.o"
            if not is_own(kept):
                _run(command, target.name)
                _keep(made, kept)
            return kept

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            pending = [pool.submit(compiled, source) for source in sources]
            try:
                parts = [job.result() for job in pending]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        linked = scratch / target.name
        command = [compiler, "-shared", "-Wl,-Bsymbolic", f"-Wl,-soname,{target.name}"]
        _run([*command, *map(str, parts), *link_arguments, "-o", str(linked)], target.name)
        _keep(linked, target)
    if objects is not None:
        _remove_oldest(objects)


def _keep(made: Path, kept: Path) -> None:
    """Move a file to its destination, together with its checksum."""
    checksum = _checksum_file(made)
    checksum.write_text(_checksum(made))
    for file in (made, checksum):
        # Whatever the umask: files that others may write to are not used.
        file.chmod(file.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
    made.replace(kept)
    checksum.replace(_checksum_file(kept))


def _remove_oldest(objects: Path) -> None:
    # Another process may remove the same files.
    with suppress(OSError):
        made = [file for file in objects.glob("*.o") if MADE_OBJECT.fullmatch(file.name)]
        files = sorted(made, key=lambda file: file.stat().st_mtime)
        for file in files[:-_KEPT_OBJECTS]:
            file.unlink(missing_ok=True)
            _checksum_file(file).unlink(missing_ok=True)


def unusable_compiler(compiler: str, error: OSError) -> DnnUnavailableError:
    """Return the error for a compiler that can't be run."""
    return DnnUnavailableError(
        f"the C++ compiler {compiler} cannot be run: {error}; {INSTALL_COMPILER}"
    )


def _run(command: Sequence[str], name: str) -> None:
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise unusable_compiler(command[0], error) from error
    if finished.returncode:
        said = finished.stderr.strip().splitlines()[-_REASON_LINES:]
        reason = "\n".join(said) or f"the compiler's exit status is {finished.returncode}"
        raise DnnUnavailableError(
            f"the runtime library {name} failed to compile: {reason}\n"
            f"The command was: {' '.join(command)}"
        )
