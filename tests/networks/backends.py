"""Run random networks on the CPU, on a GPU, or rewritten for a GPU but without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import CAReduce

from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray import shared as device_shared
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuFromHost, HostFromGpu
from dnnops.modes import CapturingLinker, CudnnMode, OneDnnMode
from dnnops.rewriting.reasons import why_on_host
from dnnops.runtime import ahead
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import rewritten, to_device, to_host
from tests.networks.network import Network, host_tensor, host_variable
from tests.networks.settings import Settings
from tests.networks.stepping import Stepping, results_of, variables_of
from tests.networks.train import Make, State

__all__ = ["RUNS", "SCALES"]

#: Scales of the loss where it is differentiated. Small gradients lose digits in float16.
SCALES = {"float16": 128.0}


def _host_shared(value: Any, shape: tuple[int | None, ...]) -> Any:
    if isinstance(value, np.random.Generator):
        return pytensor.shared(value)
    return pytensor.shared(value, shape=shape)


def _shared_on_device(value: Any, shape: tuple[int | None, ...]) -> Any:
    if isinstance(value, np.random.Generator):
        return pytensor.shared(value)
    return device_shared(value, shape=shape)


def _device_tensor(dtype: str, shape: tuple[int | None, ...]) -> Any:
    return GpuArrayType(dtype, shape)()


def _arranged(value: np.ndarray, channels_last: bool) -> np.ndarray:
    """Return an array, channels-last in memory if asked for."""
    if not channels_last or value.ndim < 3:
        return value
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(value, 1, -1)), -1, 1)


def _built(
    make: Make, settings: Settings, tensor: Callable[..., Any], shared: Callable[..., Any]
) -> tuple[Network, list[State]]:
    scale = SCALES.get(settings.precision, 1.0)
    return make(settings.dtype, settings.static, tensor, shared, scale)


def _called(f: Any, values: Sequence[Any], changing: Sequence[State], calls: int) -> list[Any]:
    """Return the results of all calls, and the values of shared variables after them.

    If the calls change nothing, only the results of the last one are returned.
    """
    results = [[to_host(z) for z in f(*values)] for _ in range(calls)]
    found = [z for one in (results if changing else results[-1:]) for z in one]
    return found + [state.old.get_value() for state in changing]


def _runs_in_python(node: Apply) -> bool:
    """Return whether a node on the host need not run in C."""
    variables = (*node.inputs, *node.outputs)
    is_fused = isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, Composite)
    return not is_fused and len(variables) <= 32 and not any(map(is_on_device, variables))


@contextmanager
def _host_nodes_in_python() -> Iterator[None]:
    """Compile no C code for nodes on the host.

    It would take most of the time, because each network has other expressions. Ops on oneDNN call
    the same functions from Python.
    """
    original, cores = COp.make_thunk, ahead.cores

    def make_thunk(
        op: Any, node: Any, storage: Any, computed: Any, no_recycling: Any, impl: Any = None
    ) -> Any:
        if _runs_in_python(node):
            impl = "py"
        return original(op, node, storage, computed, no_recycling, impl)

    COp.make_thunk, ahead.cores = make_thunk, lambda: 1  # type: ignore[method-assign]
    try:
        yield
    finally:
        COp.make_thunk, ahead.cores = original, cores  # type: ignore[method-assign]


def _on_cpu(make: Make, settings: Settings, calls: int, notes: list[str]) -> list[Any]:
    network, changing = _built(make, settings, host_tensor, _host_shared)
    mode = OneDnnMode().excluding(*settings.without)
    updates = [(state.old, state.new) for state in changing]
    with pytensor.config.change_flags(on_opt_error="raise"), _host_nodes_in_python():
        f = pytensor.function(
            network.inputs,
            results_of(network, changing),
            updates=updates,
            mode=mode,
            on_unused_input="ignore",
        )
    values = [_arranged(value, settings.channels_last) for value in network.values]
    return _called(f, values, changing, calls if changing else 1)


def _on_cuda(make: Make, settings: Settings, calls: int, notes: list[str]) -> list[Any]:
    tensor = _device_tensor if settings.on_device else host_tensor
    network, changing = _built(make, settings, tensor, _shared_on_device)
    mode = CudnnMode(linker=CapturingLinker(use_cloop=True)).excluding(*settings.without)
    updates = [(state.old, state.old.type.filter_variable(state.new)) for state in changing]
    with (
        pytensor.config.change_flags(on_opt_error="raise", **settings.flags),
        _host_nodes_in_python(),
    ):
        f = pytensor.function(
            network.inputs,
            results_of(network, changing),
            updates=updates,
            mode=mode,
            on_unused_input="ignore",
        )
    notes += _stays(f.maker.fgraph)
    values = [_arranged(value, settings.channels_last) for value in network.values]
    given = [
        to_device(v) if is_on_device(x) else v for x, v in zip(network.inputs, values, strict=True)
    ]
    # Calls that change nothing are repeated, too, so that they are captured.
    found = _called(f, given, changing, calls)
    if reason := getattr(f.vm, "reason", ""):
        notes.append(f"not captured: {reason}")
    return found


def _rewritten(make: Make, settings: Settings, calls: int, notes: list[str]) -> list[Any]:
    network, changing = _built(make, settings, host_tensor, host_variable)
    inputs, _ = variables_of(network, changing)
    outputs = [*results_of(network, changing), *(state.new for state in changing)]
    mode: Mode = CudnnMode().excluding("inplace", *settings.without)
    flags = {**settings.flags, "dnn__enabled": "no_check", "on_opt_error": "raise"}
    with pytensor.config.change_flags(**flags):
        graph = rewritten(inputs, outputs, mode)
    notes += _stays(graph)
    rounding = settings.precision in ("float16", "bfloat16")
    stepping = Stepping(network, changing, on_host(graph.outputs, rounding), graph.inputs)
    return stepping(calls if changing else 1)


def _stays(graph: Any) -> list[str]:
    """Return which nodes stay on the host and why, and which transfers are inside the graph."""
    found = []
    for node in graph.toposort():
        name = type(node.op).__name__
        if isinstance(node.op, HostFromGpu):
            readers = [user for user, _ in graph.clients[node.outputs[0]] if user != "output"]
            readers = [user for user in readers if type(user.op).__name__ != "Output"]
            found += [f"a transfer to {user.op}" for user in readers]
        elif isinstance(node.op, GpuFromHost):
            source = node.inputs[0].owner
            if source is not None and node.inputs[0].type.ndim:
                found.append(f"a transfer from {source.op}")
        elif not any(map(is_on_device, (*node.inputs, *node.outputs))):
            reason = why_on_host(node, 0)
            if reason:
                found.append(f"{name} on the host: {reason}")
    return found


#: Functions that run a network, by device. They take what builds it, settings, a number of calls
#: and a list of notes to add to. They return the results of all calls, or of one if calls change
#: nothing, and then what updated variables are.
RUNS: dict[str, Callable[[Make, Settings, int, list[str]], list[Any]]] = {
    "cpu": _on_cpu,
    "cuda": _on_cuda,
    "rewritten": _rewritten,
}
