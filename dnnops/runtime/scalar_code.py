"""Generate C++ and CUDA C++ for PyTensor's scalar Ops.

A scalar Op, or a whole `Composite`, becomes the body of a loop or kernel, which contains the
``c_code`` of each scalar Op in order. float16 and bfloat16 values are converted to float when they
are loaded, and rounded only when the result is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar import ScalarType, get_scalar_type
from pytensor.scalar.basic import Cast, Composite, Pow, ScalarOp, Trunc, identity

from dnnops.dtypes import DTYPES, HALF_DTYPES, compute_dtype
from dnnops.errors import DnnNotSupportedError

__all__ = [
    "PREAMBLE",
    "ScalarCode",
    "c_literal",
    "from_stored",
    "scalar_code",
    "scalar_dtypes",
    "stored_type",
    "to_stored",
]

#: Definitions for CUDA that the C code of scalar Ops relies on. ``KERNEL`` lets integer division by
#: zero pass, as in CUDA, instead of raising a Python exception.
PREAMBLE = "\n".join(
    [
        "#define KERNEL",
        "#define WITHIN_KERNEL __device__",
        "#define ga_float float",
        "#define ga_double double",
        "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif",
        "#ifndef NAN\n#define NAN __int_as_float(0x7fffffff)\n#endif",
        *(f"typedef {dtype.c_type} npy_{name};" for name, dtype in DTYPES.items()),
    ]
)


@dataclass(frozen=True)
class ScalarCode:
    """C++ code of a scalar Op.

    Attributes
    ----------
    operation : str
        Statements that read ``in0``, ``in1``... and assign to ``out0``...
    support : str
        Functions and macros that the statements use, for the kernel's preamble.
    """

    operation: str
    support: str


def scalar_code(scalar_op: ScalarOp, in_dtypes: tuple[str, ...]) -> ScalarCode:
    """Generate the C++ code of a scalar Op.

    Parameters
    ----------
    scalar_op : ScalarOp
        An Op of `pytensor.scalar` that has C code, or a `Composite` of such Ops.
    in_dtypes : tuple of str
        Dtypes of the operands.

    Returns
    -------
    ScalarCode

    Raises
    ------
    DnnNotSupportedError
        If the Op has no C code, if a kernel can't contain its C code, or if a dtype is not one of
        `dnnops.dtypes.DTYPES`, such as a complex one.
    """
    if unknown := set(in_dtypes) - DTYPES.keys():
        raise DnnNotSupportedError(
            f"cannot generate C++ code of {scalar_op} for dtypes {sorted(unknown)}"
        )
    inputs, outputs, nodes = _scalar_graph(scalar_op, in_dtypes)
    names: dict[Variable, str] = {}
    lines: list[str] = []
    for i, x in enumerate(inputs):
        names[x] = f"_x{i}"
        lines.append(f"const {_c_type(x)} _x{i} = in{i};")
    support: dict[str, None] = {}
    for number, node in enumerate(nodes):
        lines += _node_code(node, number, names, support)
    lines += [f"out{i} = {_name(z, names)};" for i, z in enumerate(outputs)]
    return ScalarCode("\n".join(lines), "\n".join(support))


def scalar_dtypes(scalar_op: ScalarOp, in_dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes of a scalar Op's results.

    Parameters
    ----------
    scalar_op : ScalarOp
        An Op of `pytensor.scalar`.
    in_dtypes : tuple of str
        Dtypes of the operands; not bfloat16, which PyTensor's scalars don't have.

    Returns
    -------
    tuple of str
    """
    inputs: list[Any] = [get_scalar_type(dtype)() for dtype in in_dtypes]
    _, outputs, _ = _applied(scalar_op, inputs, lambda op, operands: op.make_node(*operands))
    return tuple(z.type.dtype for z in outputs)


def _scalar_graph(
    scalar_op: ScalarOp, in_dtypes: tuple[str, ...]
) -> tuple[list[Variable], list[Variable], list[Apply]]:
    """Return the inputs, outputs and nodes of the Op's graph, with float32 in place of float16."""
    inputs: list[Any] = [get_scalar_type(compute_dtype(dtype))() for dtype in in_dtypes]
    return _applied(scalar_op, inputs, _retyped)


def _applied(
    scalar_op: ScalarOp, inputs: list[Any], make_node: Callable[[ScalarOp, list[Any]], Apply]
) -> tuple[list[Variable], list[Variable], list[Apply]]:
    """Return the inputs, outputs and nodes of a scalar Op that is applied to given inputs.

    `Composite.make_node` is not called: for operands of other types, that of PyTensor 3.0 changes
    the operands of nodes that all graphs share, and thereby other Composites.
    """
    if not isinstance(scalar_op, Composite):
        node = make_node(scalar_op, inputs)
        return inputs, list(node.outputs), [node]
    new: dict[Variable, Variable] = dict(zip(scalar_op.fgraph.inputs, inputs, strict=True))
    nodes: list[Apply] = []
    for old in scalar_op.fgraph.toposort():
        _, outputs, made = _applied(old.op, [new.get(x, x) for x in old.inputs], make_node)
        nodes += made
        new.update(zip(old.outputs, outputs, strict=True))
    return inputs, [new.get(z, z) for z in scalar_op.fgraph.outputs], nodes


def _retyped(op: ScalarOp, inputs: list[Any]) -> Apply:
    if isinstance(op, Cast) and op.o_type.dtype == "float16":
        op = Cast(get_scalar_type("float32")) if inputs[0].type.dtype != "float32" else identity
    inputs = [
        get_scalar_type("float32").make_constant(np.float32(x.data))
        if isinstance(x, Constant) and x.type.dtype == "float16"
        else x
        for x in inputs
    ]
    return op.make_node(*inputs)


def _node_code(
    node: Apply, number: int, names: dict[Variable, str], support: dict[str, None]
) -> list[str]:
    lines = []
    for i, z in enumerate(node.outputs):
        names[z] = f"_t{number}_{i}"
        lines.append(f"{_c_type(z)} {names[z]};")
    op, nodename = node.op, f"dnnops_scalar{number}"
    sub = {"fail": "", "id": str(number)}
    special = _SPECIAL.get(type(op))
    if special is not None:
        code, function = special(node, [_name(x, names) for x in node.inputs], names)
        support.update({function: None} if function else {})
        return [*lines, code]
    try:
        code = op.c_code(
            node,
            nodename,
            [_name(x, names) for x in node.inputs],
            [names[z] for z in node.outputs],
            sub,
        )
        functions = [op.c_support_code(), op.c_support_code_apply(node, nodename)]
    except (NotImplementedError, MethodNotDefined) as error:
        raise DnnNotSupportedError(f"scalar Op {op} has no C code: {error}") from error
    for function in functions:
        # The special functions for the host are whole files that need the C library.
        if "#include" in function or len(function) > 8000:
            raise DnnNotSupportedError(f"scalar Op {op} has C code for the host only")
        if function.strip():
            support[function] = None
    return [*lines, "{", code, "}"]


# Host C code may pass integers to a function of <math.h>, since C converts them. With CUDA's
# overloads such a call is ambiguous, so these Ops have CUDA code here.

_INTEGER_POWER = """
template <typename T> __device__ T dnnops_integer_power(T base, T exponent) {
  if (exponent < 0) return base == 1 ? 1 : (base == -1 ? (exponent % 2 ? -1 : 1) : 0);
  T result = 1;
  for (; exponent; exponent /= 2, base *= base)
    if (exponent % 2) result *= base;
  return result;
}
"""


def _power(node: Apply, operands: list[str], names: dict[Variable, str]) -> tuple[str, str]:
    (z,) = node.outputs
    x, y = (f"({_c_type(z)}){operand}" for operand in operands)
    if z.type.dtype.startswith("float"):
        return f"{names[z]} = pow({x}, {y});", ""
    return f"{names[z]} = dnnops_integer_power<{_c_type(z)}>({x}, {y});", _INTEGER_POWER


def _truncation(node: Apply, operands: list[str], names: dict[Variable, str]) -> tuple[str, str]:
    (z,) = node.outputs
    value = (
        f"trunc(({_c_type(z)}){operands[0]})" if z.type.dtype.startswith("float") else operands[0]
    )
    return f"{names[z]} = {value};", ""


_SPECIAL = {Pow: _power, Trunc: _truncation}


def _c_type(variable: Any) -> str:
    dtype = variable.type.dtype
    if not isinstance(variable.type, ScalarType) or dtype not in DTYPES:
        raise DnnNotSupportedError(f"C++ code cannot hold values of {variable.type}")
    return DTYPES[dtype].c_type


def _name(variable: Any, names: dict[Variable, str]) -> str:
    if variable in names:
        return names[variable]
    if not isinstance(variable, Constant):
        raise DnnNotSupportedError(
            f"{variable} is neither an operand, nor a result, nor a constant of the scalar graph"
        )
    return c_literal(variable.data, variable.type.dtype)


def c_literal(value: Any, dtype: str) -> str:
    """Return a C++ expression for a number, in the type in which `dtype` is computed.

    Parameters
    ----------
    value : number
        Value of the expression; may be infinite or NaN.
    dtype : str
        Real dtype.
    """
    c_type = DTYPES[dtype].c_type
    if c_type not in ("float", "double"):
        if dtype == "uint64":
            return f"((unsigned long long){int(value)}ULL)"
        # C has no literal for the most negative number, only for positive ones.
        low = int(value) == -(2**63)
        return f"((long long)({int(value) + 1}LL - 1))" if low else f"(({c_type}){int(value)}LL)"
    number = float(value)
    if math.isnan(number):
        text = "NAN"
    elif math.isinf(number):
        text = "INFINITY" if number > 0 else "-INFINITY"
    else:
        text = repr(number)
    return f"(({c_type})({text}))"


# How kernels store elements: 16-bit floats as integers, which are converted for computing.


def stored_type(dtype: str) -> str:
    """Return the C++ type of elements in memory."""
    return "unsigned short" if dtype in HALF_DTYPES else DTYPES[dtype].c_type


def from_stored(dtype: str, stored: str) -> str:
    """Return a C++ expression for the value of an element in memory.

    It needs ``kernels/numbers.cuh``, as does `to_stored`.
    """
    return f"Number<{DTYPES[dtype].code}>::acc({stored})" if dtype in HALF_DTYPES else stored


def to_stored(dtype: str, value: str) -> str:
    """Return a C++ expression for a value as it is stored."""
    return f"Number<{DTYPES[dtype].code}>::bits({value})" if dtype in HALF_DTYPES else value
