"""Activations and softmax, with the arguments of cudnn.torch's modules."""

from __future__ import annotations

from typing import Any, ClassVar

from dnnops import nnet
from dnnops.arguments import number, switch
from dnnops.errors import DnnTypeError
from dnnops.layers.images import batched
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor

__all__ = [
    "GELU",
    "ClippedReLU",
    "LogSoftMax",
    "ReLU",
    "Sigmoid",
    "SoftMax",
    "SpatialLogSoftMax",
    "SpatialSoftMax",
    "Tanh",
    "VolumetricLogSoftMax",
    "VolumetricSoftMax",
]


class _Activation(Layer):
    convertible = True

    def __init__(self, inplace: bool = False):
        super().__init__()
        self.inplace = switch(self._name(), "inplace", inplace)


class ReLU(_Activation):
    """Set negative elements to zero, as ``cudnn.ReLU``.

    Parameters
    ----------
    inplace : bool
        Accepted for compatibility: rewrites decide what is overwritten.

    Raises
    ------
    DnnTypeError
        If `inplace` is not a bool.
    """

    def forward(self, x: Any) -> Any:
        return nnet.relu(x)


class ClippedReLU(Layer):
    """Limit elements to the range from 0 to `ceiling`, as ``cudnn.ClippedReLU``.

    Parameters
    ----------
    ceiling : float
        Positive upper bound.
    inplace : bool
        See `ReLU`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.
    """

    convertible = True

    def __init__(self, ceiling: float, inplace: bool = False):
        super().__init__()
        self.ceiling = number("ClippedReLU", "ceiling", ceiling, 0.0)
        self.inplace = switch("ClippedReLU", "inplace", inplace)

    def forward(self, x: Any) -> Any:
        return nnet.clipped_relu(x, self.ceiling)

    def describe(self) -> str:
        return f"({self.ceiling:g})"


class Tanh(_Activation):
    """Hyperbolic tangent, as ``cudnn.Tanh``; see `ReLU`."""

    def forward(self, x: Any) -> Any:
        return nnet.tanh(x)


class Sigmoid(_Activation):
    """Logistic function, as ``cudnn.Sigmoid``; see `ReLU`."""

    def forward(self, x: Any) -> Any:
        return nnet.sigmoid(x)


class GELU(Layer):
    """Gaussian error linear unit; see `dnnops.nnet.gelu`.

    Parameters
    ----------
    approximate : bool
        Whether to use tanh instead of the normal distribution function.

    Raises
    ------
    DnnTypeError
        If `approximate` is not a bool.
    """

    def __init__(self, approximate: bool = False):
        super().__init__()
        self.approximate = switch("GELU", "approximate", approximate)

    def forward(self, x: Any) -> Any:
        return nnet.gelu(x, self.approximate)


class SoftMax(Layer):
    """Softmax over all elements of a vector or an image, as ``cudnn.SoftMax``.

    Parameters
    ----------
    fast_mode : bool
        Accepted for compatibility: the accurate computation, which subtracts the maximum, takes no
        longer than reading and writing the memory.

    Raises
    ------
    DnnTypeError
        If `fast_mode` is not a bool.

    Notes
    -----
    ``forward(x)`` takes a vector or a batch of vectors, an image of shape (channels, rows, columns)
    or a batch of images, or a batch of volumes.
    """

    logarithm: ClassVar[bool] = False
    convertible = True

    def __init__(self, fast_mode: bool = False):
        super().__init__()
        self.fast_mode = switch(self._name(), "fast_mode", fast_mode)

    def _softmax(self, x: Any, axis: Any) -> Any:
        return (nnet.log_softmax if self.logarithm else nnet.softmax)(x, axis=axis)

    def forward(self, x: Any) -> Any:
        x = as_tensor(f"{self._name()}: the input must be a tensor", x)
        if not 1 <= x.type.ndim <= 5:
            raise DnnTypeError(
                f"{self._name()}: the input must have 1 to 5 dimensions, got {x.type.ndim}"
            )
        first = 0 if x.type.ndim in (1, 3) else 1
        return self._softmax(x, tuple(range(first, x.type.ndim)))


class LogSoftMax(SoftMax):
    """Logarithm of the softmax over all elements of an image, as ``cudnn.LogSoftMax``."""

    logarithm = True

    def __init__(self) -> None:
        super().__init__()


class SpatialSoftMax(SoftMax):
    """Softmax over the channels of each pixel, as ``cudnn.SpatialSoftMax``; see `SoftMax`."""

    ndim: ClassVar[int] = 4

    def forward(self, x: Any) -> Any:
        return batched(self._name(), x, self.ndim, lambda x: self._softmax(x, 1))


class SpatialLogSoftMax(SpatialSoftMax):
    """Logarithm of the softmax over the channels of each pixel, as ``cudnn.SpatialLogSoftMax``."""

    logarithm = True

    def __init__(self) -> None:
        super().__init__()


class VolumetricSoftMax(SpatialSoftMax):
    """Softmax over the channels of each voxel, as ``cudnn.VolumetricSoftMax``; see `SoftMax`."""

    ndim = 5


class VolumetricLogSoftMax(SpatialLogSoftMax):
    """Logarithm of the softmax over the channels of each voxel."""

    ndim = 5
