"""Compare ways to compute reductions, activations and cross-entropy on a GPU.

``python -m benchmarks.small_ops`` compares, in milliseconds of device time: reductions with dnnops'
kernels, CuPy and cuDNN; activations as elementwise kernels and with cuDNN; and the fused
cross-entropy with a log-softmax from which the labels are picked. Each row is printed as soon as it
is measured, the most important first. The results decide where dnnops calls cuDNN:
``CUDNN_REDUCTIONS`` in ``dnnops/rewriting/recognize/reduction.py``, and the expansion of
activations in ``dnnops/rewriting/move/tensor_ops.py``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor import scalar
from pytensor.compile.mode import get_mode

import dnnops.nnet as nnet
from dnnops.gpu.activation import MODES, GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpuarray.reduction import reduce_array, reduction_kernel
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.op import Activation, ActivationGrad

MODE = get_mode("CVM").including("gpu")
CALLS, ROUNDS = 6, 3

#: Shape, and the axes to reduce; the most important first.
REDUCED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1 << 26,), (0,)),
    ((4096, 4096), (0, 1)),
    ((64, 256, 56, 56), (0, 2, 3)),
    ((4096, 4096), (1,)),
    ((4096, 4096), (0,)),
    ((64, 56, 56, 256), (0, 1, 2)),
    ((128, 1000), (1,)),
    ((64, 64, 112, 112), (2, 3)),
    ((65536, 256), (0,)),
)
#: dnnops' reductions: the scalar Op, and the function applied to each element first.
OWN: dict[str, tuple[Any, str | None]] = {
    "add": (scalar.add, None),
    "norm2": (scalar.add, "sqr"),
    "maximum": (scalar.maximum, None),
    "norm1": (scalar.add, "abs"),
    "absmax": (scalar.maximum, "abs"),
}
ACTIVATED = ((64, 64, 56, 56), (128, 1000))
CLASSES = ((65536, 10), (4096, 1000), (4096, 50257))


class Timer:
    """Measure a call in milliseconds of device time; a long kernel hides the host's work."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.filler = cupy.ones((5120, 5120), "float32")

    def __call__(self, call: Callable[[], Any]) -> float:
        cupy = self.cupy
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        self.filler @ self.filler
        start.record()
        for _ in range(CALLS):
            call()
        stop.record()
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) / CALLS

    def compare(
        self, calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS
    ) -> dict[str, float]:
        """Return the median time of each call; the calls take turns after a warm-up."""
        for call in calls.values():
            call()
            call()
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                found[name].append(self(call))
        return {name: statistics.median(times) for name, times in found.items()}


def _function(inputs: list[Any], outputs: Any) -> Any:
    return pytensor.function(
        [pytensor.In(x, borrow=True) for x in inputs],
        [pytensor.Out(z, borrow=True) for z in outputs],
        mode=MODE,
        trust_input=True,
    )


def _on_device(z: Any) -> Any:
    """Return an output that stays on the device."""
    return as_gpuarray_variable(z, 0)


def _values(timer: Timer, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return repeated random numbers on the device; drawing every element would take long."""
    return timer.cupy.asarray(np.resize(rng.standard_normal(65537).astype(dtype), shape))


def _call(op: Any, *values: Any) -> Callable[[], Any]:
    """Return a call of an Op on device arrays that needs no compiled module."""
    variables = [GpuArrayType(str(value.dtype), (None,) * value.ndim)() for value in values]
    node = op.make_node(*variables)
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    return lambda: node.op.perform(node, list(values), storage)


def reductions(timer: Timer, dtypes: tuple[str, ...]) -> None:
    """Print the table of reductions: dnnops' kernels, CuPy's for sums only, and cuDNN's."""
    columns = "own    CuPy   cuDNN own TB/s"
    print(f"reduction       dtype    shape over axes                    {columns}")
    rng = np.random.default_rng(0)
    for shape, axis in REDUCED:
        for dtype in dtypes:
            value = _values(timer, rng, shape, dtype)
            for red_op, (scalar_op, premap) in OWN.items():
                # PyTensor accumulates sums of float32 in float64.
                wide = "float32" if dtype == "float16" else "float64"
                words = (scalar_op, dtype, wide, dtype, premap)
                calls = {
                    "own": partial(reduce_array, value, axis, *words),
                    "cuDNN": _call(GpuDnnReduction(red_op, axis), value),
                }
                if red_op == "add":
                    calls["CuPy"] = partial(reduction_kernel(*words), value, axis=axis)
                times = timer.compare(calls)
                print(
                    f"{red_op:15} {dtype:8} {f'{shape} {axis}':33}"
                    + "".join(
                        f"{times[way]:8.4f}" if way in times else "       -"
                        for way in ("own", "CuPy", "cuDNN")
                    )
                    + f"{value.nbytes / times['own'] / 1e9:9.2f}",
                    flush=True,
                )


def activations(timer: Timer, dtypes: tuple[str, ...]) -> None:
    """Print the table of activations and their gradients."""
    print("activation      dtype    shape              own   cuDNN | gradient own   cuDNN")
    rng = np.random.default_rng(0)
    for dtype in dtypes:
        for shape in ACTIVATED:
            a, b = (_values(timer, rng, shape, dtype) for _ in range(2))
            for mode in MODES:
                coef = 1.0 if nnet.activation.op.ACTIVATION_MODES[mode] else 0.0
                x, y, g = (GpuArrayType(dtype, (None,) * len(shape))() for _ in range(3))
                hosts = [pt.as_tensor_variable(v) for v in (x, y, g)]
                own = _function([x], [_on_device(Activation(mode, coef)(hosts[0]))])
                own_grad = _function([x, y, g], [_on_device(ActivationGrad(mode, coef)(*hosts))])
                times = timer.compare(
                    {
                        "own": partial(own, a),
                        "cuDNN": _call(GpuDnnActivation(mode, coef), a),
                        "own gradient": partial(own_grad, a, b, b),
                        "cuDNN's gradient": _call(GpuDnnActivationGrad(mode, coef), a, b, b),
                    }
                )
                print(
                    f"{mode:15} {dtype:8} {shape!s:15}"
                    + "".join(f"{t:8.4f}" for t in times.values()),
                    flush=True,
                )


def cross_entropies(timer: Timer, dtypes: tuple[str, ...]) -> None:
    """Print the table of cross-entropies with their gradients."""
    print("cross-entropy with gradient   dtype    fused  picked")
    rng = np.random.default_rng(0)
    for dtype in dtypes:
        for shape in CLASSES:
            x, labels = GpuArrayType(dtype, (None, None))(), GpuArrayType("int64", (None,))()
            host, chosen = pt.as_tensor_variable(x), pt.as_tensor_variable(labels)
            loss = nnet.cross_entropy(host, chosen).sum()
            logs = pt.special.log_softmax(host, axis=1)
            picked = -logs[pt.arange(chosen.shape[0]), chosen].sum()
            fused = _function([x, labels], [_on_device(loss), _on_device(pytensor.grad(loss, x))])
            apart = pytensor.function(
                [x, labels],
                [_on_device(picked), _on_device(pytensor.grad(picked, x))],
                mode=MODE.excluding("cudnn_cross_entropy", "onednn_cross_entropy"),
            )
            value = _values(timer, rng, shape, dtype)
            index = timer.cupy.asarray(rng.integers(0, shape[1], shape[0]))
            times = timer.compare(
                {
                    "fused": partial(fused, value, index),
                    "picked": partial(apart, value, index),
                }
            )
            print(
                f"{shape!s:29} {dtype:8}" + "".join(f"{t:8.4f}" for t in times.values()),
                flush=True,
            )


TABLES = {
    "reductions": reductions,
    "activations": activations,
    "cross_entropies": cross_entropies,
}


def main() -> None:
    """Print the tables that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=[*TABLES], default=[*TABLES])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    arguments = parser.parse_args()
    timer = Timer()
    for name in arguments.tables:
        TABLES[name](timer, tuple(arguments.dtypes))


if __name__ == "__main__":
    main()
