"""Base class of all backend Ops, which implements the emitted C code, ctypes calls and errors.

A backend Op calls a pair of functions of a runtime library (``c_code/abi/dnnops_runtime.h``):
one checks the operands and returns the shapes of the outputs, the other computes. A subclass adds
its parameters, as 64-bit words, and the symbolic methods.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, Self

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.c.op import COp
from pytensor.link.c.params_type import Params, ParamsType
from pytensor.tensor.type import TensorType

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnTypeError, error_from_status
from dnnops.runtime.build import LIBRARIES, RuntimeLibrary, abi_hash, c_code_dir
from dnnops.runtime.headers import structure
from dnnops.runtime.implementations import BuildContext
from dnnops.runtime.nodes import compiling, number_node

__all__ = [
    "MAX_NDIM",
    "MatchedHeads",
    "OperandAccess",
    "RuntimeOp",
    "entry_addresses",
    "operand_access",
    "raise_status",
]

#: ``DNNOPS_MAX_NDIM``, as a constant so that rewrites don't have to parse headers.
MAX_NDIM = 8


@dataclass(frozen=True)
class OperandAccess:
    """Functions that read and allocate arrays of one PyTensor Type.

    Attributes
    ----------
    header : str
        C header that declares the functions below.
    read, prepare : str
        Names of C functions that describe an operand and allocate an output; see
        :meth:`RuntimeOp.c_read` and :meth:`RuntimeOp.c_prepare`. On failure, both set a Python
        exception and return -1.
    pointer : callable
        Function that returns the address of an array's first element.
    empty : callable
        Function that allocates an uninitialized array, given shape, dtype and memory format.
    """

    header: str
    read: str
    prepare: str
    pointer: Callable[[Any], int]
    empty: Callable[[tuple[int, ...], str, str], Any]


def permuted_empty(
    empty: Callable[..., Any], shape: tuple[int, ...], dtype: Any, memory_format: str
) -> Any:
    """Allocate an array in the given memory format."""
    if memory_format == "contiguous" or len(shape) < 3:
        return empty(shape, dtype)
    order = (0, 2, 1, 3) if memory_format == "bshd" else (0, *range(2, len(shape)), 1)
    memory = empty(tuple(shape[axis] for axis in order), dtype)
    return memory.transpose([order.index(axis) for axis in range(len(shape))])


class MatchedHeads:
    """Mix-in for attention and its gradient, which store heads as those of their operands are.

    The result is stored as the query is, and each gradient as its operand. Heads that come from the
    columns of a matrix go back there without a copy.
    """

    is_gradient: ClassVar[bool]

    def _is_matched(self, index: int) -> bool:
        return index < (3 if self.is_gradient else 1)

    def output_format(self, index: int, inputs: list[Any]) -> str:
        """Return the memory format of an output, for ``perform``."""
        if not self._is_matched(index):
            return "contiguous"
        _, heads, steps, _ = inputs[index].shape
        _, by_head, by_step, _ = inputs[index].strides
        return "bshd" if heads > 1 and steps > 1 and by_head < by_step else "contiguous"

    def c_output_format(self, index: int) -> str:
        """Return a C expression for the memory format."""
        is_matched = self._is_matched(index)
        return f"dnnops_format_of_heads(&in[{index}])" if is_matched else "DNNOPS_CONTIGUOUS"


@singledispatch
def operand_access(type_: Any) -> OperandAccess:
    """Return the access functions for operands of a PyTensor Type."""
    raise DnnTypeError(f"an operand of type {type_} has no access functions")


@operand_access.register(TensorType)
def _(type_: TensorType) -> OperandAccess:
    return OperandAccess(
        header="dnnops_emit.h",
        read="dnnops_ndarray_read",
        prepare="dnnops_ndarray_prepare",
        pointer=lambda array: array.ctypes.data,
        empty=lambda shape, dtype, memory_format: permuted_empty(
            np.empty, shape, dtype, memory_format
        ),
    )


def describe_operands(variables: Sequence[Any], values: Sequence[Any]) -> Any:
    """Return the ``dnnops_tensor`` array that describes the values of variables to C functions."""
    tensors = empty_tensors(len(values))
    for variable, value, tensor in zip(variables, values, tensors, strict=True):
        _describe(operand_access(variable.type), value, variable.type.dtype, tensor)
    return tensors


def empty_tensors(count: int) -> Any:
    """Return an array of `count` instances of ``dnnops_tensor`` filled with zeros."""
    return (structure("dnnops_tensor") * count)()


def make_context(stream: int, device: int) -> Any:
    """Return the ``dnnops_context`` of a call that keeps no state."""
    return structure("dnnops_context")(None, stream, device)


def entry_addresses(library: str, function: str) -> tuple[int, int, int, int]:
    """Return the addresses of the functions that emitted C code calls for an Op.

    ``dnnops_find`` calls this function.

    Parameters
    ----------
    library : str
        Name of a `RuntimeLibrary`, which is loaded if necessary.
    function : str
        Name of the function that computes.

    Returns
    -------
    tuple of int
        Fields of ``dnnops_entry``.
    """
    names = (f"{function}_shape", function, "dnnops_last_error", "dnnops_state_free")
    shape, run, last_error, state_free = map(LIBRARIES[library].address, names)
    return shape, run, last_error, state_free


def raise_status(library: RuntimeLibrary, status: int) -> None:
    """Raise the exception for a status returned by a function of a runtime library.

    Parameters
    ----------
    library : RuntimeLibrary
        Library whose function was called in this thread.
    status : int
        Status that the function returned; 0 means success and raises nothing.

    Raises
    ------
    DnnError
        The subclass that corresponds to the status, with the library's error message.
    """
    if status:
        raise error_from_status(
            status, library.library.dnnops_last_error().decode(errors="replace")
        )


class RuntimeOp(COp):
    """Base class of Ops that a function of a runtime library computes.

    Subclasses set `library` and `function`, and define :meth:`parameters` and ``make_node``. If
    they set ``destroy_map`` to ``{0: [i]}``, the array of input ``i`` becomes the output, unless
    `reused_inputs` is overridden.
    """

    library: ClassVar[RuntimeLibrary]
    #: Whether the Op calls the library that the runtime library is linked with.
    calls_library: ClassVar[bool] = True
    #: Name of the C function that computes; the function for shapes has ``_shape`` appended.
    function: ClassVar[str]
    #: Name of the library that the function calls, if it is not the one that `library` is linked
    #: with.
    called_library: ClassVar[str] = ""
    #: Memory format of the first output: ``contiguous`` or ``channels_last``.
    memory_format: str = "contiguous"
    #: Index of the word of :meth:`parameters`, 0 there, that is set to the node's number in C code
    #: made by a linker (see `dnnops.runtime.nodes`). None if the Op's C functions don't need it.
    node_word: ClassVar[int | None] = None

    @property
    def reused_inputs(self) -> dict[int, list[int]]:
        """Inputs whose arrays become outputs, in the form of ``destroy_map``."""
        return self.destroy_map

    @classmethod
    def from_abstract(cls, op: Any, **others: Any) -> Self:
        """Make the Op with the parameters of an abstract Op, except for those given."""
        return cls(**{name: getattr(op, name) for name in op.__props__} | others)

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> Sequence[Variable] | None:
        """Apply the Op that replaces an abstract Op; see `dnnops.runtime.implementations`."""
        return cls.from_abstract(op).make_node(*inputs).outputs

    def inplace_versions(self) -> Sequence[Op]:
        """Return the versions of this Op that overwrite operands, in the order of preference."""
        op: Any = self
        if "inplace" not in op.__props__ or op.inplace:
            return []
        props = {name: getattr(op, name) for name in op.__props__}
        return [type(op)(**props | {"inplace": True})]

    params_type = ParamsType(words=TensorType("int64", shape=(None,)))
    # The library handles float16 operands, so PyTensor may use the C code for them.
    _f16_ok = True

    def parameters(self) -> list[int]:
        """Return the parameters of the C functions, as 64-bit words."""
        return []

    @property
    def words(self) -> np.ndarray:
        """Parameters as the vector that is passed to C code."""
        return np.array(self.parameters(), dtype=np.int64)

    def get_params(self, node: Apply) -> Params:
        words = self.words
        if self.node_word is not None:
            words[self.node_word] = number_node(node)
        return self.params_type.get_params(words=words)

    def make_c_thunk(self, node: Apply, *arguments: Any, **keywords: Any) -> Any:
        with compiling(node):
            return super().make_c_thunk(node, *arguments, **keywords)

    def context(self, node: Apply, inputs: list[Any]) -> tuple[int, int]:
        """Return the stream and the device of a call, for :meth:`perform`."""
        return 0, 0

    #: C expression for the stream.
    c_stream: ClassVar[str] = "NULL"

    def c_device(self, node: Apply) -> str:
        """Return a C expression for the device number."""
        return "0"

    def output_format(self, index: int, inputs: list[Any]) -> str:
        """Return the memory format of an output, for :meth:`perform`."""
        return self.memory_format if index == 0 else "contiguous"

    def c_output_format(self, index: int) -> str:
        """Return a C expression for the memory format; it may use the operands, ``in``."""
        return f"DNNOPS_{(self.memory_format if index == 0 else 'contiguous').upper()}"

    def c_match_operands(self, node: Apply, inputs: list[str], fail: str) -> str:
        """Return C code that runs after reading all operands, and may replace them by copies."""
        return ""

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        for array, storage in zip(self.evaluated(node, inputs), output_storage, strict=True):
            storage[0] = array

    def evaluated(self, node: Apply, inputs: list[Any], is_dry: bool = False) -> list[Any]:
        """Return new arrays for a node's results.

        Parameters
        ----------
        node : Apply
            Node of this Op.
        inputs : list
            Values of its operands.
        is_dry : bool
            Whether to compute nothing, so that the arrays of operands need no particular elements.

        Returns
        -------
        list
            Arrays; those of operands where the Op works in place.

        Raises
        ------
        DnnError
            If the library does not accept the operands, or fails.
        """
        functions = self.library.library
        tensors = describe_operands(node.inputs, inputs)
        results = empty_tensors(len(node.outputs))
        words = self.words
        context = make_context(*self.context(node, inputs))
        arguments = (
            ctypes.byref(context),
            ctypes.c_void_p(words.ctypes.data),
            tensors,
            results,
        )
        raise_status(self.library, getattr(functions, f"{self.function}_shape")(*arguments))
        arrays = []
        for index, (variable, tensor) in enumerate(zip(node.outputs, results, strict=True)):
            access = operand_access(variable.type)
            if index in self.reused_inputs:
                array = inputs[self.reused_inputs[index][0]]
            else:
                shape = tuple(tensor.shape[: tensor.ndim])
                memory_format = self.output_format(index, inputs)
                array = access.empty(shape, variable.type.dtype, memory_format)
            _describe(access, array, variable.type.dtype, tensor)
            arrays.append(array)
        if not is_dry:
            raise_status(self.library, getattr(functions, self.function)(*arguments))
        return arrays

    def c_code_cache_version(self) -> tuple[Hashable, ...]:
        return (3, abi_hash())

    def c_headers(self, **kwargs: Any) -> list[str]:
        return ["dnnops_emit.h"]

    def c_header_dirs(self, **kwargs: Any) -> list[str]:
        return [str(c_code_dir() / "abi")]

    # The code only passes operands on: there is nothing to optimize, and compiling without
    # optimizations takes half the time.
    def c_no_compile_args(self, **kwargs: Any) -> list[str]:
        return ["-O3"]

    def c_compile_args(self, **kwargs: Any) -> list[str]:
        return ["-O1", "-g0"]

    def c_support_code_struct(self, node: Apply, name: str) -> str:
        return f"void *state_{name};\ndnnops_entry entry_{name};\n"

    def c_init_code_struct(self, node: Apply, name: str, sub: dict[str, str]) -> str:
        return f"""
state_{name} = NULL;
if (dnnops_find("{self.library.name}", "{self.function}", &entry_{name}) < 0) {{ {sub["fail"]} }}
"""

    def c_cleanup_code_struct(self, node: Apply, name: str) -> str:
        return f"if (state_{name}) entry_{name}.state_free(state_{name});\n"

    def c_code(
        self, node: Apply, name: str, inputs: list[str], outputs: list[str], sub: dict[str, str]
    ) -> str:
        fail = sub["fail"]
        reads = "".join(
            f"if ({self.c_read(node, index, c_name)}) {{ {fail} }}\n"
            for index, c_name in enumerate(inputs)
        )
        prepares = "".join(
            self._c_output(node, name, index, inputs, c_name, fail)
            for index, c_name in enumerate(outputs)
        )
        arguments = f"(&context, (const int64_t *)PyArray_DATA({sub['params']}->words), in, out)"
        return f"""
{{
dnnops_tensor in[{max(1, len(inputs))}], out[{len(outputs)}];
dnnops_context context = {{&state_{name}, {self.c_stream}, {self.c_device(node)}}};
int status;
{reads}
{self.c_match_operands(node, inputs, fail)}
status = entry_{name}.shape{arguments};
if (status) {{ dnnops_raise(status, entry_{name}.last_error()); {fail} }}
{prepares}
Py_BEGIN_ALLOW_THREADS
status = entry_{name}.run{arguments};
Py_END_ALLOW_THREADS
if (status) {{ dnnops_raise(status, entry_{name}.last_error()); {fail} }}
}}
"""

    def c_read(self, node: Apply, index: int, operand: str) -> str:
        """Return a C expression that describes an operand in ``in``; 0 means success."""
        variable = node.inputs[index]
        read = operand_access(variable.type).read
        return f"{read}({operand}, {DTYPE_CODES[variable.type.dtype]}, &in[{index}])"

    def c_prepare(self, node: Apply, name: str, index: int, output: str) -> str:
        """Return a C expression that allocates an output described in ``out``; 0 means success."""
        prepare = operand_access(node.outputs[index].type).prepare
        return f"{prepare}(&{output}, {self.c_output_format(index)}, &out[{index}])"

    def _c_output(
        self, node: Apply, name: str, index: int, inputs: list[str], output: str, fail: str
    ) -> str:
        if index in self.reused_inputs:
            source = self.reused_inputs[index][0]
            return (
                f"Py_XDECREF({output}); {output} = {inputs[source]}; Py_INCREF({output});\n"
                f"out[{index}] = in[{source}];\n"
            )
        return f"if ({self.c_prepare(node, name, index, output)}) {{ {fail} }}\n"


def _describe(access: OperandAccess, array: Any, dtype: str, tensor: Any) -> None:
    if array.ndim > MAX_NDIM:
        raise DnnTypeError(
            f"arrays of more than {MAX_NDIM} dimensions are not supported, got {array.ndim}"
        )
    tensor.data = access.pointer(array)
    tensor.dtype = DTYPE_CODES[dtype]
    tensor.ndim = array.ndim
    tensor.shape[: array.ndim] = array.shape
    tensor.strides[: array.ndim] = array.strides
