"""Random streams with Theano's methods, based on PyTensor's generators.

Each call creates a separate generator, which is advanced by every function that uses the draw. The
numbers differ from those that Theano draws from the same seed.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor import config
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import upcast
from pytensor.tensor import as_tensor_variable
from pytensor.tensor.random import basic
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.random.variable import RandomGeneratorSharedVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.streams import advance

__all__ = [
    "MRG_RandomStreams",
    "RandomState",
    "RandomStateSharedVariable",
    "RandomStreams",
    "as_generator",
    "randomstate_constructor",
]


class RandomState(np.random.Generator):
    """Generator with methods of ``numpy.random.RandomState``, whose objects Theano's streams held.

    Parameters
    ----------
    bit_generator : BitGenerator
    """

    def seed(self, seed: Any = None) -> None:
        """Restart the generator.

        Parameters
        ----------
        seed : int or sequence of int, optional
            The default takes entropy of the system.
        """
        self.bit_generator.state = type(self.bit_generator)(seed).state

    def get_state(self) -> Any:
        """Return the state of the generator, which later draws don't change."""
        return deepcopy(self.bit_generator.state)

    def set_state(self, state: Any) -> None:
        """Set the state of the generator.

        Parameters
        ----------
        state : dict
            What :meth:`get_state` returned.

        Raises
        ------
        ValueError
            If it is the state of another kind of generator.
        """
        self.bit_generator.state = state


class RandomStateSharedVariable(RandomGeneratorSharedVariable):  # type: ignore[misc]
    """Shared generator whose values have the methods of `RandomState`."""

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """Return the generator, or by default a copy of it.

        Parameters
        ----------
        borrow : bool
            Whether draws from the returned generator may change the variable.
        return_internal_type : bool
            Ignored.

        Returns
        -------
        RandomState
        """
        value = super().get_value(borrow=borrow, return_internal_type=return_internal_type)
        return RandomState(value.bit_generator)

    def set_value(self, new_value: Any = None, *, borrow: bool = False, **kwargs: Any) -> None:
        """Set the generator to another one, or to a ``RandomState`` of NumPy.

        Parameters
        ----------
        new_value : numpy.random.Generator or numpy.random.RandomState
        borrow : bool
            Whether the variable may share the generator.
        **kwargs
            Further arguments of PyTensor's method.

        Raises
        ------
        DnnTypeError
            If it is neither.
        """
        value = None if new_value is None else as_generator(new_value)
        super().set_value(value, borrow=borrow, **kwargs)


def as_generator(value: Any) -> np.random.Generator:
    """Return a generator that continues `value`, a ``RandomState`` or a generator.

    Parameters
    ----------
    value : numpy.random.Generator or numpy.random.RandomState

    Returns
    -------
    numpy.random.Generator
        For a generator, one that shares its state.

    Raises
    ------
    DnnTypeError
        If it is neither.
    """
    if isinstance(value, np.random.Generator):
        return np.random.Generator(value.bit_generator)
    if not isinstance(value, np.random.RandomState):
        raise DnnTypeError(f"expected a generator or RandomState of NumPy, got {type(value)}")
    words: Any = np.random.MT19937()
    words.state = value.get_state(legacy=False)
    return np.random.Generator(words)


def randomstate_constructor(
    value: Any,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    borrow: bool = False,
) -> RandomStateSharedVariable:
    """Return a shared generator.

    Parameters
    ----------
    value : Generator or RandomState
    name : str, optional
    strict, allow_downcast : bool
        Ignored.
    borrow : bool
        Whether the variable uses the generator itself and not a copy. That of a ``RandomState`` is
        always copied.
    """
    generator = as_generator(value)
    return RandomStateSharedVariable(
        type=RandomGeneratorType(),
        value=generator if borrow else deepcopy(generator),
        strict=strict,
        name=name,
    )


class RandomStreams:
    """Random streams whose draws differ between calls of a compiled function.

    Parameters
    ----------
    seed : int or sequence of int, optional
        Seed of the streams. By default, the operating system provides one.
    """

    def __init__(self, seed: Any = None):
        self.default_instance_seed = seed
        self.state_updates: list[tuple[Any, Any]] = []
        self.gen_seedgen = np.random.SeedSequence(_entropy(seed))

    def updates(self) -> list[tuple[Any, Any]]:
        """Return the generators and their updates."""
        return list(self.state_updates)

    def seed(self, seed: Any = None) -> None:
        """Restart all streams with `seed`, which defaults to the seed of the constructor."""
        seed = self.default_instance_seed if seed is None else seed
        self.gen_seedgen = np.random.SeedSequence(_entropy(seed))
        for generator, _ in self.state_updates:
            generator.set_value(self._generator(), borrow=True)

    def __getitem__(self, generator: Any) -> Any:
        return generator.get_value(borrow=True)

    def __setitem__(self, generator: Any, value: Any) -> None:
        generator.set_value(value, borrow=True)

    def gen(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw from a new generator with one of PyTensor's random Ops."""
        generator = randomstate_constructor(self._generator(), borrow=True)
        following, draw = op(*args, rng=generator, return_next_rng=True, **kwargs)
        advance(generator, following)
        self.state_updates.append((generator, following))
        draw.rng = generator
        draw.update = (generator, following)
        return draw

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.gen_seedgen.spawn(1)[0])

    def uniform(
        self,
        size: Any = None,
        low: Any = 0.0,
        high: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: int | None = None,
    ) -> Any:
        """Draw from the uniform distribution on ``[low, high)``."""
        dtype = dtype or _float_of(low, high)
        return self._cast(self.gen(basic.uniform, low, high, size=_size(size)), dtype)

    def normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: int | None = None,
    ) -> Any:
        """Draw from a normal distribution."""
        dtype = dtype or _float_of(avg, std)
        return self._cast(self.gen(basic.normal, avg, std, size=_size(size)), dtype)

    def binomial(
        self,
        size: Any = None,
        n: Any = 1,
        p: Any = 0.5,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: int | None = None,
        prob: Any = None,
    ) -> Any:
        """Draw the number of successes in `n` trials; `prob` is an alias of `p`."""
        p = p if prob is None else prob
        return self._cast(self.gen(basic.binomial, n, p, size=_size(size)), dtype)

    def poisson(
        self, size: Any = None, lam: Any = 1.0, ndim: int | None = None, dtype: Any = "int64"
    ) -> Any:
        """Draw from a Poisson distribution."""
        return self._cast(self.gen(basic.poisson, lam, size=_size(size)), dtype)

    def random_integers(
        self,
        size: Any = None,
        low: Any = 0,
        high: Any = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Any:
        """Draw integers from `low` to `high`, inclusive."""
        high = as_tensor_variable(high) + 1
        return self._cast(self.gen(basic.integers, low, high, size=_size(size)), dtype)

    def choice(
        self,
        size: Any = (),
        a: Any = 2,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: int | None = None,
    ) -> Any:
        """Draw elements of the vector `a`, or integers below the scalar `a`."""
        draw = self.gen(basic.choice, a, size=_size(size), replace=replace, p=p)
        return self._cast(draw, dtype if as_tensor_variable(a).ndim == 0 else draw.dtype)

    def multinomial(
        self,
        size: Any = None,
        n: Any = 1,
        pvals: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: int | None = None,
    ) -> Any:
        """Draw how often each category (last axis of `pvals`) occurs in `n` trials."""
        pvals = as_tensor_variable([0.5, 0.5] if pvals is None else pvals)
        # NumPy rejects probabilities whose sum exceeds 1, even by the rounding error of float32.
        pvals = pvals.astype("float64")
        pvals = pvals / pvals.sum(axis=-1, keepdims=True)
        return self._cast(self.gen(basic.multinomial, n, pvals, size=_size(size)), dtype)

    def permutation(
        self, size: Any = None, n: Any = 1, ndim: int | None = None, dtype: Any = "int64"
    ) -> Any:
        """Draw permutations of the integers below `n`, in an array of shape `size`."""
        if size is None or (isinstance(size, (tuple, list)) and not size):
            return self._cast(self.gen(basic.permutation, n), dtype)
        if not isinstance(n, int):
            raise DnnTypeError("permutation: with a size, n must be a Python int")
        size = as_tensor_variable(_size(size))
        rows = self.gen(basic.uniform, 0.0, 1.0, size=pt.concatenate([size, [n]]))
        return self._cast(pt.argsort(rows, axis=-1), dtype)

    def shuffle_row_elements(self, input: Any) -> Any:
        """Shuffle the elements within each row of a matrix; a vector is treated as one row."""
        input = as_tensor_variable(input)
        order = pt.argsort(self.gen(basic.uniform, 0.0, 1.0, size=input.shape), axis=-1)
        return pt.take_along_axis(input, order, axis=-1)

    @staticmethod
    def _cast(draw: Any, dtype: Any) -> Any:
        """Cast a draw, and copy its attributes to the result."""
        result = pt.cast(draw, config.floatX if dtype == "floatX" else dtype)
        if result is not draw and draw.owner is not None and hasattr(draw, "rng"):
            vars(result).update(rng=draw.rng, update=draw.update)
        return result


class MRG_RandomStreams(RandomStreams):  # noqa: N801 - Theano's name
    """Theano's fast streams: `RandomStreams` with different defaults and additional methods.

    Parameters
    ----------
    seed : int or sequence of int
        Seed of the streams.
    use_cuda : bool, optional
        Ignored.
    """

    def __init__(self, seed: Any = 12345, use_cuda: Any = None):
        super().__init__(seed)

    def set_rstate(self, seed: Any) -> None:
        """Restart all streams with `seed`."""
        self.seed(seed)

    def normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: int | None = None,
        truncate: bool = False,
    ) -> Any:
        """Draw from a normal distribution; with `truncate`, draw only within 2 `std` of `avg`."""
        if not truncate:
            return super().normal(size, avg, std, ndim, dtype)
        dtype = dtype or _float_of(avg, std)
        # Invert the cumulative distribution function, whose values at -2 and 2 these are.
        low, high = 0.022750131948179195, 0.9772498680518208
        size = as_tensor_variable(avg).shape if size is None else size
        quantile = self.gen(basic.uniform, low, high, size=_size(size))
        return self._cast(avg + std * np.sqrt(2.0) * pt.erfinv(2 * quantile - 1), dtype)

    def truncated_normal(
        self,
        size: Any = None,
        avg: Any = 0.0,
        std: Any = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: int | None = None,
    ) -> Any:
        """Draw from a normal distribution truncated at 2 `std` from `avg`."""
        return self.normal(size, avg, std, ndim, dtype, truncate=True)

    def choice(
        self,
        size: Any = 1,
        a: Any = None,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: int | None = None,
    ) -> Any:
        """Draw `size` categories for each row of the matrix `p` of their probabilities.

        With a vector `p` or with `a`, draw as `RandomStreams.choice` does. In Theano, `p` had to be
        a matrix, `a` None and `replace` False.

        Parameters
        ----------
        size : int or scalar
            Number of draws for each row; for a vector `p` or with `a`, also a shape.
        a : int or vector, optional
            Number of categories, or elements to draw from.
        replace : bool
            Whether a category may be drawn again.
        p : vector or matrix, ([rows,] categories), optional
            Probabilities. Those of a matrix need not sum to 1.
        ndim, nstreams : int, optional
            Ignored.
        dtype : str
            Dtype of the categories.

        Returns
        -------
        TensorVariable, (rows, size) for a matrix `p`

        Raises
        ------
        DnnTypeError
            If both `a` and `p` are missing, or `p` has another number of axes.
        DnnValueError
            If there are fewer categories than draws without replacement.
        """
        if a is None and p is None:
            raise DnnTypeError("choice: give p, the probabilities of the categories, or a")
        if p is None:
            return super().choice(size, a, replace, p, dtype=dtype)
        p = as_tensor_variable(p)
        if p.type.ndim == 1:
            return super().choice(size, p.shape[0] if a is None else a, replace, p, dtype=dtype)
        if p.type.ndim != 2 or a is not None:
            raise DnnTypeError(
                f"choice: p must be a matrix, without a, or a vector; got {p.type} and a={a}"
            )
        # The largest entries of log(p) + Gumbel noise are a draw without replacement, in its order.
        if replace:
            shape = pt.stack([p.shape[0], as_tensor_variable(size), p.shape[1]])
            noise = self.gen(basic.gumbel, 0.0, 1.0, size=shape)
            return self._cast(pt.argmax(pt.log(p)[:, None] + noise, axis=-1), dtype)
        noise = self.gen(basic.gumbel, 0.0, 1.0, size=p.shape)
        order = pt.argsort(-(pt.log(p) + noise), axis=-1)
        return self._cast(order[:, : _at_most(size, p)], dtype)

    def multinomial_wo_replacement(
        self,
        size: Any = None,
        n: Any = 1,
        pvals: Any = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: int | None = None,
    ) -> Any:
        """Draw `n` different categories for each row of `pvals`; deprecated in favor of `choice`.

        Raises
        ------
        DnnValueError
            If `size` is given or `pvals` is missing, or if there are fewer than `n` categories.
        """
        if size is not None or pvals is None:
            raise DnnValueError("multinomial_wo_replacement: give pvals and no size")
        return self.choice(n, None, False, pvals, dtype=dtype)


def _at_most(size: Any, p: Any) -> Any:
    """Return `size`, if it isn't larger than the number of categories."""
    known = p.type.shape[-1]
    message = "choice: cannot draw more categories without replacement than there are"
    if isinstance(size, (int, np.integer)) and known is not None:
        if size > known:
            raise DnnValueError(f"{message}: {size} of {known}")
        return size
    size = as_tensor_variable(size)
    return CheckAndRaise(ValueError, message)(size, pt.le(size, p.shape[-1]))


def _entropy(seed: Any) -> Any:
    if seed is None:
        return None
    return [int(part) for part in np.ravel(seed)]


def _size(size: Any) -> Any:
    """Convert a size to PyTensor's form; as in Theano, it may be a single number."""
    return (size,) if isinstance(size, (int, np.integer)) else size


def _float_of(*parameters: Any) -> str:
    """Return the dtype of a continuous draw: the widest of floatX and the parameters' dtypes."""
    return upcast(config.floatX, *(as_tensor_variable(one).dtype for one in parameters))
