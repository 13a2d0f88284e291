"""Elementwise Ops on the CPU in vectorized loops that use all cores.

PyTensor's loops run on one core, and compute constants in float64, which GCC does not vectorize.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.tensor.elemwise import Elemwise

from dnnops.dtypes import DTYPES
from dnnops.errors import DnnNotSupportedError
from dnnops.runtime.scalar_code import ScalarCode, scalar_code

__all__ = ["OPENMP_ARGUMENTS", "CpuElemwise", "is_supported"]

#: Options of the compiler. Without ``-fno-trapping-math``, comparisons are not vectorized.
OPENMP_ARGUMENTS = ("-fopenmp", "-fno-trapping-math")

#: Arrays with fewer elements are computed by one thread, because starting others takes longer.
MIN_PARALLEL = 1 << 15
#: Arrays known to be smaller are left to PyTensor, whose code compiles faster.
MIN_ELEMENTS = 256


def is_supported(node: Apply) -> bool:
    """Return whether `CpuElemwise` computes an elementwise node of PyTensor, and is worthwhile."""
    shape = node.outputs[0].type.shape
    if type(node.op) is not Elemwise or all(size == 1 for size in shape):
        return False
    if None not in shape and prod(shape) < MIN_ELEMENTS:
        return False
    dtypes = {x.type.dtype for x in (*node.inputs, *node.outputs)}
    narrow = "float16" in dtypes or getattr(node.op.scalar_op, "inner_float16", False)
    if narrow or dtypes.isdisjoint(("float32", "float64")):
        return False
    try:
        code = _generate(node)
    except DnnNotSupportedError:
        return False
    # PyTensor's code contains the functions that scalar Ops need, too, and some are for GPUs. A
    # thread without Python's lock must not raise, as the division of integers does.
    return not code.support and "PyErr_" not in code.operation


def _generate(node: Apply) -> ScalarCode:
    return scalar_code(node.op.scalar_op, tuple(x.type.dtype for x in node.inputs))


class _Group(NamedTuple):
    """Adjacent axes that the loops treat as one, because each operand has all or none of them."""

    axes: tuple[int, ...]
    #: Whether each operand has these axes; otherwise it is broadcast along them.
    has: tuple[bool, ...]


def _groups(node: Apply) -> list[_Group]:
    ndim = node.outputs[0].type.ndim
    has = [tuple(x.type.shape[axis] != 1 for x in node.inputs) for axis in range(ndim)]
    axes = [axis for axis in range(ndim) if any(has[axis])]
    return [_Group(tuple(run), of_each) for of_each, run in groupby(axes, has.__getitem__)]


class CpuElemwise(Elemwise):
    """PyTensor's `Elemwise` with fast loops over C-contiguous arrays.

    Other arrays, and shapes that do not match, are left to PyTensor's C code. The parameters are
    those of `Elemwise`.
    """

    def c_headers(self, **kwargs: Any) -> list[str]:
        return [*super().c_headers(**kwargs), "<cmath>"]

    def c_compile_args(self, **kwargs: Any) -> list[str]:
        return [*super().c_compile_args(**kwargs), *OPENMP_ARGUMENTS]

    def c_code_cache_version_apply(self, node: Apply) -> tuple[Any, ...]:
        version = super().c_code_cache_version_apply(node)
        return (1, *version) if version else ()

    def c_code(
        self, node: Apply, nodename: str, inames: list[str], onames: list[str], sub: dict[str, str]
    ) -> str:
        general = super().c_code(node, nodename, inames, onames, sub)
        return f"""
bool is_done_{nodename} = false;
{{
{self._fast_code(node, nodename, inames, onames, sub)}
}}
if (!is_done_{nodename}) {{
{general}
}}
"""

    def _fast_code(
        self, node: Apply, nodename: str, inames: list[str], onames: list[str], sub: dict[str, str]
    ) -> str:
        groups, ndim = _groups(node), node.outputs[0].type.ndim
        checks = [f"PyArray_ISCARRAY_RO({name})" for name in dict.fromkeys(inames)]
        sizes = ["1"] * ndim
        for group in groups:
            owner = group.has.index(True)
            for axis in group.axes:
                sizes[axis] = f"PyArray_DIM({inames[owner]}, {axis})"
                checks += [
                    f"PyArray_DIM({inames[i]}, {axis}) == {sizes[axis]}"
                    for i, has in enumerate(group.has)
                    if has and i > owner
                ]
        lines = [
            f"if ({' && '.join(checks)}) {{",
            f"npy_intp shape[] = {{{', '.join(sizes)}}};",
        ]
        lines += [
            f"const npy_intp size{g} = {' * '.join(f'shape[{axis}]' for axis in group.axes)};"
            for g, group in enumerate(groups)
        ]
        for o, name in enumerate(onames):
            lines += self._output(node, o, name, inames, sub["fail"])
        lines += [
            f"const {_pointer('p', i, x, name)}"
            for i, (x, name) in enumerate(zip(node.inputs, inames, strict=True))
        ]
        lines += [
            _pointer("q", o, z, name)
            for o, (z, name) in enumerate(zip(node.outputs, onames, strict=True))
        ]
        lines += self._loops(node, groups)
        return "\n".join([*lines, f"is_done_{nodename} = true;", "}"])

    def _output(self, node: Apply, o: int, name: str, inames: list[str], fail: str) -> list[str]:
        """Let an output be the operand that it overwrites, or an array of the right shape."""
        if o in self.inplace_pattern:
            operand = inames[self.inplace_pattern[o]]
            return [f"Py_XDECREF({name}); {name} = {operand}; Py_INCREF({name});"]
        ndim, number = node.outputs[o].type.ndim, node.outputs[o].type.dtype_specs()[2]
        matches = f"PyArray_CompareLists(PyArray_DIMS({name}), shape, {ndim})"
        return [
            f"if (!{name} || !PyArray_ISCARRAY({name}) || !{matches}) {{",
            f"Py_XDECREF({name});",
            f"{name} = (PyArrayObject *)PyArray_EMPTY({ndim}, shape, {number}, 0);",
            f"if (!{name}) {{ {fail} }}",
            "}",
        ]

    def _loops(self, node: Apply, groups: list[_Group]) -> list[str]:
        """Loop over all but the last group in parallel, and over the last in vectors."""
        *outer, inner = groups
        inner_size = f"size{len(outer)}"
        body = [
            f"const {_element(x)} in{i} = p{i}[{f'at{i}' if outer else '0'}{' + k' * has}];"
            for i, (x, has) in enumerate(zip(node.inputs, inner.has, strict=True))
        ]
        body += [f"{_element(z)} out{o};" for o, z in enumerate(node.outputs)]
        body.append(_generate(node).operation)
        first = f"row * {inner_size} + " if outer else ""
        body += [f"q{o}[{first}k] = out{o};" for o in range(len(node.outputs))]
        loop = [f"for (npy_intp k = 0; k < {inner_size}; ++k) {{", *body, "}"]
        total = " * ".join(f"size{g}" for g in range(len(groups)))
        condition = f"if ({total} >= {MIN_PARALLEL})"
        if not outer:
            return [f"#pragma omp parallel for simd schedule(static) {condition}", *loop]
        rows = " * ".join(f"size{g}" for g in range(len(outer)))
        return [
            f"const npy_intp rows = {rows};",
            f"#pragma omp parallel for schedule(static) {condition}",
            "for (npy_intp row = 0; row < rows; ++row) {",
            *_offsets(groups),
            "#pragma omp simd",
            *loop,
            "}",
        ]


def _offsets(groups: list[_Group]) -> list[str]:
    """Compute the first element of each operand in a row, from the row's index in each group."""
    outer = len(groups) - 1
    lines = ["npy_intp rest = row;"]
    for g in reversed(range(1, outer)):
        lines.append(f"const npy_intp index{g} = rest % size{g}; rest /= size{g};")
    lines.append("const npy_intp index0 = rest;")
    for i in range(len(groups[0].has)):
        # C-contiguous: the stride of a group is the number of elements in those after it.
        terms, stride = [], "1"
        for g in reversed(range(len(groups))):
            if groups[g].has[i]:
                if g < outer:
                    terms.append(f"index{g} * {stride}")
                stride += f" * size{g}"
        lines.append(f"const npy_intp at{i} = {' + '.join(terms) or '0'};")
    return lines


def _element(variable: Any) -> str:
    return DTYPES[variable.type.dtype].c_type


def _pointer(letter: str, index: int, variable: Any, name: str) -> str:
    element = _element(variable)
    return f"{element} *const {letter}{index} = ({element} *)PyArray_DATA({name});"
