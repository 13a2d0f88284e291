"""Directives that generate parts of the documentation from the code and from recorded runs.

``flags-list`` shows `dnnops.config.FLAGS`, ``passes-list`` shows
`dnnops.rewriting.pipeline.PASSES`, ``example-output`` runs a file of ``examples/`` and shows its
output, ``gpu-record`` shows ``gpu_record.json``, ``benchmark NAME`` shows ``benchmarks/NAME.json``,
and ``speed-chart`` draws the geometric means of several of them. ``nnet-family FOLDER`` documents
the public names of a family. ``components-picture`` and ``call-steps NAME`` show what
``architecture.py`` has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import architecture
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dnnops import nnet
from dnnops.config import FLAGS
from dnnops.rewriting.pipeline import PASSES

DOCS = Path(__file__).parents[1]
# The benchmarks are not part of the package.
sys.path.append(str(DOCS.parent))

from benchmarks import conv_rows  # noqa: E402

#: The benchmark with too many rows for a table.
CONV_SUITE = "conv_suite"
NO_RECORD = "There is no record yet."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> nodes.table:
    """Return a table with text cells."""
    group = nodes.tgroup(cols=len(head))
    for column in zip(head, *rows, strict=True):
        group += nodes.colspec(colwidth=max(map(len, column)))
    for part, content in ((nodes.thead(), [head]), (nodes.tbody(), rows)):
        for cells in content:
            row = nodes.row()
            for cell in cells:
                row += nodes.entry("", nodes.paragraph(text=cell))
            part += row
        group += part
    return nodes.table("", group, classes=["colwidths-auto"])


def literals(title: str, words: Iterable[str], rest: str = "") -> nodes.paragraph:
    """Return a paragraph of comma-separated literals, with plain text at its end."""
    paragraph = nodes.paragraph("", "", nodes.emphasis(text=title), nodes.Text(" "))
    parts: list[nodes.Node] = [nodes.literal(text=word) for word in words]
    if rest:
        parts.append(nodes.Text(rest))
    for number, part in enumerate(parts):
        if number:
            paragraph += nodes.Text(", ")
        paragraph += part
    return paragraph


class NnetFamily(SphinxDirective):
    """The public names of the modules in one folder of ``dnnops/nnet``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = StringList()
        for module, names in sorted(public_names(f"dnnops.nnet.{self.arguments[0]}").items()):
            for line in (f".. automodule:: {module}", f"   :members: {', '.join(names)}", ""):
                lines.append(line, "nnet-family")
        section = nodes.container()
        self.state.nested_parse(lines, 0, section)
        return section.children


def public_names(package: str) -> dict[str, list[str]]:
    """Return the names of `dnnops.nnet` that the modules of a package define."""
    found: dict[str, list[str]] = {}
    for name in nnet.__all__:
        module = getattr(nnet, name).__module__
        if module.startswith(f"{package}."):
            found.setdefault(module, []).append(name)
    return found


def definition(name: str, key: str, *paragraphs: nodes.Node) -> nodes.definition_list_item:
    """Return the definition of a literal name, to which links with the anchor `key` lead."""
    term = nodes.term("", "", nodes.literal(text=name), ids=[key])
    return nodes.definition_list_item("", term, nodes.definition("", *paragraphs))


class FlagsList(SphinxDirective):
    """A list of all flags with their meanings, values and defaults."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(sys.modules["dnnops.config"].__file__)
        flags = nodes.definition_list()
        for flag in FLAGS:
            if flag.follows:
                default = literals("Default:", [], f"that of {flag.follows}")
            elif flag.default_doc or not flag.default:
                default = literals("Default:", [], flag.default_doc or "empty")
            else:
                default = literals("Default:", [str(flag.default)])
            values = literals("Values:", flag.values.words, flag.values.others)
            doc = nodes.paragraph(text=flag.doc)
            flags += definition(flag.name, f"flag-{flag.key}", doc, values, default)
        return [flags]


class PassesList(SphinxDirective):
    """A list of the rewriting passes with positions, reasons for the positions, and tags."""

    def run(self) -> list[nodes.Node]:
        for name in [name for name in sys.modules if name.startswith("dnnops.rewriting.passes.")]:
            self.env.note_dependency(sys.modules[name].__file__)
        passes = nodes.definition_list()
        for step in PASSES:
            position = literals("Position:", [], f"{step.position:g}. {step.reason}")
            tags = literals("Tags:", step.tags)
            passes += definition(step.name, f"pass-{step.name}", position, tags)
        return [passes]


class ComponentsPicture(SphinxDirective):
    """The components of the package and the direction of imports."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(architecture.__file__)
        return [nodes.raw("", architecture.picture(), format="html")]


class CallSteps(SphinxDirective):
    """The steps of a convolution on a device, numbered."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(architecture.__file__)
        steps = nodes.enumerated_list(enumtype="arabic", prefix="", suffix=".", classes=["steps"])
        for step in architecture.CALLS[self.arguments[0]]:
            names = nodes.paragraph(
                "", "", nodes.literal(text=step.function), nodes.Text(" in "),
                nodes.literal(text=step.file),
            )  # fmt: skip
            item = nodes.list_item("", names)
            text = StringList([step.text[:1].upper() + step.text[1:]], architecture.__file__)
            self.state.nested_parse(text, self.content_offset, item)
            steps += item
        return [steps]


class ExampleOutput(SphinxDirective):
    """The output of ``examples/NAME``, or an error if it fails.

    With ``:elide:``, the parameters of Ops are shortened to an ellipsis. The whole output becomes a
    file in the folder ``DNNOPS_EXAMPLE_OUTPUTS``, if this variable is set.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"elide": directives.flag}

    def run(self) -> list[nodes.Node]:
        path = DOCS.parent / "examples" / self.arguments[0]
        self.env.note_dependency(str(path))
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(DOCS.parent)},
            timeout=300,
        )
        if done.returncode != 0:
            raise self.error(f"{path} failed:\n{done.stderr}")
        text = done.stdout
        if folder := os.environ.get("DNNOPS_EXAMPLE_OUTPUTS"):
            Path(folder, f"{self.arguments[0]}.txt").write_text(text, encoding="utf-8")
        if "elide" in self.options:
            text = re.sub(r"\{[^}]*\}", "{…}", text)
        block = nodes.literal_block(text, text)
        block["language"] = "text"
        return [block]


class GpuRecord(SphinxDirective):
    """The record of the last run of the GPU tests."""

    def run(self) -> list[nodes.Node]:
        path = DOCS / "gpu_record.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            return [nodes.paragraph(text=NO_RECORD)]
        record = json.loads(path.read_text())
        skipped = record.pop("skipped", [])
        configurations = record.pop("configurations", {})
        reasons = count_reasons(skipped)
        if "commit" in record:
            record["commit"] = record["commit"][:12]
        rows = [(key, str(value)) for key, value in record.items()]
        rows.append(("skipped", str(sum(reasons.values()))))
        result: list[nodes.Node] = [table(("Property", "Value"), rows)]
        if reasons:
            result.append(nodes.paragraph(text="Tests were skipped for these reasons:"))
            counts = [(reason, str(count)) for reason, count in reasons.most_common()]
            result.append(table(("Reason", "Tests"), counts))
        if configurations:
            words = (
                "The tests ran each Op in this number of configurations, outside of compiled"
                " functions. Configurations differ in parameters, or in the shapes, strides or"
                " dtypes of operands."
            )
            result.append(nodes.paragraph(text=words))
            counts = [(name, str(count)) for name, count in configurations.items()]
            result.append(table(("Op", "Configurations"), counts))
        return result


def count_reasons(skipped: Any) -> Counter[str]:
    """Count skipped tests by reason, given a mapping to counts or a list of reasons or of tests."""
    if isinstance(skipped, dict):
        return Counter(
            {
                reason: tests if isinstance(tests, int) else len(tests)
                for reason, tests in skipped.items()
            }
        )
    return Counter(entry["reason"] if isinstance(entry, dict) else str(entry) for entry in skipped)


class Benchmark(SphinxDirective):
    """The record ``benchmarks/NAME.json``: the machine, the picture, and a folded table."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        path = DOCS / "benchmarks" / f"{name}.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            return [nodes.paragraph(text=NO_RECORD)]
        record = json.loads(path.read_text())
        result: list[nodes.Node] = [nodes.paragraph(text=machine_line(record["machine"]))]
        for suffix in (".svg", ".png"):
            if path.with_suffix(suffix).exists():
                uri = f"benchmarks/{name}{suffix}"
                # A scaled image links to the full size, which a narrow screen needs.
                result.append(nodes.image(uri=uri, alt=name.replace("_", " "), width="100%"))
                break
        if name == CONV_SUITE:
            return result + suite_nodes(record["rows"])
        rows = [with_ratios(row) for row in record["rows"]]
        head = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[show(row.get(key, "")) for key in head] for row in rows]
        return result + folded(f"All {len(rows)} rows", [table(head, cells)])


def machine_line(machine: dict[str, Any]) -> str:
    """Return a line with the machine and the versions of a record."""
    device = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    names = {"cudnn": "cuDNN", "onednn": "oneDNN", "torch": "PyTorch", "jax": "JAX"}
    versions = [f"{names[key]} {machine[key]}" for key in names if key in machine]
    return f"{device}; {', '.join(versions)}; {machine['date'][:10]}."


def folded(summary: str, content: list[nodes.Node]) -> list[nodes.Node]:
    """Fold nodes in HTML; other formats show them in full."""
    opening = f"<details><summary>{escape(summary)}</summary>"
    return [
        nodes.raw("", opening, format="html"),
        *content,
        nodes.raw("", "</details>", format="html"),
    ]


#: The rows of the chart: title, record, key of dnnops' time, and peers with their keys.
CHART = (
    ("CPU, training step of a VGG-like network", "cpu_training", "dnnops_ms",
     {"PyTorch": "torch_ms", "PyTorch, NHWC": "torch_channels_last_ms"}),
    ("CPU, training step of an LSTM or GRU", "rnn_cpu", "dnnops_ms", {"PyTorch": "torch_ms"}),
    ("H100 and H200, whole networks", "gpu_models", "dnnops_ms",
     {"PyTorch": "torch_ms", "PyTorch, graph": "torch_graph_ms",
      "torch.compile": "torch_compile_ms", "JAX": "jax_ms"}),
    ("H200, convolutions and their gradients", "conv_suite", "time_ms",
     {"PyTorch": "torch_ms", "JAX": "jax_ms"}),
    ("H200, training step of an LSTM or GRU", "rnn_gpu", "dnnops_ms", {"PyTorch": "torch_ms"}),
    ("H200, batch normalization with gradients", "norm_gpu", "dnnops_ms",
     {"PyTorch": "torch_ms", "JAX": "jax_ms"}),
    ("H200, attention", "attention_gpu", "dnnops_ms", {"PyTorch": "torch_ms"}),
    ("H200, training step of the demo", "gpu_demo", "dnnops_ms", {"PyTorch": "torch_ms"}),
)  # fmt: skip


class SpeedChart(SphinxDirective):
    """Times of peers relative to dnnops, as geometric means over the rows of each record."""

    def run(self) -> list[nodes.Node]:
        html = ['<div class="speed">']
        for words, name, ours, peers in CHART:
            path = DOCS / "benchmarks" / f"{name}.json"
            self.env.note_dependency(str(path))
            rows = json.loads(path.read_text())["rows"]
            title = f"{escape(words)} <small>({len(rows)})</small>"
            for peer, key in peers.items():
                found = [row[key] / row[ours] for row in rows if row.get(key) and row.get(ours)]
                html.append(bar(title, peer, conv_rows.geometric_mean(found)))
                title = ""
        html.append("</div>")
        return [nodes.raw("", "".join(html), format="html")]


#: The ratio at the right end of the chart.
END = 2.2


def bar(title: str, peer: str, value: float) -> str:
    """Draw one bar, with a mark at dnnops' time."""
    width, mark = min(value, END) / END * 100, 100 / END
    return (
        f'<div class="bar"><span class="title">{title}</span>'
        f'<span class="peer">{escape(peer)}</span><span class="track">'
        f'<span class="time" style="width:{width:.1f}%"></span>'
        f'<span class="mark" style="left:{mark:.1f}%"></span></span>'
        f'<span class="value">{value:.2f}</span></div>'
    )


def suite_nodes(rows: Sequence[dict[str, Any]]) -> list[nodes.Node]:
    """Return a summary of the convolution suite, its losses, and a link to all rows."""
    figures = [(words, str(count), figure) for words, count, figure in conv_rows.summary(rows)]
    uri = f"benchmarks/{CONV_SUITE}.json"
    link = download_reference("", "", nodes.literal(text=f"{CONV_SUITE}.json"), reftarget=uri)
    found: list[nodes.Node] = [
        *folded("Summary of all rows", [table(("Figure", "Rows", "Value"), figures)]),
        nodes.paragraph("", "", nodes.Text(f"All {len(rows)} rows are in "), link, nodes.Text(".")),
    ]
    if lost := conv_rows.losses(rows):
        words = f"Rows below {conv_rows.LOSS} times the speed of the faster peer, worst first:"
        found.append(nodes.paragraph(text=words))
        head = ("case", "direction", "precision", "layout", "time_ms", "torch_ms", "jax_ms")
        cells = [
            [
                *(show("" if row.get(key) is None else row[key]) for key in head),
                show(conv_rows.ratio(row) or 0.0),
                row.get("plan") or "",
                row.get("why") or conv_rows.why(row),
            ]
            for row in lost
        ]
        found.append(table((*head, "faster peer / dnnops", "plan", "why"), cells))
    return found


def with_ratios(row: dict[str, Any]) -> dict[str, Any]:
    """Add the ratio of each peer's time to that of dnnops: ``dnnops_ms`` and ``PEER_ms``."""
    ratios = {}
    for key, value in row.items():
        peer, _, unit = key.rpartition("_")
        ours = row.get(f"dnnops_{unit}")
        # The host's time of a launch is part of the time.
        is_time = unit in ("ms", "us", "s") and not peer.endswith("_host")
        if peer not in ("", "dnnops") and is_time and ours and value:
            ratios[f"{peer} / dnnops"] = value / ours
    return {**row, **ratios}


def show(value: Any) -> str:
    """Return the text of a cell: measured numbers with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("nnet-family", NnetFamily)
    app.add_directive("flags-list", FlagsList)
    app.add_directive("passes-list", PassesList)
    app.add_directive("components-picture", ComponentsPicture)
    app.add_directive("call-steps", CallSteps)
    app.add_directive("example-output", ExampleOutput)
    app.add_directive("gpu-record", GpuRecord)
    app.add_directive("benchmark", Benchmark)
    app.add_directive("speed-chart", SpeedChart)
    return {"parallel_read_safe": True}
