"""The benchmark of layers, without a GPU: equal graphs, cases, rows and goals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import clone_replace

from benchmarks.harness import BenchmarkError, RemoteTask, Session, Settings, check_agreement
from benchmarks.layers import NETWORKS, WAYS, draw, layer_cases, measure_case, misses
from benchmarks.models import TOLERANCE
from benchmarks.peers.models import dnnops_layers
from dnnops.gpuarray.transfer import as_gpuarray_variable, host_from_gpu
from dnnops.gpuarray.type import GpuArrayType
from tests.gpuarray.graphs import rewritten


def small_case(network: str, way: str) -> dict[str, Any]:
    case = next(c for c in layer_cases("cpu", small=True) if c["model"] == network)
    return {**case, "way": way}


def on_gpu(inputs: list[Any], outputs: list[Any], shared: list[Any]) -> tuple[list[Any], list[Any]]:
    """Give inputs, shared variables and results the types that they have on a GPU."""
    moved = {
        x: GpuArrayType(x.type.dtype, x.type.shape)(x.name)
        for x in (*inputs, *shared)
        if x in inputs or x.type.ndim
    }
    kept = [x for x in shared if x not in moved]
    replaced = clone_replace(outputs, [(x, host_from_gpu(v)) for x, v in moved.items()])
    on_device = [as_gpuarray_variable(z) if z.type.dtype == "float32" else z for z in replaced]
    return [*moved.values(), *kept], on_device


def op_text(op: Any) -> str:
    """Return the text of an Op with the Ops of its inner graph, which PyTensor leaves out."""
    inner = getattr(getattr(op, "scalar_op", op), "fgraph", None)
    parts = sorted(op_text(node.op) for node in inner.apply_nodes) if inner else []
    return f"{op}{parts}"


def ops_of(network: str, way: str, mode: str) -> Counter[str]:
    """Count the Ops of a training step after the rewrites of a mode."""
    inputs, loss, updates = dnnops_layers.graph(small_case(network, way))
    shared = [old for old, _ in updates]
    outputs = [loss, *(new for _, new in updates)]
    if mode == "CUDNN":
        inputs, outputs = on_gpu(inputs, outputs, shared)
    else:
        inputs = [*inputs, *shared]
    return Counter(
        op_text(node.op) for node in rewritten(inputs, outputs, get_mode(mode)).toposort()
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("ONEDNN", {}),
        ("CUDNN", {}),
        ("CUDNN", {"dnn__mixed_precision": "bfloat16"}),
    ],
    ids=["cpu", "gpu", "gpu-bfloat16"],
)
def test_layers_compile_to_the_graph_of_functions(network, mode, flags):
    if mode == "CUDNN":
        flags = {"dnn__enabled": "no_check", **flags}
    with pytensor.config.change_flags(**flags):
        found = {way: ops_of(network, way, mode) for way in WAYS}
    prefix = "OneDnn" if mode == "ONEDNN" else "GpuDnn"
    assert any(prefix in name for name in found["layers"])
    assert found["layers"] == found["functions"]


def test_cases():
    gpu, cpu = layer_cases("cuda"), layer_cases("cpu")
    assert [case["case"] for case in gpu] == [
        f"{network}, {precision}" for network in NETWORKS for precision in ("float32", "bfloat16")
    ]
    assert [case["case"] for case in cpu] == [f"{network}, float32" for network in NETWORKS]
    assert gpu[0]["sizes"] == {"batch": 32, "size": 224, "width": 64, "deep": 1, "classes": 1000}
    assert gpu[1]["flags"]["dnn.mixed_precision"] == "bfloat16"
    assert all(case["sizes"]["batch"] == 2 for case in layer_cases("cuda", small=True))


class FakeWorker:
    """A process whose steps take a given time."""

    def __init__(self, seconds: float, loss: float = 1.0):
        self.seconds, self.loss = seconds, loss
        self.verbs: Counter[str] = Counter()

    def open(self, case: dict[str, Any]) -> RemoteTask:
        self.case = case
        return RemoteTask(self, 0)  # type: ignore[arg-type]

    def _request(self, verb: str, name: Any, *arguments: Any) -> Any:
        self.verbs[verb] += 1
        answers = {"results": {"losses": np.array([self.loss])}, "facts": {"host_ms": 0.02}}
        return [self.seconds] * arguments[0] if verb == "times" else answers.get(verb)


def session_of(**workers: FakeWorker) -> Session:
    found = {("models.dnnops_layers", way): worker for way, worker in workers.items()}
    return Session({}, Settings(2, 1e-4, 2, 0), workers=found)  # type: ignore[arg-type]


def test_rows_and_goal():
    slow, fast = FakeWorker(1.03e-3), FakeWorker(1e-3)
    (row,) = measure_case(session_of(layers=slow, functions=fast), layer_cases("cuda")[1])
    assert row == {
        "case": "resnet, bfloat16",
        "network": "resnet",
        "device": "cuda",
        "precision": "bfloat16",
        "layers_ms": pytest.approx(1.03),
        "functions_ms": pytest.approx(1.0),
        "ratio": pytest.approx(1.03),
        "spread_pct": 0.0,
        "layers_host_ms": 0.02,
        "functions_host_ms": 0.02,
    }
    assert (slow.case["way"], fast.case["way"]) == WAYS
    assert slow.verbs["close"] == fast.verbs["close"] == 1
    assert misses([row]) == [
        "resnet, bfloat16: 1.030 times the time of the functions, not 1.02 times"
    ]
    assert not misses([{**row, "ratio": 1.02}])


def test_a_ratio_near_one_needs_no_more_turns():
    turns = {}
    for seconds in (0.97e-3, 1.01e-3, 1.03e-3):
        worker = FakeWorker(seconds)
        (row,) = measure_case(
            session_of(layers=worker, functions=FakeWorker(1e-3)), layer_cases("cpu")[0]
        )
        turns[row["ratio"] < 1.02, row["ratio"] > 0.98] = worker.verbs["times"]
    assert turns[True, False] == turns[False, True] > 3 * turns[True, True]


def test_losses_must_agree():
    workers = {"layers": FakeWorker(1e-3), "functions": FakeWorker(1e-3, loss=1.01)}
    with pytest.raises(BenchmarkError, match="layers and functions differ"):
        measure_case(session_of(**workers), layer_cases("cpu")[0])
    assert all(worker.verbs["close"] == 1 for worker in workers.values())


@pytest.mark.parametrize("network", NETWORKS)
def test_both_ways_have_the_same_losses(network):
    results = {}
    for way in WAYS:
        task = dnnops_layers.make_task(small_case(network, way))
        results[way] = task.results()
        assert min(task.times(2)) > 0
        task.close()
    assert len(set(results["layers"]["losses"])) == 4
    check_agreement(results, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_ways_have_the_same_losses_on_the_gpu(network, precision):
    case = next(
        c for c in layer_cases("cuda", small=True) if c["case"] == f"{network}, {precision}"
    )
    results = {}
    for way in WAYS:
        task = dnnops_layers.make_task({**case, "way": way})
        results[way] = task.results()
        assert task.facts()["not_captured"] == ""
        task.close()
    check_agreement(results, TOLERANCE[precision])


@pytest.mark.needs("matplotlib")
def test_picture():
    rows = [{"case": "a", "ratio": 0.99}, {"case": "b", "ratio": 1.01}]
    (axes,) = draw("title", rows).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
