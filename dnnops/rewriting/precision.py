"""Run float16 graphs in float32 on the CPU.

Neither PyTensor's C code nor Numba computes in float16. NumPy, the fallback, takes thousands of
times as long as float32, since it runs fused loops element by element. A graph that stays on the
CPU is therefore rewritten to float32 as a whole, with casts at its inputs and outputs. Intermediate
results are not rounded to float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.graph.traversal import toposort
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import Cast
from pytensor.scalar.basic import float32 as float32_scalar
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.type import TensorType

from dnnops.cpu.base import onednn_available
from dnnops.cpu.half_cast import OneDnnHalfCast
from dnnops.errors import DnnTypeError
from dnnops.rewriting.move.lifters import inner_graph
from dnnops.runtime.op import MAX_NDIM

__all__ = ["Float16Error", "Float16InFloat32"]

half_cast = OneDnnHalfCast()
#: Ops that do not read the elements of an array, or only copy their bits.
_DTYPE_AGNOSTIC = (DeepCopyOp, ViewOp, Shape, Shape_i)


class Float16Error(DnnTypeError, AssertionError):
    """Raised when a graph for Numba's linker has a float16 Op without a float32 form.

    It is also an `AssertionError`, because PyTensor logs other exceptions in rewrites and
    continues.
    """


def _is_half(x: Variable) -> bool:
    return isinstance(x.type, TensorType) and x.type.dtype == "float16"


def _widened(op: Any) -> Any:
    """Return `op` with float32 in place of float16 in its parameters."""
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast):
        if op.scalar_op.o_type.dtype == "float16":
            return Elemwise(Cast(float32_scalar))
    elif isinstance(op, CAReduce):
        wide = {
            name: "float32"
            for name in ("dtype", "acc_dtype")
            if getattr(op, name, None) == "float16"
        }
        if wide:
            return op.clone(**wide)
    elif isinstance(op, MakeVector) and op.dtype == "float16":
        return MakeVector("float32")
    elif type(op) in (Softmax, LogSoftmax):  # each holds a graph for its operand's type
        return type(op)(axis=op.axis)
    return op


class _Widening:
    """A mapping from a graph's float16 variables to their float32 counterparts."""

    def __init__(self) -> None:
        self.wide: dict[Variable, Any] = {}
        self.narrow: dict[Variable, Any] = {}

    def widened(self, x: Variable) -> Any:
        if x in self.wide:
            return self.wide[x]
        if not _is_half(x) or x.type.ndim > MAX_NDIM:  # type: ignore[attr-defined]
            return x
        if isinstance(x, Constant):
            made: Any = pt.constant(np.asarray(x.data, "float32"))
        else:
            made = half_cast(x)
        self.wide[x] = made
        return made

    def in_original_dtype(self, x: Variable) -> Any:
        """Return the rewritten `x` in its original dtype, for outputs and for Ops that need it."""
        new = self.wide.get(x)
        if new is None or isinstance(x, Constant):
            return x
        if not _is_half(x):
            return new
        if new.owner is not None and new.owner.op == half_cast:
            return new.owner.inputs[0]
        if x not in self.narrow:
            self.narrow[x] = half_cast(new)
        return self.narrow[x]

    def rebuild(self, node: Apply) -> None:
        """Rebuild a node if one of its operands or results has changed."""
        if self._is_written_out(node):
            self._write_out(node)
            return
        inputs = [self.widened(x) for x in node.inputs]
        if not any(map(_is_half, node.outputs)) and inputs == node.inputs:
            return
        outputs = self._in_float32(node, inputs)
        if outputs is None:
            outputs = node.clone_with_new_inputs(
                [self.in_original_dtype(x) for x in node.inputs]
            ).outputs
        for old, new in zip(node.outputs, outputs, strict=True):
            copy_stack_trace(old, new)
            self.wide[old] = half_cast(new) if _is_half(new) else new

    @staticmethod
    def _is_written_out(node: Apply) -> bool:
        is_graph = isinstance(node.op, OpFromGraph) and type(node.op) not in (Softmax, LogSoftmax)
        return is_graph and any(map(_is_half, (*node.inputs, *node.outputs)))

    def _write_out(self, node: Apply) -> None:
        """Replace an Op that has an inner graph with a float32 version of that graph."""
        outputs = inner_graph(node, node.inputs)
        for inner in toposort(outputs, blockers=node.inputs):
            self.rebuild(inner)
        for old, new in zip(node.outputs, outputs, strict=True):
            self.wide[old] = self.widened(new)

    @staticmethod
    def _in_float32(node: Apply, inputs: list[Any]) -> list[Any] | None:
        op = _widened(node.op)
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast):
            (x,) = inputs
            if x.type.dtype == op.scalar_op.o_type.dtype:
                return [x]
        try:
            outputs = op(*inputs, return_list=True)
        except Exception:  # Ops reject operands with arbitrary exceptions
            return None
        for old, new in zip(node.outputs, outputs, strict=True):
            dtype = getattr(old.type, "dtype", None)
            wanted = "float32" if dtype == "float16" else dtype
            if getattr(new.type, "dtype", None) != wanted or old.type.ndim != new.type.ndim:  # type: ignore[attr-defined]
                return None
        return outputs


class Float16InFloat32(GraphRewriter):
    """Rewrite a float16 graph to float32, with casts at its inputs and outputs."""

    def apply(self, fgraph: FunctionGraph) -> None:
        computes = any(
            _is_half(x) for node in fgraph.apply_nodes for x in (*node.inputs, *node.outputs)
        )
        if not computes or not onednn_available()[0]:
            return
        widening = _Widening()
        for node in fgraph.toposort():
            widening.rebuild(node)
        for output in list(fgraph.outputs):
            new = widening.in_original_dtype(output)
            if new is not output:
                fgraph.replace_all([(output, new)], reason="float16_in_float32")


# -- Numba ---------------------------------------------------------------------------------


class ViewFloat16(GraphRewriter):
    """Pass float16 arrays to Numba's linker, which does not support them, as 16-bit integers.

    Only casts, which read the bits, and Ops that do not read elements may use such arrays.

    Raises
    ------
    Float16Error
        If another Op has a float16 operand or result.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        found = [
            x
            for node in fgraph.apply_nodes
            if node.op != half_cast and not isinstance(node.op, _DTYPE_AGNOSTIC)
            for x in (*node.inputs, *node.outputs)
            if _is_half(x)
        ]
        if found:
            raise Float16Error(
                f"{min(map(str, found))} is float16, which PyTensor's default Numba linker does not"
                " support, and an Op that uses it has no float32 form. Pass mode='ONEDNN' to"
                " pytensor.function, or cast to float32"
            )
        if any(_is_half(x) for x in (*fgraph.inputs, *fgraph.outputs)):
            fgraph.dnnops_views_float16 = True  # type: ignore[attr-defined]
            _teach_linker()


def _teach_linker() -> None:
    """Make Numba's linker pass float16 arrays to compiled code as 16-bit integers."""
    compile_plainly = NumbaLinker.jit_compile
    if hasattr(compile_plainly, "views_float16"):
        return

    def jit_compile(self: Any, *args: Any) -> Any:
        compiled = compile_plainly(self, *args)
        if not getattr(self.fgraph, "dnnops_views_float16", False):
            return compiled
        are_half = [_is_half(x) for x in self.fgraph.outputs]

        def call(*inputs: Any) -> Any:
            results = compiled(*map(_as_bits, inputs))
            return tuple(
                np.asarray(result).view("float16") if is_half else result
                for result, is_half in zip(results, are_half, strict=True)
            )

        return call

    jit_compile.views_float16 = True  # type: ignore[attr-defined]
    NumbaLinker.jit_compile = jit_compile  # type: ignore[method-assign]


def _as_bits(x: Any) -> Any:
    return x.view("uint16") if getattr(x, "dtype", None) == np.float16 else x
