"""Dropout: set random elements to zero and scale the others to preserve the mean.

The random number generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, Parallel Random
Numbers: As Easy as 1, 2, 3 (2011), a function of a key and a counter. Whether an element is dropped
therefore depends on the seed, on the number of elements drawn before, and on its C-order index in
the array, but not on the number of threads or the memory layout.

The state is an int64 vector of two entries, read as unsigned: the seed, which is the key, and an
offset, the counter of the next call's first block. In C order, each group of 64 elements uses the
four 32-bit words of 16 blocks: the first 16 elements use the blocks' first words, the next 16 the
second words, and so on. An element is dropped if its word is less than ``floor(p * 2**32)``.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type, grad_undefined
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.tensor.basic import get_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.utils import RandomStream
from pytensor.tensor.random.variable import RandomGeneratorSharedVariable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import probability, shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.streams import advance, marked
from dnnops.nnet.validate import (
    accumulator_dtype,
    float64_scalar,
    float_tensor,
    int_vector,
    is_int,
    show_shape,
)

__all__ = [
    "Dropout",
    "DropoutGrad",
    "dropout",
    "dropout_state",
    "initial_state",
    "philox4x32",
    "state_after",
    "state_vector",
]

#: Number of elements in a group, and number of random blocks that a group uses.
GROUP, BLOCKS = 64, 16

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: np.ndarray, key: tuple[int, int], rounds: int = 10) -> np.ndarray:
    """Compute blocks of four random 32-bit words.

    Parameters
    ----------
    counter : ndarray of uint32, shape (..., 4)
        Counters of the blocks.
    key : tuple of two ints less than 2**32
        Key of the generator.
    rounds : int
        Number of rounds.

    Returns
    -------
    ndarray of uint32, shape (..., 4)
    """
    a, b, c, d = (counter[..., i].astype("uint64") for i in range(4))
    for step in range(rounds):
        first, second = (
            np.uint64((k + step * by) & 0xFFFFFFFF) for k, by in zip(key, _KEY_STEPS, strict=True)
        )
        low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = (high >> _HALF) ^ b ^ first, high & _LOW
        c, d = (low >> _HALF) ^ d ^ second, low & _LOW
    return np.stack([a, b, c, d], axis=-1).astype("uint32")


def random_words(state: np.ndarray, count: int) -> np.ndarray:
    """Return the random words that `state` gives for `count` elements in C order."""
    seed, offset = (int(word) for word in state.view("uint64"))
    groups = -(-count // GROUP)
    blocks = np.arange(groups * BLOCKS, dtype="uint64") + np.uint64(offset)
    counter = np.zeros((blocks.size, 4), dtype="uint32")
    counter[:, 0], counter[:, 1] = blocks & _LOW, blocks >> _HALF
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return words.reshape(groups, BLOCKS, 4).swapaxes(1, 2).ravel()[:count]


def probability_variable(where: str, name: str, p: Any) -> TensorVariable:
    """Return a dropout probability as a float64 scalar, checking its value if it is constant."""
    p = float64_scalar(where, name, p)
    if isinstance(p, Constant):
        probability(where, name, float(p.data), with_one=True)
    return p


class Dropout(Op):
    """Dropout: ``Dropout()(x, p, state)`` returns ``y``, ``reserve`` and ``next_state``.

    Each element becomes 0 with probability `p`, a float64 scalar; the others are multiplied by
    ``1 / (1 - p)``. If `p` is 1, all become 0. `reserve` is a uint8 vector that `DropoutGrad`
    needs. This Op stores one bit per element in C order, starting with the lowest bit of each byte,
    and sets it for elements that were kept. `next_state` is the state for the next call.
    """

    __props__: tuple[str, ...] = ()

    def make_node(self, x: Any, p: Any, state: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        x = float_tensor(name, "x", x)
        p = probability_variable(name, "p", p)
        state = state_vector(name, state)
        sizes = x.type.shape
        length = None if None in sizes else _reserve_length(prod(sizes))
        return Apply(
            self,
            [x, p, state],
            [
                pt.tensor(dtype=x.type.dtype, shape=sizes),
                pt.tensor(dtype="uint8", shape=(length,)),
                pt.tensor(dtype="int64", shape=(2,)),
            ],
        )

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0], (_reserve_length(prod(shapes[0])),), (2,)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True, False, False], [True, False, False], [False, False, True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        p = inputs[1]
        if not is_connected(cotangents[0]):
            return [disconnected_type() for _ in inputs]
        gx = DropoutGrad()(cotangents[0], p, outputs[1])
        return [gx, undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        tangent: Any = disconnected_type()
        if is_moving(tangents[1]):
            tangent = undefined_by_p(self, inputs[1])
        elif is_connected(tangents[0]):
            tangent = DropoutGrad()(tangents[0], inputs[1], outputs[1])
        return [tangent, disconnected_type(), disconnected_type()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, p, state = inputs
        name = type(self).__name__
        p = probability(name, "p", float(p), with_one=True)
        state = np.ascontiguousarray(state)
        if state.shape != (2,):
            raise DnnValueError(f"{name}: state must have 2 entries, got {state.size}")
        kept = random_words(state, x.size) >= np.uint32(min(int(p * 2**32), 2**32 - 1))
        reserve = np.packbits(kept, bitorder="little")
        next_state = state.copy()
        blocks = np.array([BLOCKS * -(-x.size // GROUP)], dtype="uint64")
        next_state[1:] = (state[1:].view("uint64") + blocks).view("int64")
        output_storage[0][0] = _scaled(x, p, kept)
        output_storage[1][0] = reserve
        output_storage[2][0] = next_state


class DropoutGrad(Op):
    """Gradient of dropout: ``DropoutGrad()(gy, p, reserve)``.

    `gy` is the gradient with respect to the output; `p` and `reserve` come from the `Dropout` node.
    """

    __props__: tuple[str, ...] = ()

    def make_node(self, gy: Any, p: Any, reserve: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        gy = float_tensor(name, "gy", gy)
        p = probability_variable(name, "p", p)
        reserve = pt.as_tensor_variable(reserve)
        if reserve.type.ndim != 1 or reserve.type.dtype != "uint8":
            raise DnnTypeError(f"{name}: reserve must be a uint8 vector, got {reserve.type}")
        return Apply(self, [gy, p, reserve], [pt.tensor(dtype=gy.type.dtype, shape=gy.type.shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        _, p, reserve = inputs
        gradient = self(cotangents[0], p, reserve)
        return [gradient, undefined_by_p(self, p), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if is_moving(tangents[1]):
            return [undefined_by_p(self, inputs[1])]
        if not is_connected(tangents[0]):
            return [disconnected_type()]
        return [self(tangents[0], *inputs[1:])]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        gy, p, reserve = inputs
        name = type(self).__name__
        p = probability(name, "p", float(p), with_one=True)
        if reserve.size != _reserve_length(gy.size):
            raise DnnValueError(
                f"{name}: reserve has {reserve.size} bytes, expected {_reserve_length(gy.size)} "
                f"for gy of shape {show_shape(gy.shape)}"
            )
        kept = np.unpackbits(reserve, count=gy.size, bitorder="little").astype(bool)
        output_storage[0][0] = _scaled(gy, p, kept)


def undefined_by_p(op: Op, p: Any) -> Any:
    return grad_undefined(op, 1, p, "p determines which elements are dropped")


def is_moving(tangent: Any) -> bool:
    """Return whether a tangent is connected and not the zero tangent of a constant operand."""
    if not is_connected(tangent):
        return False
    try:
        return bool(get_scalar_constant_value(tangent) != 0)
    except NotScalarConstantError:
        return True


def _reserve_length(count: Any) -> Any:
    return (count + 7) // 8


def dropout_scale(p: float) -> float:
    """Return the factor of the elements that are kept, which is 0 if `p` is 1."""
    return 0.0 if p == 1 else 1 / (1 - p)


def _scaled(x: np.ndarray, p: float, kept: np.ndarray) -> np.ndarray:
    wide = accumulator_dtype(x.dtype)
    scaled = x.astype(wide, copy=False) * wide.type(dropout_scale(p))
    return np.where(kept.reshape(x.shape), scaled, 0).astype(x.dtype)


def state_vector(where: str, state: Any) -> TensorVariable:
    """Check the `state` argument of the function `where` and return it as an int64 vector."""
    vector = int_vector(where, "state", state, 2)
    if pt.as_tensor_variable(state).type.dtype != "int64":
        raise DnnTypeError(f"{where}: state must have dtype int64, got {state.type.dtype}")
    return vector


def dropout_state(seed: int, name: str | None = None) -> Any:
    """Create a dropout state as a shared variable.

    Parameters
    ----------
    seed : int
        Seed, from 0 to ``2**64 - 1``.
    name : str, optional
        Name of the variable.

    Returns
    -------
    TensorSharedVariable
        An int64 vector of two entries: the seed, and the position in its random sequence at which
        the next call starts. To repeat a sequence, save ``get_value()`` and restore it with
        ``set_value``.

    Raises
    ------
    DnnTypeError
        If `seed` is not an int or `name` is not a string.
    DnnValueError
        If `seed` is out of bounds.
    """
    where = "dropout_state"
    if name is not None and not isinstance(name, str):
        raise DnnTypeError(f"{where}: name must be a string, got {shown(name)}")
    return marked(pytensor.shared(initial_state(where, seed), name=name, shape=(2,)))


def state_after(state: Any, shape: Any) -> Any:
    """Return the state after a dropout of an array of this shape, as an expression."""
    count = pt.cast(prod(shape), "int64")
    return state + pt.stack([pt.constant(0, dtype="int64"), BLOCKS * (-(-count // GROUP))])


def initial_state(where: str, seed: Any) -> np.ndarray:
    """Return the state that a seed starts with; `where` names the function in error messages."""
    if not is_int(seed):
        raise DnnTypeError(f"{where}: seed must be an int, got {shown(seed)}")
    if not 0 <= seed < 2**64:
        raise DnnValueError(f"{where}: seed must be from 0 to 2**64 - 1, got {seed}")
    return np.array([seed, 0], dtype="uint64").view("int64")


def _drawn_seed(where: str, rng: Any) -> int:
    """Draw a seed the way PyTensor creates generators: from `rng`, or else from entropy."""
    if isinstance(rng, RandomGeneratorSharedVariable):
        generator = rng.get_value(borrow=False)
        seed = _drawn_seed(where, generator)
        rng.set_value(generator, borrow=True)
        return seed
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(2**64, dtype="uint64"))
    if rng is None:
        rng = np.random.SeedSequence()
    sequence = rng.gen_seedgen if isinstance(rng, RandomStream) else rng
    if not isinstance(sequence, np.random.SeedSequence):
        raise DnnTypeError(
            f"{where}: rng must be a numpy.random.Generator, a shared variable of one, a "
            f"SeedSequence or a RandomStream, got {rng!r}"
        )
    (child,) = sequence.spawn(1)
    return int(child.generate_state(1, "uint64")[0])


def dropout(
    x: Any, p: Any = 0.5, seed: int | None = None, state: Any = None, rng: Any = None
) -> Any:
    """Set random elements to zero and scale the others to preserve the mean.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor with any number of dimensions.
    p : number or scalar variable
        Probability that an element becomes 0. With 1, all do, and so do all gradients.
    seed : int, optional
        Seed, from 0 to ``2**64 - 1``. The result keeps its own state: each call of a compiled
        function draws new numbers, and compiling the same program again repeats the sequence. If
        `seed`, `state` and `rng` are all omitted, a seed is drawn from the system's entropy, as
        ``pytensor.tensor.random.shared_rng()`` does, so that each process drops different elements.
    state : int64 vector, optional
        State to use instead of a seed, such as one made by `dropout_state`. The next state is then
        returned, too, and must be used: as the update of the shared variable, or as the state of
        the next dropout.
    rng : Generator, shared variable of one, SeedSequence or RandomStream, optional
        Source of a seed, which is drawn immediately, instead of `seed`. Layers that share a
        generator get different seeds, and seeding the generator makes them reproducible.

    Returns
    -------
    y : TensorVariable
        A tensor with the shape and dtype of `x`, whose elements are 0 or ``x / (1 - p)``. The
        gradient passes through the elements that were kept.
    next_state : TensorVariable
        The state for the next call, returned only if `state` was given.

    Raises
    ------
    DnnTypeError
        If a dtype is invalid, `seed` is not an int, or `rng` has an unsupported type.
    DnnValueError
        If `p` or `seed` is out of bounds, or if more than one of `seed`, `state` and `rng` is
        given. A symbolic `p` is checked when the compiled function is called.

    Notes
    -----
    Two layers with the same seed drop the same elements of arrays of the same shape. Give each
    layer its own seed, or pass the state from one layer to the next.

    With a seed, the number of random values drawn by a call depends on the size of `x`, as in
    PyTensor's random variables. ``clone_replace`` doesn't update that dependency, so it cannot
    replace `x`. With a state it can, as long as ``next_state`` is replaced, too.

    ``vectorize_graph`` draws other numbers for each entry of `x`, in one call. With a seed, these
    come from another state that the result keeps, which starts from the value of the first one.

    Examples
    --------
    >>> y = dropout(x, 0.2)
    >>> y = dropout(x, 0.2, seed=1)
    >>> rng = pytensor.tensor.random.shared_rng(seed=1)
    >>> y = dropout(dropout(x, 0.2, rng=rng) @ w, 0.5, rng=rng)
    >>> state = dropout_state(seed=1)
    >>> y, next_state = dropout(x, 0.2, state=state)
    >>> z, next_state = dropout(y @ w, 0.5, state=next_state)
    >>> f = pytensor.function([x], z, updates={state: next_state})
    """
    where = "dropout"
    sources = {"seed": seed, "state": state, "rng": rng}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) > 1:
        raise DnnValueError(
            f"{where}: give at most one of seed, state and rng, got {' and '.join(given)}"
        )
    x = float_tensor(where, "x", x)
    p = probability_variable(where, "p", p)
    if state is not None:
        y, _, next_state = Dropout().make_node(x, p, state_vector(where, state)).outputs
        return y, next_state
    return seeded_dropout(where, Dropout(), x, p, _drawn_seed(where, rng) if seed is None else seed)


def seeded_dropout(where: str, op: Any, x: Any, p: Any, seed: Any) -> Any:
    """Apply a dropout Op with its own state, which each call of a compiled function updates.

    Parameters
    ----------
    where : str
        Name of the calling function, for error messages.
    op : Op
        Dropout Op that takes `x`, `p` and a state.
    x, p, seed
        See `dropout`.
    """
    own = pytensor.shared(initial_state(where, seed), shape=(2,))
    y, _, next_state = op.make_node(x, p, own).outputs
    advance(own, next_state)
    return y
