"""Precompiled headers: reading the same headers takes most of the time to compile a small file."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["precompiled"]


def precompiled(
    folder: Path,
    text: str,
    command: Sequence[str],
    contents: str,
    variants: Sequence[Sequence[str]] = ((),),
) -> Path:
    """Return a header to include first with ``-include``, precompiled if that is possible.

    GCC reads the header itself if other options are used, or another version of the compiler.

    Parameters
    ----------
    folder : Path
        Folder where the header is stored for other processes and later runs.
    text : str
        The header's text.
    command : sequence of str
        Compiler and options.
    contents : str
        What the header includes, or its version. If it changes, the header is compiled again.
    variants : sequence of sequence of str
        Further options; GCC takes the form that was compiled with those that are used.

    Returns
    -------
    Path
        A file beside its precompiled form.
    """
    from filelock import FileLock

    name = hashlib.blake2b(repr((text, command, variants)).encode(), digest_size=8).hexdigest()
    header, compiled = folder / f"{name}.hpp", folder / f"{name}.hpp.gch"
    made_of = folder / f"{name}.made_of"
    key = hashlib.blake2b(contents.encode()).hexdigest()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        if made_of.exists() and made_of.read_text() == key:
            return header
        header.write_text(text)
        compiled.mkdir(exist_ok=True)
        for number, options in enumerate(variants):
            new = folder / f"{name}.new"
            made = [*command, *options, "-x", "c++-header", str(header), "-o", str(new)]
            if subprocess.run(made, capture_output=True).returncode != 0:
                return header
            os.replace(new, compiled / str(number))
        made_of.write_text(key)
    return header
