"""Code blocks of README.rst and docs/ run as printed, and commands exist."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pytensor import config

from dnnops.__main__ import make_parser
from tests.needs import missing
from tests.project.documented import ROOT, Block, blocks, pages

pytestmark = pytest.mark.needs("checkout")

#: Blocks that are not run, by a part of their text, with the reason. They must compile.
NOT_RUN = {
    "import cudnn\n": "calls cuDNN's frontend",
    "import pycuda.autoinit": "calls PyCUDA and cudnn-python-wrappers",
    "from dnnops import graph as cudnn": "an excerpt of the program at the end of the page",
    "graph.as_op()": "continues that excerpt",
    "graph.time_plans(": "continues that excerpt",
    "X = cupy.random.rand(": "an excerpt of the program at the end of the page",
    "GpuDnnConv(algo=...)": "has placeholders",
    "pymc.sample(nuts_sampler": "compiles with JAX for half a minute",
    "trace = pm.sample()": "samples for half a minute",
}
#: What blocks need beyond the page's other blocks, by a part of their text.
NEEDS = {
    "import torch\n": "torch",
    'astype("bfloat16")': "ml_dtypes",
    'device="cuda1"': "two gpus",
    'transfer("cuda")': "gpu",
    "libcudnn.cudnnCreate() as": "gpu",
    "from dnnops import libcudnn": "cudnn",
}
#: Pages whose blocks continue a program that they include. Other programs run in
#: tests/project/test_examples.py.
CONTINUED = {"docs/layers.rst": "examples/layers.py", "docs/explain.rst": "examples/explain.py"}
#: Pages that time all plans of a large convolution.
SLOW = ("docs/plans/index.rst",)
#: Pages that change what other tests import.
ALONE = ("docs/migrating.rst",)


def _python(page: str) -> list[Block]:
    program = CONTINUED.get(page)
    shown = (ROOT / program).read_text() if program else ""
    return [
        block
        for block in blocks(page)
        if block.kind == "python" or (block.kind == "included" and block.text in shown)
    ]


def _pages() -> Iterator[object]:
    for page in pages():
        if any(block.kind == "python" for block in _python(page)):
            yield pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])


def _why_not(block: Block) -> str:
    """Return why a block is not run here, or an empty string."""
    for part, reason in NOT_RUN.items():
        if part in block.text:
            return reason
    for part, need in NEEDS.items():
        if part in block.text and (reason := missing(need)):
            return f"needs {need}: {reason}"
    return ""


def _compiled(block: Block) -> object:
    # The lines of the page, for tracebacks.
    source = "\n" * block.line + block.text
    return compile(source, block.page, "exec", dont_inherit=True)


@pytest.mark.parametrize("page", list(_pages()))
def test_blocks_run_as_printed(page: str, tmp_path, monkeypatch):
    """From top to bottom in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found = [(block, _compiled(block)) for block in _python(page)]
    if page in ALONE:
        source = "\n".join(block.text for block, _ in found if not _why_not(block))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return
    namespace = {"__name__": "documented"}
    # Set to themselves, so that what a page changes is undone.
    flags = {"dnn__conv__algo_fwd": config.dnn__conv__algo_fwd, "floatX": config.floatX}
    with config.change_flags(**flags):
        for block, code in found:
            if not _why_not(block):
                exec(code, namespace)


@pytest.mark.parametrize("table", [NOT_RUN, NEEDS])
def test_tables_have_no_old_entries(table: dict[str, str]):
    texts = [block.text for page in pages() for block in blocks(page) if block.kind == "python"]
    assert [part for part in table if not any(part in text for text in texts)] == []


def test_included_programs_compile():
    count = 0
    for page in pages():
        for block in blocks(page):
            if block.kind == "included":
                _compiled(block)
                count += 1
    assert count > 10


def _commands() -> Iterator[tuple[str, list[str]]]:
    for page in pages():
        for block in blocks(page):
            for line in block.text.splitlines():
                is_prompt = block.kind == "text" and line.startswith("$ ")
                if block.kind == "bash" or is_prompt:
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    while words and re.match(r"[A-Z_]+=", words[0]):
                        words = words[1:]
                    if words:
                        yield page, words


def _problem(words: list[str]) -> str:
    """Return why a command cannot work, or an empty string."""
    if words[:3] == ["python", "-m", "dnnops"] or words[0] == "dnnops":
        try:
            make_parser().parse_args(words[3:] if words[0] == "python" else words[1:])
        except SystemExit:
            return "dnnops does not accept it"
    elif words[:2] == ["python", "-m"]:
        return "" if importlib.util.find_spec(words[2]) else "there is no such module"
    elif words[0] == "python":
        return "" if (ROOT / words[1]).is_file() else "there is no such program"
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if set(words[1:]) <= set(targets) else "there is no such target"
    elif words[0] == "pip":
        settings = configparser.ConfigParser()
        settings.read(ROOT / "setup.cfg")
        extras = set(re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", " ".join(words)))))
        unknown = extras - set(settings["options.extras_require"])
        return f"there are no extras {unknown}" if unknown else ""
    elif words[0] not in ("export", "apt-get"):
        return "the test does not know this command"
    return ""


def test_commands_exist(capsys: pytest.CaptureFixture[str]):
    """The parser takes those of dnnops; modules, programs, targets and extras exist."""
    commands = list(_commands())
    assert len(commands) > 20
    wrong = [(page, " ".join(words), _problem(words)) for page, words in commands]
    assert [found for found in wrong if found[2]] == []
    assert _problem(["python", "-m", "dnnops", "algos", "--inptu", "1"])
    assert _problem(["pip", "install", "dnnops[everything]"])
