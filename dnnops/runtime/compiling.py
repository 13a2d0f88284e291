"""Making a shared library of C++ sources: in parallel, file by file, and only what changed.

Nothing here knows PyTensor, so that the package's own build can use it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dnnops.errors import DnnUnavailableError

__all__ = [
    "INSTALL_COMPILER",
    "compile_library",
    "hash_files",
    "is_intact",
    "remove_leftovers",
    "unusable_compiler",
]

INSTALL_COMPILER = (
    "install g++ (on Debian and Ubuntu `apt install g++`), or point PyTensor's flag cxx to one"
)
#: How much a failed compilation's message quotes of what the compiler said.
_REASON_LINES = 12
#: Compiled files that are kept for the next build; beyond that the oldest are removed.
_KEPT_OBJECTS = 200
_SCRATCH = "building_"


def hash_files(files: Iterable[Path]) -> str:
    """Hash names and contents of files.

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


def _checksum_file(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _checksum(library: Path) -> str:
    content = library.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def is_intact(library: Path) -> bool:
    """Whether a library exists and has the content that was built.

    A damaged library could crash the process that loads it.
    """
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except (OSError, UnicodeDecodeError):
        return False


def remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left of their builds.

    Parameters
    ----------
    directory : Path
        Where they built. The scratch folders of processes that still run, here or on another
        machine that shares the folder, stay.
    """
    prefix = f"{_SCRATCH}{os.uname().nodename}_"
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
    """Compile sources and link them into a shared library, which appears as a whole or not at all.

    Parameters
    ----------
    target : Path
        The library to make, in a folder that exists. A file with its checksum appears beside it.
    sources : sequence of Path
        C++ files; as many are compiled at a time as there are cores.
    compiler : str
        The C++ compiler.
    arguments : sequence of str
        Its options.
    link_arguments : sequence of str
        What follows the compiled files in the linker's command.
    objects : Path, optional
        A folder that keeps compiled files for later builds.
    key : str
        Everything but the source, the compiler's name and `arguments` that a compiled file depends
        on: its version and the headers.

    Raises
    ------
    DnnUnavailableError
        If the compiler cannot be run or fails; the message quotes it.
    OSError
        If a file cannot be written.
    """
    prefix = f"{_SCRATCH}{os.uname().nodename}_{os.getpid()}_"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as name:
        scratch = Path(name)

        def compiled(source: Path) -> Path:
            made = scratch / f"{source.stem}.o"
            command = [compiler, *arguments, "-c", str(source), "-o", str(made)]
            if objects is None:
                _run(command, target.name)
                return made
            digest = hashlib.sha256(repr((key, compiler, list(arguments))).encode())
            digest.update(source.read_bytes())
            kept = objects / f"{source.stem}_{digest.hexdigest()[:16]}.o"
            if not is_intact(kept):
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
    """Move a file to its place together with its checksum."""
    checksum = _checksum_file(made)
    checksum.write_text(_checksum(made))
    made.replace(kept)
    checksum.replace(_checksum_file(kept))


def _remove_oldest(objects: Path) -> None:
    # Another process may remove the same ones.
    with suppress(OSError):
        files = sorted(objects.glob("*.o"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_KEPT_OBJECTS]:
            file.unlink(missing_ok=True)
            _checksum_file(file).unlink(missing_ok=True)


def unusable_compiler(compiler: str, error: OSError) -> DnnUnavailableError:
    """Make the error of a compiler that cannot be run."""
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
