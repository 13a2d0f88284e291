"""Redraw the pictures in ``docs/benchmarks`` from the stored figures."""

from __future__ import annotations

import json

from benchmarks import attention, conv_suite, cpu, gpu, models, norm, rnn
from benchmarks.conv_rows import draw_suite
from benchmarks.report import write_benchmark
from benchmarks.runner import OUTPUT


def main() -> None:
    parts = [*cpu.PARTS, *gpu.PARTS, *norm.PARTS, *rnn.PARTS.values(), *attention.PARTS]
    parts.append(models.PART)
    pictures = [(part.file, part.title, part.draw) for part in parts]
    pictures.append((conv_suite.FILE, conv_suite.TITLE, draw_suite))
    for file, title, draw in pictures:
        path = OUTPUT / f"{file}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            write_benchmark(OUTPUT, file, title, found["machine"], found["rows"], draw)


if __name__ == "__main__":
    main()
