"""The benchmark of whole networks, without a GPU: its cases, programs, rows and goals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs

from benchmarks import model_zoo, models
from benchmarks.harness import (
    BenchmarkError,
    RemoteTask,
    Session,
    Settings,
    WorkerLostError,
    check_agreement,
)
from benchmarks.models import PEERS, Ahead, dnnops_flags, groups, misses, model_cases
from benchmarks.report import draw_ratios, fastest_ratio
from tests.needs import missing

FOUR = {"float32", "tf32", "float16", "bfloat16"}


# -- cases -----------------------------------------------------------------------------------


def test_cases():
    cases = model_cases()
    assert len({case["case"] for case in cases}) == len(cases) == 48
    found: dict[Any, set[Any]] = {}
    for case in cases:
        found.setdefault((case["model"], case["what"]), set()).add(case["batch"])
        assert case["sizes"]["batch"] == case["batch"]
    assert found.pop(("resnet", "training")) == {32, 128, 256}
    assert found.pop(("resnet", "inference")) == {1, 8, 128}
    assert found.pop(("vgg", "training")) == {32}
    assert found.pop(("transformer", "training")) == {32}
    assert found.pop(("mlp", "training")) == {1024}
    assert set(found) == {(name, "training") for name in ("mobilenet", "unet", "lstm")}
    for batches in ([32], [1]):
        assert {c["precision"] for c in models.selected(cases, {"batch": batches})} == FOUR


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet", 25.6), ("vgg", 138.4), ("transformer", 27.6), ("lstm", 37.28)]
)
def test_sizes_on_a_gpu_are_those_of_the_papers(name, millions):
    """ResNet-50 and VGG-16 have as many parameters as in the papers."""

    class Counting:
        count = 0

        def parameter(self, *shape, **_):
            self.count += int(np.prod(shape))
            return self

        def lstm(self, x, size, layers):
            self.count += layers * (8 * size**2 + 8 * size)
            return self

        def __add__(self, other):
            return self

        def __getattr__(self, name):
            return lambda *args, **options: self

    layers = Counting()
    model = model_zoo.MODELS[name]
    model.loss(layers, model.gpu_sizes, layers, None)
    assert layers.count / 1e6 == pytest.approx(millions, rel=0.003)


def test_libraries_take_turns_in_groups_if_memory_is_short():
    def count(model: str, what: str, batch: int, precision: str) -> int:
        name = f"{model}, {what}, {batch}, {precision}"
        (case,) = (case for case in model_cases() if case["case"] == name)
        found = groups(case)
        assert [peer for group in found for peer in group] == list(PEERS)
        return len(found)

    assert count("resnet", "training", 256, "bfloat16") == 3
    assert count("resnet", "training", 128, "tf32") == 3
    assert count("resnet", "training", 128, "float16") == 1
    assert count("resnet", "inference", 128, "float32") == 1
    assert count("mlp", "training", 1024, "float32") == 1


def test_flags():
    assert dnnops_flags("float32") == {"dnn.cuda_graph": "auto"}
    assert dnnops_flags("tf32")["dnn.allow_tf32"] == "True"
    flags = dnnops_flags("bfloat16", "time_once")
    assert flags["dnn.mixed_precision"] == "bfloat16"
    assert flags["dnn.conv.algo_fwd"] == flags["dnn.conv.algo_bwd"] == "time_once"


def test_turns_fit_the_steps():
    for step_s in (1e-4, 1e-2, 0.1, 0.5):
        settings = models.fitted(Settings(), step_s)
        assert 3 <= settings.rounds <= 5
        assert settings.turn_s <= 0.2
    assert models.fitted(Settings(rounds=1), 0.1).rounds == 1


# -- programs --------------------------------------------------------------------------------


def small_case(name: str, **options: Any) -> dict[str, Any]:
    return {**model_cases(small=True, device="cpu")[0], **case_of(name), **options}


def case_of(name: str) -> dict[str, Any]:
    wanted = f"{name}, 2, float32"
    return next(c for c in model_cases(small=True, device="cpu") if c["case"] == wanted)


NAMES = [*(f"{name}, training" for name in model_zoo.MODELS), "resnet, inference"]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", NAMES)
def test_peers_compute_the_same(name, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    from benchmarks.peers.models import dnnops_gpu, torch_gpu

    case = small_case(name, flags=dnnops_flags("float32", "deterministic"), how="eager")
    modules: dict[str, Any] = {"dnnops": dnnops_gpu, "torch": torch_gpu}
    if not missing("jax"):
        from benchmarks.peers.models import jax_gpu

        modules["jax"] = jax_gpu
    tasks = {library: module.make_task(case) for library, module in modules.items()}
    check_agreement({library: task.results() for library, task in tasks.items()}, 1e-3)
    for task in tasks.values():
        assert min(task.times(2)) > 0
        facts = task.facts()
        assert list(facts) == ["host_ms", "compile_s", "first_s"]
        assert min(facts["host_ms"], facts["first_s"]) > 0
        task.close()


@pytest.mark.parametrize("name", ["mlp, training", "lstm, training", "resnet, inference"])
def test_dnnops_runs_without_a_device(name):
    from benchmarks.peers.models import dnnops_gpu

    task = dnnops_gpu.make_task(small_case(name, flags=dnnops_flags("tf32", "time_once")))
    assert pytensor.config.dnn__allow_tf32
    (found,) = task.results().values()
    assert np.isfinite(found).all()
    if "training" in name:
        assert len(set(found)) == 4
    else:
        assert found.shape == (2, 10)
    assert list(task.facts()) == ["host_ms", "compile_s", "first_s"]
    task.close()
    assert not pytensor.config.dnn__allow_tf32


@pytest.mark.parametrize("name", NAMES)
def test_no_transfer_is_left_on_the_gpu(name, monkeypatch):
    """Data, parameters and results are on the device; only Adam's count of steps is not."""
    from benchmarks.peers.models import dnnops_gpu
    from dnnops.gpuarray import GpuArrayType
    from tests.gpuarray.graphs import ops, rewritten

    monkeypatch.setattr(
        dnnops_gpu, "shared", lambda value, shape: GpuArrayType(value.dtype, shape)()
    )
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        _, result, updates = dnnops_gpu.graph(small_case(name, device="cuda"))
        outputs = [result, *(old.type.filter_variable(new) for old, new in updates)]
        inputs = [x for x in graph_inputs(outputs) if not isinstance(x, Constant)]
        found = ops(rewritten(inputs, outputs, pytensor.compile.get_mode("CUDNN")))
    assert "HostFromGpu" not in found
    assert "GpuFromHost" not in found
    assert {"GpuDot", "GpuGemm", "GpuDense"} & set(found)


def test_unknown_flags_are_named():
    from benchmarks.peers.models import dnnops_gpu

    with pytest.raises(BenchmarkError, match=r"no flag dnn\.no_such_flag"):
        dnnops_gpu.make_task(small_case("mlp, training", flags={"dnn.no_such_flag": "x"}))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_steps_on_the_gpu(name):
    """Steps are captured, as on the CPU, and leave no memory in use."""
    import cupy

    from benchmarks.peers.models import dnnops_gpu

    flags = dnnops_flags("float32")
    on_cpu = dnnops_gpu.make_task(small_case(name, flags={}))
    expected = on_cpu.results()
    on_cpu.close()
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    task = dnnops_gpu.make_task(small_case(name, device="cuda", flags=flags))
    check_agreement({"cpu": expected, "gpu": task.results()}, 1e-3)
    assert min(task.times(3)) > 0
    facts = task.facts()
    assert facts["not_captured"] == ""
    assert facts["peak_mib"] * 2**20 > sum(array.nbytes for array in task.batch)
    task.close()
    assert pool.used_bytes() <= before + 2**20


# -- rows ------------------------------------------------------------------------------------


class FakeWorker:
    """A library with given times, which may fail."""

    def __init__(self, name: str, seconds: float = 2e-3):
        self.name, self.seconds = name, seconds
        self.loss, self.fails_in = 1.0, ""
        self.limit_s: float | None = None
        self.cases: list[dict[str, Any]] = []
        self.stopped = self.killed = 0

    def open(self, case: dict[str, Any]) -> RemoteTask:
        self.cases.append(case)
        self._check("open")
        return RemoteTask(self, len(self.cases))

    def call(self, function: str, *arguments: Any) -> Any:
        return {self.name: "1"}

    def _check(self, verb: str) -> None:
        if self.fails_in == verb:
            raise WorkerLostError(f"lost in {verb}")

    def _request(self, verb: str, name: Any, *arguments: Any) -> Any:
        self._check(verb)
        if verb == "times":
            return [self.seconds] * arguments[0]
        if verb == "results":
            return {"losses": np.array([self.loss])}
        if verb == "facts":
            return {"host_ms": 0.02, "peak_mib": 10.0, "compile_s": 1.0, "first_s": 2.0}
        raise AssertionError(verb)

    def kill(self) -> None:
        self.killed += 1

    def stop(self) -> None:
        self.stopped += 1


CASE = case_of("resnet, training")


class FakeSession(Session):
    """A session with fake libraries, which it remembers after they have ended."""

    def __init__(self, *cases: dict[str, Any]):
        super().__init__({}, Settings())
        self.fakes: dict[tuple[str, str], FakeWorker] = {}
        for case in cases:
            for name in (*models.OURS, *PEERS):
                module = PEERS[name][0] if name in PEERS else "models.dnnops_gpu"
                made = FakeWorker(name, 1e-3 if name in models.OURS else 2e-3)
                self.fakes[name, case["case"]] = made
                self.workers[module, f"{name}, {case['case']}"] = made


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(models, "fitted", lambda settings, step_s: Settings(2, 1e-4, 2, 0))
    return FakeSession(CASE)


def worker(session: FakeSession, name: str) -> FakeWorker:
    return session.fakes[name, CASE["case"]]


def measure_case(session: Session, case: dict[str, Any]) -> list[dict[str, Any]]:
    return Ahead().measure(session, case)


def test_rows(session):
    worker(session, "dnnops_timed").seconds = 0.5e-3
    default, timed = measure_case(session, CASE)
    facts = {"host_ms": 0.02, "peak_mib": 10.0, "compile_s": 1.0, "first_s": 2.0}
    libraries = ("dnnops", *PEERS)
    assert default == {
        "case": "resnet, training, 2, float32",
        "model": "resnet",
        "what": "training",
        "batch": 2,
        "precision": "float32",
        "flags": "dnn.cuda_graph=auto",
        "dnnops_ms": 1.0,
        **{f"{name}_ms": 2.0 for name in PEERS},
        "spread_pct": 0.0,
        **{f"{name}_{key}": value for name in libraries for key, value in facts.items()},
        "missing": "",
    }
    assert timed["case"] == "resnet, training, 2, float32, time_once"
    assert timed["flags"].endswith("dnn.conv.algo_fwd=time_once,dnn.conv.algo_bwd=time_once")
    assert (timed["dnnops_ms"], timed["torch_ms"]) == (0.5, 2.0)
    assert worker(session, "torch_graph").cases[0]["how"] == "graph"
    # Processes that end give all memory back.
    assert not session.workers
    assert [w.stopped for w in session.fakes.values()] == [1] * 7
    assert session.versions == dict.fromkeys((*models.OURS, *PEERS), "1")


def test_groups_share_the_times_of_dnnops(session, monkeypatch):
    monkeypatch.setattr(models, "groups", lambda case: [["torch", "torch_graph"], ["jax"]])
    row, _ = measure_case(session, CASE)
    assert {key for key in row if key.endswith("_ms") and not key.endswith("_host_ms")} == {
        "dnnops_ms",
        "torch_ms",
        "torch_graph_ms",
        "jax_ms",
    }
    assert worker(session, "dnnops").stopped == 1


def test_libraries_of_several_cases_start_together(monkeypatch):
    monkeypatch.setattr(models, "fitted", lambda settings, step_s: Settings(2, 1e-4, 2, 0))
    cases = [case_of(name) for name in ("resnet, training", "unet, training", "vgg, training")]
    session, ahead = FakeSession(*cases), Ahead(2)
    ahead.prepare(session, cases)
    opened: list[int] = []
    for case in cases:
        assert len(ahead.measure(session, case)) == 2
        opened.append(sum(len(fake.cases) for fake in session.fakes.values()))
    assert opened == [14, 14, 21]
    assert not session.workers


@pytest.mark.parametrize("verb", ["open", "results", "times", "facts"])
@pytest.mark.parametrize("name", ["torch_compile", "dnnops_timed"])
def test_a_library_that_fails_is_named(session, name, verb):
    lost = worker(session, name)
    lost.fails_in = verb
    row, *others = measure_case(session, CASE)
    assert row["missing"] == f"{name}: lost in {verb}"
    assert lost.stopped == 1
    assert "torch_max_autotune_ms" in row
    if name == "dnnops_timed":
        assert not others
    else:
        assert f"{name}_ms" not in row
        assert f"{name}_ms" not in others[0]


def test_a_library_with_another_loss_is_named(session):
    worker(session, "jax").loss = 1.01
    row, _ = measure_case(session, CASE)
    assert "jax: losses: dnnops and jax differ by" in row["missing"]
    assert "jax_ms" not in row
    session = FakeSession(CASE)
    for name in PEERS:
        worker(session, name).loss = 2.0
    with pytest.raises(BenchmarkError, match="no other library has a time"):
        measure_case(session, CASE)


@pytest.mark.parametrize("verb", ["open", "times", "facts"])
def test_nothing_is_left_open_if_dnnops_fails(session, verb):
    worker(session, "dnnops").fails_in = verb
    with pytest.raises(WorkerLostError, match=f"lost in {verb}"):
        measure_case(session, CASE)
    assert not session.workers


# -- goals -----------------------------------------------------------------------------------

ROW = {
    "case": "resnet, training, 128, bfloat16",
    "model": "resnet",
    "what": "training",
    "batch": 128,
    "precision": "bfloat16",
    "flags": "dnn.cuda_graph=auto",
    "dnnops_ms": 10.0,
    "torch_ms": 20.0,
    "jax_ms": 12.0,
    "dnnops_host_ms": 0.02,
    "torch_host_ms": 1.0,
    "dnnops_peak_mib": 100.0,
    "torch_peak_mib": 100.0,
}
TIMED = {**ROW, "case": "timed", "flags": "dnn.conv.algo_fwd=time_once"}


def test_goals():
    assert misses([ROW]) == []
    assert fastest_ratio(ROW) == pytest.approx(1.2)  # the host's time is none of a library
    found = misses([{**ROW, "jax_ms": 9.9}])
    assert "0.99 times as fast as jax, not 1 times" in found[0]
    assert "by the mean" in found[1]
    # A selection by time makes up for it, but not for a default that is much slower.
    assert misses([{**ROW, "jax_ms": 9.9}, TIMED]) == []
    (found,) = misses([{**ROW, "jax_ms": 9.0}, TIMED])
    assert "0.90 times as fast as jax, not 0.95" in found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dnnops_ms": 22.0, "torch_ms": 30.0, "jax_ms": 30.0}, "22.00 ms, not 21 ms"),
        ({"dnnops_peak_mib": 106.0}, "106 MiB, torch 100 MiB"),
        ({"dnnops_host_ms": 0.04}, "0.040 ms of the host"),
        ({"dnnops_not_captured": "a loop"}, "not captured: a loop"),
    ],
)
def test_missed_goals(change, words):
    (found,) = misses([{**ROW, **change}])
    assert words in found


@pytest.mark.needs("matplotlib")
def test_losses_come_first_in_the_picture():
    rows = [
        {"case": "a", "dnnops_ms": 1.0, "torch_ms": 1.0, "jax_ms": 2.0},
        {"case": "b", "dnnops_ms": 1.0, "torch_ms": 2.0, "jax_ms": 0.5, "jax_host_ms": 0.1},
    ]
    assert models.PART.draw is not draw_ratios
    for draw, first in ((draw_ratios, "a"), (models.PART.draw, "b")):
        (axes,) = draw("title", rows).axes
        assert axes.get_yticklabels()[0].get_text() == first


# -- the command line ------------------------------------------------------------------------


@pytest.mark.needs("matplotlib")
def test_selections_store_their_rows_but_no_record(monkeypatch, tmp_path, capsys):
    measured: list[str] = []

    def measure(session: Session, case: dict[str, Any]) -> list[dict[str, Any]]:
        measured.append(case["case"])
        if len(measured) == 3:
            raise KeyboardInterrupt
        return [{**ROW, "case": case["case"]}]

    monkeypatch.setattr(Ahead, "measure", lambda self, *arguments: measure(*arguments))
    monkeypatch.chdir(tmp_path)
    arguments = ["--models", "resnet", "unet", "--precisions", "tf32", "--what", "training"]
    arguments += ["--peers", "torch", "jax"]
    with pytest.raises(KeyboardInterrupt):
        models.main(arguments)
    assert measured == [f"resnet, training, {n}, tf32" for n in (32, 128, 256)]
    stored = (tmp_path / "models_rows_torch_jax.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in stored] == measured[:2]
    # The next run continues.
    models.main([*arguments, "--output", str(tmp_path)])
    assert measured[3:] == ["resnet, training, 256, tf32", "unet, training, 16, tf32"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    assert "resnet, training, 32, tf32" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        models.main(["--models", "alexnet"])
