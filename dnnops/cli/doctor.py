"""Show which compiler, libraries and devices were found, and how to install missing ones."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from dnnops.cli.checks import CPU_CHECKS, GPU_CHECKS, Finding
from dnnops.display import line_width, plain_console, rendered
from dnnops.tables import Column, Table, wrapped

HELP = "show what was found, and what is missing"

_MARKS = {
    "ok": ("ok", "green"),
    "advice": ("warning", "yellow"),
    "missing": ("no", "red"),
    "unneeded": ("-", "dim"),
}
#: Longest words and paths that a narrow terminal shows in one line.
_WORD_WIDTH, _PATH_WIDTH = 20, 24


_COMPILER = "C++ compiler"
_OF_COMPILER = (_COMPILER, "Python headers")


@dataclass(frozen=True)
class Verdict:
    """The verdict on whether graphs run on a device.

    Attributes
    ----------
    works : bool
        Whether graphs run.
    reason : str
        Description of the test that ran, or the reason why no test can run.
    summary : str
        Short reason, for a report that also shows the findings.
    """

    works: bool
    reason: str
    summary: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--check-engines",
        action="store_true",
        help="compare cuDNN's attention engines with NumPy on the GPU instead; takes minutes",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Parameters
    ----------
    args : argparse.Namespace
        Arguments with the attributes `json` and `check_engines`.

    Returns
    -------
    int
        0 if graphs run on the CPU, regardless of the GPU; else 1. With `check_engines`, 0 if the
        results of all engines are right.
    """
    if args.check_engines:
        from dnnops.cli.engines import check_engines

        return check_engines()
    on_cpu, on_gpu = _examine(CPU_CHECKS), _examine(GPU_CHECKS)
    verdicts = {"cpu": judge_cpu(on_cpu), "gpu": judge_gpu(on_gpu)}
    if args.json:
        report = {
            "checks": [asdict(finding) for finding in on_cpu + on_gpu],
            "verdicts": {
                device: {"works": verdict.works, "reason": verdict.reason}
                for device, verdict in verdicts.items()
            },
        }
        print(json.dumps(report, indent=2))
    else:
        print_report({"the CPU": on_cpu, "a GPU": on_gpu}, verdicts)
    return 0 if verdicts["cpu"].works else 1


def _examine(checks: Sequence[Callable[[], Iterable[Finding]]]) -> list[Finding]:
    """Run the checks of one device, until one of them finds that the device is absent."""
    findings: list[Finding] = []
    for check in checks:
        findings += check()
        if any(finding.status == "unneeded" for finding in findings):
            break
    return findings


def judge_cpu(findings: list[Finding]) -> Verdict:
    """Compute a convolution with oneDNN, unless a requirement is missing.

    Parameters
    ----------
    findings : list of Finding
        Results of the checks for the CPU.

    Returns
    -------
    Verdict
        Whether the result was correct, or the reason why nothing was computed.
    """
    # Wheels contain the library, and Python's headers only serve a compiler.
    without = [finding for finding in findings if finding.name not in _OF_COMPILER]
    has_compiler = all(f.status != "missing" or f.where for f in findings if f.name == _COMPILER)
    if lacking := _lacking(findings if has_compiler else without):
        return lacking
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    from dnnops.nnet import conv2d

    image = np.arange(25, dtype="float32").reshape(1, 1, 5, 5)
    filters = np.ones((1, 1, 3, 3), dtype="float32")
    expected = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3)).sum((-1, -2))
    x, w = pt.ftensor4("x"), pt.ftensor4("w")
    try:
        convolve = pytensor.function([x, w], conv2d(x, w), mode="ONEDNN")
        result = convolve(image, filters)
    except Exception as error:  # report any failure to the user
        return Verdict(False, f"a convolution failed: {error}")
    nodes = [type(node.op).__name__ for node in convolve.maker.fgraph.toposort()]
    used = [name for name in nodes if name.startswith("OneDnn")]
    if not used:
        return Verdict(False, f"a convolution did not use oneDNN but ran {', '.join(nodes)}")
    if not np.array_equal(result, expected):
        return Verdict(False, "a convolution gave a wrong result")
    reason = "a convolution ran in oneDNN and gave the right result"
    if has_compiler:
        return Verdict(True, reason)
    slow = "without a C++ compiler, Ops that oneDNN does not compute run in NumPy"
    return Verdict(True, f"{reason}; {slow}", f"works, slowly: {slow}")


def judge_gpu(findings: list[Finding]) -> Verdict:
    """Check whether cuDNN can be used, unless a requirement is missing.

    Parameters
    ----------
    findings : list of Finding
        Results of the checks for the GPU.

    Returns
    -------
    Verdict
        Result of `dnnops.dnn.dnn_available`.
    """
    if lacking := _lacking(findings):
        return lacking
    from dnnops.dnn import dnn_available

    if dnn_available():
        return Verdict(True, "cuDNN can be used")
    return Verdict(False, dnn_available.msg)  # type: ignore[attr-defined]


def _lacking(findings: list[Finding]) -> Verdict | None:
    """Return the verdict on a device with missing requirements, or None if there are none."""
    if any(finding.status == "unneeded" for finding in findings):
        return Verdict(
            False, "there is no NVIDIA GPU in this machine", "none; graphs run on the CPU"
        )
    missing = [finding for finding in findings if finding.status == "missing"]
    if not missing:
        return None
    reason = "; ".join(f"{finding.name}: {finding.value}" for finding in missing)
    return Verdict(False, reason, f"does not work: see {', '.join(f.name for f in missing)}")


def print_report(findings: dict[str, list[Finding]], verdicts: dict[str, Verdict]) -> None:
    """Print the findings as a table, then the commands to install, then the verdicts.

    Parameters
    ----------
    findings : dict
        Findings for each device, in display order.
    verdicts : dict
        Verdict for each device.
    """
    rows = [finding for found in findings.values() for finding in found]
    marks = [_MARKS[finding.status] for finding in rows]
    dim = [color if color == "dim" else "" for _, color in marks]
    table = Table(
        [
            Column("", [finding.name for finding in rows], styles=dim),
            Column(
                "status",
                [word for word, _ in marks],
                whole=True,
                styles=[color for _, color in marks],
            ),
            Column("found", [finding.value for finding in rows], fold=_WORD_WIDTH, styles=dim),
            Column("where", [finding.where for finding in rows], fold=_PATH_WIDTH),
        ],
        ("where",),
    )
    print(rendered(plain_console(), table))

    for device, found in findings.items():
        commands: dict[str, list[str]] = {}
        for finding in found:
            if finding.install:
                commands.setdefault(finding.install, []).append(finding.name)
        if commands:
            print(f"\nTo install for {device}:")
        for command, names in commands.items():
            for part in command.split("; "):
                print(f"    {part}    # {', '.join(names)}")
    print()
    for device, verdict in verdicts.items():
        answer = "works" if verdict.works else "does not work"
        line = f"{device.upper()}: {verdict.summary or f'{answer}: {verdict.reason}'}"
        print("\n".join(wrapped(line, line_width(len(line)))))
