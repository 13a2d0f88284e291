"""Time of calls of `dnnops.graph`, beside cuDNN's frontend for Python if it is installed.

``python -m benchmarks.graph`` measures, without a GPU, the time to declare and validate a graph,
and the part of `execute` that is not cuDNN's. With a GPU, it measures whole calls of `execute` for
the convolution of the frontend's first notebook, alternating with the frontend: the median of the
host's time until a call returns.
"""

from __future__ import annotations

import ctypes
import statistics
import time
import timeit
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import dnnops.graph
from dnnops import libcudnn
from dnnops.gpu.library import cudnn_status
from dnnops.graph.execution import ExecutableGraph
from dnnops.graph.tensors import strides_of

_CALLS, _REPETITIONS = 2000, 20


def notebook(api: Any, **more: Any) -> Any:
    """Return the notebook's graph and its tensors."""
    types = api.data_type
    graph = api.pygraph(io_data_type=types.HALF, compute_data_type=types.FLOAT, **more)
    x = graph.tensor(name="X", dim=[8, 64, 56, 56], stride=[200704, 1, 3584, 64])
    w = graph.tensor(name="W", dim=[32, 64, 3, 3], stride=[576, 1, 192, 64])
    y = graph.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y.set_output(True)
    graph.validate()
    return graph, x, w, y


def microseconds(call: Callable[[], object], number: int = _CALLS) -> float:
    """Return the shortest mean time of a call."""
    return min(timeit.repeat(call, number=number, repeat=_REPETITIONS)) / number * 1e6


def frontend() -> Any:
    """Return cuDNN's frontend for Python, or None."""
    try:
        import cudnn
    except ImportError:
        return None
    return cudnn


class _Array:
    """What `execute` reads of an array of CuPy."""

    dtype = np.dtype("float16")
    itemsize = 2

    def __init__(self, *shape: int) -> None:
        self.shape, self.strides = shape, tuple(2 * n for n in strides_of(shape))
        self.data = SimpleNamespace(ptr=1 << 24)


def own_part() -> float:
    """Return the time that `execute` takes for all but the call that executes the plan."""
    graph, x, w, y = notebook(dnnops.graph)
    graph.handle = libcudnn.cudnnHandle_t(1 << 20)
    plan = SimpleNamespace(descriptor=SimpleNamespace(handle=1 << 21), workspace=0, calls=None)
    graph.plans, graph._chosen = [plan], 0
    arrays = {x: _Array(8, 64, 56, 56), w: _Array(32, 64, 3, 3), y: _Array(8, 32, 56, 56)}
    ExecutableGraph._prepare(graph)
    graph._run = lambda *arguments: 0
    workspace = _Array(1)
    return microseconds(lambda: graph.execute(arrays, workspace, graph.handle))


def bare_call(graph: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Return a call of the function in C that executes a plan, without the checks before it."""
    call()
    run = graph._run
    kept: list[Any] = []

    def keep(address: int) -> int:
        fixed = (ctypes.c_int64 * 7).from_address(address)
        words = (ctypes.c_int64 * (len(fixed) + fixed[-1])).from_address(address)
        kept.append(array("q", words))
        return 0

    graph._run = keep
    call()
    graph._run = run
    return lambda: run(kept[0].buffer_info()[0])


def whole_calls() -> dict[str, float]:
    """Return the median time of `execute`, with arrays of PyTorch, by module."""
    import torch

    def images(*shape: int) -> Any:
        values = torch.randn(*shape, device="cuda", dtype=torch.float16)
        return values.to(memory_format=torch.channels_last)

    arrays = images(8, 64, 56, 56), images(32, 64, 3, 3), images(8, 32, 56, 56)
    calls: dict[str, Callable[[], None]] = {}
    for name, api in (("dnnops.graph", dnnops.graph), ("cuDNN's frontend", frontend())):
        if api is None:
            continue
        handle = api.create_handle()
        graph, *tensors = notebook(api, handle=handle)
        graph.build([api.heur_mode.A])
        size = max(1, graph.get_workspace_size())
        workspace = torch.empty(size, device="cuda", dtype=torch.uint8)
        given = dict(zip(tensors, arrays, strict=True))
        calls[name] = lambda graph=graph, given=given, workspace=workspace, handle=handle: (
            graph.execute(given, workspace, handle=handle)
        )
        if api is dnnops.graph:
            calls["dnnops.graph, the function in C"] = bare_call(graph, calls[name])
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(60):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            elapsed = time.perf_counter() - start
            if round_ >= 10:
                times[name].append(elapsed / 50 * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print a table."""
    for name, api in (("dnnops.graph", dnnops.graph), ("cuDNN's frontend", frontend())):
        if api is not None:
            time_ = microseconds(lambda api=api: notebook(api), 100)
            print(f"{name + ', declare and validate':45} {time_:8.2f} us")
    print(f"{'dnnops.graph, execute without cuDNN':45} {own_part():8.2f} us")
    if cudnn_status():
        print("no GPU: whole calls of execute are not measured")
        return
    for name, time_ in whole_calls().items():
        print(f"{name + ', execute':45} {time_:8.2f} us")


if __name__ == "__main__":
    main()
