"""Max, sum and average pooling in one, two or three spatial dimensions, and its gradients.

The Ops here say what is computed and run in plain NumPy; rewrites replace them by Ops that
call oneDNN or cuDNN.  Of several equal maxima in a window the first in C order gets the
gradient, and NaN counts as the maximum.
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
from dnnops.nnet._validate import (
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
from dnnops.nnet.pool_geometry import (
    MAX_DETERMINISTIC,
    MAX_WINDOW,
    POOL_MODES,
    Windows,
    checked_output_shape,
    pool_output_shape,
    windows_shape,
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
    """What the Ops of pooling share: operands, shapes, checks.

    Each takes its data operands and then `ws`, `stride` and `pad`, int64 vectors with an
    entry for each spatial axis: the windows' size, the distance between them, and the zero
    padding on both sides of the image.

    Parameters
    ----------
    ndim : {1, 2, 3}
        The number of spatial axes.
    ignore_border : bool
        Whether windows that reach over the end of the padded image are left out.  If not,
        what lies inside the image is used of them, and padding is not possible.

    Raises
    ------
    DnnValueError
        If `ndim` is another number.
    """

    __props__: tuple[str, ...] = ("ndim", "ignore_border")
    # The size of the output depends on the values of ws, stride and pad.
    _output_type_depends_on_input_value = True

    #: The data operands; those in `pooled` have the shape of the pooling's output.
    operands: tuple[str, ...]
    pooled: tuple[str, ...] = ("maxout", "gz")
    #: Whether the result has the shape of the pooling's output, or that of the image.
    pooled_result: bool
    #: The data operands that the result depends on in a differentiable way.
    connected: tuple[str, ...]

    # Of a subclass: the Op itself in NumPy, given the windows and the data operands.
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
        """The name that messages give: ``Pool2d`` for `Pool` of two spatial axes."""
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
        """Check as much of the shapes and parameters as is known.

        Parameters
        ----------
        data : sequence of shapes
            Those of the data operands, in order.
        ws, stride, pad : sequence of int or None
            For each spatial axis.

        Returns
        -------
        img_shape, out_shape : tuple of int or None

        Raises
        ------
        DnnValueError
            If they don't fit together.
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
                    "pad must be smaller than ws, or a window can lie wholly in the padding "
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
        # Linear in the last data operand, piecewise constant in the others that are connected.
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
    """A `PoolBase` of several modes.

    Parameters
    ----------
    ndim : {1, 2, 3}
        The number of spatial axes.
    mode : str
        One of `modes`.
    ignore_border : bool
        As for `PoolBase`.

    Raises
    ------
    DnnValueError
        If `ndim` or `mode` is another one.
    """

    __props__ = ("ndim", "mode", "ignore_border")
    #: The modes that there are.
    modes: tuple[str, ...] = (*POOL_MODES, MAX_DETERMINISTIC)

    def __init__(self, ndim: int, mode: str, ignore_border: bool):
        super().__init__(ndim, ignore_border)
        self.mode = one_of(self.where, "mode", mode, self.modes)

    @property
    def computes(self) -> str:
        """What is taken of each window, one of `POOL_MODES`."""
        return "max" if self.mode == MAX_DETERMINISTIC else self.mode


class Pool(ModePoolBase):
    """Pooling: ``Pool(ndim, mode, ignore_border)(x, ws, stride, pad)``.

    `x` is (batch, channels, spatial...), of a floating-point dtype.  Of each window, the
    output has the maximum, the sum, or the sum divided by the window's number of elements
    ('average_inc_pad') or by the number of those inside the image ('average_exc_pad').
    Without `ignore_border` there is no padding, and the two averages are the same.

    'max_deterministic' is 'max' whose gradient is the same bits in every run, on a GPU too. On the
    CPU it always is.
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
    """A `PoolBase` of the derivatives of max pooling.

    Parameters
    ----------
    ndim, ignore_border
        As for `PoolBase`.
    deterministic : bool
        Whether gradients are to be the same bits in every run, on a GPU too.
    """

    __props__ = ("ndim", "ignore_border", "deterministic")
    #: The Op that the pullback by the last data operand applies.
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
    """The gradient of max pooling: ``MaxPoolGrad(...)(x, maxout, gz, ws, stride, pad)``.

    `maxout` is the pooling's output and `gz` the gradient by it.  The derivatives by `x` are
    zero, and `maxout` is no variable of its own but what it has to be for that `x`.
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
    """The gradient of sum and average pooling: ``AveragePoolGrad(...)(x, gz, ws, stride, pad)``.

    Only the shape of `x` matters, the pooling's input; `gz` is the gradient by the output.
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
    """The gradient of max pooling's gradient, which is also max pooling's pushforward.

    ``MaxPoolGradGrad(...)(x, maxout, ggx, ws, stride, pad)``: of each window, the element of
    `ggx` (of the shape of `x`) where `x` has its first maximum.
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
