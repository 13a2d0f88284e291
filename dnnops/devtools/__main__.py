"""Run ``python -m dnnops.devtools COMMAND`` in a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dnnops.devtools.new_op import FAMILIES, write_op
from dnnops.errors import DnnError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 for success and 1 for a reported failure."""
    parser = argparse.ArgumentParser(
        prog="dnnops.devtools", description="Tools for those who change dnnops."
    )
    commands = parser.add_subparsers(title="commands", required=True)
    new_op = commands.add_parser(
        "new-op",
        help="write the files of a new Op",
        description="Write the files of a new Op, which works and is tested, to be changed.",
    )
    new_op.add_argument("name", help="name of the function for users, such as local_contrast")
    new_op.add_argument("--family", choices=FAMILIES, default="activation", help="its folder")
    args = parser.parse_args(argv)
    try:
        files = write_op(Path.cwd(), args.name, args.family)
    except (DnnError, OSError) as error:
        print(f"dnnops.devtools new-op: {error}", file=sys.stderr)
        return 1
    print(*(f"wrote {file}" for file in files), sep="\n")
    print("changed dnnops/nnet/__init__.py")
    print(f"next: python -m pytest {files[-1]}, then docs/contributing/adding_an_op.rst")
    return 0


if __name__ == "__main__":
    sys.exit(main())
