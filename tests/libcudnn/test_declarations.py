"""Reading headers: the preprocessor, and what declarations become."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.libcudnn.declarations import Type, read_headers
from dnnops.libcudnn.kinds import CudaObject, OnDevice
from dnnops.libcudnn.parameters import classify, classify_all
from dnnops.libcudnn.preprocess import Preprocessor, constant
from dnnops.libcudnn.results import NewNumber, NewStructs
from dnnops.libcudnn.source import write_module
from dnnops.libcudnn.stubs import write_stubs

#: A header of a later version, with what no header has today.
HEADER = """
#if !defined(CUDNN_H_)
#define CUDNN_H_
#include <cuda_runtime_api.h>
#include "cudnn_part.h"
#if defined(__cplusplus)
extern "C" {
#endif
#define CUDNN_MAJOR 9
#define CUDNN_MINOR 99
#define CUDNN_PATCHLEVEL 2
#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + \\
    CUDNN_PATCHLEVEL)
#define CUDNN_FLAGS (1U << CUDNN_LATER)
#define CUDNN_CALL(x) ((x) + 1)
#ifdef CUDNN_WARN_DEPRECATED
#define CUDNN_OLD __attribute__((deprecated))
#elif CUDNN_MINOR < 99
#error unreachable
#else
#define CUDNN_OLD
#endif

typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_LATER_ERROR = 6001 } cudnnStatus_t;
typedef enum {
    CUDNN_NOW CUDNN_OLD = 1, /* one */
    CUDNN_LATER,             // two
    CUDNN_SAME = CUDNN_LATER,
} cudnnTime_t CUDNN_OLD;
typedef struct cudnnThingStruct *cudnnThing_t;

/** @brief Makes a
 *  thing.  @param[out] thing  The thing.
 */
/* Another comment. */
CUDNN_OLD cudnnStatus_t CUDNNWINAPI cudnnCreateThing(cudnnThing_t *thing);
cudnnStatus_t CUDNNWINAPI cudnnUseThing(const cudnnThing_t thing, cudnnTime_t time,
    cudaNew_t object, const void *in, float factors[4], int type);
#if defined(__cplusplus)
}
#endif
#endif
"""


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """Return a folder with headers that have only the names of Debian's packages."""
    (tmp_path / "cudnn_v9.h").write_text(HEADER)
    (tmp_path / "cudnn_part_v9.h").write_text("#define CUDNNWINAPI\n#include <stdint.h>\n")
    return tmp_path


def test_declarations_of_a_later_version(headers: Path):
    declared = read_headers(headers)
    assert declared.version == "9.99.2"
    assert declared.constants["CUDNN_VERSION"] == 99902
    assert declared.constants["CUDNN_FLAGS"] == 4
    assert "CUDNN_CALL" not in declared.constants
    assert declared.enums["cudnnTime_t"] == {"CUDNN_NOW": 1, "CUDNN_LATER": 2, "CUDNN_SAME": 2}
    assert declared.handles == ["cudnnThing_t"]
    create = declared.functions["cudnnCreateThing"]
    assert create.brief == "Makes a thing."
    assert create.directions == {"thing": "out"}
    assert create.parameters[0].type == Type("cudnnThing_t", 1)
    use = classify(declared.functions["cudnnUseThing"], declared)
    assert [type(kind) for kind in use[2:4]] == [CudaObject, OnDevice]
    # Python reserves one name, and the generated function uses the other.
    assert [kind.name for kind in use[3:]] == ["in_", "factors", "type_"]


def test_module_and_stubs_of_a_later_version_are_valid(headers: Path):
    declared = read_headers(headers)
    source = write_module(declared)
    compile(source, "module", "exec")
    assert "cudnnTime = cudnnTime_t" in source
    assert 'factors, _factors_at = _array("f", 4, "4")' in source
    stubs = write_stubs(declared)
    compile(stubs, "stubs", "exec")
    assert "def cudnnCreateThing() -> cudnnThing_t: ..." in stubs


def test_pointer_to_one_number_is_a_result(headers: Path):
    text = HEADER.replace("cudnnThing_t *thing)", "cudnnThing_t *thing, size_t *size)")
    (headers / "cudnn_v9.h").write_text(text)
    declared = read_headers(headers)
    _, size = classify(declared.functions["cudnnCreateThing"], declared)
    assert size == NewNumber("size", "Q")


@pytest.mark.parametrize(
    ("before", "count"),
    [
        ("int requestedCount, int *returnedCount", "requestedCount"),
        ("int mode", "1"),  # an integer that is no number of structs
        ("", "1"),
    ],
)
def test_number_of_structs_that_are_returned(headers: Path, before: str, count: str):
    declared = f"{before}, cudnnPerf_t *perf" if before else "cudnnPerf_t *perf"
    struct = "typedef struct { int algo; float time; } cudnnPerf_t;\n"
    text = HEADER.replace("cudnnThing_t *thing)", f"{declared})")
    text = text.replace(
        "typedef struct cudnnThingStruct", struct + "typedef struct cudnnThingStruct"
    )
    (headers / "cudnn_v9.h").write_text(text)
    found = read_headers(headers)
    perf = classify(found.functions["cudnnCreateThing"], found)[-1]
    limit = "returnedCount" if "returned" in before else ""
    assert perf == NewStructs("perf", count, limit, "cudnnPerf_t")


def test_headers_that_cannot_be_read(headers: Path):
    with pytest.raises(DnnUnavailableError, match=r"have no cudnn\.h"):
        read_headers(headers / "elsewhere")
    (headers / "cudnn_v9.h").write_text("template <typename T> struct cudnnThing;")
    with pytest.raises(DnnUnavailableError, match="cannot be read"):
        read_headers(headers)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("#define CUDNN_PATCHLEVEL 2", "", "CUDNN_PATCHLEVEL"),
        (
            "#define CUDNN_FLAGS",
            "#endif\n#endif\n#endif\n#endif\n#define CUDNN_FLAGS",
            "IndexError",
        ),
    ],
)
def test_headers_that_are_unlike_any(headers: Path, old: str, new: str, message: str):
    (headers / "cudnn_v9.h").write_text(HEADER.replace(old, new))
    with pytest.raises(DnnUnavailableError, match=f"cannot be read: .*{message}"):
        read_headers(headers)


BIG = "typedef struct { int a; long b; } cudnnBig_t;\n"


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ("int cudnnOdd(cudnnBig_t by_value);", "by_value has the type cudnnBig_t"),
        ("int cudnnOdd(union cudnnUnion *u);", r"u has the type cudnnUnion \*"),
        ("int cudnnOdd(bool yes);", "yes has the type bool"),
        ("int cudnnOdd(int **numbers);", r"numbers has the type int \*\*"),
        ("int cudnnOdd(char *text);", r"text has the type char \*"),
        ("int cudnnOdd(int, int);", "a parameter has no name"),
        ("cudnnBig_t cudnnOdd(int a);", "it returns cudnnBig_t"),
        ("int *cudnnOdd(int a);", r"it returns int \*"),
        ("int cudnnOdd(int a, int b[sizeof(int)]);", "not a constant expression"),
    ],
)
def test_unusual_function_is_left_out(headers: Path, declaration: str, reason: str):
    """The others can be used, and nothing about this one is guessed."""
    text = HEADER.replace("int type);", f"int type);\n{BIG}{declaration}\n")
    (headers / "cudnn_v9.h").write_text(text)
    declared = read_headers(headers)
    kinds, omitted = classify_all(declared)
    assert set(kinds) == {"cudnnCreateThing", "cudnnUseThing"}
    assert re.search(reason, omitted["cudnnOdd"])
    source = write_module(declared)
    compile(source, "module", "exec")
    assert "def cudnnOdd" not in source
    assert f'"cudnnOdd": {omitted["cudnnOdd"]!r}' in source.replace("'cudnnOdd'", '"cudnnOdd"')
    assert "cudnnOdd" not in write_stubs(declared)


def test_unusual_types_are_left_out(headers: Path):
    """A struct with a wrong size would be worse than none."""
    text = HEADER.replace(
        "int type);",
        "int type);\ntypedef struct { cudnnTime_t t; int from; } cudnnInner_t;\n"
        "typedef struct { cudnnInner_t inner; } cudnnNested_t;\n"
        "typedef enum { CUDNN_CAST = (int)1 } cudnnCast_t;\n",
    )
    (headers / "cudnn_v9.h").write_text(text)
    declared = read_headers(headers)
    assert set(declared.structs) == {"cudnnInner_t"}
    assert {"cudnnNested_t", "cudnnCast_t"} == set(declared.unreadable)
    compile(write_stubs(declared), "stubs", "exec")  # "from" is a keyword of Python


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(1U << 3)", 8),
        ("0x10UL + 1", 17),
        ("1e-5", 1e-5),
        ("!0 && (A >= 2 || 0)", True),
        ("A / 2 % 2", 1),
        ("-A", -3),
        ("~0", -1),
    ],
)
def test_constants(expression: str, value: float):
    assert constant(expression, {"A": 3}) == value


@pytest.mark.parametrize("expression", ["", "B", "f(1)", "1 +", "1 / 0", "(x)0", "'a'"])
def test_other_expressions_are_no_constants(expression: str):
    with pytest.raises(ValueError, match="not a constant expression"):
        constant(expression, {})


def test_conditions(tmp_path: Path):
    (tmp_path / "a.h").write_text(
        "#define ONE 1\n#if ONE == 1 && !defined(TWO)\nint yes;\n#ifdef TWO\nint no;\n#endif\n"
        "#else\nint no;\n#endif\n#if UNKNOWN\nint no;\n#elif ONE\nint also;\n#elif ONE\nint no;\n"
        "#endif\n#undef ONE\nint ONE;\n"
    )
    read = Preprocessor(tmp_path, "a.h")
    assert read.code.split() == ["int", "yes;", "int", "also;", "int", "ONE;"]
