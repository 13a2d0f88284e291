"""Elementwise operations: their modes, arguments and meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.names import data_type, pointwise_mode
from dnnops.graph.nodes.base import Node, broadcast
from dnnops.graph.tensors import as_integer, as_number

__all__ = ["POINTWISE", "Pointwise", "PointwiseMethod"]

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@dataclass(frozen=True)
class PointwiseMethod:
    """A method of the graph that adds an elementwise operation.

    Attributes
    ----------
    mode : str
        Name of the `pointwise_mode`.
    operands : tuple of str
        Names of the arguments that are tensors.
    expression : callable
        Function of the operands, and of parameters by name, that returns an expression.
    summary : str
        First line of the method's docstring.
    gives_bool : bool
        Whether the result is true or false.
    """

    mode: str
    operands: tuple[str, ...]
    expression: Callable[..., Any]
    summary: str
    gives_bool: bool = False

    @property
    def is_backward(self) -> bool:
        """Whether the operands are a gradient and the input of the function."""
        return self.mode.endswith("_BWD")


#: Attributes of cuDNN's descriptor by the name of the parameter, with their defaults.
_ATTRIBUTES: dict[str, tuple[str, float]] = {
    "relu_lower_clip": ("RELU_LOWER_CLIP", 0.0),
    "relu_upper_clip": ("RELU_UPPER_CLIP", float(np.finfo("float32").max)),
    "relu_lower_clip_slope": ("RELU_LOWER_CLIP_SLOPE", 0.0),
    "elu_alpha": ("ELU_ALPHA", 1.0),
    "softplus_beta": ("SOFTPLUS_BETA", 1.0),
    "swish_beta": ("SWISH_BETA", 1.0),
}


def _value(parameters: Mapping[str, Any], name: str) -> float:
    given = parameters.get(name)
    return _ATTRIBUTES[name][1] if given is None else given


def _like(number: float, x: Any) -> Any:
    return np.asarray(number, x.dtype)


def _relu(x: Any, **p: Any) -> Any:
    low, slope = (
        _like(_value(p, name), x) for name in ("relu_lower_clip", "relu_lower_clip_slope")
    )
    clipped = x
    if p.get("relu_upper_clip") is not None:
        clipped = pt.minimum(x, _like(p["relu_upper_clip"], x))
    if not slope:
        return pt.maximum(clipped, low)
    return pt.where(x < low, low + slope * (x - low), clipped)


def _relu_slope(x: Any, **p: Any) -> Any:
    low, high, slope = (
        _like(_value(p, name), x)
        for name in ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope")
    )
    one, zero = _like(1, x), _like(0, x)
    return pt.where(x <= low, slope, pt.where(x < high, one, zero))


def _elu(x: Any, **p: Any) -> Any:
    return pt.where(x > 0, x, _like(_value(p, "elu_alpha"), x) * pt.expm1(pt.minimum(x, 0)))


def _elu_slope(x: Any, **p: Any) -> Any:
    alpha = _like(_value(p, "elu_alpha"), x)
    return pt.where(x > 0, _like(1, x), alpha * pt.exp(pt.minimum(x, 0)))


def _softplus(x: Any, **p: Any) -> Any:
    beta = _like(_value(p, "softplus_beta"), x)
    return pt.softplus(beta * x) / beta


def _swish(x: Any, **p: Any) -> Any:
    return x * pt.sigmoid(_like(_value(p, "swish_beta"), x) * x)


def _swish_slope(x: Any, **p: Any) -> Any:
    beta = _like(_value(p, "swish_beta"), x)
    s = pt.sigmoid(beta * x)
    return s + beta * x * s * (1 - s)


def _gelu(x: Any) -> Any:
    return _like(0.5, x) * x * (1 + pt.erf(x * _like(math.sqrt(0.5), x)))


def _gelu_slope(x: Any) -> Any:
    density = pt.exp(_like(-0.5, x) * x * x) * _like(1 / math.sqrt(2 * math.pi), x)
    return _like(0.5, x) * (1 + pt.erf(x * _like(math.sqrt(0.5), x))) + x * density


def _gelu_tanh(x: Any) -> Any:
    t = pt.tanh(_like(_TANH_SCALE, x) * (x + _like(_TANH_CUBE, x) * x * x * x))
    return _like(0.5, x) * x * (1 + t)


def _gelu_tanh_slope(x: Any) -> Any:
    t = pt.tanh(_like(_TANH_SCALE, x) * (x + _like(_TANH_CUBE, x) * x * x * x))
    inner = _like(_TANH_SCALE, x) * (1 + _like(3 * _TANH_CUBE, x) * x * x)
    return _like(0.5, x) * (1 + t) + _like(0.5, x) * x * (1 - t * t) * inner


def _times(slope: Callable[..., Any]) -> Callable[..., Any]:
    return lambda loss, x, **p: loss * slope(x, **p)


def _table() -> dict[str, PointwiseMethod]:
    methods: dict[str, PointwiseMethod] = {}

    def add(
        name: str, mode: str, operands: str, expression: Any, summary: str, **more: Any
    ) -> None:
        methods[name] = PointwiseMethod(mode, tuple(operands.split()), expression, summary, **more)

    for name, mode, expression, summary in (
        ("abs", "ABS", abs, "Return the absolute value."),
        ("ceil", "CEIL", pt.ceil, "Round up."),
        ("cos", "COS", pt.cos, "Return the cosine."),
        ("erf", "ERF", pt.erf, "Return the error function."),
        ("exp", "EXP", pt.exp, "Return the exponential."),
        ("floor", "FLOOR", pt.floor, "Round down."),
        ("gelu", "GELU_FWD", _gelu, "Return GELU (Hendrycks and Gimpel, 2016)."),
        ("gelu_approx_tanh", "GELU_APPROX_TANH_FWD", _gelu_tanh, "Return GELU's form with tanh."),
        ("identity", "IDENTITY", lambda x: x, "Copy, such as to another data type."),
        ("log", "LOG", pt.log, "Return the natural logarithm."),
        ("neg", "NEG", lambda x: -x, "Negate."),
        ("reciprocal", "RECIPROCAL", pt.reciprocal, "Return the reciprocal."),
        ("rsqrt", "RSQRT", lambda x: 1 / pt.sqrt(x), "Return the reciprocal of the square root."),
        ("sigmoid", "SIGMOID_FWD", pt.sigmoid, "Return the logistic function."),
        ("sin", "SIN", pt.sin, "Return the sine."),
        ("sqrt", "SQRT", pt.sqrt, "Return the square root."),
        ("tan", "TAN", pt.tan, "Return the tangent."),
        ("tanh", "TANH_FWD", pt.tanh, "Return the hyperbolic tangent."),
        ("relu", "RELU_FWD", _relu, "Clip from below, and above if a limit is given."),
        ("leaky_relu", "RELU_FWD", _relu, "Return relu with a slope for negative numbers."),
        ("elu", "ELU_FWD", _elu, "Return ELU (Clevert et al., 2016)."),
        ("softplus", "SOFTPLUS_FWD", _softplus, "Return log(1 + exp(beta x)) / beta."),
        ("swish", "SWISH_FWD", _swish, "Return x sigmoid(beta x)."),
        ("gen_index", "GEN_INDEX", None, "Return the index of each element along an axis."),
    ):
        add(name, mode, "input", expression, summary)
    for name, mode, expression, summary in (
        ("add", "ADD", lambda a, b: a + b, "Add."),
        ("add_square", "ADD_SQUARE", lambda a, b: a + b * b, "Return a + b * b."),
        ("atan2", "ATAN2", pt.arctan2, "Return the angle of the point (b, a)."),
        ("div", "DIV", lambda a, b: a / b, "Divide."),
        ("mul", "MUL", lambda a, b: a * b, "Multiply."),
        ("sub", "SUB", lambda a, b: a - b, "Subtract."),
    ):
        add(name, mode, "a b", expression, summary)
    for name, mode, expression, summary in (
        ("max", "MAX", pt.maximum, "Return the larger number."),
        ("min", "MIN", pt.minimum, "Return the smaller number."),
        ("mod", "MOD", lambda a, b: a - b * pt.trunc(a / b), "Return C's remainder (fmod)."),
        ("floor_mod", "FLOOR_MOD", lambda a, b: a - b * pt.floor(a / b), "Return Python's %."),
        ("pow", "POW", pt.pow, "Return input0 to the power of input1."),
    ):
        add(name, mode, "input0 input1", expression, summary)
    add("scale", "MUL", "input scale", lambda x, s: x * s, "Multiply by a factor.")
    add("bias", "ADD", "input bias", lambda x, b: x + b, "Add a bias.")
    for word, expression, summary in (
        ("eq", pt.eq, "equal"),
        ("neq", pt.neq, "not equal"),
        ("gt", pt.gt, "greater"),
        ("ge", pt.ge, "greater or equal"),
        ("lt", pt.lt, "less"),
        ("le", pt.le, "less or equal"),
    ):
        add(
            f"cmp_{word}",
            f"CMP_{word.upper()}",
            "input comparison",
            expression,
            f"Return whether the elements of input are {summary}.",
            gives_bool=True,
        )
    nonzero = pt.neq
    add(
        "logical_not",
        "LOGICAL_NOT",
        "input",
        lambda x: pt.eq(x, 0),
        "Return whether elements are zero.",
        gives_bool=True,
    )
    add(
        "logical_and",
        "LOGICAL_AND",
        "a b",
        lambda a, b: pt.and_(nonzero(a, 0), nonzero(b, 0)),
        "Return whether both elements are not zero.",
        gives_bool=True,
    )
    add(
        "logical_or",
        "LOGICAL_OR",
        "a b",
        lambda a, b: pt.or_(nonzero(a, 0), nonzero(b, 0)),
        "Return whether at least one element is not zero.",
        gives_bool=True,
    )
    add(
        "binary_select",
        "BINARY_SELECT",
        "input0 input1 mask",
        lambda a, b, mask: pt.where(nonzero(mask, 0), a, b),
        "Return elements of input0 where the mask is not zero, and else of input1.",
    )
    for name, mode, slope in (
        ("relu", "RELU", _relu_slope),
        ("leaky_relu", "RELU", _relu_slope),
        ("elu", "ELU", _elu_slope),
        ("gelu", "GELU", _gelu_slope),
        ("gelu_approx_tanh", "GELU_APPROX_TANH", _gelu_tanh_slope),
        ("sigmoid", "SIGMOID", lambda x: pt.sigmoid(x) * (1 - pt.sigmoid(x))),
        (
            "softplus",
            "SOFTPLUS",
            lambda x, **p: pt.sigmoid(_like(_value(p, "softplus_beta"), x) * x),
        ),
        ("swish", "SWISH", _swish_slope),
        ("tanh", "TANH", lambda x: 1 - pt.tanh(x) ** 2),
    ):
        summary = f"Return the gradient of {name} with respect to its input."
        add(f"{name}_backward", f"{mode}_BWD", "loss input", _times(slope), summary)
    return methods


#: Methods of the graph by name.
POINTWISE = _table()


def _as_method(value: Any, what: str) -> str:
    if not isinstance(value, str) or value not in POINTWISE:
        raise DnnValueError(f"{what} is not a method of graphs: {value!r}")
    return value


class Pointwise(Node):
    """Elementwise operation; operands are broadcast.

    The parameter ``method`` is a key of `POINTWISE`, and the others are those of cuDNN's
    descriptor.
    """

    tag = "POINTWISE"
    results = ("OUT_0",)
    checks: ClassVar[dict[str, Any]] = {
        "method": _as_method,
        "axis": as_integer,
        **dict.fromkeys(_ATTRIBUTES, as_number),
    }
    optional = frozenset({"axis", *_ATTRIBUTES})

    @property
    def method(self) -> PointwiseMethod:
        """Entry of `POINTWISE`."""
        return POINTWISE[self.parameters["method"]]

    @property
    def intermediate_type(self) -> Any:
        return data_type.BOOLEAN if self.method.gives_bool else data_type.NOT_SET

    @property
    def default_compute_type(self) -> Any:
        return data_type.BOOLEAN if self.method.mode.startswith("LOGICAL") else None

    def infer(self) -> None:
        dims = self.dims(*self.inputs)
        result = broadcast(self.where, *dims)
        tensors = list(self.inputs.values())
        like = next((t for t in tensors if t.dim == result), tensors[0])
        self.set_result("OUT_0", result, like=like)

    def check(self) -> None:
        operands = [f"IN_{i}" for i in range(len(self.method.operands))]
        if list(self.inputs) != operands:
            raise DnnTypeError(
                f"{self.where}: expected the operands {operands}, got {list(self.inputs)}"
            )
        if self.method.mode == "GEN_INDEX" and self.parameters.get("axis") is None:
            raise DnnTypeError(f"{self.where}: axis is missing")
        axis = self.parameters.get("axis")
        if axis is not None and axis < 0:
            raise DnnValueError(f"{self.where}: axis must not be negative, got {axis}")

    def lower(self, descriptors: Any) -> None:
        mode = pointwise_mode[self.method.mode]
        operation = descriptors.make("POINTWISE", MODE=mode, MATH_PREC=self.compute_data_type)
        for name, (attribute, _) in _ATTRIBUTES.items():
            if self.parameters.get(name) is not None:
                operation.set(f"POINTWISE_{attribute}", descriptors.double(self.parameters[name]))
        if self.parameters.get("axis") is not None:
            operation.set("POINTWISE_AXIS", self.parameters["axis"])
        names = ("XDESC", "BDESC", "TDESC")
        result = "YDESC"
        if self.method.is_backward:
            names, result = ("DYDESC", "XDESC", "BDESC"), "DXDESC"
        operands = dict(zip(names, self.inputs.values(), strict=False))
        descriptors.operation(
            "POINTWISE",
            "POINTWISE",
            PW_DESCRIPTOR=operation,
            **operands,
            **{result: self.outputs["OUT_0"]},
            ALPHA1=1.0,
            ALPHA2=1.0,
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        operands = [values[port] for port in self.inputs]
        if self.method.mode == "GEN_INDEX":
            return {"OUT_0": self._indices(operands[0])}
        given = {name: self.parameters[name] for name in _ATTRIBUTES if name in self.parameters}
        result = self.method.expression(*operands, **given)
        if self.method.gives_bool:
            result = pt.cast(result, "bool")
        return {"OUT_0": result}

    def _indices(self, x: Any) -> Any:
        axis, dim = self.parameters["axis"], self.inputs["IN_0"].dim
        if axis >= len(dim):
            raise DnnValueError(f"{self.where}: axis {axis} of a tensor with {len(dim)} axes")
        along = [1] * len(dim)
        along[axis] = dim[axis]
        indices = np.arange(dim[axis]).reshape(along)
        return pt.as_tensor_variable(np.broadcast_to(indices, dim).copy())

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        described["mode"] = self.method.mode
        del described["method"]
        return described
