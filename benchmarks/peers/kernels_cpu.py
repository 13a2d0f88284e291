"""Loops of dnnops on the CPU, and the same work in PyTorch, oneDNN and NumPy.

oneDNN runs through PyTorch, on tensors in oneDNN's layout, and for convolutions through dnnops
without Winograd's algorithm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Task
from benchmarks.kernels_cpu import arrays
from benchmarks.peers import kernels_rnn

__all__ = ["make_task", "versions"]

EPSILON = 1e-4
Arrays = dict[str, Any]


def versions(library: str) -> dict[str, Any]:
    """Return the versions of what is measured."""
    if library == "dnnops":
        from benchmarks.peers.dnnops_cpu import versions as of_dnnops

        return of_dnnops()
    if library == "NumPy":
        return {}
    import torch

    shown = torch.__config__.show()
    onednn = [line.strip(" -") for line in shown.splitlines() if "MKL-DNN" in line]
    return {"torch": torch.__version__, "torch_onednn": "".join(onednn)[:60]}


class Calls(Task):
    """Calls of a function, timed by the process's CPU time if it has one thread.

    Parameters
    ----------
    call : callable
        Function to time.
    results : callable
        Function that returns what the libraries have to agree on.
    """

    clock = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter

    def __init__(
        self, call: Callable[[], Any], results: Callable[[], dict[str, np.ndarray]]
    ) -> None:
        self._call, self._results = call, results

    def times(self, calls: int) -> list[float]:
        seconds = []
        for _ in range(calls):
            start = Calls.clock()
            self._call()
            seconds.append(Calls.clock() - start)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        return self._results()


def _fetched(z: Any) -> np.ndarray:
    if not hasattr(z, "is_mkldnn"):
        return np.array(z)
    return (z.to_dense() if z.is_mkldnn else z).detach().numpy()


# -- dnnops --------------------------------------------------------------------------------------


def _expression(case: dict[str, Any], v: Arrays) -> Any:
    """Return the output of a case as a PyTensor expression of its operands."""
    import pytensor.tensor as pt

    from dnnops import nnet
    from dnnops.cpu.add_rows import CpuAddRows
    from dnnops.cpu.conv import OneDnnConv
    from dnnops.cpu.half_cast import OneDnnHalfCast
    from dnnops.cpu.sum import CpuSum

    x = v["x"]
    match case["kind"]:
        case "activation":
            return getattr(nnet, case["mode"])(x)
        case "softmax":
            return pt.special.softmax(x, axis=1)
        case "log_softmax":
            return pt.special.log_softmax(x, axis=1)
        case "cross_entropy":
            return nnet.cross_entropy(x, v["labels"])
        case "ctc":
            steps = np.full(case["shape"][1], case["shape"][0], "int32")
            return nnet.ctc(x, v["labels"], steps)
        case "dropout":
            return nnet.dropout(x, 0.5, seed=1)
        case "batchnorm":
            axes = tuple(i for i in range(len(case["shape"])) if i != 1)
            return nnet.batch_normalization_train(x, v["gamma"], v["beta"], axes, EPSILON)[0]
        case "pool":
            mode = "max" if case["mode"] == "max" else "average_inc_pad"
            window, stride = (case["window"],) * 2, (case["stride"],) * 2
            return nnet.pool_2d(x, window, ignore_border=True, stride=stride, mode=mode)
        case "lrn":
            return nnet.local_response_normalization(x)
        case "divisive":
            return nnet.divisive_normalization(x)
        case "sampler":
            return nnet.grid_sample(x, v["grid"])
        case "attention":
            return nnet.scaled_dot_product_attention(x, v["key"], v["value"])
        case "conv":
            algo = "direct" if case["library"] == "oneDNN" else "auto"
            op = OneDnnConv(ndim=2, border_mode="half", filter_flip=False, algo=algo)
            return op(x, v["filters"])
        case "half_cast":
            return OneDnnHalfCast()(x)
        case "channel_sum":
            return CpuSum(1, 2)(x)
        case "pixel_sum":
            return CpuSum(0, 2)(x)
        case "add_rows":
            return CpuAddRows()(x, v["rows"], v["indices"])
    raise NotImplementedError(case["kind"])


#: Operands that a gradient is computed for.
DIFFERENTIATED = ("x", "gamma", "beta", "key", "value", "grid")


def _dnnops(case: dict[str, Any], data: Arrays) -> Callable[[], list[Any]]:
    import pytensor
    import pytensor.tensor as pt

    v = {name: pt.tensor(dtype=a.dtype.name, shape=(None,) * a.ndim) for name, a in data.items()}
    out = _expression(case, v)
    used = {name: x for name, x in v.items() if name != "top" or case.get("gradient")}
    outputs = [out]
    if case.get("gradient"):
        top = v["top"] if out.type.ndim == v["top"].type.ndim else pt.ones_like(out)
        by = [v[name] for name in DIFFERENTIATED if name in v]
        outputs += pytensor.grad(None, by, known_grads={out: top})
    inputs = [pytensor.In(x, borrow=True) for x in used.values()]
    function = pytensor.function(
        inputs,
        [pytensor.Out(z, borrow=True) for z in outputs],
        mode="DNN",
        on_unused_input="ignore",
    )
    names = {type(node.op).__name__ for node in function.maker.fgraph.apply_nodes}
    if not any(name.startswith(("OneDnn", "Cpu")) for name in names):
        raise RuntimeError(f"the compiled function has no Op of dnnops, only {sorted(names)}")
    operands = [data[name] for name in used]
    return lambda: function(*operands)


# -- PyTorch and oneDNN --------------------------------------------------------------------------


def _forward(case: dict[str, Any], v: Arrays) -> Any:
    """Return the output of a case as PyTorch computes it."""
    import torch
    from torch.nn import functional

    x = v["x"]
    match case["kind"]:
        case "activation":
            return getattr(torch, case["mode"])(x)
        case "softmax":
            return torch.softmax(x, 1)
        case "log_softmax":
            return torch.log_softmax(x, 1)
        case "cross_entropy":
            return functional.cross_entropy(x, v["labels"], reduction="none")
        case "ctc":
            logs = functional.log_softmax(x, 2)
            return functional.ctc_loss(logs, v["labels"], *v["lengths"], reduction="none")
        case "dropout":
            return functional.dropout(x, 0.5)
        case "batchnorm":
            statistics = (v["mean"], v["var"])
            return functional.batch_norm(
                x, *statistics, v["gamma"], v["beta"], training=True, eps=EPSILON
            )
        case "pool":
            pool = functional.max_pool2d if case["mode"] == "max" else functional.avg_pool2d
            return pool(x, case["window"], case["stride"])
        case "lrn":
            return functional.local_response_norm(x, 5, 1e-4, 0.75, 2.0)
        case "divisive":
            squares = functional.avg_pool2d(x * x, 5, 1, 2, divisor_override=25)
            return x * (2.0 + 1e-4 * squares) ** -0.75
        case "sampler":
            return functional.grid_sample(x, v["grid"], align_corners=True)
        case "attention":
            return functional.scaled_dot_product_attention(x, v["key"], v["value"])
        case "conv":
            return functional.conv2d(x, v["filters"], padding=1)
        case "half_cast":
            return x.float() if x.dtype == torch.float16 else x.half()
        case "channel_sum":
            return x.sum((0, 2, 3))
        case "pixel_sum":
            return x.sum((2, 3))
        case "add_rows":
            return x.index_add(0, v["indices"], v["rows"])
    raise NotImplementedError(case["kind"])


def _torch(case: dict[str, Any], data: Arrays) -> Callable[[], list[Any]]:
    import torch

    import benchmarks.peers.torch_cpu  # noqa: F401 - sets the number of threads

    v: Arrays = {name: torch.from_numpy(a) for name, a in data.items()}
    if case["kind"] == "ctc":
        v["lengths"] = [
            torch.full((case["shape"][1],), n) for n in (case["shape"][0], case["length"])
        ]
    if case["kind"] == "batchnorm":
        v |= {"mean": torch.zeros_like(v["gamma"]), "var": torch.ones_like(v["gamma"])}
    if case["library"] == "oneDNN":
        v["x"], v["top"] = v["x"].to_mkldnn(), v["top"].to_mkldnn()

    if not case.get("gradient"):

        def forward() -> list[Any]:
            with torch.no_grad():
                return [_forward(case, v)]

        return forward

    by = [v[name].requires_grad_() for name in DIFFERENTIATED if name in v]

    def run() -> list[Any]:
        out = _forward(case, v)
        top = v["top"] if out.ndim == v["top"].ndim else torch.ones_like(out)
        return [out, *torch.autograd.grad(out, by, top)]

    return run


def _numpy(case: dict[str, Any], data: Arrays) -> Callable[[], list[Any]]:
    x = data["x"]
    match case["kind"]:
        case "dropout":
            rng = np.random.default_rng(1)
            return lambda: [x * ((rng.random(x.shape, "float32") < 0.5) * np.float32(2))]
        case "half_cast":
            dtype = "float32" if x.dtype == np.float16 else "float16"
            return lambda: [x.astype(dtype)]
        case "channel_sum":
            return lambda: [x.sum((0, 2, 3))]
        case "pixel_sum":
            return lambda: [x.sum((2, 3))]
        case "add_rows":

            def add() -> list[Any]:
                sums = x.copy()
                np.add.at(sums, data["indices"], data["rows"])
                return [sums]

            return add
    raise NotImplementedError(case["kind"])


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/kernels_cpu.py`` for the library ``case["library"]``."""
    if case["kind"] == "rnn":
        return Calls(*kernels_rnn.make_calls(case))
    data, library = arrays(case), case["library"]
    through_dnnops = library == "dnnops" or (library == "oneDNN" and case["kind"] == "conv")
    prepare = _dnnops if through_dnnops else _numpy if library == "NumPy" else _torch
    run = prepare(case, data)

    def results() -> dict[str, np.ndarray]:
        if case["kind"] == "dropout":  # each library draws other numbers
            return {}
        return {f"result {i}": _fetched(z) for i, z in enumerate(run())}

    return Calls(run, results)
