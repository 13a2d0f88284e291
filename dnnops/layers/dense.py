"""Dense layers, embeddings, views and dropout."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops import nnet
from dnnops.arguments import is_int, probability, shown, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.layers.images import size
from dnnops.layers.initializers import Initializer, he_uniform, normal, uniform
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor

__all__ = ["Dropout", "Embedding", "Linear", "View"]


class Linear(Layer):
    """Matrix product and bias, as ``nn.Linear``.

    Parameters
    ----------
    input_size, output_size : int
        Numbers of features.
    bias : bool
        Whether to add a bias.
    initializer : callable, optional
        Initial value of the matrix, by default Torch's: see `he_uniform`.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Notes
    -----
    ``forward(x)`` takes tensors whose last axis has the features.

    Attributes
    ----------
    weight : SharedVariable, (output_size, input_size)
    bias : SharedVariable of shape (output_size,), or None
    """

    takes_own_dtype = True
    weight: Any
    bias: Any

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(dtype, rng)
        self.input_size = size("Linear", "input_size", input_size)
        self.output_size = size("Linear", "output_size", output_size)
        shape = (self.output_size, self.input_size)
        self.parameter("weight", shape, initializer or he_uniform(sqrt(5)))
        self.bias = None
        if switch("Linear", "bias", bias):
            self.parameter("bias", shape[:1], uniform(1 / sqrt(self.input_size)))

    def forward(self, x: Any) -> Any:
        out = as_tensor("Linear: the input must be a tensor", x) @ self.weight.T
        return out if self.bias is None else out + self.bias

    def describe(self) -> str:
        text = f"({self.input_size} -> {self.output_size})"
        return text if self.bias is not None else f"{text} without bias"


class Embedding(Layer):
    """Vectors for integers, as ``nn.LookupTable``.

    Parameters
    ----------
    rows, features : int
        Number of different integers, which count from 0, and length of the vectors.
    initializer : callable, optional
        Initial value, by default of the standard normal distribution.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Attributes
    ----------
    weight : SharedVariable, (rows, features)
    """

    weight: Any

    def __init__(
        self,
        rows: int,
        features: int,
        *,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(dtype, rng)
        self.rows = size("Embedding", "rows", rows)
        self.features = size("Embedding", "features", features)
        self.parameter("weight", (self.rows, self.features), initializer or normal())

    def forward(self, indices: Any) -> Any:
        return nnet.embedding(indices, self.weight)

    def describe(self) -> str:
        return f"({self.rows}, {self.features})"


class View(Layer):
    """Give each element of a batch another shape, as ``nn.View``.

    Parameters
    ----------
    *sizes : int
        The shape without the batch. One size may be -1.

    Raises
    ------
    DnnTypeError
        If a size is not an int.
    DnnValueError
        If a size is less than -1, or more than one is -1.
    """

    def __init__(self, *sizes: int):
        super().__init__()
        if not sizes or not all(map(is_int, sizes)):
            raise DnnTypeError(f"View: sizes must be ints, got {shown(sizes)}")
        if min(sizes) < -1 or sizes.count(-1) > 1:
            raise DnnValueError(f"View: sizes must be positive, or one of them -1, got {sizes}")
        self.sizes = tuple(map(int, sizes))

    def forward(self, x: Any) -> Any:
        x = as_tensor("View: the input must be a tensor", x)
        known = x.type.shape[1:]
        sizes = self.sizes
        if -1 in sizes and None not in known:
            rest = -prod(sizes)
            sizes = tuple(prod(known) // rest if s == -1 and rest else s for s in sizes)
        return x.reshape((x.shape[0], *sizes))

    def describe(self) -> str:
        return f"({', '.join(map(str, self.sizes))})"


class Dropout(Layer):
    """Set random elements to zero in training, as ``nn.Dropout``; see `dnnops.nnet.dropout`.

    Parameters
    ----------
    p : float
        Probability that an element becomes 0.
    rng
        Source of the seed; see `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If `p` is not a probability.

    Notes
    -----
    Each call of the layer draws a seed, and each call of a compiled function draws new numbers.
    """

    def __init__(self, p: float = 0.5, *, rng: Any = None):
        super().__init__(rng=rng)
        self.p = probability("Dropout", "p", p, with_one=True)

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def forward(self, x: Any) -> TensorVariable:
        x = as_tensor("Dropout: the input must be a tensor", x)
        if not self.training or self.p == 0:
            return x
        return nnet.dropout(x, self.p, seed=self.draw_seed())

    def describe(self) -> str:
        return f"({self.p:g})"
