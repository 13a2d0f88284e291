"""The runtime libraries' table of nodes' selections, and the lines of dnn.verbose."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from typing import Any

import pytest
from pytensor import config

from dnnops.runtime.build import c_code_dir
from dnnops.runtime.headers import CHOSEN, declare, structure
from dnnops.runtime.op import empty_tensors

ROW = structure("dnnops_chosen_row", CHOSEN)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The library's table, with the functions that only C++ may call."""
    folder = tmp_path_factory.mktemp("table")
    common = c_code_dir() / "common"
    (folder / "probe.cpp").write_text(
        f"""
        #include "{common / "chosen.cpp"}"
        extern "C" {{
        using namespace dnnops;
        void remember(int64_t node, const Chosen *row) {{ remember_chosen(node, *row); }}
        void forget(int64_t node) {{ forget_chosen(node); }}
        int64_t size() {{ return table().statistics().size; }}
        void print(const Chosen *row) {{ print_chosen("Op", *row); }}
        void print_once(const Chosen *row) {{ print_chosen_once("Op", *row); }}
        void make(const dnnops_tensor *arrays, const char *plan, Chosen *row) {{
          *row = make_chosen(1, arrays[0], arrays[1], arrays[2], plan, "guessed");
        }}
        }}
        """
    )
    library = folder / "probe.so"
    options = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [config.cxx, *options, str(folder / "probe.cpp"), "-o", str(library)], check=True
    )
    loaded = ctypes.CDLL(str(library))
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, types in {
        "remember": [number, pointer],
        "forget": [number],
        "print": [pointer],
        "print_once": [pointer],
        "make": [pointer, ctypes.c_char_p, pointer],
    }.items():
        getattr(loaded, name).argtypes = types
    loaded.size.restype = number
    declare(loaded, str(library), CHOSEN)
    yield loaded
    for node in range(6000):
        loaded.forget(node)


def row_of(plan: str = "p", **members) -> Any:
    row = ROW(plan=plan.encode(), source=b"timed", workspace=-1, time_ms=float("nan"), ndim=4)
    for name, shape in (("image", (2, 3, 9, 8)), ("filters", (4, 3, 3, 3)), ("top", (2, 4, 7, 6))):
        getattr(row, name)[:4] = shape
    for name, value in members.items():
        setattr(row, name, value)
    return row


def read(table, node: int) -> Any:
    row = ROW()
    return row if table.dnnops_chosen(node, ctypes.byref(row)) else None


def test_table(table):
    assert read(table, 5) is None
    table.remember(5, ctypes.byref(row_of("first")))
    table.remember(5, ctypes.byref(row_of("second", workspace=7, time_ms=0.5)))
    row = read(table, 5)
    assert (row.plan, row.source, row.workspace, row.time_ms) == (b"second", b"timed", 7, 0.5)
    assert tuple(row.image[:4]) == (2, 3, 9, 8)
    assert table.size() == 1
    table.forget(5)
    table.forget(5)
    assert read(table, 5) is None
    # Calls that belong to no node.
    table.remember(0, ctypes.byref(row_of()))
    table.forget(0)
    assert table.size() == 0


def test_table_is_bounded(table):
    for node in range(1, 5001):
        table.remember(node, ctypes.byref(row_of(f"plan{node}")))
        if node > 4096:
            # The one that was remembered first, of those that are left.
            assert read(table, node - 4096) is None
    assert table.size() == 4096
    assert read(table, 905).plan == b"plan905"
    assert read(table, 5000).plan == b"plan5000"
    for node in range(1, 5001):
        table.forget(node)
    assert table.size() == 0


def test_long_names_are_cut(table):
    operands = empty_tensors(3)
    for operand in operands:
        operand.ndim = 4
    row = ROW()
    table.make(operands, b"engine" + b"9" * 300, ctypes.byref(row))
    assert row.plan == b"engine" + b"9" * 249


def test_table_in_threads(table):
    """Each thread writes, reads and forgets its own nodes, and some that all share."""
    wrong = []

    def work(thread: int) -> None:
        for i in range(2000):
            own, shared = 1000 * (thread + 1) + i % 100, 1 + i % 7
            for node in (own, shared):
                table.remember(node, ctypes.byref(row_of(f"{node}:{thread}:{i}" + "x" * 200)))
            mine, anybodys = read(table, own), read(table, shared)
            if not mine.plan.startswith(f"{own}:{thread}:{i}x".encode()):
                wrong.append(mine.plan)
            if anybodys and not re.fullmatch(rf"{shared}:\d:\d+x{{200}}", anybodys.plan.decode()):
                wrong.append(anybodys.plan)
            table.forget(own if i % 3 else shared)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lines(table, capfd):
    # The GPU's form.
    row = row_of("engine7_k2=4", workspace=int(12.3 * 2**20), time_ms=0.04021, dtype=2)
    row.image[:4], row.filters[:4] = (64, 128, 28, 28), (128, 128, 3, 3)
    others = {
        "512 B workspace (": {"workspace": 512},
        "no workspace, 36.1 ms (": {"workspace": 0, "time_ms": 36.12},
        "p, 1234 ms (": {"time_ms": 1234.4},
        "p (": {},
        "p, 1.0 MiB workspace (": {"workspace": 2**20 - 1},
        "p, 2048.0 GiB workspace (": {"workspace": 2**41},
    }
    table.print(ctypes.byref(row))
    for members in others.values():
        table.print(ctypes.byref(row_of(**members)))
    table.print_once(ctypes.byref(row))
    table.print_once(ctypes.byref(row))
    first, *lines, once = capfd.readouterr().err.splitlines()
    assert first == (
        "dnnops: Op 64x128x28x28 * 128x128x3x3 float16: engine7_k2=4, 12.3 MiB workspace,"
        " 0.0402 ms (timed)"
    )
    assert once == first
    for line, end in zip(lines, others, strict=True):
        assert line.startswith("dnnops: Op 2x3x9x8 * 4x3x3x3 float32: p")
        assert line.endswith(end + "timed)"), line
