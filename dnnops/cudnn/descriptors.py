"""What Theano kept in cuDNN's descriptors, as records that the Ops take as Theano's did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import one_of, shown
from dnnops.cudnn.base import device_operands
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet._validate import spatial_shape
from dnnops.nnet.conv_geometry import canonical_conv_params
from dnnops.nnet.conv_shapes import get_conv_output_shape
from dnnops.nnet.dropout_ops import dropout_state

__all__ = ["CONV_MODES", "GpuDnnConvDesc", "GpuDnnDropoutDesc"]

#: Convolution, which flips the filters, and cross-correlation, which doesn't.
CONV_MODES = ("conv", "cross")

#: Parameters of an Op that a descriptor gives.
DESCRIBED = ("border_mode", "subsample", "filter_flip", "filter_dilation", "num_groups")


@dataclass(frozen=True)
class GpuDnnConvDesc:
    """The parameters of a convolution: ``GpuDnnConv()(img, kern, output, desc, alpha, beta)``.

    Parameters
    ----------
    border_mode : {'valid', 'half', 'full'}, int, or tuple of ints or pairs of ints
        The zero padding; see `dnnops.nnet.conv2d`.
    subsample : tuple of 2 or 3 ints
        The stride; as many as there are spatial axes.
    dilation : tuple of ints
        The distance between neighboring filter taps.
    conv_mode : {'conv', 'cross'}
        Convolution, which flips the filters, or cross-correlation, which doesn't.
    precision : str
        The type that is computed in, as the argument of `dnn_conv`.
    num_groups : int
        The number of groups that channels and filters are split into.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter is of another kind, or out of bounds.

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
        """Return the record itself; Theano needed the filters' shape to make a descriptor."""
        return self

    def op_parameters(self) -> dict[str, Any]:
        """The parameters by the names that Ops of convolution give them."""
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
    """The parameters of dropout: ``GpuDnnDropoutOp()(x, desc, desc.state())``.

    Parameters
    ----------
    dropout : number or scalar variable
        The probability with which an element becomes 0, at least 0 and less than 1.
    seed : int
        From 0 to ``2**64 - 1``.
    """

    dropout: Any = 0.0
    seed: int = 4242

    def state(self, name: str | None = None) -> SharedVariable:
        """Make the state of random numbers that begins with the seed: see `dropout_state`."""
        return dropout_state(self.seed, name)


def is_described(operands: Sequence[Any], named: dict[str, Any]) -> bool:
    """Tell whether a convolution is called as Theano's was, with a descriptor."""
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
    """Apply an Op of convolution, or of its gradients, as Theano's was.

    Parameters
    ----------
    op : GpuDnnConvBase
        Says the algorithm, and whether the result is written into `output`.
    first, second : array
        Its first two operands.
    output : array
        Of the shape of the result.
    desc : GpuDnnConvDesc
        All other parameters.
    alpha, beta : number or scalar variable, optional
        1 and 0.

    Returns
    -------
    GpuArrayVariable
        ``alpha * convolution + beta * output``.

    Raises
    ------
    DnnTypeError
        If `desc` is something else.
    DnnValueError
        If the Op has such parameters itself.
    """
    if not isinstance(desc, GpuDnnConvDesc):
        raise DnnTypeError(f"{op.where}: desc must be a GpuDnnConvDesc, got {desc!r}")
    params = desc.op_parameters()
    plain = type(op)(ndim=op.ndim)
    for name in DESCRIBED:
        if getattr(op, name) not in (getattr(plain, name), params[name]):
            raise DnnValueError(
                f"{op.where}: {name}={getattr(op, name)!r} of the Op differs from desc, which has"
                f" {params[name]!r}"
            )
    described = op.replace(**params, accumulate=True)
    (out,) = device_operands(described.where, described.ndim + 2, output=output)
    shape = [spatial_shape(out)] if op.leading == 3 else []
    scalars = (1.0 if alpha is None else alpha, 0.0 if beta is None else beta)
    return described(first, second, *shape, *scalars, out)


def output_shape(
    ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = None
) -> tuple[Any, ...]:
    """`GpuDnnConv.get_out_shape`, of sequences of sizes or symbolic vectors."""
    count = len(subsample) + 2
    image, kernel = (
        [shape[i] for i in range(count)] if isinstance(shape, TensorVariable) else shape
        for shape in (ishape, kshape)
    )
    return get_conv_output_shape(image, kernel, border_mode, subsample, dilation)
