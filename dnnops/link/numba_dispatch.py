"""Numba implementations of the CPU Ops; Numba is PyTensor's default linker.

A dispatched function describes its operands in int64 arrays with the layout of ``dnnops_tensor``
and calls functions of the runtime library. It refers to them by name, not by address, because Numba
caches compiled code across processes.

Importing this module imports Numba, so it is imported right after PyTensor's own implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callconv import RETCODE_EXC
from numba.extending import intrinsic
from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from dnnops.cpu.base import OneDnnOp
from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnTypeError
from dnnops.runtime.build import ONEDNN, abi_hash
from dnnops.runtime.op import MAX_NDIM, raise_status

_TENSOR_WORDS = 3 + 2 * MAX_NDIM
#: Part of the cache key of compiled code; increment it when the generated code changes.
_VERSION = 1


def raise_onednn_status(status: int) -> None:
    """Raise the exception for a status; called by compiled code."""
    raise_status(ONEDNN, status)


def _add_symbol(name: str) -> None:
    llvm.add_symbol(name, ONEDNN.address(name))


@intrinsic(prefer_literal=True)
def _call_runtime(  # type: ignore[no-untyped-def]
    typingctx, name, context_words, parameters, inputs, outputs
):
    """Call a function of the runtime library and raise if its status is an error."""
    signature = types.void(name, context_words, parameters, inputs, outputs)
    function_name = name.literal_value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        pointers = [
            builder.bitcast(context.make_array(array_type)(context, builder, value).data, pointer)
            for array_type, value in zip(signature.args[1:], arguments[1:], strict=True)
        ]
        function_type = ir.FunctionType(ir.IntType(32), [pointer] * 4)
        function = cgutils.get_or_insert_function(builder.module, function_type, function_name)
        status = builder.call(function, pointers)
        failed = builder.icmp_signed("!=", status, ir.Constant(ir.IntType(32), 0))
        with builder.if_then(failed, likely=False):
            pyapi = context.get_python_api(builder)
            gil = pyapi.gil_ensure()
            module = pyapi.import_module(context.insert_const_string(builder.module, __name__))
            raiser = pyapi.object_getattr_string(module, raise_onednn_status.__name__)
            number = pyapi.long_from_signed_int(builder.sext(status, ir.IntType(64)))
            # The call raises: its result is NULL and Python's exception is set.
            pyapi.call_function_objargs(raiser, [number])
            for reference in (number, raiser, module):
                pyapi.decref(reference)
            pyapi.gil_release(gil)
            context.call_conv._return_errcode_raw(builder, RETCODE_EXC)
        return context.get_dummy_value()

    return signature, codegen


def _describe_source(array: str, words: str, dtype: str, ndim: int) -> list[str]:
    lines = [
        f"{words}[0] = {array}.ctypes.data",
        f"{words}[1] = {DTYPE_CODES[dtype]}",
        f"{words}[2] = {ndim}",
    ]
    for axis in range(ndim):
        lines.append(f"{words}[{3 + axis}] = {array}.shape[{axis}]")
        lines.append(f"{words}[{3 + MAX_NDIM + axis}] = {array}.strides[{axis}]")
    return lines


def _empty_source(words: str, dtype: str, ndim: int, memory_format: str) -> str:
    dtype = "uint16" if dtype == "float16" else dtype  # Numba sees only the bits of float16
    shape = [f"{words}[{3 + axis}]" for axis in range(ndim)]
    if memory_format == "contiguous" or ndim < 3:
        return f"np.empty(({''.join(f'{size}, ' for size in shape)}), np.{dtype})"
    order = (0, *range(2, ndim), 1)
    permuted = ", ".join(shape[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(ndim))
    return f"np.empty(({permuted}), np.{dtype}).transpose({back})"


def _source(op: OneDnnOp, node: Apply) -> str:
    for variable in (*node.inputs, *node.outputs):
        if variable.type.ndim > MAX_NDIM:
            raise DnnTypeError(
                f"{op}: arrays of more than {MAX_NDIM} dimensions are not supported, got {variable}"
                f" of type {variable.type}"
            )
    names = [f"x{i}" for i in range(len(node.inputs))]
    parameters = op.parameters()
    body = [
        "context = np.zeros(3, np.int64)",
        f"parameters = np.empty({max(1, len(parameters))}, np.int64)",
        *(f"parameters[{i}] = {int(word)}" for i, word in enumerate(parameters)),
        f"inputs = np.empty(({len(names)}, {_TENSOR_WORDS}), np.int64)",
        f"outputs = np.empty(({len(node.outputs)}, {_TENSOR_WORDS}), np.int64)",
    ]
    for i, (name, variable) in enumerate(zip(names, node.inputs, strict=True)):
        body.append(f"words = inputs[{i}]")
        body += _describe_source(name, "words", variable.type.dtype, variable.type.ndim)
    body.append(f"call('{op.function}_shape', context, parameters, inputs, outputs)")
    results = [f"y{i}" for i in range(len(node.outputs))]
    for i, (result, variable) in enumerate(zip(results, node.outputs, strict=True)):
        dtype, ndim = variable.type.dtype, variable.type.ndim
        memory_format = op.memory_format if i == 0 else "contiguous"
        body.append(f"words = outputs[{i}]")
        if i in op.destroy_map:
            body.append(f"{result} = {names[op.destroy_map[i][0]]}")
        else:
            body.append(f"{result} = {_empty_source('words', dtype, ndim, memory_format)}")
        body += _describe_source(result, "words", dtype, ndim)
    body.append(f"call('{op.function}', context, parameters, inputs, outputs)")
    body.append(f"return {', '.join(results)}")
    lines = "\n    ".join(body)
    return f"def onednn_op({', '.join(names)}):\n    {lines}\n"


@register_funcify_and_cache_key(OneDnnOp)
def numba_funcify_onednn(
    op: OneDnnOp, node: Apply, **kwargs: Any
) -> tuple[Callable[..., Any], str]:
    """Return the Numba function of a CPU Op and its key in Numba's cache."""
    for name in (f"{op.function}_shape", op.function):
        _add_symbol(name)
    source = _source(op, node)
    key = sha256(repr((_VERSION, numba.__version__, source, abi_hash())).encode()).hexdigest()
    namespace = {"np": np, "call": _call_runtime}
    return numba_njit(compile_numba_function_src(source, "onednn_op", namespace)), key
