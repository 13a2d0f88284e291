"""Check random networks: ``python -m tests.networks --seeds 0:2000 --device cuda -n 16``.

The exit status is 0 if all results are within their bounds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.networks.given_seeds import REPORTS, SEEDS
from tests.networks.settings import DEVICES, Settings


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def _settings(text: str) -> Settings:
    """Return settings from the text that `Settings` prints."""
    call: Any = ast.parse(f"f({', '.join(_words(text))})", mode="eval").body
    return Settings(**{word.arg: ast.literal_eval(word.value) for word in call.keywords})


def _words(text: str) -> list[str]:
    """Split settings at the spaces that are not in a tuple."""
    found: list[str] = []
    for word in text.split(" "):
        if "=" in word:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.networks", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(100), help="SEED or FIRST:END")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("-n", type=int, default=0, help="number of processes; 0 runs in this one")
    parser.add_argument("--steps", type=int, help="number of layers")
    parser.add_argument("--without", default="", help="numbers of layers to leave out")
    parser.add_argument("--settings", type=_settings, help="what a failure has printed")
    given = parser.parse_args(arguments)
    reports = _in_processes(given) if given.n else _here(given)
    return summarize(list(reports), len(given.seeds))


def _here(given: argparse.Namespace) -> Any:
    from dataclasses import asdict

    from tests.networks.examine import examine

    without = {int(number) for number in given.without.split(",") if number}
    for seed in given.seeds:
        report = examine(
            seed, given.device, steps=given.steps, without=without, settings=given.settings
        )
        if report.message:
            print(report.message, flush=True)
        yield asdict(report)


def _in_processes(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the seeds with pytest-xdist."""
    seeds = f"{given.device}:{given.seeds.start}:{given.seeds.stop}"
    with tempfile.TemporaryDirectory(prefix="dnnops_networks_") as folder:
        environment = {**os.environ, SEEDS: seeds, REPORTS: folder}
        environment.setdefault("DNNOPS_TEST_COMPILEDIRS", f"{folder}/modules")
        test = str(Path(__file__).with_name("given_seeds.py"))
        command = [sys.executable, "-m", "pytest", "-q", "--dist", "worksteal", "-n", str(given.n)]
        subprocess.run([*command, test], env=environment, check=False)
        lines = [
            line for path in Path(folder).glob("*.jsonl") for line in path.read_text().splitlines()
        ]
    return [json.loads(line) for line in lines]


def summarize(reports: list[dict[str, Any]], wanted: int) -> int:
    """Print what reports contain, and return an exit status.

    Parameters
    ----------
    reports : list of dict
        Reports of seeds, as dictionaries.
    wanted : int
        Number of seeds that should have run.
    """
    failed = [report for report in reports if report["message"]]
    outcomes = [report["outcome"] for report in reports]
    compared, uncertain = (sum(o[key] for o in outcomes) for key in ("compared", "uncertain"))
    worst = max((o["worst"] for o in outcomes), default=0.0)
    print(f"{len(reports)} of {wanted} networks, {len(failed)} failed")
    print(f"{compared} results compared, {uncertain} ill-conditioned; {worst:.2g} of a bound")
    notes = Counter(note for o in outcomes for note in set(o["notes"]))
    for note, count in notes.most_common(20):
        print(f"{count:6d} networks: {note}")
    for report in failed:
        print(f"seed {report['seed']}: {report['message'].splitlines()[0]}")
    return 0 if reports and not failed and len(reports) == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
