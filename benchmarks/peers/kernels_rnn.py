"""Recurrent networks of one layer on the CPU, for ``benchmarks/kernels.py``, without the update.

``oneDNN`` is the LSTM of the library that dnnops uses (``bare_lstm.cpp``). PyTorch's LSTM is that
of its own, newer oneDNN, and its GRU its own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import BenchmarkError
from benchmarks.rnn_data import RNNArrays, parameter_shapes, rnn_arrays

__all__ = ["make_calls"]

Results = dict[str, np.ndarray]
Calls = tuple[Callable[[], Any], Callable[[], Results]]


def make_calls(case: dict[str, Any]) -> Calls:
    """Return a call of ``case["library"]``, and a function that returns its results."""
    made = {"dnnops": _dnnops, "oneDNN": _onednn, "PyTorch": _torch}[case["library"]]
    return made(case, rnn_arrays(case))


def _named(training: bool, results: Any) -> Results:
    return dict(zip(("y", "gx") if training else ("y",), map(np.array, results), strict=False))


def _dnnops(case: dict[str, Any], arrays: RNNArrays) -> Calls:
    import pytensor
    import pytensor.tensor as pt

    from dnnops.nnet import RNNBlock

    training, mode = case["training"], case["mode"]
    block = RNNBlock("float32", case["hidden"], 1, mode)
    w = pytensor.shared(arrays.w, borrow=True)
    x, gy, start = (pt.tensor(dtype="float32", shape=(None,) * 3) for _ in range(3))
    cell = [start] if mode == "lstm" else []
    y, *_ = block.apply(w, x, start, *cell, inference=not training)
    outputs = [y]
    if training:
        gw, gx = pytensor.grad(None, [w, x], known_grads={y: gy})
        outputs += [gx, gw]
    function = pytensor.function(
        [x, gy, start], outputs, mode="DNN", on_unused_input="ignore", trust_input=True
    )
    zeros = np.zeros((1, case["batch"], case["hidden"]), "float32")

    def run() -> Any:
        return function(arrays.x, arrays.gy, zeros)

    return run, lambda: _named(training, run())


@cache
def _library() -> ctypes.CDLL:
    """Compile and load ``bare_lstm.cpp`` with the oneDNN that dnnops uses."""
    from dnnops.runtime.find import find_onednn

    onednn = find_onednn()
    source = Path(__file__).with_name("bare_lstm.cpp")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bare_lstm.so"
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-shared", "-fPIC"]
        command += [f"-I{path}" for path in onednn.include_dirs]
        command += [str(source), str(onednn.library), f"-Wl,-rpath,{onednn.library.parent}"]
        done = subprocess.run(
            [*command, "-o", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchmarkError(f"{source.name} failed to compile:\n{done.stderr}")
        library = ctypes.CDLL(str(path))
    library.bare_lstm.restype = ctypes.c_void_p
    library.bare_lstm_error.restype = ctypes.c_char_p
    return library


def _onednn(case: dict[str, Any], arrays: RNNArrays) -> Calls:
    library, training = _library(), case["training"]
    sizes = np.cumsum([np.prod(shape) for shape in parameter_shapes(case)])
    inputs, states, *biases = np.split(arrays.w, sizes[:-1])
    start = np.zeros((case["batch"], case["hidden"]), "float32")
    read = [arrays.x, start, inputs, states, biases[0] + biases[1], arrays.gy]
    written = [np.empty_like(a) for a in (arrays.gy, arrays.x, inputs, states, biases[0])]
    pointers = (ctypes.c_void_p * 11)(*(a.ctypes.data for a in (*read, *written)))
    lengths = (case[name] for name in ("steps", "batch", "hidden"))
    handle = library.bare_lstm(*map(ctypes.c_int64, (*lengths, training)), pointers)
    if not handle:
        raise BenchmarkError(library.bare_lstm_error().decode())

    def run(_: Any = (read, written)) -> None:  # the arrays must live as long as the function
        library.bare_lstm_run(ctypes.c_void_p(handle))

    def results() -> Results:
        run()
        return _named(training, written)

    return run, results


def _torch(case: dict[str, Any], arrays: RNNArrays) -> Calls:
    import torch

    import benchmarks.peers.torch_cpu  # noqa: F401 - sets the number of threads

    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case["mode"]]
    network = kind(case["hidden"], case["hidden"])
    begin = 0
    with torch.no_grad():
        for parameter in network.parameters():
            piece = arrays.w[begin : begin + parameter.numel()]
            parameter.copy_(torch.from_numpy(piece).view(parameter.shape))
            begin += parameter.numel()
    x, gy = torch.from_numpy(arrays.x), torch.from_numpy(arrays.gy)
    by = [x.requires_grad_(case["training"]), *network.parameters()]

    def run() -> Any:
        with torch.set_grad_enabled(case["training"]):
            y, _ = network(x)
        return [y.detach(), *(torch.autograd.grad(y, by, gy) if case["training"] else ())]

    return run, lambda: _named(case["training"], [z.numpy() for z in run()])
