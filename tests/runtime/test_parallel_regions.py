"""No parallel region of the C++ code may throw: an exception in a thread ends the process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dnnops.runtime.build import c_code_dir

#: Calls that allocate or fail, and may therefore throw.
THROWS = re.compile(
    r"\bstd::(?:vector|string|map|deque|make_unique|make_shared|function)\b|\bnew\b"
    r"|\.(?:resize|reserve|push_back|emplace_back|assign)\(|\b(?:thread_scratch|fail)\("
    r"|\b(?:DNNL|DNNOPS)_CHECK\(|\bthrow\b"
)
#: Functions that call their argument in several threads.
IN_THREADS = re.compile(r"\b(?:by_pieces|for_images|share)\(")
#: Code whose argument or block may throw, because it catches exceptions.
CATCHES = re.compile(r"\bfailures\.run\(|\btry\s*(?=\{)")


def closing(text: str, at: int) -> int:
    """Return the position after the bracket that closes the one at a position."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    waiting = []
    for i in range(at, len(text)):
        if text[i] in pairs:
            waiting.append(pairs[text[i]])
        elif waiting and text[i] == waiting[-1]:
            waiting.pop()
            if not waiting:
                return i + 1
    return len(text)


def statement(text: str, at: int) -> str:
    """Return the statement at a position: a block, or everything up to the end of a loop's body."""
    i = at
    while i < len(text):
        if text[i] == "{":
            return text[at : closing(text, i)]
        if text[i] == "(":
            i = closing(text, i)
        elif text[i] == ";":
            return text[at : i + 1]
        else:
            i += 1
    return text[at:]


def regions(text: str) -> list[str]:
    """Return the code that runs in several threads: parallel regions and arguments."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"\bstd::vector<[^;()]*> \w+;", "", text)  # an empty one allocates nothing
    found = [
        statement(text, match.end())
        for match in re.finditer(r"#pragma omp parallel(?:[^\n\\]|\\\n|\\.)*\n", text)
    ]
    found += [
        text[match.end() : closing(text, match.end() - 1)] for match in IN_THREADS.finditer(text)
    ]
    return found


def throwing(text: str) -> list[str]:
    """Return the calls in a region that may throw outside of a catch."""
    words = []
    for region in regions(text):
        rest = region
        while match := CATCHES.search(rest):
            begin = match.end() if rest[match.end() - 1] != "(" else match.end() - 1
            rest = rest[: match.start()] + rest[closing(rest, begin) :]
        words += [match.group() for match in THROWS.finditer(rest)]
    return words


SOURCES = sorted(
    file for file in c_code_dir().rglob("*") if file.suffix in (".cpp", ".hpp", ".h", ".cuh")
)


def test_there_are_sources():
    assert sum(len(regions(file.read_text())) for file in SOURCES) > 30


PARALLEL = [file for file in SOURCES if regions(file.read_text())]


@pytest.mark.parametrize("source", PARALLEL, ids=lambda file: file.name)
def test_parallel_regions_do_not_throw(source: Path):
    assert not throwing(source.read_text())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#pragma omp parallel\n{ std::vector<T> x(3); }", ["std::vector"]),
        (
            "#pragma omp parallel for if (a(b) > 1)\nfor (int i = 0; i < n; ++i)\n  x[i] = new T;",
            ["new"],
        ),
        ("#pragma omp parallel for\nfor (;;) { if (a) b(c); d.resize(3); }", [".resize("]),
        ("by_pieces(n, [&](int i) { fail(a); });", ["fail("]),
        ("#pragma omp parallel\n{ failures.run([&] { memory.resize(3); }); f(x); }", []),
        ("#pragma omp parallel\n{ try { memory.resize(3); } catch (...) { failed = true; } }", []),
        ("std::vector<T> x(3);\n#pragma omp parallel\n{ x[0] = 1; }\nx.resize(4);", []),
    ],
)
def test_throwing_statements_are_found(text, expected):
    assert throwing(text) == expected
