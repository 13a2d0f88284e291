"""`RNNBlock`, the public interface of recurrent networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet import RNNBlock
from tests.nnet.rnn.rnn_cases import RNNCase, rnn_cases, run_op, torch_network
from tests.oracle import PERFORM_MODE, assert_close, evaluate, fuzz

CASE = RNNCase("lstm", 4, 2, True, False, 0, 0.0, False, 5, 3, 6, seed=2)


def block_of(case: RNNCase, **keywords) -> RNNBlock:
    return RNNBlock(
        "float64",
        case.hidden_size,
        case.num_layers,
        case.rnn_mode,
        "skip" if case.skip_input else "linear",
        "bidirectional" if case.bidirectional else "unidirectional",
        proj_size=case.proj_size,
        dropout=case.dropout,
        **keywords,
    )


@pytest.mark.needs("torch")
@fuzz(max_examples=30, case=rnn_cases(torch=True))
def test_parameters_are_those_of_pytorch(case):
    block = block_of(case)
    size = block.get_param_size([case.batch, case.input_size])
    assert size == block.get_param_size(case.input_size) == case.operands()[0].size
    network, _ = torch_network(case, case.operands()[0])
    assert size == sum(p.numel() for p in network.parameters())
    directions = 2 if case.bidirectional else 1
    for number in range(case.num_layers * directions):
        parts = block.split_params(case.operands()[0], number, case.input_size)
        suffix = f"l{number // directions}" + ("_reverse" if number % directions else "")
        gates = block.layout.gates
        for kind, own in (("ih", parts[: 2 * gates]), ("hh", parts[2 * gates : 4 * gates])):
            weight = getattr(network, f"weight_{kind}_{suffix}").detach().numpy()
            bias = getattr(network, f"bias_{kind}_{suffix}").detach().numpy()
            np.testing.assert_array_equal(np.concatenate([m.T for m in own[::2]]), weight)
            np.testing.assert_array_equal(np.concatenate(own[1::2]), bias)
        if case.proj_size:
            weight = getattr(network, f"weight_hr_{suffix}").detach().numpy()
            np.testing.assert_array_equal(parts[-1].T, weight)


@fuzz(max_examples=30, case=rnn_cases())
def test_split_and_join(case):
    block, w = block_of(case), case.operands()[0]
    numbers = range(block.layout.state_count)
    layers = [block.split_params(w, number, case.input_size) for number in numbers]
    assert all(np.shares_memory(part, w) or part.size == 0 for layer in layers for part in layer)
    np.testing.assert_array_equal(block.join_params(layers, case.input_size), w)
    variable = pt.dvector("w")
    symbolic = [block.split_params(variable, n, (case.batch, case.input_size)) for n in numbers]
    flat = [part for layer in symbolic for part in layer]
    joined = block.join_params(symbolic, case.input_size)
    *values, again = evaluate([*flat, joined], {variable: w})
    for value, part in zip(values, (p for layer in layers for p in layer), strict=True):
        np.testing.assert_array_equal(value, part)
    np.testing.assert_array_equal(again, w)


def test_gradient_through_split_and_join():
    block, w = block_of(CASE), pt.dvector("w")
    layers = [block.split_params(w, n, CASE.input_size) for n in range(4)]
    loss = (block.join_params(layers, CASE.input_size) ** 2).sum()
    value = CASE.operands()[0]
    np.testing.assert_allclose(evaluate(pytensor.grad(loss, w), {w: value}), 2 * value)


def test_gru_as_in_theano():
    """Use it as in Theano: write parts of a shared vector, apply; compare with scans."""
    input_dim, hidden_dim, batch_size, depth, timesteps = 6, 5, 2, 3, 4
    floatX = pytensor.config.floatX  # noqa: N806 - its name
    rng = np.random.default_rng(3)
    X, h0 = pt.tensor3("X"), pt.tensor3("h0")  # noqa: N806

    rnnb = RNNBlock(floatX, hidden_dim, depth, "gru")
    psize = rnnb.get_param_size([batch_size, input_dim])
    params = pytensor.shared(np.zeros((psize,), dtype=floatX))
    inner = X
    everything = []
    for i in range(depth):
        columns = hidden_dim if i else input_dim
        shapes = 3 * [(columns, hidden_dim), (hidden_dim,)]
        shapes += 3 * [(hidden_dim, hidden_dim), (hidden_dim,)]
        own = [pytensor.shared(rng.standard_normal(s).astype(floatX)) for s in shapes]
        for p, value in zip(
            rnnb.split_params(params, i, [batch_size, input_dim]), own, strict=True
        ):
            p[:] = value.get_value(borrow=True, return_internal_type=True)
        everything += own

        def step(inp, s_prev, *own):
            w_r, b_wr, w_i, b_wi, w_h, b_wh, r_r, b_rr, r_i, b_ri, r_h, b_rh = own
            reset = pt.sigmoid(pt.dot(inp, w_r) + b_wr + pt.dot(s_prev, r_r) + b_rr)
            update = pt.sigmoid(pt.dot(inp, w_i) + b_wi + pt.dot(s_prev, r_i) + b_ri)
            new = pt.tanh(pt.dot(inp, w_h) + b_wh + reset * (pt.dot(s_prev, r_h) + b_rh))
            return (1 - update) * new + update * s_prev

        inner = pytensor.scan(
            step, sequences=[inner], outputs_info=[h0[i]], non_sequences=own, return_updates=False
        )
    y, hy = rnnb.apply(params, X, h0)
    x_val = rng.random((timesteps, batch_size, input_dim)).astype(floatX)
    h0_val = rng.random((depth, batch_size, hidden_dim)).astype(floatX)
    mode = Mode(linker="py", optimizer="fast_compile")
    grads = pytensor.grad((y**2).sum(), [X, h0, params])
    ref_grads = pytensor.grad((inner**2).sum(), [X, h0, *everything])
    fn = pytensor.function([X, h0], [y, hy[-1], *grads], mode=mode)
    ref_fn = pytensor.function([X, h0], [inner, inner[-1], *ref_grads], mode=mode)
    *found, dparams = fn(x_val, h0_val)
    expected = ref_fn(x_val, h0_val)
    for result, reference in zip(found, expected, strict=False):
        np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-9)
    layers = [rnnb.split_params(dparams, i, input_dim) for i in range(depth)]
    for result, reference in zip((p for own in layers for p in own), expected[4:], strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-9)


def test_batch_first():
    w, x, *states = CASE.operands()
    expected = run_op(CASE.forward, w, x, *states)
    for batch_first in (False, True):
        block = block_of(CASE, batch_first=batch_first)
        given = x.transpose(1, 0, 2) if batch_first else x
        y, hy, cy = (r.eval(mode=PERFORM_MODE) for r in block.apply(w, given, *states))
        y = y.transpose(1, 0, 2) if batch_first else y
        for result, reference in zip((y, hy, cy), expected, strict=False):
            np.testing.assert_array_equal(result, reference)


def test_lengths_and_projection():
    case = replace(CASE, has_lengths=True, proj_size=2)
    w, x, hx, cx, lengths = case.operands()
    results = block_of(case).apply(w, x, hx, cx, lengths=lengths.astype("int32"))
    assert [r.type.shape for r in results] == [(5, 3, 4), (4, 3, 2), (4, 3, 4)]
    expected = run_op(case.forward, w, x, hx, cx, lengths)
    for result, reference in zip(results, expected, strict=False):
        np.testing.assert_array_equal(result.eval(mode=PERFORM_MODE), reference)


def test_inference_drops_and_keeps_nothing():
    w, *others = CASE.operands()
    variable = pt.dvector("w")
    dropping = block_of(replace(CASE, dropout=0.5))
    y = dropping.apply(variable, *others, inference=True)[0]
    assert not dropping.dropout_states
    assert not y.owner.op.keeps_reserve
    again = block_of(CASE).apply(variable, *others)[0]
    grads = [pytensor.grad((r**2).sum(), variable) for r in (y, again)]
    values = evaluate([y, again, *grads], {variable: w})
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[2], values[3])


def test_the_seed_determines_the_dropout_mask():
    operands = CASE.operands()
    variables = [pt.constant(a) for a in operands]

    def three_calls(**keywords):
        block = block_of(replace(CASE, dropout=0.5), **keywords)
        y, z = (block.apply(*variables)[0] for _ in range(2))
        fn = pytensor.function([], [y, z], mode=PERFORM_MODE)
        return [result for _ in range(3) for result in fn()]

    first = three_calls()
    for result, again in zip(first, three_calls(), strict=True):
        np.testing.assert_array_equal(result, again)
    for i in range(6):
        for j in range(i):
            assert not np.array_equal(first[i], first[j])
    assert not np.array_equal(first[0], three_calls(dropout_seed=1)[0])
    seed = pt.iscalar("seed")
    y = block_of(replace(CASE, dropout=0.5)).apply(*variables, seed=seed)[0]
    fn = pytensor.function([seed], y, mode=PERFORM_MODE)
    np.testing.assert_array_equal(fn(4242), first[0])
    np.testing.assert_array_equal(fn(4243), first[2])


def test_gradient_sees_the_same_dropout():
    case = replace(CASE, dropout=0.5)
    operands = case.operands()[:-1]
    variables = [pt.tensor(dtype="float64", shape=(None,) * a.ndim) for a in operands]
    y = block_of(case).apply(*variables)[0]
    grad = pytensor.grad((y**2).sum(), variables[0])
    fn = pytensor.function(variables, [y, grad], mode=PERFORM_MODE)
    for call in range(2):
        y_value, found = fn(*operands)
        *results, reserve = run_op(case.forward, *operands, np.array(4242 + call))
        np.testing.assert_array_equal(y_value, results[0])
        tops = [2 * results[0], *(0 * r for r in results[1:])]
        expected = run_op(
            case.backward, *operands, np.array(4242 + call), results[0], reserve, *tops
        )[0]
        assert_close(found, expected, bound=1e-12)


# -- what cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "words"),
    [
        (("int64", 3, 1, "gru"), {}, DnnTypeError, "dtype must be one of float16, .* got int64"),
        (("nonsense", 3, 1, "gru"), {}, DnnTypeError, "dtype must be a dtype, got 'nonsense'"),
        ((None, 3, 1, "gru"), {}, DnnTypeError, "dtype must be a dtype, got None"),
        (("float32", 3, 1, "GRU"), {}, DnnValueError, "rnn_mode must be one of"),
        (("float32", 3, 0, "gru"), {}, DnnValueError, "num_layers must be between 1 and"),
        (("float32", 3, 1, "gru", "none"), {}, DnnValueError, "'linear' or 'skip', got 'none'"),
        (("float32", 3, 1, "gru", 1), {}, DnnTypeError, "'linear' or 'skip', got 1"),
        (
            ("float32", 3, 1, "gru", "linear", "both"),
            {},
            DnnValueError,
            "'unidirectional' or 'bidirectional', got 'both'",
        ),
        (("float32", 3, 1, "gru"), {"dropout": 1}, DnnValueError, "less than 1, got 1"),
        (("float32", 3, 1, "gru"), {"proj_size": 2}, DnnNotSupportedError, "needs rnn_mode lstm"),
        (("float32", 3, 1, "gru"), {"batch_first": 3}, DnnTypeError, "batch_first must be True"),
        (("float32", 3, 1, "gru"), {"dropout_seed": 0.5}, DnnTypeError, "dropout_seed must be an"),
    ],
)
def test_bad_arguments(arguments, keywords, error, words):
    with pytest.raises(error, match=words):
        RNNBlock(*arguments, **keywords)


@pytest.mark.parametrize(
    ("steps", "lengths", "words"),
    [
        (5, [6, 1], r"lengths must be between 1 and the number of steps 5, got \[6, 1\]"),
        (None, [3, 0], r"lengths must be between 1 and the number of steps, got \[3, 0\]"),
    ],
)
def test_lengths_that_are_known(steps, lengths, words):
    x = pt.tensor(dtype="float32", shape=(steps, 2, 3))
    with pytest.raises(DnnValueError, match=words):
        RNNBlock("float32", 4, 1, "gru").apply(
            pt.fvector(), x, np.zeros((1, 2, 4), "float32"), lengths=lengths
        )


def test_bad_parameter_vectors():
    block, w = block_of(CASE), CASE.operands()[0]
    with pytest.raises(DnnValueError, match=r"input_size must be an int or \(batch, input\)"):
        block.get_param_size([6])
    with pytest.raises(DnnTypeError, match="input_size must be an int or"):
        block.get_param_size("6")
    with pytest.raises(DnnValueError, match="input_size must not be negative"):
        block.get_param_size(-1)
    with pytest.raises(DnnValueError, match="hidden_size 4, got 6"):
        block_of(replace(CASE, skip_input=True)).get_param_size(6)
    for layer in (-1, 4):
        with pytest.raises(DnnValueError, match=f"layer must be between 0 and 3, got {layer}"):
            block.split_params(w, layer, 6)
    with pytest.raises(DnnTypeError, match="layer must be an int"):
        block.split_params(w, 0.5, 6)
    with pytest.raises(DnnValueError, match=rf"w has {w.size - 1} elements, expected {w.size} for"):
        block.split_params(w[1:], 0, 6)
    symbolic = pt.dvector()
    split = pytensor.function([symbolic], block.split_params(symbolic, 0, 6), mode="FAST_COMPILE")
    split(w)
    for wrong in (w[1:], np.append(w, 0)):
        with pytest.raises(DnnValueError, match="split_params: w must have as many elements"):
            split(wrong)
    for not_a_vector in (w[None], [1.0], pt.dmatrix()):
        with pytest.raises(DnnTypeError, match="w must be a vector"):
            block.split_params(not_a_vector, 0, 6)
    layers = [block.split_params(w, n, 6) for n in range(4)]
    with pytest.raises(DnnTypeError, match="layers must be a sequence, got None"):
        block.join_params(None, 6)
    with pytest.raises(DnnValueError, match="of 4 pseudo-layers, got those of 3"):
        block.join_params(layers[:3], 6)
    with pytest.raises(DnnValueError, match="pseudo-layer 1 has 16 parameters, got 15"):
        block.join_params([layers[0], layers[1][:-1], *layers[2:]], 6)
    layers[2][3] = np.zeros(5)
    with pytest.raises(
        DnnValueError, match=r"parameter 3 of pseudo-layer 2 must have shape \(4,\)"
    ):
        block.join_params(layers, 6)


def test_bad_application():
    block, (w, x, hx, cx) = block_of(CASE), CASE.operands()
    with pytest.raises(DnnTypeError, match=r"RNNBlock\.apply: rnn_mode lstm needs cx"):
        block.apply(w, x, hx)
    gru = RNNBlock("float64", 4, 1, "gru")
    with pytest.raises(DnnTypeError, match="rnn_mode gru takes no cx"):
        gru.apply(w, x, hx, cx)
    with pytest.raises(DnnTypeError, match="x has dtype float32, but the block has dtype float64"):
        block.apply(w, x.astype("float32"), hx, cx)
    with pytest.raises(DnnTypeError, match="x must have 3 dimensions, got 2"):
        block.apply(w, x[0], hx, cx)
    with pytest.raises(DnnValueError, match=r"hx has shape \(1, 3, 4\), expected \(4, 3, 4\)"):
        block.apply(w, x, hx[:1], cx)
    with pytest.raises(DnnValueError, match="w has shape"):
        block.apply(w[:-1], x, hx, cx)
    with pytest.raises(DnnTypeError, match="lengths must be a vector of integers"):
        block.apply(w, x, hx, cx, lengths=[1.5, 2.0, 3.0])
    with pytest.raises(DnnTypeError, match="seed must be an integer scalar"):
        block_of(replace(CASE, dropout=0.5)).apply(w, x, hx, cx, seed=0.5)
    with pytest.raises(DnnTypeError, match="inference must be True or False"):
        block.apply(w, x, hx, cx, inference="yes")


def test_seeds_out_of_range():
    """Seeds of more than 64 bits, of the block and of a call."""
    with pytest.raises(DnnValueError, match=r"dropout_seed must be from -2\*\*63 .* got 9223372"):
        RNNBlock("float32", 4, 2, "gru", dropout=0.5, dropout_seed=2**63)
    block = RNNBlock("float32", 4, 2, "gru", dropout=0.5)
    with pytest.raises(DnnValueError, match=r"seed must be from -2\*\*63"):
        block.apply(pt.fvector(), pt.ftensor3(), pt.ftensor3(), seed=2**64)
