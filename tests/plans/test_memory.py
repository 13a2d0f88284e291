"""Timed selections are remembered: in the process, and on disk for the next one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pytensor import config

from dnnops.errors import DnnWarning
from dnnops.gpu import algorithms
from dnnops.gpu.algorithms import choice_statistics
from dnnops.plans.cache import CachedChoice, PlanCache, plan_cache
from dnnops.runtime.build import CUDNN
from tests.gpu.conv.convolutions import every_op, large_case
from tests.plans.timed import Convolution, in_threads, lines_of, only_row

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_stored_plans")]

TIMED = "time_on_shape_change"


def batches(count: int, index: int = 0) -> list[Convolution]:
    """Return convolutions that differ in their batch size."""
    return [
        Convolution(large_case(img_shape=(n, 8, 12, 12), kern_shape=(8, 8, 3, 3)), index)
        for n in range(1, count + 1)
    ]


@contextmanager
def kept_in(path: Path | str, seconds: float = 0.3) -> Iterator[None]:
    """Store selections in a directory, and make this process forget its own."""
    algorithms.clear_cache()
    with config.change_flags(dnn__conv__cache=str(path), dnn__conv__time_limit=seconds):
        yield


def differences(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before if after[name] != before[name]}


# -- in the process ------------------------------------------------------------------------


@every_op
def test_statistics(index):
    """A node looks up its plan and selection once, and other nodes and threads find them."""
    (conv,) = batches(1, index)
    algorithms.clear_cache()
    plans, choices = algorithms.cache_statistics(), choice_statistics()
    assert plans["size"] == choices["size"] == 0
    assert plans["capacity"] >= 256
    with config.change_flags(dnn__conv__time_limit=0.3):
        f = conv.compiled(algo=TIMED)
        row = conv.run_row(f)
        assert row.source == "timed"
        assert differences(plans, algorithms.cache_statistics()) == {"size": 1, "misses": 1}
        assert differences(choices, choice_statistics()) == {"size": 1, "misses": 1}
        # The node keeps its plan.
        plans, choices = algorithms.cache_statistics(), choice_statistics()
        for _ in range(3):
            conv.check(f(*conv.given))
        assert differences(plans, algorithms.cache_statistics()) == {}
        # Another one, and one that chooses once, find it in the table.
        for algo in (TIMED, "time_once"):
            other = conv.run_row(conv.compiled(algo=algo))
            assert (other.plan, other.time_ms, other.source) == (row.plan, row.time_ms, "timed")
        assert differences(plans, algorithms.cache_statistics()) == {"hits": 2}
        assert differences(choices, choice_statistics()) == {}
        # Each thread has its own cuDNN handle, so it rebuilds the plan, but times nothing.
        in_threads(1, lambda _: conv.run(algo=TIMED))
        assert "misses" not in differences(choices, choice_statistics())
    algorithms.clear_cache()
    assert algorithms.cache_statistics()["size"] == choice_statistics()["size"] == 0
    # What a function uses is not taken from it.
    conv.check(f(*conv.given))


def test_the_tables_are_bounded():
    def resize(plans: int, choices: int) -> None:
        CUDNN.library.dnnops_cudnn_resize_plan_cache(ctypes.c_int64(plans))
        CUDNN.library.dnnops_cudnn_resize_choice_cache(ctypes.c_int64(choices))

    capacities = algorithms.cache_statistics()["capacity"], choice_statistics()["capacity"]
    convolutions = batches(10)
    algorithms.clear_cache()
    before = algorithms.cache_statistics()
    try:
        resize(4, 4)
        assert algorithms.cache_statistics()["capacity"] == 4
        with config.change_flags(dnn__conv__time_limit=0.02):
            f = convolutions[0].compiled(algo=TIMED)
            for conv in (*convolutions, *convolutions):
                conv.check(f(*conv.given))
                assert algorithms.cache_statistics()["size"] <= 4
                assert choice_statistics()["size"] <= 4
            after = algorithms.cache_statistics()
            assert after["misses"] - before["misses"] == 20
            assert after["evictions"] - before["evictions"] == 16
            # The largest one was used last.
            before = algorithms.cache_statistics()
            convolutions[-1].run(algo=TIMED)
            assert differences(before, algorithms.cache_statistics()) == {"hits": 1}
    finally:
        resize(*capacities)


@pytest.mark.parametrize(
    "settings",
    [
        {"deterministic": True},
        {"workspace_limit": 1 << 20},
        {"allow_tf32": True},
        {"precision": "float32"},
        {"memory_format": "channels_last"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_are_told_apart(settings, tmp_path):
    """A selection under one setting is not used under another, unless both mean the same."""
    (conv,) = batches(1)
    with kept_in(tmp_path, 0.02):
        conv.run(algo=TIMED)
        before = choice_statistics()
        conv.run(algo=TIMED, **settings)
        new = settings != {"precision": "float32"}
        assert differences(before, choice_statistics()).get("misses", 0) == new
        assert len(list(plan_cache().entries())) == 1 + new


# -- from one process to the next ----------------------------------------------------------

PROCESS = """
import json, sys, time, warnings
import numpy as np
import dnnops
from dnnops.gpu import algorithms
from dnnops.gpu.algorithms import choice_statistics
from dnnops.plans.cache import plan_cache
from tests.gpu.conv.convolutions import large_case
from tests.plans.timed import Convolution, seconds_of
conv = Convolution(large_case(), 0)
conv.run(algo="guess_on_shape_change")
op = conv.op(algo="time_on_shape_change")
from tests.gpu.device import apply_op
seconds = seconds_of(lambda: apply_op(op, *conv.given))
conv.check(apply_op(op, *conv.given))
cache = plan_cache()
statistics = dict(cache.statistics) if cache else None
plan = algorithms.last_plan()
# Once more, with all loaded that cuDNN needs for the plan.
algorithms.clear_cache()
again = seconds_of(lambda: apply_op(op, *conv.given))
print(json.dumps({"plan": plan, "seconds": seconds, "again": again, "statistics": statistics}))
"""


def start(path: Path | str) -> subprocess.Popen:
    """Time a convolution in another process, which stores its selection in a directory."""
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"dnn.conv.cache={path}", "dnn.verbose=True"]
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTENSOR_FLAGS": ",".join(filter(None, flags))},
    )


def finish(process: subprocess.Popen) -> dict[str, Any]:
    """Return a process's actions, and the source of its selection."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    line, *again = [line for line in lines_of(errors) if not line.endswith("(guessed)")]
    assert all(line.endswith("(cache)") for line in again)
    result = json.loads(output.splitlines()[-1])
    assert f": {result['plan']}," in line
    return {**result, "source": line.rpartition("(")[2].rstrip(")"), "errors": errors}


def test_the_next_process_times_nothing(tmp_path):
    first, second = (finish(start(tmp_path / "plans")) for _ in range(2))
    assert (first["source"], second["source"]) == ("timed", "cache")
    assert second["plan"] == first["plan"]
    assert second["again"] < 0.2 * first["seconds"]
    assert (first["statistics"]["stores"], first["statistics"]["misses"]) == (1, 1)
    assert (second["statistics"]["stores"], second["statistics"]["hits"]) == (0, 1)
    # Another file system may not tell who may read it; this one does.
    assert (tmp_path / "plans").stat().st_mode & 0o777 == 0o700
    (entry,) = PlanCache(tmp_path / "plans").entries()
    assert entry.choice.plans[0].name == first["plan"]
    assert entry.key["gpu"]
    assert entry.key["cudnn"] >= 90000
    assert entry.key["driver"] != "unknown"


def test_processes_share_a_directory(tmp_path):
    results = [finish(process) for process in [start(tmp_path) for _ in range(3)]]
    (entry,) = PlanCache(tmp_path).entries()
    assert entry.choice.plans[0].name in {result["plan"] for result in results}
    last = finish(start(tmp_path))
    assert (last["source"], last["plan"]) == ("cache", entry.choice.plans[0].name)


# -- what is found on disk -----------------------------------------------------------------


def only_entry():
    (entry,) = plan_cache().entries()
    return entry


def timed_anew(conv: Convolution) -> Any:
    """Forget what the process knows, run, and return the selection."""
    algorithms.clear_cache()
    return conv.run_row(conv.compiled(algo=TIMED))


def test_a_choice_on_disk_is_used(tmp_path):
    (conv,) = batches(1)
    with kept_in(tmp_path):
        first = timed_anew(conv)
        assert first.source == "timed"
        again = timed_anew(conv)
        assert (again.plan, again.source) == (first.plan, "cache")
        assert again.time_ms == pytest.approx(first.time_ms)
        # Whichever plan is the first, even a slow one: it is not measured.
        other = next(name for name in conv.runnable() if name != first.plan)
        plan_cache().store(only_entry().key, CachedChoice(((other, 0.5, 0),)))
        row = timed_anew(conv)
        assert (row.plan, row.source, row.time_ms) == (other, "cache", 0.5)


@pytest.mark.parametrize("damage", ["empty", "truncated", "changed", "binary", "older"])
def test_a_damaged_entry_is_timed_anew(tmp_path, damage):
    (conv,) = batches(1)
    with kept_in(tmp_path):
        timed_anew(conv)
        (file,) = tmp_path.iterdir()
        content = file.read_bytes()
        file.write_bytes(
            {
                "empty": b"",
                "truncated": content[: len(content) // 2],
                "changed": content.replace(b'"time_ms"', b'"time_us"'),
                "binary": bytes(range(256)),
                "older": content.replace(b'"schema":1', b'"schema":0').replace(
                    b'"schema": 1', b'"schema": 0'
                ),
            }[damage]
        )
        assert file.read_bytes() != content
        with pytest.warns(DnnWarning, match=r"flag dnn\.conv\.cache: .*timed again"):
            row = timed_anew(conv)
        assert row.source == "timed"
        # It is intact again.
        assert only_entry().choice.plans[0].name == row.plan
        assert timed_anew(conv).source == "cache"


@pytest.mark.parametrize(
    "plans",
    [
        (("engine9999", 0.001, 0),),
        (("engine9999", 0.001, 0), ("engine9998_k2=1", 0.002, 0)),
        (("gemm9999_k1=3", 0.001, 0),),  # and this convolution is no matrix product
        (("FFT_of_tomorrow", 0.001, 0),),
        (("ALGO_0", 0.001, 0),),  # of another direction
    ],
    ids=lambda plans: plans[0][0],
)
def test_plans_that_are_no_more(tmp_path, plans):
    """This happens after a change of cuDNN that its version does not show."""
    (conv,) = batches(1)
    with kept_in(tmp_path):
        timed_anew(conv)
        plan_cache().store(only_entry().key, CachedChoice(plans))
        row = timed_anew(conv)
        assert row.source == "timed"
        names = [plan.name for plan in only_entry().choice.plans]
        assert names[0] == row.plan
        assert not {name for name, _, _ in plans} & set(names)


def test_the_next_one_is_used_if_the_first_is_no_more(tmp_path):
    (conv,) = batches(1)
    with kept_in(tmp_path):
        first = timed_anew(conv)
        choice = CachedChoice((("engine9999", 0.001, 0), (first.plan, 0.002, 0)))
        plan_cache().store(only_entry().key, choice)
        row = timed_anew(conv)
        assert (row.plan, row.source, row.time_ms) == (first.plan, "cache", 0.002)


def test_no_cache(tmp_path, monkeypatch):
    """Neither where the flag pointed to before, nor in a directory of that name."""
    (conv,) = batches(1)
    monkeypatch.chdir(tmp_path)
    with kept_in(tmp_path / "plans"):
        timed_anew(conv)
    before = set((tmp_path / "plans").iterdir())
    with kept_in("off"):
        assert plan_cache() is None
        assert timed_anew(conv).source == "timed"
        assert timed_anew(conv).source == "timed"
    assert set((tmp_path / "plans").iterdir()) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "plans"]


def test_a_directory_that_cannot_be_written_to(tmp_path):
    """Here because there is a file in its place, which stops root, too."""
    conv, other = batches(2)
    (tmp_path / "file").write_text("")
    f = conv.compiled(algo=TIMED)

    def run_both() -> None:
        with kept_in(tmp_path / "file" / "plans"):
            for each in (conv, other, conv, other):
                assert each.run_row(f).source == "timed"

    with pytest.warns(DnnWarning, match=r"flag dnn\.conv\.cache: .*continues") as caught:
        run_both()
    assert len([w for w in caught if isinstance(w.message, DnnWarning)]) == 1
    assert (tmp_path / "file").read_text() == ""


def test_a_warning_that_is_an_error_stops_nothing(tmp_path):
    """C code requests the selection, so no exception can be raised there."""
    (conv,) = batches(1)
    (tmp_path / "file").write_text("")
    f = conv.compiled(algo=TIMED)
    with kept_in(tmp_path / "file"), warnings.catch_warnings():
        warnings.simplefilter("error", DnnWarning)
        assert conv.run_row(f).source == "timed"


def test_the_flag_is_read_at_each_choice(tmp_path):
    """A function that was compiled before uses the cache of the flag's present value."""
    conv, other = batches(2)
    f = conv.compiled(algo=TIMED)
    with kept_in(tmp_path):
        conv.check(f(*conv.given))
        assert len(list(plan_cache().entries())) == 1
    other.check(f(*other.given))
    assert len(list(PlanCache(tmp_path).entries())) == 1
    assert only_row(f).source == "timed"
