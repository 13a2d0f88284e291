"""Stand-ins for Theano's Op classes, which can be called and used with `isinstance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor import elemwise, special

from dnnops import nnet
from dnnops.arguments import one_of
from dnnops.errors import DnnTypeError
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.pool.functions import over_leading_axes, pool_nd
from dnnops.theano.nnet import images2neibs

__all__ = [
    "AbstractBatchNormInference",
    "AbstractBatchNormTrain",
    "AbstractBatchNormTrainGrad",
    "AveragePoolGrad",
    "ConnectionistTemporalClassification",
    "CrossentropyCategorical1Hot",
    "CrossentropyCategorical1HotGrad",
    "CrossentropySoftmax1HotWithBiasDx",
    "CrossentropySoftmaxArgmax1HotWithBias",
    "DimShuffle",
    "DownsampleFactorMaxGradGrad",
    "Images2Neibs",
    "LogSoftmax",
    "MaxPoolGrad",
    "OpName",
    "Pool",
    "Prepend_scalar_constant_to_each_row",
    "Prepend_scalar_to_each_row",
    "Softmax",
    "SoftmaxGrad",
    "SoftmaxWithBias",
    "ctc_available",
    "ctc_present",
    "logsoftmax_op",
    "sigmoid_inplace",
    "softmax_grad",
    "softmax_op",
]

#: Spatial axes that one Op pools.
MAX_SPATIAL = 3


class OpName:
    """Stand-in for a Theano Op class, whose instances are functions that apply the Op.

    Parameters
    ----------
    name : str
        Theano's name of the class.
    make : callable
        Function that takes the arguments of the class and returns a function of the operands.
    *classes : type
        Op classes that `isinstance` accepts; empty if the Op becomes an expression of several Ops.
    fits : callable, optional
        Function that returns whether an Op of these classes matches. By default, every such Op
        matches.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        *classes: type,
        fits: Callable[[Any], bool] = lambda op: True,
    ):
        self.__name__ = name
        self.__wrapped__ = make
        self._classes = classes
        self._fits = fits

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a function that applies the Op."""
        return self.__wrapped__(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._classes) and self._fits(instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return f"<{self.__name__} of Theano, made of dnnops>"


def _without_parameters(name: str, function: Callable[..., Any], *classes: type) -> OpName:
    return OpName(name, lambda: function, *classes)


softmax_op = nnet.softmax
logsoftmax_op = nnet.logsoftmax
# The rewrites decide which operations work in place.
sigmoid_inplace = nnet.sigmoid


def softmax_grad(dy: Any, sm: Any) -> Any:
    """Return the gradient of a row-wise softmax, given the gradient `dy` and the result `sm`.

    Vectors are treated as a single row.
    """
    dy, sm = (pt.atleast_2d(pt.as_tensor_variable(x)) for x in (dy, sm))
    if dy.type.ndim != 2 or sm.type.ndim != 2:
        raise DnnTypeError(f"softmax_grad: dy and sm must be matrices, got {dy.type}, {sm.type}")
    return nnet.SoftmaxGrad(1)(dy, sm)


# In compiled functions, `WholeSoftmax` computes both.
Softmax = OpName(
    "Softmax",
    lambda: softmax_op,
    *(special.Softmax, nnet.WholeSoftmax),
    fits=lambda op: not getattr(op, "log", False),
)
LogSoftmax = OpName(
    "LogSoftmax",
    lambda: logsoftmax_op,
    *(special.LogSoftmax, nnet.WholeSoftmax),
    fits=lambda op: getattr(op, "log", True),
)
SoftmaxGrad = _without_parameters("SoftmaxGrad", softmax_grad, nnet.SoftmaxGrad)
SoftmaxWithBias = _without_parameters("SoftmaxWithBias", nnet.softmax_with_bias)
CrossentropySoftmaxArgmax1HotWithBias = _without_parameters(
    "CrossentropySoftmaxArgmax1HotWithBias", nnet.crossentropy_softmax_argmax_1hot_with_bias
)
CrossentropySoftmax1HotWithBiasDx = _without_parameters(
    "CrossentropySoftmax1HotWithBiasDx", nnet.crossentropy_softmax_1hot_with_bias_dx
)
CrossentropyCategorical1Hot = _without_parameters(
    "CrossentropyCategorical1Hot", nnet.crossentropy_categorical_1hot
)
CrossentropyCategorical1HotGrad = _without_parameters(
    "CrossentropyCategorical1HotGrad", nnet.crossentropy_categorical_1hot_grad
)
Prepend_scalar_to_each_row = _without_parameters(
    "Prepend_scalar_to_each_row", nnet.prepend_scalar_to_each_row
)
ConnectionistTemporalClassification = OpName(
    "ConnectionistTemporalClassification", lambda compute_grad=True, openmp=None: nnet.ctc, CTC
)


def ctc_available() -> bool:
    """Return True: in dnnops, the CTC loss doesn't need an additional library."""
    return True


ctc_present = ctc_available


def _prepend(val: Any = 0) -> Any:
    return lambda mat: nnet.prepend_scalar_to_each_row(val, mat)


Prepend_scalar_constant_to_each_row = OpName("Prepend_scalar_constant_to_each_row", _prepend)


def _images2neibs(mode: str = "valid") -> Any:
    return lambda ten4, neib_shape, neib_step=None: images2neibs(ten4, neib_shape, neib_step, mode)


Images2Neibs = OpName("Images2Neibs", _images2neibs)


def _dimshuffle(input_broadcastable: Any, new_order: Any, inplace: bool = True) -> Any:
    return elemwise.DimShuffle(input_ndim=len(input_broadcastable), new_order=new_order)


DimShuffle = OpName("DimShuffle", _dimshuffle, elemwise.DimShuffle)


# Pooling: Theano's Ops take `ignore_border` first, and don't require stride and padding.


def _pool(ignore_border: bool = False, mode: str = "max", ndim: int = 2, openmp: Any = None) -> Any:
    def pool(x: Any, ws: Any, stride: Any = None, pad: Any = None) -> Any:
        if ndim <= MAX_SPATIAL:
            return pool_nd("Pool", ndim, x, mode, ignore_border, ws, stride, pad)
        out = pt.as_tensor_variable(x)
        if out.type.dtype in pt.type.integer_dtypes and mode not in ("max", "sum"):
            raise DnnTypeError(
                f"Pool: averages over {ndim} axes need a floating-point x, got {out.type.dtype}"
            )
        lead = out.type.ndim - ndim
        for part in _parts(ndim):
            axes = range(lead + ndim)[lead:][part]
            last = range(-len(axes), 0)
            given = [value if value is None else value[part] for value in (ws, stride, pad)]
            out = pt.moveaxis(out, axes, last)
            out = pool_nd("Pool", len(axes), out, mode, ignore_border, *given)
            out = pt.moveaxis(out, last, axes)
        return out

    return pool


def _parts(ndim: int) -> list[slice]:
    """Divide axes among Ops. In every mode, a window's result is that of its parts' results."""
    return [slice(i, min(i + MAX_SPATIAL, ndim)) for i in range(0, ndim, MAX_SPATIAL)]


def _out_shape(
    imgshape: Any,
    ws: Any = None,
    ignore_border: bool = False,
    stride: Any = None,
    pad: Any = None,
    ndim: int = 2,
    ds: Any = None,
    st: Any = None,
    padding: Any = None,
) -> list[Any]:
    """Return the shape of the pooled image; the leading entries of `imgshape` are kept."""
    ws = ds if ws is None else ws
    stride = st if stride is None else stride
    pad = padding if pad is None else pad
    stride = ws if stride is None else stride
    pad = (0,) * ndim if pad is None else pad
    shape, spatial = list(imgshape[:-ndim]), imgshape[-ndim:]
    if ndim <= MAX_SPATIAL:
        return shape + _pooled(spatial, ws, stride, pad, ignore_border)
    for part in _parts(ndim):
        shape += _pooled(spatial[part], ws[part], stride[part], pad[part], ignore_border)
    return shape


def _pooled(spatial: Any, ws: Any, stride: Any, pad: Any, ignore_border: bool) -> list[Any]:
    return list(nnet.pool_output_shape((1, 1, *spatial), ws, stride, pad, ignore_border)[2:])


_pool.out_shape = _out_shape  # type: ignore[attr-defined]
Pool = OpName("Pool", _pool, nnet.Pool)


def _with_windows(op: Any) -> Any:
    count = len(op.operands)

    def apply(*operands: Any, stride: Any = None, pad: Any = None) -> Any:
        data = [pt.as_tensor_variable(x) for x in operands[:count]]
        ws, *rest = operands[count:]
        step, margin, *_ = (*rest, *(None,) * 2)
        step = stride if step is None else step
        margin = pad if margin is None else margin
        step = ws if step is None else step
        return over_leading_axes(op, data, [ws, step, (0,) * op.ndim if margin is None else margin])

    return apply


def _max_pool_grad(ignore_border: bool, ndim: int = 2, openmp: Any = None) -> Any:
    return _with_windows(nnet.MaxPoolGrad(ndim, ignore_border))


def _average_pool_grad(ignore_border: bool, mode: str = "average_inc_pad", ndim: int = 2) -> Any:
    return _with_windows(nnet.AveragePoolGrad(ndim, mode, ignore_border))


def _max_pool_grad_grad(
    ignore_border: bool, mode: str = "max", ndim: int = 2, openmp: Any = None
) -> Any:
    one_of("DownsampleFactorMaxGradGrad", "mode", mode, ("max",))
    return _with_windows(nnet.MaxPoolGradGrad(ndim, ignore_border))


MaxPoolGrad = OpName("MaxPoolGrad", _max_pool_grad, nnet.MaxPoolGrad)
AveragePoolGrad = OpName("AveragePoolGrad", _average_pool_grad, nnet.AveragePoolGrad)
DownsampleFactorMaxGradGrad = OpName(
    "DownsampleFactorMaxGradGrad", _max_pool_grad_grad, nnet.MaxPoolGradGrad
)


# Batch normalization: the arguments of Theano's Ops have defaults.


def _batch_norm_train(axes: Any = (0,)) -> Any:
    def apply(
        x: Any,
        scale: Any,
        bias: Any,
        epsilon: Any = 1e-4,
        running_average_factor: Any = 0.1,
        running_mean: Any = None,
        running_var: Any = None,
    ) -> Any:
        return nnet.batch_normalization_train(
            x, scale, bias, axes, epsilon, running_average_factor, running_mean, running_var
        )

    return apply


def _batch_norm_inference(axes: Any = (0,)) -> Any:
    def apply(
        x: Any,
        scale: Any,
        bias: Any,
        estimated_mean: Any,
        estimated_variance: Any,
        epsilon: Any = 1e-4,
    ) -> Any:
        return nnet.batch_normalization_test(
            x, scale, bias, estimated_mean, estimated_variance, axes, epsilon
        )

    return apply


def _batch_norm_grad(axes: Any = (0,)) -> Any:
    op = nnet.BatchNormTrainGrad(axes)

    def apply(x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, epsilon: Any = None) -> Any:
        return op(x, dy, scale, x_mean, x_invstd)

    return apply


def _abstract_batch_norm(name: str, make: Callable[..., Any], cls: type) -> OpName:
    """Name the abstract Op, but not the Ops of backends, which are derived from it."""
    return OpName(name, make, cls, fits=lambda op: type(op) is cls)


AbstractBatchNormTrain = _abstract_batch_norm(
    "AbstractBatchNormTrain", _batch_norm_train, nnet.BatchNormTrain
)
AbstractBatchNormInference = _abstract_batch_norm(
    "AbstractBatchNormInference", _batch_norm_inference, nnet.BatchNormInference
)
AbstractBatchNormTrainGrad = _abstract_batch_norm(
    "AbstractBatchNormTrainGrad", _batch_norm_grad, nnet.BatchNormTrainGrad
)
