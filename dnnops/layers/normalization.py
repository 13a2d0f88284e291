"""Normalizations, with the arguments of cudnn.torch's modules."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt

from dnnops import nnet
from dnnops.arguments import is_int, number, shown, switch
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.layers.images import batched, size
from dnnops.layers.initializers import constant
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor

__all__ = [
    "BatchNormalization",
    "GroupNorm",
    "LayerNorm",
    "RMSNorm",
    "SpatialBatchNormalization",
    "SpatialCrossMapLRN",
    "SpatialDivisiveNormalization",
    "VolumetricBatchNormalization",
]


class BatchNormalization(Layer):
    """Batch normalization of vectors, as ``cudnn.BatchNormalization``.

    In training, a call normalizes with the statistics of the batch, and :meth:`Layer.updates`
    returns the new running averages. In evaluation, it normalizes with the running averages.

    Parameters
    ----------
    n_feature : int
        Number of features, or channels.
    eps : float
        Non-negative constant added to the variance.
    momentum : float
        Weight of the batch in the new running averages, from 0 to 1.
    affine : bool
        Whether to multiply by a weight and to add a bias that are trained.
    dtype
        See `Layer`. With float16, parameters and averages are float32.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Attributes
    ----------
    weight, bias : SharedVariable of shape (n_feature,), or None
    running_mean, running_var : SharedVariable, (n_feature,)
    """

    #: Number of dimensions of a batch.
    ndim: ClassVar[int] = 2
    convertible = True
    takes_own_dtype = True
    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any

    def __init__(
        self,
        n_feature: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        dtype: str | None = None,
    ):
        super().__init__(dtype)
        where = self._name()
        self.n_feature = size(where, "n_feature", n_feature)
        self.eps = number(where, "eps", eps, 0.0)
        self.momentum = number(where, "momentum", momentum, 0.0, 1.0)
        self.weight = self.bias = None
        # Variances of float16 images overflow.
        wide = "float32" if self.dtype == "float16" else self.dtype
        if switch(where, "affine", affine):
            self.parameter("weight", (self.n_feature,), constant(1), wide)
            self.parameter("bias", (self.n_feature,), constant(0), wide)
        self.buffer("running_mean", np.zeros(self.n_feature), wide)
        self.buffer("running_var", np.ones(self.n_feature), wide)

    def forward(self, x: Any) -> Any:
        if self.training and self.ndim == 2 and as_tensor(self._name(), x).type.ndim == 1:
            raise DnnTypeError(f"{self._name()}: training needs a batch, got a vector")
        return batched(self._name(), x, self.ndim, self._normalized)

    def _normalized(self, x: Any) -> Any:
        scale, shift = self.weight, self.bias
        if scale is None:
            shape, dtype = (self.n_feature,), self.running_mean.type.dtype
            scale, shift = pt.ones(shape, dtype=dtype), pt.zeros(shape, dtype=dtype)
        averages = self.running_mean, self.running_var
        if not self.training:
            return nnet.batch_normalization_test(
                x, scale, shift, *averages, axes="spatial", epsilon=self.eps
            )
        mean, variance = map(self.current, averages)
        out, _, _, *new = nnet.batch_normalization_train(
            x,
            scale,
            shift,
            axes="spatial",
            epsilon=self.eps,
            running_average_factor=self.momentum,
            running_mean=mean,
            running_var=variance,
        )
        self.set_updates(dict(zip(averages, new, strict=True)))
        return out

    def describe(self) -> str:
        return f"({self.n_feature})"


class SpatialBatchNormalization(BatchNormalization):
    """Batch normalization of images, as ``cudnn.SpatialBatchNormalization``.

    See `BatchNormalization`; the statistics are those of a channel, over batch, rows and columns.
    """

    ndim = 4


class VolumetricBatchNormalization(BatchNormalization):
    """Batch normalization of volumes, as ``cudnn.VolumetricBatchNormalization``.

    See `BatchNormalization`; the statistics are those of a channel, over all other axes.
    """

    ndim = 5


class _OverLastAxes(Layer):
    """Normalization over the last axes."""

    takes_own_dtype = True
    weight: Any

    def __init__(self, shape: Any, eps: float, affine: bool, dtype: str | None):
        super().__init__(dtype)
        where = self._name()
        sizes = (shape,) if is_int(shape) else shape
        if not isinstance(sizes, (tuple, list)) or not sizes:
            raise DnnTypeError(f"{where}: shape must be an int or a tuple, got {shown(shape)}")
        self.shape = tuple(size(where, "shape", entry) for entry in sizes)
        self.eps = number(where, "eps", eps, 0.0)
        self.weight = None
        if switch(where, "affine", affine):
            self.parameter("weight", self.shape, constant(1))

    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.shape), 0))

    def _checked(self, x: Any) -> Any:
        x = as_tensor(f"{self._name()}: the input must be a tensor", x)
        known = x.type.shape[-len(self.shape) :]
        if x.type.ndim < len(self.shape) or any(
            found not in (None, wanted) for found, wanted in zip(known, self.shape, strict=True)
        ):
            raise DnnValueError(
                f"{self._name()}: the last sizes of the input must be {self.shape}, "
                f"got the shape {x.type.shape}"
            )
        return x

    def describe(self) -> str:
        return f"({'x'.join(map(str, self.shape))})"


class LayerNorm(_OverLastAxes):
    """Layer normalization; see `dnnops.nnet.layer_norm`.

    Parameters
    ----------
    shape : int or tuple of int
        Sizes of the last axes, over which the statistics are computed.
    eps : float
        Non-negative constant added to the variance.
    affine : bool
        Whether to multiply by a weight that is trained.
    bias : bool
        With `affine`, whether to add a bias, too.
    dtype
        See `Layer`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Attributes
    ----------
    weight, bias : SharedVariable with this shape, or None
    """

    bias: Any

    def __init__(
        self,
        shape: Any,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        *,
        dtype: str | None = None,
    ):
        super().__init__(shape, eps, affine, dtype)
        self.bias = None
        if switch(self._name(), "bias", bias) and self.weight is not None:
            self.parameter("bias", self.shape, constant(0))

    def forward(self, x: Any) -> Any:
        return nnet.layer_norm(self._checked(x), self.weight, self.bias, self._axes(), self.eps)


class RMSNorm(_OverLastAxes):
    """Division by the root mean square; see `dnnops.nnet.rms_norm`.

    Parameters
    ----------
    shape, eps, affine, dtype
        See `LayerNorm`; there is no bias.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Attributes
    ----------
    weight : SharedVariable with this shape, or None
    """

    def __init__(
        self, shape: Any, eps: float = 1e-5, affine: bool = True, *, dtype: str | None = None
    ):
        super().__init__(shape, eps, affine, dtype)

    def forward(self, x: Any) -> Any:
        return nnet.rms_norm(self._checked(x), self.weight, self._axes(), self.eps)


class GroupNorm(Layer):
    """Group normalization; see `dnnops.nnet.group_norm`.

    Parameters
    ----------
    groups, channels : int
        Number of groups, and number of channels, which it must divide.
    eps, affine, dtype
        See `BatchNormalization`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    Attributes
    ----------
    weight, bias : SharedVariable of shape (channels,), or None
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: str | None = None,
    ):
        super().__init__(dtype)
        self.groups = size("GroupNorm", "groups", groups)
        self.channels = size("GroupNorm", "channels", channels)
        if self.channels % self.groups:
            raise DnnValueError(
                f"GroupNorm: groups={self.groups} must divide the {self.channels} channels"
            )
        self.eps = number("GroupNorm", "eps", eps, 0.0)
        self.weight = self.bias = None
        if switch("GroupNorm", "affine", affine):
            self.parameter("weight", (self.channels,), constant(1))
            self.parameter("bias", (self.channels,), constant(0))

    def forward(self, x: Any) -> Any:
        return nnet.group_norm(x, self.groups, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        return f"({self.groups}, {self.channels})"


class _Window(Layer):
    convertible = True

    def __init__(self, size: int, alpha: float, beta: float, k: float):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def describe(self) -> str:
        return f"({self.size}, {self.alpha:g}, {self.beta:g}, {self.k:g})"


class SpatialCrossMapLRN(_Window):
    """Local response normalization across channels, as ``cudnn.SpatialCrossMapLRN``.

    Parameters
    ----------
    size : int
        Number of channels in a window.
    alpha, beta, k : float
        See `dnnops.nnet.local_response_normalization`, which also raises the errors for invalid
        arguments when the layer is called.
    """

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__(size, alpha, beta, k)

    def forward(self, x: Any) -> Any:
        return batched(
            self._name(),
            x,
            4,
            lambda x: nnet.local_response_normalization(
                x, self.size, self.alpha, self.beta, self.k
            ),
        )


class SpatialDivisiveNormalization(_Window):
    """Normalization by the squares of a spatial window, as cuDNN's divisive normalization.

    Parameters
    ----------
    size : int
        Side of a window.
    alpha, beta, k : float
        See `dnnops.nnet.divisive_normalization`, which also raises the errors for invalid arguments
        when the layer is called.
    """

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0):
        super().__init__(size, alpha, beta, k)

    def forward(self, x: Any) -> Any:
        return batched(
            self._name(),
            x,
            4,
            lambda x: nnet.divisive_normalization(x, self.size, self.alpha, self.beta, self.k),
        )
