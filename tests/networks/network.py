"""Random networks, which a seed determines."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.random.type import random_generator_type

from dnnops import nnet
from tests.networks import images, pieces, sequences  # noqa: F401 - they declare the layers
from tests.networks.layers import LAYERS, Rng
from tests.networks.reference import Program

__all__ = ["Network", "Sketch", "build", "host_tensor", "host_variable", "sketch"]

#: Smallest and largest number of nodes of the graph, without losses and gradients. The last layer
#: may exceed the largest.
LEAST, MOST = 5, 60
#: Arrays with more elements are not drawn.
MAX_SIZE = 4096
#: Arrays whose numbers are smaller or larger are not drawn: they would leave float16's range.
MAGNITUDES = (1e-2, 30.0)


class Step(NamedTuple):
    """A layer of a network: its name, its operands among the variables so far, and its number."""

    name: str
    operands: tuple[int, ...]
    number: int


@dataclass
class Sketch:
    """What a network contains, without variables.

    Attributes
    ----------
    seed : int
        Seed of everything that is drawn.
    inputs : list of tuple of int
        Shapes of the inputs.
    steps : list of Step
        Layers.
    shapes : list of tuple of int
        Shapes of the inputs and of the layers' results.
    said : list of str
        Descriptions of the layers.
    without : frozenset of int
        Numbers of layers that were left out.
    last : int
        Number of the last layer.
    """

    seed: int
    inputs: list[tuple[int, ...]]
    steps: list[Step] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    without: frozenset[int] = frozenset()
    last: int = 0

    def __str__(self) -> str:
        lines = [f"{i}: input {shape}" for i, shape in enumerate(self.inputs)]
        for i, (step, words) in enumerate(zip(self.steps, self.said, strict=True), len(lines)):
            lines.append(f"{i}: {step.name}{step.operands} {words} -> {self.shapes[i]}")
        return "\n".join(lines)


class _Build:
    """The graph of a network while it is built; see `layers.Graph`.

    Parameters
    ----------
    seed : int
        Seed of the values.
    dtype : str
        Dtype of all floats.
    static : bool
        Whether the types of inputs and parameters state their shapes.
    tensor, shared : callable
        Make an input from a dtype and a static shape, and a parameter from a value and one.
    """

    def __init__(
        self,
        seed: int,
        dtype: str,
        static: bool,
        tensor: Callable[..., Any],
        shared: Callable[..., Any],
    ):
        self.seed, self.dtype, self.static = seed, dtype, static
        self._tensor, self._shared = tensor, shared
        self.inputs: list[Any] = []
        self.values: list[np.ndarray] = []
        self.parameters: list[Any] = []
        self.parameter_values: list[np.ndarray] = []
        self.generators: list[tuple[Any, Any, Any]] = []
        self.outputs: list[Any] = []
        self.words: list[str] = []
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self._rng = np.random.default_rng(seed)
        self._number = 0

    def begin(self, number: int) -> Rng:
        """Start a layer; return the generator of its parameters."""
        self._number, self.words = number, []
        self._rng = np.random.default_rng((self.seed, number, 1))
        return np.random.default_rng((self.seed, number))

    def input(self, value: np.ndarray) -> Any:
        self.inputs.append(self._tensor(value.dtype.name, self._stated(value.shape)))
        self.values.append(value)
        return self.inputs[-1]

    def _stated(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return what a type states of a shape; PyTensor broadcasts only axes known to be 1."""
        return tuple(n if self.static or n == 1 else None for n in shape)

    def shape(self, x: Any) -> tuple[int, ...]:
        return self.shapes[x]

    def parameter(self, *shape: int, scale: float = 1.0, value: float = 0.0) -> Any:
        # bfloat16 can express these numbers, so that no dtype rounds what it is given.
        drawn = np.round((value + scale * self._rng.standard_normal(shape)) * 64) / 64
        drawn = np.where(np.abs(drawn) > 4, 4 * np.sign(drawn), drawn).astype(self.dtype)
        p = self._shared(drawn, self._stated(drawn.shape))
        self.parameters.append(p)
        self.parameter_values.append(drawn)
        return p

    def constant(self, value: Any) -> Any:
        return np.asarray(value, self.dtype)

    def indices(self, bound: int, *shape: int) -> Any:
        return self.input(self._rng.integers(0, bound, shape))

    def normal(self, like: Any) -> Any:
        value = np.random.default_rng((self.seed, self._number, 2))
        rng = self._shared(value, ())
        new, numbers = pt.random.normal(
            0, 1, size=like.shape, rng=rng, dtype=self.dtype, return_next_rng=True
        )
        self.generators.append((rng, value, new))
        return numbers

    def also(self, *outputs: Any) -> None:
        self.outputs += outputs

    def say(self, text: str) -> None:
        self.words.append(text)


@dataclass
class Network:
    """A network as a function of everything that it reads.

    Attributes
    ----------
    inputs, values : list
        Inputs and their values.
    parameters, parameter_values : list
        Parameters and their values.
    generators : list of tuple
        Generators of random numbers, their values, and what they are after a call.
    outputs : list of Variable
        Loss, results of layers, and gradients.
    gradients : list of Variable
        Gradients of the loss with respect to all parameters.
    """

    inputs: list[Any]
    values: list[np.ndarray]
    parameters: list[Any]
    parameter_values: list[np.ndarray]
    generators: list[tuple[Any, Any, Any]]
    outputs: list[Any]
    gradients: list[Any]


def host_variable(value: Any, shape: tuple[int | None, ...]) -> Any:
    """Return a variable on the host for an array, or for a generator of random numbers."""
    if isinstance(value, np.random.Generator):
        return random_generator_type()
    return pt.tensor(dtype=value.dtype.name, shape=shape)


def host_tensor(dtype: str, shape: tuple[int | None, ...]) -> Any:
    """Return an input on the host."""
    return pt.tensor(dtype=dtype, shape=shape)


def _start(
    seed: int, dtype: str, static: bool, tensor: Any, shared: Any
) -> tuple[_Build, list[Any]]:
    g = _Build(seed, dtype, static, tensor, shared)
    rng = g.begin(0)
    pool = []
    for _ in range(int(rng.integers(1, 3))):
        rank = int(rng.choice([2, 3, 4, 4, 4, 5]))
        batch = int(rng.integers(1, 6))
        channels = int(rng.choice([1, 2, 3, 4, 6, 8, 16]))
        largest = {2: 0, 3: 12, 4: 10, 5: 5}[rank]
        size = tuple(int(n) for n in rng.integers(2, largest + 1, rank - 2)) if largest else ()
        value = np.round(rng.standard_normal((batch, channels, *size)) * 64) / 64
        pool.append(g.input(np.clip(value, -4, 4).astype(dtype)))
    return g, pool


def sketch(
    seed: int, steps: int | None = None, without: Collection[int] = (), most: int = MOST
) -> Sketch:
    """Draw a network.

    Parameters
    ----------
    seed : int
        Seed.
    steps : int, optional
        Number of layers; drawn by default. Fewer layers leave the first ones as they are.
    without : collection of int
        Numbers of layers to leave out. Others may then read other variables.
    most : int
        Largest number of nodes; larger numbers are drawn, too, and reduced to it.
    """
    g, pool = _start(seed, "float64", True, host_tensor, host_variable)
    given = dict(zip(g.inputs, g.values, strict=True))
    values = [*g.values]
    found = Sketch(seed, [v.shape for v in values], [], [v.shape for v in values], [])
    g.shapes = dict(zip(pool, found.shapes, strict=True))
    rng = np.random.default_rng((seed, 0, 3))
    wanted = min(most, int(np.exp(rng.uniform(np.log(LEAST), np.log(MOST + 1)))))
    found.without = frozenset(without)
    names = list(LAYERS)
    for number in range(1, MOST + 1 if steps is None else steps + 1):
        if steps is None and len(list(toposort(pool))) >= wanted:
            break
        rng = np.random.default_rng((seed, number, 3))
        found.last = number
        if number in without:
            continue
        for attempt in range(20):
            first = _index(rng, len(pool))
            weights = np.array(
                [LAYERS[n].weight * (len(found.shapes[first]) in LAYERS[n].ranks) for n in names]
            )
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            more = (_index(rng, len(pool)) for _ in range(LAYERS[name].operands - 1))
            step = Step(name, (first, *more), number * 32 + attempt)
            before = [len(x) for x in _lists(g)]
            z = _apply(g, pool, step)
            value = None if z is None else _value(g, z, pool, values, given)
            if value is not None:
                pool.append(z)
                values.append(value)
                found.steps.append(step)
                found.shapes.append(value.shape)
                found.said.append(" ".join(g.words))
                g.shapes[z] = value.shape
                break
            for x, length in zip(_lists(g), before, strict=True):
                del x[length:]
    return found


def _lists(g: _Build) -> tuple[list[Any], ...]:
    return g.inputs, g.values, g.parameters, g.parameter_values, g.generators, g.outputs


def _index(rng: Rng, count: int) -> int:
    """Return a variable's number; the last ones are the most likely, so that networks are deep."""
    return count - 1 - min(int(rng.geometric(0.5)) - 1, count - 1)


def _apply(g: _Build, pool: list[Any], step: Step) -> Any:
    rng = g.begin(step.number)
    return LAYERS[step.name].make(g, rng, *(pool[i] for i in step.operands))


def _value(g: _Build, z: Any, pool: list[Any], values: list[Any], given: dict[Any, Any]) -> Any:
    """Return the value of a layer, or None if it is too large, or constant."""
    known = dict(zip(pool, values, strict=True))
    known |= dict(zip(g.inputs, g.values, strict=True))
    known |= dict(zip(g.parameters, g.parameter_values, strict=True))
    known |= {rng: value for rng, value, _ in g.generators}
    (value,) = Program(list(known), [z])(list(known.values()))
    if not 2 <= value.ndim <= 5 or not 2 <= value.size <= MAX_SIZE or z.type.dtype != g.dtype:
        return None
    size = float(np.max(np.abs(value)))
    spread = float(np.std(value))
    least, most = MAGNITUDES
    return value if size <= most and spread >= least else None


def build(
    drawn: Sketch,
    dtype: str,
    static: bool = True,
    tensor: Callable[..., Any] = host_tensor,
    shared: Callable[..., Any] = host_variable,
    scale: float = 1.0,
) -> Network:
    """Build the graph of a network.

    Parameters
    ----------
    drawn : Sketch
        The network.
    dtype : {'float32', 'float64'}
        Dtype of all floats.
    static : bool
        Whether the types of inputs and parameters state their shapes.
    tensor, shared : callable
        Make an input from a dtype and a static shape, and a parameter from a value and one.
    scale : float
        Factor of the loss where it is differentiated.
    """
    g, pool = _start(drawn.seed, dtype, static, tensor, shared)
    floats = [*pool]
    for x, shape in zip(pool, drawn.shapes, strict=False):
        g.shapes[x] = shape
    for step, shape in zip(drawn.steps, drawn.shapes[len(pool) :], strict=True):
        pool.append(_apply(g, pool, step))
        g.shapes[pool[-1]] = shape
    read = {i for step in drawn.steps for i in step.operands}
    ends = [i for i in range(len(drawn.inputs), len(pool)) if i not in read] or [len(pool) - 1]
    g.begin(32 * 1000)
    loss = sum(_loss(g, np.random.default_rng((drawn.seed, 4, i)), pool[i]) for i in ends)
    loss = loss / g.constant(len(ends))
    wrt = [*g.parameters, *floats]
    gradients = pytensor.grad(
        loss * g.constant(scale), wrt, disconnected_inputs="ignore", return_disconnected="zero"
    )
    shown = [pool[i] for i in ends[:3]]
    by_inputs = gradients[len(g.parameters) :]
    return Network(
        g.inputs,
        g.values,
        g.parameters,
        g.parameter_values,
        g.generators,
        [loss, *shown, *g.outputs, *by_inputs],
        gradients[: len(g.parameters)],
    )


def _loss(g: _Build, rng: Rng, x: Any) -> Variable:
    """Return a scalar: cross entropy, mean squared error or a weighted mean."""
    shape = g.shape(x)
    kind = rng.integers(3) if len(shape) == 2 and shape[1] > 1 else rng.integers(1, 3)
    if kind == 0:
        labels = g.indices(shape[1], shape[0])
        if rng.integers(2):
            return nnet.cross_entropy(x, labels).mean()
        rows = pt.special.log_softmax(x, axis=1)
        return -rows[pt.arange(x.shape[0]), labels].mean()
    target = g.parameter(*shape)
    return ((x - target) ** 2).mean() if kind == 1 else (x * target).mean()
