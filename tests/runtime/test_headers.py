"""The structs, functions and callbacks that Python reads from the C headers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops.errors import STATUS_ERRORS
from dnnops.gpu import algorithms
from dnnops.runtime import headers
from dnnops.runtime.build import CUDNN, ONEDNN, c_code_dir
from dnnops.runtime.headers import CHOSEN, CPU, GPU, RUNTIME, callback, declare, parse, structure
from dnnops.runtime.op import MAX_NDIM

EVERY_HEADER = (RUNTIME, CHOSEN, CPU, GPU)


def structs_of(header: str) -> list[str]:
    """Names of the structs with known fields that a header declares."""
    ffi = parse(header)
    included = set() if header == RUNTIME else set(parse(RUNTIME).list_types()[0])
    kinds = {name: ffi.typeof(name) for name in set(ffi.list_types()[0]) - included}
    return sorted(name for name, kind in kinds.items() if kind.kind == "struct" and kind.fields)


def layout_of(struct: type[Any], name: str) -> list[str]:
    """Conditions that hold if the C struct `name` has the layout of a ctypes class."""
    conditions = [f"sizeof({name}) == {ctypes.sizeof(struct)}"]
    for field, _ in struct._fields_:
        described = getattr(struct, field)
        conditions += [
            f"offsetof({name}, {field}) == {described.offset}",
            f"sizeof((({name} *)0)->{field}) == {described.size}",
        ]
    return conditions


def compile_conditions(folder: Path, header: str, conditions: list[str]) -> str:
    """Return what the compiler says about conditions that should hold after a header."""
    source = folder / "layouts.cpp"
    source.write_text(
        f'#include <cstddef>\n#include "{c_code_dir() / "abi" / header}"\n'
        + "".join(f'static_assert({condition}, "");\n' for condition in conditions)
    )
    command = [config.cxx, "-std=c++17", "-fsyntax-only", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("header", EVERY_HEADER)
def test_layouts_are_those_of_the_compiler(tmp_path, header):
    names = structs_of(header)
    assert names
    conditions = [x for name in names for x in layout_of(structure(name, header), name)]
    assert compile_conditions(tmp_path, header, conditions) == ""


def test_a_wrong_layout_is_noticed(tmp_path):
    class Swapped(ctypes.Structure):
        _fields_ = [("ndim", ctypes.c_int64), ("data", ctypes.c_void_p)]

    found = compile_conditions(tmp_path, RUNTIME, layout_of(Swapped, "dnnops_tensor"))
    assert found.count("static assertion failed") == 3


def test_every_header_is_read():
    folder = c_code_dir() / "abi" / "python"
    assert {f"python/{path.name}" for path in folder.iterdir()} == {CHOSEN, CPU, GPU}


def test_a_change_of_a_header_arrives_in_python(tmp_path, monkeypatch):
    shutil.copytree(c_code_dir() / "abi", tmp_path / "abi")
    header = tmp_path / "abi" / CHOSEN
    before = structure("dnnops_chosen_row", CHOSEN)
    text = header.read_text()
    header.write_text(text.replace("  int64_t ndim;\n", "  int64_t extra, ndim;\n"))
    monkeypatch.setattr(headers, "_ABI", tmp_path / "abi")
    monkeypatch.setattr(headers, "parse", headers.parse.__wrapped__)
    after = structure.__wrapped__("dnnops_chosen_row", CHOSEN)
    assert [name for name, _ in after._fields_ if not hasattr(before, name)] == ["extra"]
    assert after.ndim.offset == before.ndim.offset + 8


def test_constants():
    """Python repeats these, because it needs them before it needs a library."""
    assert len(structure("dnnops_tensor")().shape) == MAX_NDIM
    statuses = parse(RUNTIME).typeof("dnnops_status").relements
    assert {code for code in statuses.values() if code} == set(STATUS_ERRORS)
    knobs = len(structure("dnnops_plan_spec", GPU)().knobs)
    assert len(algorithms.AlgorithmChoice(0).spec()) == 5 + knobs


def check_declared(library: Any, *given: str) -> None:
    for header in given:
        declared = parse(header).dlopen(library._name)
        names = [name for name in dir(declared) if name.startswith("dnnops_")]
        assert names
        for name in names:
            kind = parse(header).typeof(getattr(declared, name))
            function = getattr(library, name)
            assert len(function.argtypes) == len(kind.args)
            if kind.result.cname == "int64_t":
                assert function.restype is ctypes.c_int64


def test_functions_of_the_cpu():
    check_declared(ONEDNN.library, RUNTIME, CHOSEN, CPU)
    with pytest.raises(ctypes.ArgumentError):
        ONEDNN.library.dnnops_onednn_set_scratch_limit("much")


@pytest.mark.needs("cudnn")
def test_functions_of_the_gpu():
    check_declared(CUDNN.library, RUNTIME, CHOSEN, GPU)


def test_library_without_a_declared_function():
    with pytest.raises(AttributeError, match="dnnops_last_error"):
        declare(ctypes.CDLL("libc.so.6"), "libc.so.6", RUNTIME)


def test_callbacks_get_strings_and_pointers():
    given = []

    def flag(message: bytes, number: Any) -> int:
        given.append(message)
        number[0] = 7
        return 1 << 40

    number = ctypes.c_int64()
    function = callback("dnnops_get_error_flag", GPU, flag)
    assert function(b"text", ctypes.byref(number)) == 1 << 40
    assert (given, number.value) == ([b"text"], 7)


def test_callbacks_get_structs():
    def find(case: Any, device: int, plans: Any, capacity: int) -> int:
        plans[1].workspace = case.contents.tensors[2].alignment
        return device + capacity

    case = structure("dnnops_conv_case", GPU)()
    case.tensors[2].alignment = 16
    plans = (structure("dnnops_stored_plan", GPU) * 2)()
    function = callback("dnnops_find_choice", GPU, find)
    assert function(ctypes.byref(case), 3, plans, 2) == 5
    assert [plan.workspace for plan in plans] == [0, 16]


def test_what_cffi_reads_of_a_header():
    text = """
#ifndef X_H
#define X_H
#include <stdint.h>
#define SIZE 8
#define WORDS (2 * SIZE)
#ifdef __cplusplus
extern "C" {
#endif
int f(void);
#ifdef __cplusplus
}
#endif
#endif
"""
    assert headers.declarations(text).split() == ["#define", "SIZE", "8", "int", "f(void);"]
