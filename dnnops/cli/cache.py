"""Show, clear, export or import the plans that are stored between processes."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnops.display import plain_console, rendered, show_size
from dnnops.errors import DnnValueError
from dnnops.tables import Column, Table

if TYPE_CHECKING:
    from dnnops.plans.cache import CacheFile, PlanCache

HELP = "show, clear, export or import the plans selected for convolutions"

# Number of refused entries that an import prints.
_SHOWN_REASONS = 20
# Longest names that stay whole, and columns to leave out on a narrow terminal, in this order.
_LONGEST_NAME = 24
_FIRST_DROPPED = ("plans", "age", "cuDNN", "GPU", "time")
_AGES = (("day", 24 * 3600), ("hour", 3600), ("minute", 60), ("second", 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object instead")
    common.add_argument(
        "--path",
        type=os.path.expanduser,
        metavar="DIR",
        help="folder of the cache (default: that of the flag dnn.conv.cache)",
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True)
    actions.add_parser("show", parents=[common], help="list the entries of the cache")
    actions.add_parser("clear", parents=[common], help="remove all entries of the cache")
    export = actions.add_parser("export", parents=[common], help="write all plans to one file")
    export.add_argument("file", type=Path, metavar="FILE", help="JSON file to write")
    export.add_argument("--force", action="store_true", help="replace the file if it exists")
    import_ = actions.add_parser(
        "import",
        parents=[common],
        help="add the plans of an exported file; newer plans replace older ones",
    )
    import_.add_argument("file", type=Path, metavar="FILE", help="JSON file to read")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Parameters
    ----------
    args : argparse.Namespace
        Arguments with the attributes `action`, `json` and `path`, also `file` for export and
        import, and `force` for export.

    Returns
    -------
    int
        0 for success, 1 if entries of an imported file were refused.

    Raises
    ------
    DnnError
        If the cache is off, or if the cache or a file cannot be used.
    """
    report, lines, status = _ACTIONS[args.action](_open_cache(args.path), args)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(lines))
    return status


def _open_cache(path: str | None) -> PlanCache:
    from dnnops.plans.cache import PlanCache, plan_cache

    if path is not None:
        return PlanCache(path)
    cache = plan_cache()
    if cache is None:
        raise DnnValueError("the flag dnn.conv.cache is off; specify a folder with --path")
    return cache


# The result of an action: its report for JSON, the lines to print otherwise, and the exit status.
_Result = tuple[dict[str, Any], list[str], int]


def _show(cache: PlanCache, args: argparse.Namespace) -> _Result:
    files = list(cache.files())
    intact = [(file, _describe(file)) for file in files if file.entry is not None]
    rows = [row for _, row in sorted(intact, key=lambda pair: (pair[1]["gpu"], pair[1]["case"]))]
    damaged = [file for file in files if file.entry is None]
    size = sum(file.size for file in files)
    report = {
        "path": str(cache.path),
        "number": len(files),
        "size_bytes": size,
        "capacity_bytes": cache.capacity_bytes,
        "entries": rows,
        "unusable": _unusable(damaged),
    }
    lines = _table(rows) if rows else []
    lines += [f"{file.path} is ignored: {file.reason}" for file in damaged]
    capacity = f"{show_size(size)} of at most {show_size(cache.capacity_bytes)}"
    lines.append(f"{_entries(len(files))} in {_place(cache)}, {capacity}")
    return report, lines, 0


def _clear(cache: PlanCache, args: argparse.Namespace) -> _Result:
    removed = cache.clear()
    report = {"path": str(cache.path), "removed": removed}
    return report, [f"removed {_entries(removed)} from {_place(cache)}"], 0


def _export(cache: PlanCache, args: argparse.Namespace) -> _Result:
    exported = cache.export(args.file, force=args.force)
    damaged = [file for file in cache.files() if file.entry is None]
    report = {
        "path": str(cache.path),
        "file": str(args.file),
        "exported": exported,
        "unusable": _unusable(damaged),
    }
    lines = [f"left out {file.path}: {file.reason}" for file in damaged]
    if not cache.path.exists():
        lines.append(f"{cache.path} does not exist")
    lines.append(f"wrote {_entries(exported)} of {cache.path} to {args.file}")
    return report, lines, 0


def _import(cache: PlanCache, args: argparse.Namespace) -> _Result:
    counts = cache.import_(args.file)
    report = {
        "path": str(cache.path),
        "file": str(args.file),
        "imported": counts.imported,
        "kept": counts.kept,
        "refused": list(counts.refused),
    }
    lines = [f"refused {reason}" for reason in counts.refused[:_SHOWN_REASONS]]
    if len(counts.refused) > _SHOWN_REASONS:
        lines.append(f"refused {len(counts.refused) - _SHOWN_REASONS} more; --json lists all")
    lines.append(
        f"{args.file}: {_entries(counts.imported)} imported into {cache.path}, {counts.kept} not"
        f" newer than those there, {len(counts.refused)} refused"
    )
    return report, lines, 1 if counts.refused else 0


_ACTIONS = {"show": _show, "clear": _clear, "export": _export, "import": _import}


def _place(cache: PlanCache) -> str:
    return f"{cache.path}{'' if cache.path.exists() else ', which does not exist'}"


def _unusable(files: list[CacheFile]) -> list[dict[str, str]]:
    return [{"file": str(file.path), "reason": file.reason} for file in files]


def _describe(file: CacheFile) -> dict[str, Any]:
    """Return a row of the table, with further keys for JSON."""
    from dnnops.cli.case_words import case_words, cudnn_words

    entry = file.entry
    assert entry is not None
    return {
        "case": case_words(entry.key),
        "gpu": str(entry.key.get("gpu", "")),
        "driver": str(entry.key.get("driver", "")),
        "cudnn": cudnn_words(entry.key.get("cudnn", "")),
        "plans": [plan._asdict() for plan in entry.choice.plans],
        "date": entry.date.isoformat(),
        "dnnops": entry.version,
        "file": str(file.path),
        "key": entry.key,
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    now = datetime.now(UTC)
    best = [row["plans"][0] for row in rows]
    ages = [_age_words((now - datetime.fromisoformat(row["date"])).total_seconds()) for row in rows]
    counts = [str(len(row["plans"])) for row in rows]
    table = Table(
        [
            Column("convolution", [row["case"] for row in rows], fold=_LONGEST_NAME),
            Column("GPU", [row["gpu"] for row in rows], fold=_LONGEST_NAME),
            Column("cuDNN", [row["cudnn"] for row in rows], fold=_LONGEST_NAME),
            Column("best plan", [plan["name"] for plan in best], fold=_LONGEST_NAME),
            _numbers("time", [f"{plan['time_ms']:.4g} ms" for plan in best]),
            _numbers("plans", counts),
            _numbers("age", ages),
        ],
        _FIRST_DROPPED,
    )
    return [rendered(plain_console(), table), ""]


def _numbers(title: str, cells: list[str]) -> Column:
    return Column(title, cells, right=True, whole=True)


def _entries(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def _age_words(seconds: float) -> str:
    for unit, length in _AGES:
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "now" if seconds > -_AGES[0][1] else "in the future"
