"""Max, sum and average pooling in one, two or three spatial dimensions, and its gradients.

The Ops in this module define the computation and run in plain NumPy; rewrites replace them with Ops
that call oneDNN or cuDNN. If a window has several equal maxima, the first one in C order receives
the gradient. NaN counts as the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dnnops.arguments import one_of, shown, switch
from dnnops.compat import shape_inference
from dnnops.errors import DnnValueError
from dnnops.nnet.pool.geometry import (
    MAX_DETERMINISTIC,
    MAX_WINDOW,
    POOL_MODES,
    Windows,
    checked_output_shape,
    pool_output_shape,
    windows_shape,
)
from dnnops.nnet.validate import (
    Shape,
    accumulator_dtype,
    float_tensor,
    int_vector,
    is_int,
    merge_shapes,
    named_operands,
    require_same_dtype,
    show_shape,
    static_vector,
    vector_entries,
)

__all__ = [
    "MAX_DETERMINISTIC",
    "POOL_MODES",
    "AveragePoolGrad",
    "MaxPoolGrad",
    "MaxPoolGradGrad",
    "Pool",
    "pool_output_shape",
]


class PoolBase(Op):
    """Base class of the pooling Ops.

    Each Op takes its data operands, followed by `ws`, `stride` and `pad`. These are int64 vectors
    with one entry per spatial axis: the window size, the distance between windows, and the zero
    padding on both sides of the image.

    Parameters
    ----------
    ndim : {1, 2, 3}
        Number of spatial axes.
    ignore_border : bool
        Whether to ignore windows that extend past the end of the padded image. If not, only the
        part inside the image is used, and padding is not supported.

    Raises
    ------
    DnnValueError
        If `ndim` is invalid.
    """

    __props__: tuple[str, ...] = ("ndim", "ignore_border")
    # The size of the output depends on the values of ws, stride and pad.
    _output_type_depends_on_input_value = True

    #: Names of the data operands; those in `pooled` have the shape of the pooling output.
    operands: tuple[str, ...]
    pooled: tuple[str, ...] = ("maxout", "gz")
    #: Whether the result has the shape of the pooling output, rather than that of the image.
    pooled_result: bool
    #: Data operands with respect to which the result is differentiable.
    connected: tuple[str, ...]

    # Defined by subclasses: computes the result in NumPy from the windows and the data operands.
    _compute: Callable[..., np.ndarray]

    def __init__(self, ndim: int, ignore_border: bool):
        if not is_int(ndim) or ndim not in (1, 2, 3):
            raise DnnValueError(
                f"{type(self).__name__}: ndim, the number of spatial axes, must be 1, 2 or 3, "
                f"got {shown(ndim)}"
            )
        self.ndim = int(ndim)
        self.ignore_border = switch(type(self).__name__, "ignore_border", ignore_border)

    @property
    def where(self) -> str:
        """Name used in error messages, such as ``Pool2d`` for `Pool` with two spatial axes."""
        return f"{type(self).__name__}{self.ndim}d"

    def make_node(self, *inputs: Any) -> Apply:
        names = (*self.operands, "ws", "stride", "pad")
        named_operands(self.where, names, inputs)
        count = len(self.operands)
        data = {
            name: float_tensor(self.where, name, x, self.ndim + 2)
            for name, x in zip(self.operands, inputs[:count], strict=True)
        }
        dtype = require_same_dtype(self.where, **data)
        vectors = [
            int_vector(self.where, name, value, self.ndim)
            for name, value in zip(names[count:], inputs[count:], strict=True)
        ]
        img_shape, out_shape = self.check_shapes(
            [x.type.shape for x in data.values()], *(static_vector(v, self.ndim) for v in vectors)
        )
        shape = out_shape if self.pooled_result else img_shape
        return Apply(self, [*data.values(), *vectors], [pt.tensor(dtype=dtype, shape=shape)])

    def check_shapes(
        self,
        data: Sequence[Sequence[Any]],
        ws: Sequence[Any],
        stride: Sequence[Any],
        pad: Sequence[Any],
    ) -> tuple[Shape, Shape]:
        """Check the shapes and parameters as far as they are known.

        Parameters
        ----------
        data : sequence of shapes
            Shapes of the data operands, in order.
        ws, stride, pad : sequence of int or None
            Window size, stride and padding of each spatial axis.

        Returns
        -------
        img_shape, out_shape : tuple of int or None
            Shapes of the image and of the pooling output.

        Raises
        ------
        DnnValueError
            If the shapes and parameters are inconsistent or out of bounds.
        """
        shapes = dict(zip(self.operands, data, strict=True))
        img = merge_shapes(self.where, **{n: s for n, s in shapes.items() if n not in self.pooled})

        def fail(problem: str) -> None:
            raise DnnValueError(
                f"{self.where}: {problem}; image {show_shape(img)}, ws={show_shape(ws)}, "
                f"stride={show_shape(stride)}, pad={show_shape(pad)}, "
                f"ignore_border={self.ignore_border}"
            )

        for name, values, minimum in (("ws", ws, 1), ("stride", stride, 1), ("pad", pad, 0)):
            if any(v is not None and not minimum <= v <= MAX_WINDOW for v in values):
                fail(f"{name} must be between {minimum} and {MAX_WINDOW}")
        if not self.ignore_border and any(pad):
            fail("padding needs ignore_border=True")
        for axis, (size, w, p) in enumerate(zip(img[2:], ws, pad, strict=True)):
            if None not in (w, p) and p >= w:
                fail(
                    "pad must be smaller than ws, so that no window lies entirely in the padding "
                    f"(spatial axis {axis})"
                )
            if size == 0:
                fail(f"the image is empty on spatial axis {axis}")
        out = windows_shape(img, ws, stride, pad, self.ignore_border)
        pooled = {n: s for n, s in shapes.items() if n in self.pooled}
        return img, merge_shapes(self.where, output=out, **pooled)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        if not self.pooled_result:
            return [shapes[0]]
        ws, stride, pad = (vector_entries(v, self.ndim) for v in node.inputs[-3:])
        return [checked_output_shape(shapes[0], ws, stride, pad, self.ignore_border)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[name in self.connected] for name in (*self.operands, "ws", "stride", "pad")]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # The Op is linear in the last data operand and piecewise constant in the other connected
        # operands.
        last = len(self.operands) - 1
        if not isinstance(tangents[last].type, DisconnectedType):
            return [self(*inputs[:last], tangents[last], *inputs[last + 1 :])]
        connected = [
            t for t, name in zip(tangents, self.operands, strict=False) if name in self.connected
        ]
        if all(isinstance(t.type, DisconnectedType) for t in connected):
            return [disconnected_type()]
        return [outputs[0].zeros_like()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        cut = len(self.operands)
        data, vectors = inputs[:cut], [v.tolist() for v in inputs[cut:]]
        img_shape, out_shape = self.check_shapes([x.shape for x in data], *vectors)
        windows = Windows(img_shape, out_shape, *vectors)
        result = self._compute(windows, *data)
        output_storage[0][0] = result.astype(data[0].dtype, copy=False)


class ModePoolBase(PoolBase):
    """Base class of the pooling Ops that have a mode.

    Parameters
    ----------
    ndim : {1, 2, 3}
        Number of spatial axes.
    mode : str
        Pooling mode, one of `modes`.
    ignore_border : bool
        See `PoolBase`.

    Raises
    ------
    DnnValueError
        If `ndim` or `mode` is invalid.
    """

    __props__ = ("ndim", "mode", "ignore_border")
    #: Supported modes.
    modes: tuple[str, ...] = (*POOL_MODES, MAX_DETERMINISTIC)

    def __init__(self, ndim: int, mode: str, ignore_border: bool):
        super().__init__(ndim, ignore_border)
        self.mode = one_of(self.where, "mode", mode, self.modes)

    @property
    def computes(self) -> str:
        """The reduction applied to each window, one of `POOL_MODES`."""
        return "max" if self.mode == MAX_DETERMINISTIC else self.mode


class Pool(ModePoolBase):
    """Pooling: ``Pool(ndim, mode, ignore_border)(x, ws, stride, pad)``.

    `x` is a floating-point tensor of shape (batch, channels, spatial...). For each window, the
    output is the maximum, the sum, or the sum divided by the number of elements of the window
    ('average_inc_pad') or by the number of elements inside the image ('average_exc_pad').
    Without `ignore_border`, padding is not supported and the two averages are the same.

    'max_deterministic' is 'max' with a gradient that is bitwise reproducible, even on a GPU. On the
    CPU, the gradient of 'max' is always reproducible.
    """

    operands = ("x",)
    pooled_result = True
    connected = ("x",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        x, *vectors = inputs
        (gz,) = cotangents
        if self.computes == "max":
            op = MaxPoolGrad(self.ndim, self.ignore_border, self.mode == MAX_DETERMINISTIC)
            grad = op(x, outputs[0], gz, *vectors)
        else:
            grad = AveragePoolGrad(self.ndim, self.mode, self.ignore_border)(x, gz, *vectors)
        return [grad, *(disconnected_type() for _ in vectors)]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if self.computes != "max" or isinstance(tangents[0].type, DisconnectedType):
            return super().pushforward(inputs, outputs, tangents)
        x, *vectors = inputs
        op = MaxPoolGradGrad(self.ndim, self.ignore_border, self.mode == MAX_DETERMINISTIC)
        return [op(x, outputs[0], tangents[0], *vectors)]

    def _compute(self, windows: Windows, x: np.ndarray) -> np.ndarray:
        if self.computes == "max":
            return windows.of(x, fill=-np.inf).max(axis=-1)
        total = windows.of(x, fill=0).sum(axis=-1, dtype=accumulator_dtype(x.dtype))
        return total / windows.divisor(self.mode, self.ignore_border)


class MaxPoolGradBase(PoolBase):
    """Base class of the derivatives of max pooling.

    Parameters
    ----------
    ndim, ignore_border
        See `PoolBase`.
    deterministic : bool
        Whether gradients must be bitwise reproducible, even on a GPU.
    """

    __props__ = ("ndim", "ignore_border", "deterministic")
    #: The Op that gives the pullback with respect to the last data operand.
    transposed: type[MaxPoolGradBase]

    def __init__(self, ndim: int, ignore_border: bool, deterministic: bool = False):
        super().__init__(ndim, ignore_border)
        self.deterministic = switch(type(self).__name__, "deterministic", deterministic)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        x, maxout, _, *vectors = inputs
        op: Any = self.transposed(self.ndim, self.ignore_border, self.deterministic)
        return [
            x.zeros_like(),
            disconnected_type(),
            op(x, maxout, cotangents[0], *vectors),
            *(disconnected_type() for _ in vectors),
        ]


class MaxPoolGrad(MaxPoolGradBase):
    """Gradient of max pooling: ``MaxPoolGrad(...)(x, maxout, gz, ws, stride, pad)``.

    `maxout` is the pooling output, and `gz` is the gradient with respect to it. The derivative of
    this Op with respect to `x` is zero, and `maxout` is disconnected because `x` determines it.
    """

    operands = ("x", "maxout", "gz")
    pooled_result = False
    connected = ("x", "gz")

    def _compute(
        self, windows: Windows, x: np.ndarray, maxout: np.ndarray, gz: np.ndarray
    ) -> np.ndarray:
        chosen = windows.first_maximum(x)
        count = int(np.prod(windows.ws))
        parts = (np.where(chosen == element, gz, 0) for element in range(count))
        return windows.scatter(parts, accumulator_dtype(x.dtype))


class AveragePoolGrad(ModePoolBase):
    """Gradient of sum and average pooling: ``AveragePoolGrad(...)(x, gz, ws, stride, pad)``.

    `x` is the pooling input; only its shape is used. `gz` is the gradient with respect to the
    output.
    """

    modes = tuple(mode for mode in POOL_MODES if mode != "max")
    operands = ("x", "gz")
    pooled_result = False
    connected = ("gz",)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        _, _, *vectors = inputs
        op = Pool(self.ndim, self.mode, self.ignore_border)
        grad = op(cotangents[0], *vectors)
        return [disconnected_type(), grad, *(disconnected_type() for _ in vectors)]

    def _compute(self, windows: Windows, x: np.ndarray, gz: np.ndarray) -> np.ndarray:
        dtype = accumulator_dtype(x.dtype)
        share = gz.astype(dtype) / windows.divisor(self.mode, self.ignore_border).astype(dtype)
        return windows.scatter([share] * int(np.prod(windows.ws)), dtype)


class MaxPoolGradGrad(MaxPoolGradBase):
    """Gradient of the max pooling gradient, which is also the pushforward of max pooling.

    ``MaxPoolGradGrad(...)(x, maxout, ggx, ws, stride, pad)`` returns, for each window, the element
    of `ggx` at the first maximum of `x`. `ggx` has the shape of `x`.
    """

    operands = ("x", "maxout", "ggx")
    pooled_result = True
    connected = ("x", "ggx")

    def _compute(
        self, windows: Windows, x: np.ndarray, maxout: np.ndarray, ggx: np.ndarray
    ) -> np.ndarray:
        chosen = windows.first_maximum(x)
        return np.take_along_axis(windows.of(ggx, fill=0), chosen[..., None], axis=-1)[..., 0]


MaxPoolGrad.transposed = MaxPoolGradGrad
MaxPoolGradGrad.transposed = MaxPoolGrad
