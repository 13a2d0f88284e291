"""cuDNN proposes plans with an epilogue for an H200, which is described to it without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from dnnops.gpu.library import cudnn_version
from tests.plans.described_device import plans_of

pytestmark = pytest.mark.needs("cudnn")

RELU = {"activation": "relu", "bias": True}
TF32 = {"dtype": "float32", "allow_tf32": True}
SCALED = {"epilogue": {**RELU, "scale": True}, "vector_dtype": "float32", "filter_flip": False}

#: Cases with kernels that are compiled in advance.
IN_ADVANCE: dict[str, dict[str, Any]] = {
    "bias": {"epilogue": {"bias": True}},
    "relu": {"epilogue": RELU},
    "residual": {"epilogue": {**RELU, "addend": True}},
    "residual sum": {"epilogue": {"bias": True, "addend": True}},
    "float16": {"epilogue": RELU, "dtype": "float16"},
    "tf32": {"epilogue": {**RELU, "addend": True}, **TF32},
    "contiguous filters": {"epilogue": RELU, "formats": ("channels_last", "contiguous")},
    "contiguous": {"epilogue": RELU, "formats": ("contiguous", "contiguous"), **TF32},
    "1x1": {"epilogue": RELU, "image": (1, 64, 56, 56), "filters": (256, 64, 1, 1)},
    "first layer": {"epilogue": RELU, "image": (2, 3, 64, 64), "filters": (64, 3, 7, 7)}
    | {"subsample": (2, 2)},
    "groups": {"epilogue": RELU, "filters": (64, 16, 3, 3), "num_groups": 4},
    "1-d": {"epilogue": RELU, "image": (4, 16, 30), "filters": (32, 16, 3)},
    "3-d": {"epilogue": RELU, "image": (4, 16, 9, 9, 9), "filters": (32, 16, 3, 3, 3)},
}
#: Cases whose kernels cuDNN compiles at run time; their engines have few configurations.
AT_RUN_TIME: dict[str, dict[str, Any]] = {
    "scale": SCALED,
    "float16 scale": {**SCALED, "dtype": "float16"},
    "elu": {"epilogue": {"activation": "elu", "coef": 1.0, "bias": True}, "filter_flip": False},
    "swish": {"epilogue": {"activation": "swish", "coef": 1.0}, "filter_flip": False},
}
NONE: dict[str, dict[str, Any]] = {
    "float64": {"epilogue": RELU, "dtype": "float64"},
    "flipped": {**SCALED, "filter_flip": True},
}
CASES = IN_ADVANCE | AT_RUN_TIME | NONE


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict[str, Any]]:
    if cudnn_version() < 91900:
        pytest.skip("earlier releases have other engines")
    cases = [{"op": "conv", **case} for case in CASES.values()]
    plans = plans_of(cases, tmp_path_factory.mktemp("driver"))
    if any("SUBLIBRARY_LOADING_FAILED" in plan.get("reason", "") for plan in plans):
        pytest.skip("cuDNN's engines cannot be loaded here")
    return dict(zip(CASES, plans, strict=True))


def test_plans(found):
    assert not {name: plan["reason"] for name, plan in found.items() if "reason" in plan}
    counts = {name: len(plan["plans"]) for name, plan in found.items()}
    assert all(counts[name] > 10 for name in IN_ADVANCE), counts
    assert all(0 < counts[name] <= 10 for name in AT_RUN_TIME), counts
    assert not any(counts[name] for name in NONE), counts
