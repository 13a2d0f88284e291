"""The benchmark of attention, without a GPU: its cases, programs and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph

from benchmarks import attention, runner
from benchmarks.attention import PARTS, PEERS, fitted, measure_case, prepare
from benchmarks.attention_data import SIZES, attention_cases, attention_shapes
from benchmarks.harness import (
    BenchmarkError,
    RemoteTask,
    Session,
    Settings,
    WorkerLostError,
    beside,
    check_agreement,
)
from benchmarks.peers.device_timer import DeviceTimer
from tests.needs import missing


def test_cases():
    cases = attention_cases()
    assert len({case["case"] for case in cases}) == len(cases) == 72
    assert {case["case"] for case in cases if case["with_xla"]} == {
        case["case"] for case in cases if case["case"].startswith("4x16x1024x64")
    }
    assert {case["calls"] for case in cases} >= {1, 8}
    assert all(1 <= case["calls"] <= 8 for case in cases)
    longest = [case["calls"] for case in cases if "16384" in case["case"]]
    assert longest == [1, 1, 1, 1] * 2
    assert [len(attention_shapes(case)) for case in cases[:2]] == [3, 4]
    shared = attention_shapes(next(case for case in cases if "8 heads" in case["case"]))
    assert (shared["query"][1], shared["key"][1]) == (32, 8)
    assert len(SIZES) * 8 == len(cases)


def test_turns_are_short_without_pauses():
    settings = fitted(Settings())
    assert settings.turn_s == 0.02
    assert settings.pause_s == 0
    assert settings.rounds == Settings().rounds
    assert fitted(Settings(turn_s=0.001)).turn_s == 0.001


def test_unqueued_calls_are_timed_again():
    class Timer(DeviceTimer):
        def __init__(self, queued: list[bool]):
            self.answers = iter(queued)
            self.turns = 0

        def milliseconds(self) -> float:
            return 1e3 * self.turns

        @property
        def queued(self) -> bool:
            return next(self.answers)

        def turn(self) -> None:
            self.turns += 1

    for queued, expected in (
        ([True], (1.0, True)),
        ([False, True], (2.0, True)),
        ([False] * 3, (3.0, False)),
    ):
        timer = Timer(queued)
        assert timer.timed(timer.turn) == expected


def asked(timer: str, **options: Any) -> list[dict[str, Any]]:
    """Return small float32 cases, which all libraries can run on the CPU."""
    return [
        {**case, "dtype": "float32", "device": "cpu", "timer": timer, **options}
        for case in attention_cases(small=True)
        if case["dtype"] == "float16"
    ]


@pytest.mark.needs("torch")
def test_peers_compute_the_same(timer, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    from benchmarks.peers import attention_dnnops, attention_torch

    modules: dict[str, Any] = {"dnnops": attention_dnnops, "torch": attention_torch}
    if not missing("jax"):
        from benchmarks.peers import attention_jax

        modules["jax"] = attention_jax
    cases = asked(timer, implementation="xla")
    for module in modules.values():
        module.prepare(cases)
    for case in cases:
        tasks = {name: module.make_task(case) for name, module in modules.items()}
        tasks["torch"].choose()
        results = {name: task.results() for name, task in tasks.items()}
        names = ["out", "dquery", "dkey", "dvalue"] if case["training"] else ["out"]
        assert list(results["dnnops"]) == names
        check_agreement(results, 1e-4)
        for name, task in tasks.items():
            assert min(task.times(3)) > 0
            # Turns do not change the operands.
            check_agreement({"before": results[name], "after": task.results()}, 1e-5)
            assert task.facts()["waits"] == 0
            task.close()
        assert tasks["torch"].facts()["torch_backend"] in ("math", "flash_attention")
    # Both sizes share one function.
    assert attention_dnnops.compiled.cache_info().currsize == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("training", [False, True])
def test_nothing_else_runs_on_the_device(dtype, training):
    from benchmarks.peers.attention_dnnops import graph

    with pytensor.config.change_flags(dnn__enabled="no_check"):
        fgraph = FunctionGraph(*graph(dtype, True, training, "cuda"), clone=True)
        add_supervisor_to_fgraph(fgraph, [In(x) for x in fgraph.inputs])
        get_mode("CVM").including("gpu").optimizer.rewrite(fgraph)
    found = [type(node.op).__name__ for node in fgraph.toposort()]
    assert found == ["GpuDnnAttention", "GpuDnnAttentionGrad"][: 1 + training]


# -- rows ------------------------------------------------------------------------------------


class FakeWorker:
    """A library that returns given results, or fails."""

    def __init__(self, name: str, out: Any = 1.0):
        self.name, self.out = name, out
        self.limit_s: float | None = None
        self.cases: list[dict[str, Any]] = []
        self.closed = self.killed = 0
        self.version: Any = {self.name: "1"}

    def open(self, case: dict[str, Any]) -> RemoteTask:
        self.cases.append(case)
        if isinstance(self.out, BenchmarkError):
            raise self.out
        return RemoteTask(self, len(self.cases))

    def call(self, function: str, *arguments: Any) -> Any:
        if function == "prepare":
            self.prepared = arguments[0]
        if isinstance(self.version, BenchmarkError):
            raise self.version
        return self.version

    def _request(self, verb: str, name: Any, *arguments: Any) -> Any:
        if verb == "times":
            return [2e-3 if self.name == "torch" else 1e-3] * arguments[0]
        if verb == "close":
            self.closed += 1
        if verb == "results":
            return {"out": np.array([self.out])}
        return {"waits": 1, "torch_backend": "cudnn_attention"} if verb == "facts" else None

    def kill(self) -> None:
        self.killed += 1

    stop = kill


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(attention, "built_for_gpu", lambda: ("timer.so", ""))
    monkeypatch.setattr(attention, "fitted", lambda s: Settings(2, 1e-4, 2, 0))
    found = Session({}, Settings())
    found.workers = {(PEERS[name][0], name): FakeWorker(name) for name in PEERS}
    return found


def worker(session: Session, name: str) -> Any:
    return session.workers[PEERS[name][0], name]


def test_a_row(session):
    first, *_, last = attention_cases()
    (row,) = measure_case(session, first)
    assert row == {
        "case": first["case"],
        "dnnops_ms": 1.0,
        "torch_ms": 2.0,
        "jax_cudnn_ms": 1.0,
        "jax_xla_ms": 1.0,
        "spread_pct": 0.0,
        "waits": 4,
        "torch_backend": "cudnn_attention",
        "missing": "",
    }
    (case,) = worker(session, "jax_xla").cases
    assert (case["implementation"], case["timer"], case["device"]) == ("xla", "timer.so", "cuda")
    assert [w.closed for w in session.workers.values()] == [1] * 4
    (row,) = measure_case(session, last)
    assert "jax_xla_ms" not in row
    assert PARTS[0].misses([row]) == []


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (BenchmarkError("in it:\nTraceback\nValueError: no such heads\n"), "ValueError: no such"),
        (1.5, "differ by"),
    ],
)
def test_unsupported_cases_of_jax_are_missing(session, out, words):
    worker(session, "jax_cudnn").out = out
    (row,) = measure_case(session, attention_cases()[-1])
    assert row["missing"].startswith("jax_cudnn: ")
    assert words in row["missing"]
    assert "jax_cudnn_ms" not in row
    assert worker(session, "jax_cudnn").killed == 0


def test_a_library_that_cannot_start_is_left_out(session, monkeypatch):
    lost = worker(session, "jax_cudnn")
    lost.out = lost.version = WorkerLostError("ended")
    prepare(session, attention_cases())
    assert lost.killed == 1
    assert len(worker(session, "jax_xla").prepared) == 8
    assert len(worker(session, "torch").prepared) == 72
    monkeypatch.setattr(attention, "built_for_gpu", lambda: ("timer.so", "there is no jaxlib"))
    (row,) = measure_case(session, attention_cases()[0])
    assert row["missing"] == "jax: there is no jaxlib"
    assert (PEERS["jax_cudnn"][0], "jax_cudnn") not in session.workers


@pytest.mark.parametrize("out", [BenchmarkError("gone"), 3.0])
def test_others_are_closed_when_pytorch_fails(session, out):
    worker(session, "torch").out = out
    with pytest.raises(BenchmarkError, match=r"gone|differ"):
        measure_case(session, attention_cases()[0])
    assert worker(session, "dnnops").closed == worker(session, "jax_xla").closed == 1


def test_beside():
    def fail() -> None:
        raise BenchmarkError("no")

    found = beside({"a": lambda: 1, "b": fail})
    assert found["a"] == 1
    assert str(found["b"]) == "no"
    assert beside({}) == {}


def test_only_measured_cases_are_prepared(tmp_path, capsys):
    prepared: list[list[str]] = []
    part = runner.Part(
        "fake",
        "fake",
        "Fake",
        lambda session: [{"case": word} for word in ("a", "b", "c")],
        lambda session, case: [{"case": case["case"], "dnnops_ms": 1.0, "torch_ms": 1.0}],
        prepare=lambda session, cases: prepared.append([case["case"] for case in cases]),
    )
    rows = tmp_path / "rows"
    arguments = ["--rows", str(rows), "--output", str(tmp_path)]
    for only in (["--only", "fake a"], [], []):
        assert runner.main("", [part], lambda threads: {}, [*arguments, *only]) == 0
    assert prepared == [["a"], ["b", "c"]]
    assert "prepared fake" in capsys.readouterr().out
    assert len(rows.read_text().splitlines()) == 3
