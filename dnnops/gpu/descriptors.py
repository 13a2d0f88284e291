"""Records of parameters that the Ops accept in place of Theano's cuDNN descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import one_of, shown
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpu.base import device_operands
from dnnops.nnet.conv.geometry import canonical_conv_params
from dnnops.nnet.conv.shapes import get_conv_output_shape
from dnnops.nnet.regularization.dropout import dropout_state
from dnnops.nnet.validate import spatial_shape

__all__ = ["CONV_MODES", "GpuDnnConvDesc", "GpuDnnDropoutDesc"]

#: Convolution, which flips the filters, and cross-correlation, which doesn't.
CONV_MODES = ("conv", "cross")

#: Parameters of an Op that a descriptor replaces.
DESCRIBED = ("border_mode", "subsample", "filter_flip", "filter_dilation", "num_groups")


@dataclass(frozen=True)
class GpuDnnConvDesc:
    """Parameters of a convolution, for ``GpuDnnConv()(img, kern, output, desc, alpha, beta)``.

    Parameters
    ----------
    border_mode : {'valid', 'half', 'full'}, int, or tuple of ints or pairs of ints
        Zero padding; see `dnnops.nnet.conv2d`.
    subsample : tuple of 2 or 3 ints
        Stride along each spatial axis. Its length is the number of spatial axes.
    dilation : tuple of ints
        Distance between neighboring filter taps.
    conv_mode : {'conv', 'cross'}
        Convolution, which flips the filters, or cross-correlation, which doesn't.
    precision : str
        Type to compute in; see `dnn_conv`.
    num_groups : int
        Number of groups that channels and filters are split into.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter has the wrong type or an invalid value.

    Examples
    --------
    >>> desc = GpuDnnConvDesc(border_mode="valid", subsample=(2, 2))(kern.shape)
    >>> out = GpuDnnConv(algo="time_once")(img, kern, preallocated, desc, alpha=0.5)
    """

    border_mode: Any
    subsample: Any = (1, 1)
    dilation: Any = None
    conv_mode: str = "conv"
    precision: str = "float32"
    num_groups: int = 1

    def __post_init__(self) -> None:
        where = type(self).__name__
        if not isinstance(self.subsample, Sequence) or isinstance(self.subsample, str):
            raise DnnTypeError(f"{where}: subsample must be a tuple, got {shown(self.subsample)}")
        one_of(where, "conv_mode", self.conv_mode, CONV_MODES)
        ndim = len(self.subsample)
        params = canonical_conv_params(
            where,
            ndim,
            self.border_mode,
            self.subsample,
            self.conv_mode == "conv",
            (1,) * ndim if self.dilation is None else self.dilation,
            self.num_groups,
        )
        for name, key in (
            ("border_mode", "border_mode"),
            ("subsample", "subsample"),
            ("dilation", "filter_dilation"),
            ("num_groups", "num_groups"),
        ):
            object.__setattr__(self, name, params[key])

    def __call__(self, kern_shape: Any = None) -> GpuDnnConvDesc:
        """Return the record itself; the argument, a filter shape in Theano, is ignored."""
        return self

    def op_parameters(self) -> dict[str, Any]:
        """Return the parameters under the names used by the convolution Ops."""
        return {
            "ndim": len(self.subsample),
            "border_mode": self.border_mode,
            "subsample": self.subsample,
            "filter_flip": self.conv_mode == "conv",
            "filter_dilation": self.dilation,
            "num_groups": self.num_groups,
            "precision": self.precision,
        }


@dataclass(frozen=True)
class GpuDnnDropoutDesc:
    """Parameters of dropout, for ``GpuDnnDropoutOp()(x, desc, desc.state())``.

    Parameters
    ----------
    dropout : number or scalar variable
        Probability that an element becomes 0, at least 0 and less than 1.
    seed : int
        Seed from 0 to ``2**64 - 1``.
    """

    dropout: Any = 0.0
    seed: int = 4242

    def state(self, name: str | None = None) -> SharedVariable:
        """Create a random state from the seed; see `dropout_state`."""
        return dropout_state(self.seed, name)


def is_described(operands: Sequence[Any], named: dict[str, Any]) -> bool:
    """Return whether a convolution is called with a descriptor, as in Theano."""
    return "desc" in named or (len(operands) > 3 and isinstance(operands[3], GpuDnnConvDesc))


def apply_described(
    op: Any,
    first: Any,
    second: Any,
    output: Any,
    desc: GpuDnnConvDesc,
    alpha: Any = None,
    beta: Any = None,
) -> Any:
    """Apply a convolution Op, or one of its gradients, with a descriptor as in Theano.

    Parameters
    ----------
    op : GpuDnnConvBase
        Op that gives the algorithm, and says whether the result is written into `output`.
    first, second : array
        First two operands of the Op.
    output : array
        Array with the shape of the result.
    desc : GpuDnnConvDesc
        All other parameters.
    alpha, beta : number or scalar variable, optional
        Scaling factors. Default: 1 and 0.

    Returns
    -------
    GpuArrayVariable
        ``alpha * convolution + beta * output``.

    Raises
    ------
    DnnTypeError
        If `desc` is not a `GpuDnnConvDesc`.
    DnnValueError
        If a parameter of the Op contradicts the descriptor.
    """
    if not isinstance(desc, GpuDnnConvDesc):
        raise DnnTypeError(f"{op.where}: desc must be a GpuDnnConvDesc, got {desc!r}")
    params = desc.op_parameters()
    plain = type(op)(ndim=op.ndim)
    for name in DESCRIBED:
        if getattr(op, name) not in (getattr(plain, name), params[name]):
            raise DnnValueError(
                f"{op.where}: {name}={getattr(op, name)!r} of the Op differs from the value in"
                f" desc, {params[name]!r}"
            )
    described = op.replace(**params, accumulate=True)
    (out,) = device_operands(described.where, described.ndim + 2, output=output)
    shape = [spatial_shape(out)] if op.leading == 3 else []
    scalars = (1.0 if alpha is None else alpha, 0.0 if beta is None else beta)
    return described(first, second, *shape, *scalars, out)


def output_shape(
    ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = None
) -> tuple[Any, ...]:
    """Compute a convolution's output shape from sequences of sizes or symbolic vectors.

    This is `GpuDnnConv.get_out_shape`.
    """
    count = len(subsample) + 2
    image, kernel = (
        [shape[i] for i in range(count)] if isinstance(shape, TensorVariable) else shape
        for shape in (ishape, kshape)
    )
    return get_conv_output_shape(image, kernel, border_mode, subsample, dilation)
