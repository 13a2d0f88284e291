"""Recurrent networks on a GPU: against the float64 oracle and PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import assume
from pytensor.compile.mode import get_mode

from dnnops import dnn
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNForward, last_rnn_algorithm
from dnnops.gpuarray import GpuArrayType, shared
from dnnops.nnet import RNNBlock
from dnnops.nnet.rnn.layout import RNN_MODES
from dnnops.nnet.rnn.op import INT_OPERANDS, RNN_ALGORITHMS
from dnnops.runtime.replay import replay_failure, replays
from tests.gpu.device import DTYPES, host, make_node, on_gpu, poison, rounded
from tests.gpu.rnn.rnn_networks import (
    CASE_SCALE,
    Network,
    check,
    of_one_layer,
    usual_scale,
    with_numbers,
)
from tests.nnet.rnn.rnn_cases import RNNCase, rnn_cases, run_op, torch_network, torch_results
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close, fuzz

pytestmark = pytest.mark.gpu

GPU_MODE = get_mode("CVM").including("gpu")


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz(max_examples=60, case=rnn_cases(max_hidden=9, max_steps=7, max_batch=5))
def test_random(dtype, case):
    case = of_one_layer(replace(case, dropout=0.0), dtype)
    case = replace(case, algo=("auto", "standard")[case.seed % 2])
    is_half = dtype in ("float16", "bfloat16")
    if is_half:
        case = with_numbers(case, 32)
        assume(case is not None)
    network = Network(case, dtype, min(CASE_SCALE, usual_scale(case)) if is_half else None)
    assume(not is_half or network.is_determined())
    network.check(np.random.default_rng(case.seed))


SIZES = [
    RNNCase("lstm", 64, 2, True, False, 0, 0.0, False, 9, 16, 32, 1),
    RNNCase("lstm", 128, 2, False, False, 48, 0.0, False, 6, 8, 64, 2),
    RNNCase("gru", 96, 3, False, False, 0, 0.0, False, 8, 7, 40, 3),
    RNNCase("gru", 130, 1, True, False, 0, 0.0, True, 8, 33, 65, 4),
    RNNCase("rnn_tanh", 256, 2, False, True, 0, 0.0, False, 5, 32, 256, 5),
    RNNCase("rnn_relu", 64, 1, True, False, 0, 0.0, True, 6, 8, 32, 6),
    RNNCase("lstm", 65, 1, False, False, 0, 0.0, False, 9, 1, 33, 7),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SIZES, ids=lambda case: f"{case.rnn_mode}{case.hidden_size}")
def test_larger(case, dtype):
    Network(case, dtype, usual_scale(case)).check()


def known_inexact(algo: str, dtype: str) -> set[tuple[str, bool]]:
    """Return modes and directions for which cuDNN's gradients are not accurate enough."""
    found = set()
    if algo == "persist_static_small_h":
        found |= {("rnn_relu", True), ("rnn_tanh", True)}
    if algo.startswith("persist_static") and dtype == "float32":
        found |= {("rnn_tanh", False), ("rnn_tanh", True)}
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("algo", [algo for algo in RNN_ALGORITHMS if algo != "auto"])
def test_algorithms(algo, dtype):
    """Networks that cuDNN supports are right; for others the error names the algorithm."""
    ran, refused, wrong = [], [], []
    for mode in RNN_MODES:
        for hidden, layers, bidirectional, batch in (
            (128, 1, False, 16),
            (64, 1, True, 8),
            (64, 2, True, 8),
            (256, 2, False, 32),
        ):
            if algo == "persist_dynamic" and (mode, hidden) != ("lstm", 128):
                continue  # each takes a compilation
            case = RNNCase(
                mode, hidden, layers, bidirectional, False, 0, 0.0, False, 7, batch, 64, 3, algo
            )
            case = of_one_layer(case, dtype)
            network = Network(case, dtype, usual_scale(case))
            try:
                network.check()
            except AssertionError as error:
                wrong.append(str(error))
            except DnnNotSupportedError as error:
                refused.append(((mode, hidden, layers, bidirectional, batch), str(error)))
            else:
                assert last_rnn_algorithm() == algo
                ran.append((mode, hidden, layers, bidirectional, batch))
    print(f"{algo} in {dtype}: ran {ran}, refused {[words for words, _ in refused]}")
    assert not wrong, "\n".join(wrong)
    assert not refused or algo != "standard"
    assert all(f"algo='{algo}'" in message for _, message in refused)
    for (mode, _, _, both, _), error in refused:
        if algo == "persist_static_small_h" and both and mode in ("rnn_relu", "rnn_tanh"):
            assert "bidirectional rnn_relu or rnn_tanh is wrong" in error
        elif algo.startswith("persist_static") and (mode, dtype) == ("rnn_tanh", "float32"):
            assert "less accurate than float32" in error
    is_refused = {(mode, both) for (mode, _, _, both, _), _ in refused}
    assert not known_inexact(algo, dtype) - is_refused
    if not ran:
        pytest.skip(f"this cuDNN has no {algo} in {dtype} on this device")


@pytest.mark.parametrize("algo", ["persist_static", "persist_static_small_h"])
def test_tanh_without_gradients(algo):
    """In float32 only the gradients are inaccurate; without them the algorithms run."""
    wrong, ran = [], 0
    for hidden, layers, batch in ((1, 1, 1), (64, 1, 8), (128, 1, 16), (256, 2, 32)):
        case = RNNCase(
            "rnn_tanh", hidden, layers, False, False, 0, 0.0, False, 7, batch, 64, 3, algo
        )
        network = Network(case, "float32", usual_scale(case))
        given = network.on_device(network.operands)
        message = f"algo='{algo}'.*less accurate than float32"
        with pytest.raises(DnnNotSupportedError, match=message):
            network.run(network.forward, *given)
        alone = GpuDnnRNNForward(**case.network, keeps_reserve=False)
        try:
            network.check_forward(network.run(alone, *given)[:2])
        except AssertionError as error:
            wrong.append(str(error))
        except DnnNotSupportedError as error:
            print(f"hidden size {hidden}: {error}")
        else:
            ran += 1
    assert not wrong, "\n".join(wrong)
    if not ran:
        pytest.skip(f"this cuDNN has no {algo} of such networks on this device")


def test_auto_agrees_with_itself():
    """The gradient uses the algorithm of the forward call, which is selected once."""
    case = RNNCase("lstm", 128, 1, False, False, 0, 0.0, False, 40, 32, 128, 8)
    network = Network(case, "float16", usual_scale(case))
    given = network.on_device(network.operands)
    chosen = set()
    for _ in range(3):
        results = network.run(network.forward, *given)
        chosen.add(last_rnn_algorithm())
        network.run(
            network.backward, *given, results[0], results[-1], *network.on_device(network.tops)
        )
        chosen.add(last_rnn_algorithm())
    assert len(chosen) == 1
    network.run(GpuDnnRNNForward(**case.network, deterministic=True), *given)
    assert last_rnn_algorithm() == "standard"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tf32_and_determinism(dtype):
    case = RNNCase("lstm", 128, 2, False, False, 0, 0.0, False, 6, 8, 64, 2)
    network = Network(case, dtype, usual_scale(case))
    given = network.on_device(network.operands)
    fixed = [
        network.run(GpuDnnRNNForward(**case.network, deterministic=True), *given)[0].get()
        for _ in range(3)
    ]
    assert all(np.array_equal(fixed[0], other) for other in fixed[1:])
    with_tf32 = network.run(GpuDnnRNNForward(**case.network, allow_tf32=True), *given)[0]
    check(
        with_tf32,
        network.expected[0],
        max(RELATIVE_ERROR[dtype], RELATIVE_ERROR["tf32"]),
        "y in TF32",
    )


def test_parameters_lie_as_cudnn_has_them():
    count = 0
    for mode in RNN_MODES:
        for layers in (1, 2, 3):
            for bidirectional in (False, True):
                for kind in ("linear", "skip", *(["projection"] if mode == "lstm" else [])):
                    for dtype in ("float32", "float16"):
                        skip = kind == "skip"
                        projection = 3 if kind == "projection" else 0
                        inputs = 6 if skip else 5
                        case = RNNCase(
                            mode,
                            6,
                            layers,
                            bidirectional,
                            skip,
                            projection,
                            0.0,
                            False,
                            2,
                            2,
                            inputs,
                            1,
                            "standard",
                        )
                        network = Network(case, dtype)
                        node, values = make_node(
                            network.forward, *network.on_device(network.operands)
                        )
                        compare_places(case, node.op.parameter_places(node, values))
                        count += 1
    assert count == 4 * 3 * 2 * 2 * 2 + 3 * 2 * 2


def compare_places(case: RNNCase, found: Any) -> None:
    layout = case.forward.layout
    for number, part in enumerate(layout.pseudo_layers(case.input_size)):
        expected = []
        for matrices, biases, columns in (
            (part.input_matrices, part.input_biases, part.inputs),
            (part.recurrent_matrices, part.recurrent_biases, part.outputs),
        ):
            for gate in range(part.gates):
                matrix = (matrices + gate * part.hidden * columns, part.hidden, columns)
                bias = (biases + gate * part.hidden, part.hidden, 1)
                expected.append((matrix if columns else (-1, 0, 0), bias))
        if part.has_projection:
            expected.append(((part.projection, part.outputs, part.hidden), (-1, 0, 0)))
        assert found[number] == expected, (
            f"pseudo-layer {number} of {case}: cuDNN has (offset, rows, columns) of matrix and bias"
            f" {found[number]}, dnnops {expected}"
        )


# -- lengths -------------------------------------------------------------------------------


def test_steps_after_the_end_have_no_influence():
    case = RNNCase("gru", 7, 2, True, False, 0, 0.0, True, 6, 5, 4, 11)
    network = Network(case, "float32")
    lengths = network.operands[3]
    behind = np.arange(case.steps)[:, None] >= lengths
    given = network.on_device(network.operands)
    tops = network.on_device(network.tops)
    x, gy = network.operands[1].copy(), network.tops[0].copy()
    x[behind] = gy[behind] = np.nan
    given[1], tops[0] = network.on_device([x, gy])
    results = network.run(network.forward, *given)
    network.check_forward(results[:-1])
    assert not results[0].get()[behind].any()
    gradients = network.run(network.backward, *given, results[0], results[-1], *tops)
    network.check_backward(gradients)
    assert not gradients[-1].get()[behind].any()


def test_full_lengths_are_none():
    """If each sequence has all steps, the network runs as if there were no lengths."""
    case = RNNCase(
        "lstm", 16, 1, False, False, 0, 0.0, True, 6, 8, 16, 11, "persist_static_small_h"
    )
    network = Network(case, "float16")
    network.operands[4] = np.full(case.batch, case.steps)
    network.expected = run_op(case.forward, *network.operands)
    network.check()
    network.operands[4] = np.arange(case.batch) % case.steps + 1
    with pytest.raises(DnnNotSupportedError, match="algo='persist_static_small_h'"):
        network.run(network.forward, *network.on_device(network.operands))


# -- dropout -------------------------------------------------------------------------------


def constant_network(dtype: str, dropout: float) -> tuple[RNNCase, list[np.ndarray]]:
    """Two layers: the first returns ones, and the second what dropout keeps of them."""
    hidden = 32
    case = RNNCase("rnn_relu", hidden, 2, False, False, 0, dropout, False, 20, 16, 4, 1, "standard")
    layout = case.forward.layout
    w = np.zeros(layout.param_size(4))
    first, second = layout.pseudo_layers(4)
    first.arrays(w)[2][:] = 1
    second.arrays(w)[0][:] = np.eye(hidden)
    x, hx = np.ones((20, 16, 4)), np.zeros((2, 16, hidden))
    return case, [on_gpu(a, dtype) for a in (w, x, hx)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dropout(dtype):
    case, given = constant_network(dtype, 0.25)
    network = Network(case, dtype)
    drawn = [
        network.run(network.forward, *given, np.asarray(seed)) for seed in (5, 6, 5, -1, 2**62)
    ]
    ys = [host(results[0]) for results in drawn]
    np.testing.assert_array_equal(ys[0], ys[2])
    assert (ys[0] != ys[1]).any()
    assert (ys[0] != ys[3]).any()
    for y in ys:
        kept = y != 0
        np.testing.assert_allclose(y[kept], 1 / 0.75, rtol=1e-3)
        assert abs(kept.mean() - 0.75) < 5 * (0.25 * 0.75 / y.size) ** 0.5
        # Each step and each sequence drops different elements.
        assert (kept[0] != kept[1]).any()
        assert (kept[:, 0] != kept[:, 1]).any()
    # Without a reserve, the same elements are dropped.
    alone = GpuDnnRNNForward(**case.network, keeps_reserve=False)
    np.testing.assert_array_equal(host(network.run(alone, *given, np.asarray(5))[0]), ys[0])
    # The gradient drops the same, as the one by the first layer's biases tells.
    gy = np.random.default_rng(0).standard_normal(ys[0].shape)
    tops = [on_gpu(gy, dtype), on_gpu(np.zeros((2, 16, 32)), dtype)]
    gradients = network.run(
        network.backward, *given, np.asarray(5), drawn[0][0], drawn[0][-1], *tops
    )
    found = case.forward.layout.pseudo_layers(4)[0].arrays(host(gradients[0]))[2]
    through = rounded(gy, dtype) * ys[0]  # relu lets through what is not dropped
    check(
        on_gpu(found, "float64"), through.sum(axis=(0, 1)), RELATIVE_ERROR[dtype], "by the biases"
    )


# -- the reserve ---------------------------------------------------------------------------


def test_reserve():
    """A gradient does not use it up, unless it works in place; another reserve is rejected."""
    case = RNNCase("lstm", 9, 2, False, False, 0, 0.0, False, 5, 3, 4, 2)
    network = Network(case, "float32")
    given = network.on_device(network.operands)
    results = network.run(network.forward, *given)
    rest = [results[0], results[-1], *network.on_device(network.tops)]
    first = network.run(network.backward, *given, *rest)
    inplace = GpuDnnRNNBackward(**case.network, inplace=True)
    again = network.run(inplace, *given, *rest)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_allclose(host(a), host(b), rtol=1e-5, atol=1e-6)
    rest[1] = rest[1][:-1]
    with pytest.raises(DnnValueError, match=r"the reserve has \d+ elements, expected \d+"):
        network.run(network.backward, *given, *rest)
    for keeps in (True, False):
        without = GpuDnnRNNForward(**case.network, keeps_reserve=keeps)
        network.check_forward(network.run(without, *given)[:3])
    by_x = GpuDnnRNNBackward(**case.network, by_x=False)
    rest[1] = results[-1]
    results = network.run(network.forward, *given)
    rest[1] = results[-1]
    for a, b in zip(first, network.run(by_x, *given, *rest), strict=False):
        np.testing.assert_allclose(host(a), host(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("empty", ["steps", "batch"])
def test_empty(empty):
    case = RNNCase("lstm", 4, 2, True, False, 0, 0.0, False, 3, 2, 5, 1)
    network = Network(replace(case, **{empty: 0}), "float32")
    given = network.on_device(network.operands)
    results = network.run(network.forward, *given)
    network.check_forward(results[:-1])
    tops = network.on_device(network.tops)
    network.check_backward(network.run(network.backward, *given, results[0], results[-1], *tops))


# -- PyTorch -------------------------------------------------------------------------------


@pytest.mark.needs("torch")
@fuzz(max_examples=30, case=rnn_cases(torch=True, max_hidden=12, max_steps=6, max_batch=6))
def test_as_in_pytorch(case):
    """Compare with PyTorch's layers with the same parameters, in float64 on the host."""
    network = Network(case, "float32")
    expected = torch_results(case, network.operands, network.tops)
    given = network.on_device(network.operands)
    results = network.run(network.forward, *given)
    count = len(results) - 1
    for out, ref in zip(results, expected[:count], strict=False):
        check(out, ref, RELATIVE_ERROR["float32"], network.words("result"))
    gradients = network.run(
        network.backward, *given, results[0], results[-1], *network.on_device(network.tops)
    )
    names = network.backward.results
    for name, out, ref in zip(names, gradients, expected[count:], strict=True):
        words = network.words(f"gradient with respect to {name}")
        check(out, ref, RELATIVE_ERROR["float32"], words)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.needs("torch")
def test_as_pytorch_on_the_same_device(mode, dtype):
    """At realistic sizes, compare the errors of dnnops and PyTorch, which both use cuDNN."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    case = RNNCase(mode, 256, 2, False, False, 0, 0.0, False, 20, 32, 128, 3)
    network = Network(case, dtype, usual_scale(case))
    layers, _ = torch_network(case, network.operands[0])
    layers = layers.to("cuda", getattr(torch, dtype))
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        x, *states = (
            torch.from_numpy(a).to("cuda", getattr(torch, dtype)) for a in network.operands[1:]
        )
        y, _ = layers(x, tuple(states) if len(states) == 2 else states[0])
    theirs = np.linalg.norm(y.double().cpu().numpy() - network.expected[0])
    results = network.run(network.forward, *network.on_device(network.operands))
    ours = np.linalg.norm(host(results[0]) - network.expected[0])
    norm = np.linalg.norm(network.expected[0])
    print(f"{mode} {dtype}: dnnops {ours / norm:.3g}, PyTorch {theirs / norm:.3g}")
    assert ours <= max(2 * theirs, RELATIVE_ERROR[dtype] * norm)


# -- compiled ------------------------------------------------------------------------------


def test_compiled_function():
    """One function with lengths, for many shapes, against the same in float64 on the host."""
    block = dnn.RNNBlock("float32", 6, 2, "lstm", direction_mode="bidirectional", batch_first=True)
    w, (x, hx, cx) = (
        GpuArrayType("float32", (None,))(),
        (GpuArrayType("float32", (None,) * 3)() for _ in range(3)),
    )
    lengths = pt.lvector("lengths")
    y, hy, cy = block.apply(w, x, hx, cx, lengths=lengths)
    loss = sum((pt.as_tensor_variable(z) ** 2).sum() for z in (y, hy, cy))
    outputs = [y, hy, cy, *pytensor.grad(loss, [w, x, hx, cx])]
    f = pytensor.function([w, x, hx, cx, lengths], outputs, mode=GPU_MODE)
    names = {type(node.op).__name__ for node in f.maker.fgraph.apply_nodes}
    assert names >= {"GpuDnnRNNForward", "GpuDnnRNNBackward"}
    assert any(getattr(node.op, "inplace", False) for node in f.maker.fgraph.apply_nodes)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        steps, batch = (int(n) for n in rng.integers(1, 9, 2))
        case = RNNCase("lstm", 6, 2, True, False, 0, 0.0, True, steps, batch, 5, seed)
        network = Network(case, "float32")
        given = network.on_device(network.operands)
        given[1] = given[1].transpose(1, 0, 2)
        poison()
        y, *rest = f(*given)
        for out, ref in zip([y.transpose(1, 0, 2), *rest[:2]], network.expected[:3], strict=True):
            check(out, ref, RELATIVE_ERROR["float32"], network.words("result"))
        network.tops = [2 * e for e in network.expected[:3]]
        gw, gx, ghx, gcx = rest[2:]
        network.check_backward([gw, ghx, gcx, gx.transpose(1, 0, 2)])


def test_two_gradients_of_one_network():
    """Both need the reserve, so only the last may overwrite it."""

    def compiled(dtype, mode):
        block = RNNBlock(dtype, 6, 2, "gru")
        w, x, hx = (pt.tensor(dtype=dtype, shape=(None,) * n) for n in (1, 3, 3))
        y, hy = block.apply(w, x, hx)
        outputs = [pytensor.grad((y**2).sum(), w), pytensor.grad((hy**3).sum(), w)]
        return pytensor.function([w, x, hx], outputs, mode=mode)

    f, reference = compiled("float32", GPU_MODE), compiled("float64", PERFORM_MODE)
    nodes = [n.op for n in f.maker.fgraph.toposort() if isinstance(n.op, GpuDnnRNNBackward)]
    assert sorted(op.inplace for op in nodes) == [False, True]
    case = RNNCase("gru", 6, 2, False, False, 0, 0.0, False, 5, 3, 4, 1)
    values = case.operands("float32")
    expected = reference(*(value.astype("float64") for value in values))
    for name, out, ref in zip(("y", "hy"), f(*values), expected, strict=True):
        assert out.size == ref.size, name
        assert_close(out, ref, bound=RELATIVE_ERROR["float32"])


def test_gru_as_in_theano():
    """Run Theano's example on a GPU: parameters are written through views of a shared vector."""
    input_dim, hidden_dim, batch_size, depth, timesteps = 6, 5, 2, 3, 4
    rng = np.random.default_rng(3)
    X, h0 = pt.ftensor3("X"), pt.ftensor3("h0")  # noqa: N806 - its names
    rnnb = dnn.RNNBlock("float32", hidden_dim, depth, "gru")
    psize = rnnb.get_param_size([batch_size, input_dim])
    params = shared(np.zeros((psize,), dtype="float32"))
    on_host = np.zeros(psize, "float32")
    for layer in range(depth):
        own = rnnb.split_params(on_host, layer, [batch_size, input_dim])
        parts = rnnb.split_params(params, layer, [batch_size, input_dim])
        for p, h in zip(parts, own, strict=True):
            h[:] = rng.standard_normal(h.shape)
            p[:] = shared(h.copy()).get_value(borrow=True, return_internal_type=True)
    np.testing.assert_array_equal(np.asarray(params.get_value()), on_host)
    y, _ = rnnb.apply(params, X, h0)
    cost = (pt.as_tensor_variable(y) ** 2).mean()
    step = [(params, params - np.float32(0.1) * pytensor.grad(cost, params))]
    train = pytensor.function([X, h0], cost, updates=step, mode=GPU_MODE)

    plain = RNNBlock("float32", hidden_dim, depth, "gru")
    w = pytensor.shared(on_host)
    y, _ = plain.apply(w, X, h0)
    cost = (y**2).mean()
    step = [(w, w - np.float32(0.1) * pytensor.grad(cost, w))]
    reference = pytensor.function([X, h0], cost, updates=step, mode=PERFORM_MODE)
    x = rng.random((timesteps, batch_size, input_dim)).astype("float32")
    start = rng.random((depth, batch_size, hidden_dim)).astype("float32")
    for _ in range(5):
        np.testing.assert_allclose(train(x, start), reference(x, start), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(params.get_value()), w.get_value(), rtol=1e-3, atol=1e-5)


def test_captured():
    """A CUDA graph may capture both passes once memory and kernels exist."""
    import cupy

    case = RNNCase("lstm", 64, 2, False, False, 0, 0.0, False, 10, 8, 32, 2)
    network = Network(case, "float32", usual_scale(case))
    floats = [GpuArrayType("float32", (None,) * a.ndim)() for a in network.operands]
    tops = [GpuArrayType("float32", (None,) * 3)() for _ in network.tops]
    node = network.forward.make_node(*floats)
    last = network.backward.make_node(*floats, node.outputs[0], node.outputs[-1], *tops)
    f = pytensor.function([*floats, *tops], [node.outputs[0], *last.outputs], mode=GPU_MODE)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        given = network.on_device([*network.operands, *network.tops])
        for _ in range(2):
            f(*given)
        stream.synchronize()
        stream.begin_capture()
        try:
            y, *gradients = f(*given)
        finally:
            graph = stream.end_capture()
        for array in (y, *gradients):
            array.data.memset_async(0xFF, array.nbytes)
        graph.launch(stream=stream)
        stream.synchronize()
        check(y, network.expected[0], RELATIVE_ERROR["float32"], network.words("captured y"))
        network.check_backward(gradients)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_replayed(dtype):
    """Repeated calls are launched as a CUDA graph, and compute with the current operands."""
    case = RNNCase("lstm", 48, 2, False, False, 0, 0.0, False, 12, 8, 32, 2, "standard")
    network = Network(case, dtype, usual_scale(case))
    given = network.on_device([*network.operands, *network.tops])
    variables = [GpuArrayType(dtype, (None,) * a.ndim)() for a in given]
    floats, tops = variables[:4], variables[4:]
    node = network.forward.make_node(*floats)
    last = network.backward.make_node(*floats, node.outputs[0], node.outputs[-1], *tops)
    f = pytensor.function(variables, [*node.outputs[:-1], *last.outputs], mode=GPU_MODE)
    before = replays()
    rng = np.random.default_rng(0)
    for _ in range(8):
        results = f(*given)
        network.check_forward(results[:3])
        network.check_backward(results[3:])
        del results  # the next call gets their memory
        network.operands[1] = rounded(rng.standard_normal(network.operands[1].shape), dtype)
        given[1][...] = on_gpu(network.operands[1], dtype)
        network.expected = run_op(case.forward, *network.operands)
    assert replays() - before >= 6, (
        f"{replays() - before} of 24 passes were replayed: {replay_failure()!r}"
    )


def test_memory_is_given_back():
    """The reserve exists only between forward and backward pass, and memory does not grow."""
    import cupy

    block = RNNBlock("float32", 64, 2, "lstm")
    w, x, hx, cx = pt.fvector(), pt.ftensor3(), pt.ftensor3(), pt.ftensor3()
    y, *_ = block.apply(w, x, hx, cx)
    f = pytensor.function([w, x, hx, cx], pytensor.grad((y**2).sum(), w), mode=GPU_MODE)
    case = RNNCase("lstm", 64, 2, False, False, 0, 0.0, False, 50, 32, 64, 1)
    values = case.operands("float32")
    pool = cupy.get_default_memory_pool()
    used = []
    for _ in range(6):
        f(*values)
        used.append(pool.used_bytes())
    assert len(set(used[2:])) == 1, f"used bytes after each call: {used}"


def test_operands_are_counted():
    """All results except integers are on the device."""
    case = RNNCase("lstm", 3, 2, False, False, 0, 0.5, True, 2, 2, 3, 1)
    names = [n for n in case.forward.operands if n not in INT_OPERANDS]
    node, _ = make_node(
        GpuDnnRNNForward(**case.network), *Network(case, "float32").on_device(case.operands())
    )
    moved = [isinstance(x.type, GpuArrayType) for x in node.inputs]
    assert sum(moved) == len(names)
