"""dnnops on one GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.executor import Function

import dnnops
from benchmarks.harness import Task
from benchmarks.machine import resident_mib
from benchmarks.networks import CALLS_BETWEEN_EVENTS, conv_arrays, rotated_sets
from benchmarks.peers.graphs import compile_nodes, compile_small_step, library_ops, small_batch
from dnnops.cli import digits
from dnnops.gpu.algorithms import last_plan, parse_algorithm
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpuarray import GpuArrayType, shared

_APIS = ("legacy", "graph")


def versions() -> dict[str, Any]:
    """Return the name of the device, and the versions of what is measured."""
    import cupy

    from dnnops.cli.checks import check_driver

    runtime = cupy.cuda.runtime
    cudnn, cuda = dnnops.version(), runtime.runtimeGetVersion()
    return {
        "gpu": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": next(iter(check_driver())).value,
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "cupy": cupy.__version__,
        "dnnops": dnnops.__version__,
        "pytensor": pytensor.__version__,
    }


class Chain(Task):
    """A chain of convolutions in one compiled function, timed on the host.

    ``case`` is a case of `networks.conv_arrays` with ``algo`` and the length of the ``chain``.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        import cupy

        self.synchronize = cupy.cuda.runtime.deviceSynchronize
        image, filters, _ = conv_arrays(case)
        self.image = cupy.asarray(image)
        self.chain = case["chain"]
        x, w = GpuArrayType("float32", image.shape)("x"), shared(filters, shape=filters.shape)
        conv = GpuDnnConv(ndim=2, border_mode="half", filter_flip=False, algo=case["algo"])

        def compile_chain(length: int) -> Function:
            y = x
            for _ in range(length):
                y = conv(y, w)
            return compile_nodes([x], y, mode="CUDNN")

        self.long, self.short = compile_chain(self.chain), compile_chain(1)
        library_ops(self.long, "GpuDnn")
        self.long(self.image)
        self.plan = last_plan()

    def _time(self, function: Function) -> float:
        self.synchronize()
        start = time.perf_counter()
        function(self.image)
        return time.perf_counter() - start

    def times(self, calls: int) -> list[float]:
        """Return the host's seconds per convolution of the chain.

        The time of a single convolution is subtracted, and with it the cost of calling a function.
        """
        return [
            (self._time(self.long) - self._time(self.short)) / (self.chain - 1)
            for _ in range(calls)
        ]

    def results(self) -> dict[str, np.ndarray]:
        return {"y": self.long(self.image).get()}

    def facts(self) -> dict[str, Any]:
        """Return the selected plan, as `cudnn_gpu.Chain` takes it."""
        choice = parse_algorithm(self.plan, "forward")
        return {
            "plan": self.plan,
            "api": _APIS[choice.api],
            "number": choice.number,
            "knobs": choice.knobs,
        }


class Convolution(Task):
    """A convolution, or one of its gradients, timed with CUDA events."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = image, filters, topgrad = conv_arrays(case)
        self.format = case["memory_format"]
        params: dict[str, Any] = {
            "ndim": 2,
            "border_mode": case["pad"],
            "subsample": case["stride"],
            "filter_flip": False,
            "num_groups": case["groups"],
            "algo": case["algo"],
            "memory_format": self.format,
        }
        x, w, g = (
            GpuArrayType(array.dtype, array.shape)(name)
            for name, array in (("x", image), ("w", filters), ("g", topgrad))
        )
        if case["direction"] == "forward":
            inputs, operands, y = [x, w], (image, filters), GpuDnnConv(**params)(x, w)
        elif case["direction"] == "grad_inputs":
            inputs, operands = [w, g], (filters, topgrad)
            y = GpuDnnConvGradI(**params)(w, g, image.shape[2:])
        else:
            inputs, operands = [x, g], (image, topgrad)
            y = GpuDnnConvGradW(**params)(x, g, filters.shape[2:])
        self.function = compile_nodes(inputs, y, mode="CUDNN")
        library_ops(self.function, "GpuDnn")
        copies = rotated_sets(case, arrays)
        self.sets = [tuple(map(self._on_device, operands)) for _ in range(copies)]
        self.function(*self.sets[0])
        self.plan = last_plan()

    def _on_device(self, array: np.ndarray) -> Any:
        import cupy

        if self.format == "contiguous":
            return cupy.array(array)
        return cupy.array(array.transpose(0, 2, 3, 1), order="C").transpose(0, 3, 1, 2)

    def times(self, calls: int) -> list[float]:
        """Return the device's seconds, each a mean over several calls in sequence."""
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        operands = itertools.cycle(self.sets)
        seconds = []
        for _ in range(calls):
            start.record()
            for _ in range(CALLS_BETWEEN_EVENTS):
                self.function(*next(operands))
            stop.record()
            stop.synchronize()
            milliseconds = cupy.cuda.get_elapsed_time(start, stop)
            seconds.append(milliseconds / 1000 / CALLS_BETWEEN_EVENTS)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        return {"y": self.function(*self.sets[0]).get()}

    def facts(self) -> dict[str, Any]:
        return {"plan": self.plan}


class Demo(Task):
    """A training step of the demo's network."""

    checked_steps = 3

    def __init__(self, case: dict[str, Any]) -> None:
        seed, device = case["seed"], case["device"]
        self.trainer = digits.Trainer(device, seed)
        data = digits.load_digits(seed)
        self.batch = next(self.trainer.batches(data.train_images, data.train_classes))
        self.weights = [p.get_value() for p in digits.build_network(seed).parameters]

    def call(self) -> None:
        self.trainer.train(*self.batch)

    def results(self) -> dict[str, np.ndarray]:
        losses = [self.trainer.train(*self.batch)[0] for _ in range(self.checked_steps)]
        return {"losses": np.array(losses)}

    def facts(self) -> dict[str, Any]:
        """Return the initial weights and the batch, for another library."""
        return {
            "weights": self.weights,
            "batch": self.batch,
            "rate": digits.LEARNING_RATE,
            "momentum": digits.MOMENTUM,
            "steps": self.checked_steps,
        }


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/gpu.py``."""
    kinds: dict[str, Callable[[dict[str, Any]], Task]] = {
        "chain": Chain,
        "convolution": Convolution,
        "demo": Demo,
    }
    return kinds[case["kind"]](case)


def demo_losses(device: str, seed: int, steps: int) -> np.ndarray:
    """Train the demo's network on a device, and return the losses."""
    return np.array(digits.train(device, seed, steps))


def demo_ops(device: str, seed: int) -> dict[str, int]:
    """Count the cuDNN Ops in the demo's functions.

    Raises
    ------
    BenchmarkError
        If a convolution, pooling or softmax runs elsewhere.
    """
    trainer = digits.Trainer(device, seed)
    library_ops(trainer.classify, "GpuDnn")
    return library_ops(trainer.step, "GpuDnn")


def memory(device: str, calls_at: list[int]) -> list[dict[str, Any]]:
    """Call a compiled training step many times and measure the memory of device and process.

    Parameters
    ----------
    device : str
        Device of the training step.
    calls_at : list of int
        Numbers of calls after which memory is measured.

    Returns
    -------
    list of dict
        ``calls``; ``resident_mib`` of the process; ``pool_used_mib`` and ``pool_total_mib`` of
        CuPy's memory pool; ``device_used_mib`` as reported by the driver.
    """
    import cupy

    step = compile_small_step(device, "CUDNN")
    library_ops(step, "GpuDnn")
    batch = small_batch()
    pool = cupy.get_default_memory_pool()
    rows, done = [], 0
    for calls in calls_at:
        for _ in range(calls - done):
            float(step(*batch))
        done = calls
        cupy.cuda.runtime.deviceSynchronize()
        free, total = cupy.cuda.runtime.memGetInfo()
        quantities = {
            "resident_mib": resident_mib(),
            "pool_used_mib": pool.used_bytes() / 2**20,
            "pool_total_mib": pool.total_bytes() / 2**20,
            "device_used_mib": (total - free) / 2**20,
        }
        rows.append({"calls": calls, **{k: round(v, 3) for k, v in quantities.items()}})
    return rows
