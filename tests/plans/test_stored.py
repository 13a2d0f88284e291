"""Selections on their way between the runtime library and the disk; no GPU is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytensor import config

from dnnops.gpu.algorithms import DIRECTIONS, LEGACY_ALGORITHMS
from dnnops.plans import stored as stored_choices
from dnnops.plans.cache import CachedChoice, plan_cache
from tests.plans.choices import DEVICE, case_of, plan_array, stored_plan


def key_of(case: Any) -> dict[str, Any]:
    return stored_choices.case_key(case, DEVICE)


def test_everything_that_matters_is_in_the_key():
    keys = [key_of(case_of())]
    for name in ("direction", "dtype", "compute", "groups", "flip", "allow_tf32", "deterministic"):
        keys.append(key_of(case_of(**{name: getattr(case_of(), name) + 1})))
    keys.append(key_of(case_of(workspace_limit=0)))
    keys.append(key_of(case_of(fixed_scalars=0)))
    keys.append(key_of(case_of(beta=1)))
    for name in ("stride", "dilation", "pad"):
        for axis in range(2):
            case = case_of()
            getattr(case, name)[axis] += 1
            keys.append(key_of(case))
    for role in range(3):
        for axis in range(4):
            for name in ("shape", "strides"):
                case = case_of()
                getattr(case.tensors[role], name)[axis] += 1
                keys.append(key_of(case))
        case = case_of()
        case.tensors[role].alignment = 8
        keys.append(key_of(case))
    case = case_of()
    case.epilogue.activation = 1
    keys.append(key_of(case))
    for name in ("parts", "activation", "coef", "vector_dtype"):
        other = case_of()
        other.epilogue.activation = 1
        setattr(other.epilogue, name, getattr(other.epilogue, name) + 2)
        keys.append(key_of(other))
    for i in range(3):
        other = case_of()
        other.epilogue.activation = 1
        other.epilogue.alignments[i] = 8
        keys.append(key_of(other))
    for name in DEVICE:
        keys.append(stored_choices.case_key(case_of(), {**DEVICE, name: "other"}))
    assert len({repr(key) for key in keys}) == len(keys)
    # The handle's number is of this process only, and plans that take any alpha are as fast.
    assert key_of(case_of(handle=7, alpha=2)) == keys[0]
    # Entries of convolutions without an epilogue are those of earlier versions.
    assert "epilogue" not in keys[0]["case"]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the functions that the runtime library calls, with a separate cache and no GPU."""
    monkeypatch.setattr(stored_choices, "_describe_device", lambda device: {**DEVICE, "n": device})

    def find(case: Any, capacity: int = 8, device: int = 0) -> list[Any]:
        plans = plan_array(capacity)
        ctypes.memset(plans, 0xAA, ctypes.sizeof(plans))
        count = stored_choices._find(ctypes.pointer(case), device, plans, capacity)
        assert 0 <= count <= capacity
        return list(plans[:count])

    def store(case: Any, *plans: Any, device: int = 0) -> None:
        given = plan_array(max(1, len(plans)))
        given[: len(plans)] = plans
        stored_choices._store(ctypes.pointer(case), device, given, len(plans))

    with config.change_flags(dnn__conv__cache=str(tmp_path / "plans")):
        yield SimpleNamespace(find=find, store=store)


def as_tuple(plan: Any) -> tuple:
    return bytes(plan.spec), plan.milliseconds, plan.workspace, plan.name


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_choices_come_back(storage, direction):
    case = case_of(direction=DIRECTIONS.index(direction))
    names = ("engine57_k2=-1_k18=0_channels_last", "gemm3_k1=20", LEGACY_ALGORITHMS[direction][-1])
    names += ("FFT_FMA_MATH", "depthwise1_k0=8")
    plans = [stored_plan(name, direction, 0.5 + i, 1 << i) for i, name in enumerate(names)]
    assert storage.find(case) == []
    storage.store(case, *plans)
    assert [as_tuple(plan) for plan in storage.find(case)] == [as_tuple(plan) for plan in plans]
    assert len(storage.find(case, capacity=2)) == 2
    assert storage.find(case, device=1) == []
    assert storage.find(case_of(direction=case.direction, flip=1)) == []
    # No plan at all: it is forgotten.
    storage.store(case)
    assert storage.find(case) == []


def test_names_that_mean_nothing_here_are_left_out(storage):
    case = case_of()
    storage.store(case, stored_plan("FFT", "forward", 1))
    (entry,) = plan_cache().entries()
    names = ("engine1", "ALGO_0", "something_of_tomorrow", "IMPLICIT_GEMM")
    plan_cache().store(
        entry.key, CachedChoice(tuple((name, i + 1, 7) for i, name in enumerate(names)))
    )
    found = storage.find(case)
    assert [(plan.name, plan.milliseconds) for plan in found] == [
        (b"engine1", 1),
        (b"IMPLICIT_GEMM", 4),
    ]
    assert found[1].spec.api == 0
    assert found[1].spec.id == 0
    assert found[1].spec.math == -1
    plan_cache().store(entry.key, CachedChoice((("ALGO_0", 1, 7),)))
    assert storage.find(case) == []


def test_nothing_is_kept_if_the_cache_is_off(storage, tmp_path):
    case = case_of()
    with config.change_flags(dnn__conv__cache="off"):
        storage.store(case, stored_plan("FFT", "forward", 1))
        assert storage.find(case) == []
    assert list(tmp_path.iterdir()) == []


def test_failures_do_not_reach_the_library(storage, monkeypatch, capfd):
    """The caller is C++ code without Python exceptions: they are printed, and it continues."""

    def fail() -> None:
        raise RuntimeError("no cache today")

    monkeypatch.setattr(stored_choices, "plan_cache", fail)
    storage.store(case_of(), stored_plan("FFT", "forward", 1))
    assert storage.find(case_of()) == []
    assert capfd.readouterr().err.count("RuntimeError: no cache today") == 2
