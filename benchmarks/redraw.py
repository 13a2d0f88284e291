"""Draw the pictures of ``docs/benchmarks`` again, from the figures that runs wrote beside them."""

from __future__ import annotations

import json

from benchmarks import cpu, gpu
from benchmarks.report import write_benchmark
from benchmarks.runner import OUTPUT


def main() -> None:
    for part in (*cpu.PARTS, *gpu.PARTS):
        path = OUTPUT / f"{part.file}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            write_benchmark(
                OUTPUT, part.file, part.title, found["machine"], found["rows"], part.draw
            )


if __name__ == "__main__":
    main()
