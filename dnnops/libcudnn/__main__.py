"""Run ``python -m dnnops.libcudnn stubs FOLDER`` to write type stubs for the installed cuDNN."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dnnops.errors import DnnError
from dnnops.libcudnn.declarations import read_headers
from dnnops.libcudnn.stubs import write_stubs
from dnnops.runtime import output
from dnnops.runtime.find import find_cudnn


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 for success and 1 for a reported failure."""
    parser = argparse.ArgumentParser(
        prog="dnnops.libcudnn", description="Tools for the names of cuDNN's C API."
    )
    commands = parser.add_subparsers(title="commands", required=True)
    stubs = commands.add_parser(
        "stubs",
        help="write type stubs for the installed cuDNN",
        description="Write FOLDER/dnnops/libcudnn/__init__.pyi, for editors and type checkers.",
    )
    stubs.add_argument("folder", type=Path, help="such as typings, where Pyright looks for stubs")
    arguments = parser.parse_args(argv)
    target = arguments.folder / "dnnops" / "libcudnn" / "__init__.pyi"
    try:
        text = write_stubs(read_headers(find_cudnn().include_dirs[0]))
        target.parent.mkdir(parents=True, exist_ok=True)
        output.write(target, text)
    except (DnnError, OSError) as error:
        print(f"dnnops.libcudnn stubs: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
