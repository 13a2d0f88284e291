"""Names of plans, and constants and structs that C++ and Python share; no GPU is needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytensor import config

from dnnops.errors import DnnNotSupportedError, DnnUnavailableError, DnnValueError
from dnnops.flag_values import ALGORITHM_WORDS
from dnnops.gpu.algorithms import (
    APIS,
    DIRECTIONS,
    FORMATS,
    LEGACY_ALGORITHMS,
    MATH_TYPES,
    AlgorithmChoice,
    parse_algorithm,
)
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.fused.conv_activation import ACTIVATIONS, GpuDnnConvActivation
from dnnops.gpuarray.type import GpuArrayType
from dnnops.plans.gpu import NUMERICAL_NOTES, PlanList
from dnnops.runtime.build import CUDNN, c_code_dir

GIVEN = len(ALGORITHM_WORDS)
OPS = dict(zip(DIRECTIONS, (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW), strict=True))
FLAGS = dict(zip(DIRECTIONS, ("algo_fwd", "algo_bwd_data", "algo_bwd_filter"), strict=True))
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)


# -- names ---------------------------------------------------------------------------------


@every_direction
def test_words(direction):
    for number, word in enumerate(ALGORITHM_WORDS):
        assert parse_algorithm(word, direction) == AlgorithmChoice(number)


@every_direction
def test_numbers_and_names(direction):
    for number, name in enumerate(LEGACY_ALGORITHMS[direction]):
        choice = AlgorithmChoice(GIVEN, APIS.index("legacy"), number)
        for given in (number, str(number), name):
            assert parse_algorithm(given, direction) == choice
        for math, math_type in enumerate(MATH_TYPES):
            found = parse_algorithm(f"{name}_{math_type}", direction)
            assert found == AlgorithmChoice(GIVEN, 0, number, math=math)


@pytest.mark.parametrize(
    ("name", "api", "number", "knobs"),
    [
        ("engine7", "graph", 7, ()),
        ("engine0_k2=4", "graph", 0, ((2, 4),)),
        ("engine57_k2=-1_k18=0", "graph", 57, ((2, -1), (18, 0))),
        ("gemm66_k1=20_k2=1_k8=3", "cublaslt", 66, ((1, 20), (2, 1), (8, 3))),
        ("depthwise1_k0=8", "dnnops", 1, ((0, 8),)),
        ("engine1" + "_k3=1" * 16, "graph", 1, ((3, 1),) * 16),
    ],
)
@every_direction
def test_numbered_plans(direction, name, api, number, knobs):
    choice = AlgorithmChoice(GIVEN, APIS.index(api), number, knobs=knobs)
    assert parse_algorithm(name, direction) == choice
    flat = [word for knob in knobs for word in knob]
    words = [GIVEN, APIS.index(api), number, 0, -1, len(knobs), *flat]
    assert choice.words() == words + [0] * (32 - len(flat))


@every_direction
@pytest.mark.parametrize("name", ["engine7_k2=4", "gemm3", "FFT", "FFT_FMA_MATH"])
def test_formats(direction, name):
    plain = parse_algorithm(name, direction)
    for number, memory_format in FORMATS.items():
        choice = parse_algorithm(f"{name}_{memory_format}", direction)
        assert choice.format == number
        assert choice.spec()[:2] == plain.spec()[:2]
        assert choice.spec()[3:] == plain.spec()[3:]


@every_direction
def test_unfused_copies(direction):
    """An epilogue's kernel of its own comes after copies to another format."""
    choice = parse_algorithm("engine7_k2=4_channels_last_unfused", direction)
    assert choice.format == 2 + 8


NO_PLANS = (
    *("fastest", "", " ", "None", "7.0", "-1", "fft_fma", "FFT_", "FFT_FMA"),
    *("engine", "engine-1", "engine7_k2", "engine7_k2=", "engine7_k=4", "engine7 ", "ENGINE7"),
    *("gemm", "gemm7k1=2", "engine7_FMA_MATH", "FFT_FMA_MATH_FMA_MATH", "engine1" + "0" * 30),
    *("channels_last", "_channels_last", "small_channels_last", "0_contiguous"),
    *("engine7_channels_last_contiguous", "engine7_contiguous_k2=4"),
    *("engine7_unfused_channels_last", "engine7_unfused_unfused"),
)


@every_direction
@pytest.mark.parametrize("name", NO_PLANS)
def test_unknown_plan_names_are_rejected(direction, name):
    """The error lists existing names, and the flag that may have set the wrong one."""
    with pytest.raises(DnnValueError) as error:
        OPS[direction](algo=name)
    words = str(error.value)
    for listed in (*ALGORITHM_WORDS, *LEGACY_ALGORITHMS[direction], "engine7_k2=4", direction):
        assert listed in words


@every_direction
def test_numbers_that_are_too_large(direction):
    count = len(LEGACY_ALGORITHMS[direction])
    for number in (count, 99, "99999999999999999999"):
        with pytest.raises(DnnValueError, match=rf"'{number}'.* 0 to {count - 1} "):
            OPS[direction](algo=number)


@pytest.mark.parametrize(
    ("direction", "name"),
    [
        ("forward", "ALGO_0"),
        ("forward", "ALGO_3_FMA_MATH"),
        ("grad_inputs", "IMPLICIT_GEMM"),
        ("grad_inputs", "ALGO_3"),
        ("grad_weights", "DIRECT"),
        ("grad_weights", "IMPLICIT_PRECOMP_GEMM_channels_last"),
    ],
)
def test_plans_of_another_direction(direction, name):
    own = LEGACY_ALGORITHMS[direction]
    with pytest.raises(DnnValueError, match=rf"{direction}.*{own[0]}.*{own[-1]}"):
        OPS[direction](algo=name)


def test_too_many_knobs():
    with pytest.raises(DnnNotSupportedError, match="at most 16 knobs"):
        GpuDnnConv(algo="engine1" + "_k3=1" * 17)


@every_direction
def test_the_flag_takes_every_name(direction):
    """And what it takes, but isn't a plan of the direction, is an error that names it."""
    flag = f"dnn__conv__{FLAGS[direction]}"
    algorithm = LEGACY_ALGORITHMS[direction][1]
    names = ("engine7_k2=4_k13=-1", "gemm3_k1=18", "depthwise1_k0=8", f"{algorithm}_DEFAULT_MATH")
    names += (*(f"{name}_channels_last" for name in names), "engine2_contiguous", algorithm, "1")
    for name in names:
        with config.change_flags(**{flag: name}):
            assert OPS[direction]().algo == name
    refused = pytest.raises(DnnValueError, match=rf"dnn\.conv\.{FLAGS[direction]}\b")
    with config.change_flags(**{flag: "ALGO_FROM_TOMORROW"}), refused:
        OPS[direction]()
    with refused, config.change_flags(**{flag: "99"}):
        pass


# -- C++ and Python ------------------------------------------------------------------------


def compiler() -> tuple[str, list[str]]:
    """Return the compiler of the runtime library, and its arguments."""
    command, arguments, *_ = CUDNN.recipe
    return command, [*arguments, f"-I{c_code_dir()}"]


def require(tmp_path: Path, source: str, *arguments: str) -> None:
    """Compile a source, and discard the result."""
    file = tmp_path / "checked.cpp"
    file.write_text(source)
    cxx, common = compiler()
    command = [cxx, *common, *arguments, "-fsyntax-only", "-Wno-invalid-offsetof", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def asserted(conditions: Any) -> str:
    return "".join(f'static_assert({text}, "");\n' for text in conditions)


@pytest.mark.needs("cudnn")
def test_parameters(tmp_path):
    """Each member of ConvParams is the word that the Op puts there."""
    op = GpuDnnConv(
        ndim=3,
        border_mode=(1, 2, 3),
        subsample=(4, 5, 6),
        filter_flip=False,
        filter_dilation=(7, 8, 9),
        num_groups=10,
        algo="engine11_k12=13_channels_last",
        precision="float32",
        memory_format="channels_last",
        accumulate=True,
        allow_tf32=True,
        deterministic=True,
        workspace_limit=14,
    )
    with config.change_flags(dnn__conv__time_limit=0.5, dnn__verbose=True):
        words = op.words.tolist()
    geometry = [3, 0, 10, 0, 4, 5, 6, 7, 8, 9, 1, 2, 3, 1, 2, 3]
    members = {
        "geometry": geometry,
        "direction": [0],
        "precision": [0],
        "allow_tf32": [1],
        "deterministic": [1],
        "workspace_limit": [14],
        "has_out": [1],
        "channels_last": [1],
        "verbose": [1],
        "node": [0],
        "time_limit": [500_000],
        "policy": [GIVEN],
        "plan": [1, 11, 2, -1, 1, 12, 13, *(0,) * 30],
        "parts": [0],
        "activation": [0],
        "coef": [0],
    }
    epilogue = GpuDnnConvActivation("elu", 0.5, scale=True, addend=True).words[-3:]
    assert epilogue.tolist() == [5, ACTIVATIONS.index("elu"), np.float64(0.5).view("int64")]
    conditions = [f"sizeof(ConvParams) == {8 * len(words)}"]
    start = 0
    for name, values in members.items():
        conditions.append(f"offsetof(ConvParams, {name}) == {8 * start}")
        assert words[start : start + len(values)] == values, name
        if name == "node":
            assert op.node_word == start
        start += len(values)
    assert start == len(words)
    source = '#include "gpu/conv/conv_case.hpp"\n#include <cstddef>\nusing namespace dnnops;\n'
    require(tmp_path, source + asserted(conditions))


@pytest.mark.needs("cudnn")
def test_numbers_of_words(tmp_path):
    """Words, directions, formats, APIs, and cuDNN's own numbers."""
    conditions = [
        f"POLICY_{word.upper()} == {number}" for number, word in enumerate(ALGORITHM_WORDS)
    ]
    conditions += [f"POLICY_NAMED == {GIVEN}"]
    conditions += [f"ACTIVATE_{name.upper()} == {i}" for i, name in enumerate(ACTIVATIONS)]
    conditions += [f"CONV_{name.upper()} == {number}" for number, name in enumerate(DIRECTIONS)]
    conditions += [f"FORMAT_{name.upper()} == {number}" for number, name in FORMATS.items()]
    apis = {"dnnops": "KERNEL"}
    conditions += [f"API_{apis.get(name, name.upper())} == {i}" for i, name in enumerate(APIS)]
    conditions += [f"CUDNN_{name} == {number}" for number, name in enumerate(MATH_TYPES)]
    for number, note in enumerate(NUMERICAL_NOTES):
        name = re.sub(r"(?<=\d)X(?=\d)", "x", note.upper())
        conditions.append(f"CUDNN_NUMERICAL_NOTE_{name} == {number}")
    prefixes = dict(zip(DIRECTIONS, ("FWD", "BWD_DATA", "BWD_FILTER"), strict=True))
    for direction, names in LEGACY_ALGORITHMS.items():
        for number, name in enumerate(names):
            algorithm = name.removeprefix("ALGO_")
            end = f"ALGO_{algorithm}"
            conditions.append(f"CUDNN_CONVOLUTION_{prefixes[direction]}_{end} == {number}")
    source = '#include "gpu/conv/conv_plan.hpp"\nusing namespace dnnops;\n'
    as_numbers = (f"int({words}".replace(" ==", ") ==") for words in conditions)
    require(tmp_path, source + asserted(as_numbers))


# -- without a device ----------------------------------------------------------------------


@pytest.mark.needs("no gpu", "cudnn")
def test_no_list_without_a_gpu():
    x, w = (GpuArrayType("float32", (None,) * 4)() for _ in range(2))
    node = GpuDnnConv().make_node(x, w)
    with pytest.raises(DnnUnavailableError, match="device cuda0 cannot be used"):
        PlanList(node, [None, None, np.array(1.0)], None)
