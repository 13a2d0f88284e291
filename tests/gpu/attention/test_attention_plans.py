"""cuDNN has attention plans for an H200, which is described to it without a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dnnops.gpu.library import cudnn_version
from tests.plans.described_device import plans_of

pytestmark = pytest.mark.needs("cudnn")

FORMS: list[dict[str, Any]] = [
    {},
    {"is_causal": True, "dtype": "bfloat16"},
    {"heads": (6, 2), "is_causal": True},
    {"optional": ("query_lengths", "key_lengths"), "is_causal": True},
    {"optional": ("mask",)},
    {"optional": ("mask", "key_lengths"), "heads": (4, 1), "is_causal": True},
    {"depths": (8, 256)},
    {"depths": (96, 96), "lengths": (197, 197), "heads_inside": True},
    {"depths": (256, 256), "lengths": (300, 33), "is_causal": True},
    {"depths": (20, 5), "lengths": (1, 77)},
    {"lengths": (1, 1)},
    {"dropout": 0.1, "optional": ("key_lengths", "state"), "is_causal": True},
    {"lengths": (33, 192)},
    {"lengths": (33, 192), "optional": ("mask",)},
    {"lengths": (33, 192), "is_causal": True},
]

KINDS: list[dict[str, Any]] = [
    {},
    {"with_stats": False},
    {"gradient": True},
    {"gradient": True, "deterministic": True},
]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict[str, str]]:
    if cudnn_version() < 90800:
        pytest.skip("cuDNN before 9.8 cannot be told of devices")
    cases = [{**form, **kind} for kind, form in itertools.product(KINDS, FORMS)]
    plans = plans_of(cases, tmp_path_factory.mktemp("driver"))
    return {repr(case): plan for case, plan in zip(cases, plans, strict=True)}


def test_plans(found):
    missing = {case: plan["reason"] for case, plan in found.items() if "plan" not in plan}
    if any("SUBLIBRARY_LOADING_FAILED" in reason for reason in missing.values()):
        pytest.skip("cuDNN's engines cannot be loaded here")
    assert not missing
    assert len(found) == len(KINDS) * len(FORMS)
    for plan in found.values():
        assert plan["plan"].startswith("engine ")


def test_known_faults_are_avoided(found):
    """Each entry of the table in ``attention_faults.cpp`` concerns these cases, and no others."""
    if cudnn_version() <= 91500:
        pytest.skip("more faults are known of this version")
    avoided: dict[str, list[dict[str, Any]]] = {
        "gradient of one score, gradient of one query": [
            {"lengths": (1, 1), "gradient": True},
            {"lengths": (1, 1), "gradient": True, "deterministic": True},
        ],
        "gradient of one query": [
            {"depths": (20, 5), "lengths": (1, 77), "gradient": True},
            {"depths": (20, 5), "lengths": (1, 77), "gradient": True, "deterministic": True},
        ],
        "gradient of half a tile": [
            {"lengths": (33, 192), "gradient": True},
            {"lengths": (33, 192), "optional": ("mask",), "gradient": True},
        ],
    }
    expected = {repr(case): names for names, cases in avoided.items() for case in cases}
    for case, plan in found.items():
        if "plan" in plan:
            assert plan["plan"].split("avoids ")[1] == expected.get(case, "nothing"), case
