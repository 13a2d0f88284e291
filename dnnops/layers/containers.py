"""Layers that consist of other layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, overload

import pytensor.tensor as pt

from dnnops.arguments import is_int, shown
from dnnops.errors import DnnTypeError
from dnnops.layers.layer import Layer
from dnnops.layers.places import inside

__all__ = ["Concat", "Residual", "Sequential"]


class Container(Layer):
    """A layer whose children are numbered from 0.

    Parameters
    ----------
    *layers : Layer or callable
        The children. A function of a symbolic variable, such as ``nnet.relu``, counts as a layer
        without parameters.

    Raises
    ------
    DnnTypeError
        If a child is neither a layer nor callable.
    """

    def __init__(self, *layers: Layer | Callable[..., Any]):
        super().__init__()
        self._layers: list[Any] = []
        for layer in layers:
            self.add(layer)

    def add(self, layer: Layer | Callable[..., Any]) -> Self:
        """Append a child; return the container."""
        if not callable(layer) or isinstance(layer, type):
            raise DnnTypeError(f"{self._name()}: {shown(layer)} is not a layer")
        self._layers.append(layer)
        return self

    def children(self) -> Iterator[tuple[str, Layer]]:
        for name, layer in super().children():
            yield name.removeprefix("_layers."), layer

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._layers)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a child, or a `Sequential` with some of them."""
        if isinstance(index, slice):
            return Sequential(*self._layers[index])
        return self._layers[index]

    def __bool__(self) -> bool:
        return True

    def _call(self, number: int, *inputs: Any) -> Any:
        """Return the result of a child; errors name it."""
        layer = self._layers[number]
        if isinstance(layer, Layer):
            return layer(*inputs)
        with inside(layer, _shown(layer), lambda _: str(number)) as call:
            found = layer(*inputs)
            call.mark(call.variables(found, inputs))
        return found

    def _lines(self, first: str) -> str:
        lines = [first, *(f"({i}): {_shown(layer)}" for i, layer in enumerate(self._layers))]
        inner = "\n".join(lines).replace("\n", "\n  ")
        return f"{self.prefix()}.{self._name()}{self.describe()} {{\n  {inner}\n}}"


def _shown(layer: Any) -> str:
    return repr(layer) if isinstance(layer, Layer) else getattr(layer, "__name__", repr(layer))


class Sequential(Container):
    """Layers that run one after the other.

    Parameters
    ----------
    *layers : Layer or callable
        See `Container`.

    Examples
    --------
    >>> net = Sequential(SpatialConvolution(3, 96, 11, 11, 3, 3), ReLU())
    >>> net.add(SpatialMaxPooling(2, 2))
    >>> y = net(x)
    """

    def forward(self, *inputs: Any) -> Any:
        """Return the result of the last layer; the first takes all `inputs`."""
        for number in range(len(self)):
            inputs = (self._call(number, *inputs),)
        (out,) = inputs
        return out

    def __repr__(self) -> str:
        steps = " -> ".join(["input", *(f"({i})" for i in range(len(self))), "output"])
        return self._lines(f"[{steps}]")


class Concat(Container):
    """Layers with the same input, whose results are joined along an axis.

    Parameters
    ----------
    axis : int
        Axis to join, such as 1 for channels.
    *layers : Layer or callable
        See `Container`.

    Raises
    ------
    DnnTypeError
        If `axis` is not an int.
    """

    def __init__(self, axis: int, *layers: Layer | Callable[..., Any]):
        if not is_int(axis):
            raise DnnTypeError(f"Concat: axis must be an int, got {shown(axis)}")
        self.axis = int(axis)
        super().__init__(*layers)

    def forward(self, x: Any) -> Any:
        return pt.concatenate([self._call(i, x) for i in range(len(self))], axis=self.axis)

    def describe(self) -> str:
        return f"({self.axis})"

    def __repr__(self) -> str:
        return self._lines("[input -> each -> joined]")


class Residual(Sequential):
    """Layers that run one after the other, and whose result is added to their input.

    Parameters
    ----------
    *layers : Layer or callable
        See `Container`.
    shortcut : Layer or callable, optional
        What the input passes through before it is added, such as a convolution that changes the
        number of channels.

    Raises
    ------
    DnnTypeError
        If a child is neither a layer nor callable.
    """

    def __init__(self, *layers: Layer | Callable[..., Any], shortcut: Any = None):
        if shortcut is not None and not callable(shortcut):
            raise DnnTypeError(f"Residual: shortcut must be a layer, got {shown(shortcut)}")
        super().__init__(*layers)
        self.shortcut = shortcut

    def forward(self, x: Any) -> Any:
        return super().forward(x) + (x if self.shortcut is None else self.shortcut(x))

    def __repr__(self) -> str:
        text = super().__repr__()
        if self.shortcut is None:
            return text
        shortcut = _shown(self.shortcut).replace("\n", "\n  ")
        return f"{text[:-2]}\n  (shortcut): {shortcut}\n}}"
