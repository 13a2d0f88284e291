"""Errors name the layer, when a graph is built and when it runs."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile import Mode
from pytensor.graph.op import Op

from dnnops import nnet, optim
from dnnops.errors import DnnValueError
from dnnops.layers import LayerNorm, Linear, ReLU, Residual, Sequential, SpatialConvolution, seed
from dnnops.layers.gradient_places import layer_frames
from dnnops.layers.layer import Layer


@pytest.fixture(autouse=True)
def seeded():
    seed(0)


def divided(x):
    return x / 0 if x.type.ndim == 2 else 1 / 0


class Block(Layer):
    """Has children in attributes and in a list."""

    def __init__(self):
        super().__init__()
        self.first, self.others = Linear(3, 4), [Linear(4, 5), Linear(6, 7)]

    def forward(self, x):
        x = nnet.relu(self.first(x))
        for layer in self.others:
            x = layer(x)
        return x


def built(net, x) -> str:
    try:
        net(x)
    except Exception as error:
        return str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("net", "x", "places"),
    [
        (
            Sequential(*[ReLU() for _ in range(6)], Linear(100, 10)),
            pt.tensor(shape=(None, 50)),
            ["layer 6 of Sequential, Linear(100 -> 10)"],
        ),
        (
            Sequential(ReLU(), Residual(ReLU(), Linear(4, 4))),
            pt.tensor(shape=(2, 5)),
            ["layer 1 of Residual, Linear(4 -> 4)", "layer 1 of Sequential, Residual"],
        ),
        (
            Residual(ReLU(), shortcut=Linear(4, 4)),
            pt.tensor(shape=(2, 5)),
            ["layer shortcut of Residual, Linear(4 -> 4)"],
        ),
        (
            Sequential(Block()),
            pt.tensor(shape=(2, 3)),
            ["layer others.1 of Block, Linear(6 -> 7)", "layer 0 of Sequential, Block"],
        ),
        (Sequential(ReLU(), divided), pt.vector(), ["layer 1 of Sequential, divided"]),
        (
            Sequential(SpatialConvolution(3, 8, 3, 3)),
            pt.tensor(shape=(2, 4, 8, 8)),
            ["layer 0 of Sequential, SpatialConvolution(3 -> 8, 3x3)"],
        ),
    ],
)
def test_while_a_graph_is_built(net, x, places):
    lines = built(net, x).splitlines()
    assert lines[-len(places) :] == [f"  in {place}" for place in places]


def test_a_layer_by_itself_has_no_place():
    assert "  in " not in built(Linear(4, 4), pt.tensor(shape=(2, 5)))
    # Nor after an error, nor in another thread.
    built(Sequential(Linear(4, 4)), pt.tensor(shape=(2, 5)))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(built(Linear(4, 4), pt.tensor(shape=(2, 5))))
    )
    thread.start()
    thread.join()
    assert "  in " not in found[0]


NET = Sequential(nnet.tanh, Residual(Linear(72, 72), ReLU()), Linear(72, 10))


@pytest.mark.parametrize("mode", [Mode("py", None), Mode("vm", "fast_run"), "CVM"])
def test_while_a_function_runs(mode):
    """Places survive rewrites, and copies of the function."""
    x = pt.matrix("x")
    y = NET(x)
    f = pytensor.function([x], y, mode=mode)
    # PyTensor cannot pickle a function whose products it has not specialized.
    copies = [f.copy(), *([] if mode.__class__ is Mode else [pickle.loads(pickle.dumps(f))])]
    for g in (f, *copies):
        with pytest.raises(ValueError, match="72") as caught:
            g(np.ones((2, 50), x.type.dtype))
        assert str(caught.value).splitlines()[-2:] == [
            "  in layer 0 of Residual, Linear(72 -> 72)",
            "  in layer 1 of Sequential, Residual",
        ]


def test_the_nodes_of_a_layer():
    """A node belongs to the innermost layer that made it; arguments belong to none."""
    x = pt.matrix("x") * 2
    first = Linear(72, 72)(x)  # not in a layer
    y = NET(first)
    by_place = {}
    for variable in pytensor.graph.ancestors([y]):
        traces = getattr(variable.tag, "trace", [])
        frames = [f for trace in traces for f in trace if str(f[0]).startswith("<layer ")]
        if frames:
            by_place.setdefault(tuple((f[0], f[2]) for f in frames), []).append(variable)
    assert set(by_place) == {
        (("<layer 0 of Sequential>", "tanh"),),
        (("<layer 1 of Sequential>", "Residual"),),
        (("<layer 1 of Sequential>", "Residual"), ("<layer 0 of Residual>", "Linear(72 -> 72)")),
        (("<layer 1 of Sequential>", "Residual"), ("<layer 1 of Residual>", "ReLU")),
        (("<layer 2 of Sequential>", "Linear(72 -> 10)"),),
    }
    assert first not in [v for found in by_place.values() for v in found]


class Failing(Op):
    """The identity; its gradient fails in a call, at the node that its pullback makes."""

    itypes = otypes = (pt.dmatrix,)
    __props__ = ("fails",)

    def __init__(self, fails: bool = False):
        self.fails = fails

    def perform(self, node, inputs, outputs):
        if self.fails:
            raise ValueError("no gradient")
        outputs[0][0] = inputs[0].copy()

    def pullback(self, inputs, outputs, gradients):
        return [pt.exp(Failing(fails=True)(gradients[0]))]


@pytest.mark.parametrize("mode", [Mode("py", None), Mode("vm", "fast_run")])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_layers(mode, order: int):
    net = Sequential(nnet.tanh, Residual(Linear(4, 4, dtype="float64"), Failing()), nnet.tanh)
    x = pt.dmatrix("x")
    cost = net(x).sum()
    for _ in range(order):
        gradient = pytensor.grad(cost, x)
        cost = (gradient**2).sum()
    with pytest.raises(ValueError, match="no gradient") as caught:
        pytensor.function([x], gradient, mode=mode)(np.ones((2, 4)))
    assert str(caught.value).splitlines()[-2:] == [
        "  in the gradient of layer 1 of Residual, Failing(fails=False)",
        "  in layer 1 of Sequential, Residual",
    ]


def test_gradients_in_a_call():
    """Of products whose forward part is not computed, after PyTensor has specialized them."""
    net = Sequential(Linear(3, 72), Linear(72, 10))
    x, weights = pt.matrix("x"), pt.matrix("weights")
    wrt = [net[0].weight, net[1].weight]
    gradients = pytensor.grad((net(x) * weights).sum(), wrt)
    dtype = x.type.dtype
    for number, gradient in enumerate(gradients):
        f = pytensor.function([x, weights], gradient, mode=Mode("vm", "fast_run"))
        with pytest.raises(ValueError, match="gradient") as caught:
            f(np.ones((2, 3), dtype), np.ones((5, 10), dtype))
        sizes = "(3 -> 72)", "(72 -> 10)"
        assert str(caught.value).splitlines()[-1] == (
            f"  in the gradient of layer {number} of Sequential, Linear{sizes[number]}"
        )


def test_the_nodes_of_a_gradient():
    """Each node between two layers' gradients is the last one's; sums of both are nobody's."""
    x = pt.matrix("x")
    h = 2 * x  # not in a layer
    y = Sequential(Residual(nnet.tanh, nnet.tanh))(h)
    gradient = pytensor.grad((y**2).sum(), x)
    before = set(pytensor.graph.ancestors([y]))
    by_place: dict[str, set[str]] = {}
    for variable in set(pytensor.graph.ancestors([gradient])) - before:
        if variable.owner is not None:
            name = str(variable.owner.op)
            for frames in layer_frames(variable) or [(("",),)]:
                by_place.setdefault(frames[-1][0].strip("<>"), set()).add(name)
    assert "ActivationGrad{tanh}" not in by_place[""]
    assert any(
        name.startswith("Activation") for name in by_place["the gradient of layer 1 of Residual"]
    )
    assert by_place["the gradient of layer 0 of Residual"] != set()
    # x**2 and 2*x are outside of the network, and the gradient of h is the sum of two branches.
    assert {"Mul", "Add"} <= by_place[""]


def test_numbers_are_those_of_the_parameters():
    lines = repr(NET).splitlines()
    assert any(line.strip() == "(2): nn.Linear(72 -> 10)" for line in lines)
    assert list(NET.named_parameters())[-1] == "2.bias"
    assert NET[2] is list(NET)[2]


@pytest.mark.parametrize("optimizer", [optim.sgd, optim.adam, optim.adamw, optim.rmsprop])
def test_unused_parameters_are_named(optimizer):
    net = Sequential(Linear(3, 4), LayerNorm(4), Linear(4, 2))
    x = pt.matrix("x")
    loss = net[1](net[0](x)).sum()
    with pytest.raises(DnnValueError, match=r"does not depend on 2\.weight, 2\.bias of the param"):
        optimizer(loss, net, learning_rate=0.1)
    unused = pytensor.shared(np.zeros(3), name="w")
    with pytest.raises(DnnValueError, match=rf"{optimizer.__name__}: .* depend on 1 of the param"):
        optimizer(loss, [*net[0].parameters()[:1], unused], learning_rate=0.1)
