"""Recurrent networks and their gradient on cuDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.shape import Shape_i

from dnnops.config import flag_value
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CUDNN, CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuExpressionOp
from dnnops.gpu.library import GPU_CUDNN
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.rnn.op import (
    INT_OPERANDS,
    RANKS,
    RNN_ALGORITHMS,
    RNNBackward,
    RNNBase,
    RNNForward,
)
from dnnops.nnet.validate import switch
from dnnops.runtime.implementations import BuildContext, implements
from dnnops.runtime.op import describe_operands, make_context, raise_status

__all__ = [
    "GpuDnnRNNBackward",
    "GpuDnnRNNBase",
    "GpuDnnRNNForward",
    "last_rnn_algorithm",
]


def _arrays(node: Apply) -> list[int]:
    names = getattr(node.op, "all_operands", node.op.operands)
    return [i for i, name in enumerate(names) if name not in INT_OPERANDS]


class GpuDnnRNNBase(CudnnOp, RNNBase):
    """Base class of recurrent networks and their gradient on cuDNN.

    Parameters
    ----------
    *network, **more_network
        See `dnnops.nnet.rnn.op.RNNBase`.
    allow_tf32 : bool, optional
        Whether float32 operands may be rounded to TF32. Default: the flag ``dnn.allow_tf32``.
    deterministic : bool, optional
        Whether ``algo='auto'`` uses the same algorithm in every process, instead of the fastest one
        timed. Default: the flag ``dnn.deterministic``.
    """

    network_props: tuple[str, ...] = (*RNNBase.__props__, "allow_tf32", "deterministic")
    contiguous_only = True
    allow_tf32: bool
    deterministic: bool

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> Sequence[Variable] | None:
        # cuDNN does not support empty inputs. The condition is the same for both Ops: no other
        # library could read the reserve that cuDNN writes.
        if inputs[1].type.shape[2] == 0:
            return None
        return super().build(op, inputs, context)

    def host_expressions(self, *inputs: Any) -> list[Any]:
        return list(self.abstract_op().make_node(*inputs).outputs)

    def _read_flags(self, allow_tf32: bool | None, deterministic: bool | None) -> None:
        name = type(self).__name__
        for what, value in (("allow_tf32", allow_tf32), ("deterministic", deterministic)):
            value = flag_value(f"dnn.{what}") if value is None else value
            setattr(self, what, switch(name, what, value))

    def _float_operands(self, named: dict[str, Any]) -> dict[str, Any]:
        where = type(self).__name__
        arrays = {n: x for n, x in named.items() if n != "reserve"}
        given = dict(zip(arrays, device_operands(where, None, **arrays), strict=True))
        if "reserve" in named:
            given["reserve"] = as_gpuarray_variable(named["reserve"], given["x"].type.device)
        for name, x in given.items():
            if x.type.ndim != RANKS.get(name, 3):
                raise DnnTypeError(
                    f"{where}: {name} must have {RANKS.get(name, 3)} dimensions, got "
                    f"{x.type.ndim} ({x.type})"
                )
        return given

    def _result(self, given: dict[str, Any], dtype: str, shape: Any) -> Variable:
        return GpuArrayType(dtype, shape, given["x"].type.device)()

    def _reserve_length(self, steps: Any, batch: Any) -> None:
        """Return None, since cuDNN determines the length when the Op is called."""

    def changing_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of the lengths and the seed."""
        return frozenset(range(len(node.inputs))).difference(_arrays(node))

    def _words(self, flag: bool, inplace: bool = False) -> list[int]:
        return [
            *self.network_words(),
            int(flag),
            RNN_ALGORITHMS.index(self.algo),
            int(self.allow_tf32),
            int(self.deterministic),
            int(inplace),
            int(flag_value("dnn.verbose")),
        ]


@implements(RNNForward, on=GPU_CUDNN, operands=_arrays, heavy=True)
class GpuDnnRNNForward(GpuDnnRNNBase, GpuExpressionOp, RNNForward):
    """`RNNForward` on cuDNN.

    Called as ``GpuDnnRNNForward(...)(w, x, hx, [cx], [lengths], [seed])``. The reserve is a vector
    of the size and content that cuDNN's algorithm requires.

    The elements that dropout drops depend on the seed, the operands' shapes, the device and cuDNN's
    version, because each call creates cuDNN's random generators from the seed.

    Parameters
    ----------
    *network, **more_network
        See `GpuDnnRNNBase` and `RNNForward`.
    """

    __props__ = (*GpuDnnRNNBase.network_props, "keeps_reserve")
    function = "dnnops_cudnn_rnn_forward"
    abstract_class = RNNForward

    def __init__(
        self,
        *network: Any,
        allow_tf32: bool | None = None,
        deterministic: bool | None = None,
        **more_network: Any,
    ):
        self._read_flags(allow_tf32, deterministic)
        RNNForward.__init__(self, *network, **more_network)

    def parameters(self) -> list[int]:
        return self._words(self.keeps_reserve)

    def _reserve_shape(self, node: Apply, steps: Any, batch: Any) -> tuple[Any]:
        return (Shape_i(0)(node.outputs[-1]),)

    def gradient(self) -> GpuDnnRNNBackward:
        return GpuDnnRNNBackward(**self.network)

    def _cotangent(self, result: Any, cotangent: Any) -> Any:
        if isinstance(cotangent.type, DisconnectedType):
            return gradient_like(result.zeros_like(), result)
        return gradient_like(cotangent, result)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        gradients = RNNForward.pullback(self, inputs, outputs, cotangents)
        return [g if isinstance(g.type, DisconnectedType) else as_gradient(g) for g in gradients]

    def parameter_places(
        self, node: Apply, inputs: list[Any]
    ) -> list[list[tuple[tuple[int, int, int], tuple[int, int, int]]]]:
        """Return the places of the parameters in the parameter vector, as reported by cuDNN.

        Parameters
        ----------
        node : Apply
            Node of this Op.
        inputs : list
            Values of the node's inputs.

        Returns
        -------
        list
            For each pseudo-layer, a list with a pair for each of cuDNN's linear layers: the places
            of the matrix and of the bias. A place is an offset in elements, which is -1 if the
            parameter doesn't exist, followed by two dimensions.
        """
        linear = 2 * self.layout.gates + bool(self.proj_size)
        found = np.empty((self.layout.state_count, linear, 2, 3), "int64")
        words = self.words
        context = make_context(*self.context(node, inputs))
        status = CUDNN.library.dnnops_cudnn_rnn_parameters(
            ctypes.byref(context),
            words.ctypes.data,
            describe_operands(node.inputs, inputs),
            found.ctypes.data,
        )
        raise_status(CUDNN, status)
        return [
            [(tuple(matrix), tuple(bias)) for matrix, bias in layer] for layer in found.tolist()
        ]


@implements(RNNBackward, on=GPU_CUDNN, operands=_arrays, heavy=True)
class GpuDnnRNNBackward(GpuDnnRNNBase, GpuExpressionOp, RNNBackward):
    """`RNNBackward` on cuDNN.

    cuDNN overwrites the reserve, so it gets a copy unless the Op works in place. cuDNN has no
    second derivatives; as for `RNNBackward`, loops compute them.

    Parameters
    ----------
    *network, **more_network
        See `GpuDnnRNNBase` and `RNNBackward`.
    inplace : bool
        Whether the reserve may be overwritten.
    """

    __props__ = (*GpuDnnRNNBase.network_props, "by_x", "inplace")
    function = "dnnops_cudnn_rnn_backward"
    abstract_class = RNNBackward
    #: No result reuses the memory of the reserve.
    reused_inputs: ClassVar[dict[int, list[int]]] = {}

    def __init__(
        self,
        *network: Any,
        allow_tf32: bool | None = None,
        deterministic: bool | None = None,
        inplace: bool = False,
        **more_network: Any,
    ):
        self._read_flags(allow_tf32, deterministic)
        RNNBackward.__init__(self, *network, **more_network)
        self.inplace = switch(type(self).__name__, "inplace", inplace)
        if self.inplace:
            self.destroy_map = {0: [self.all_operands.index("reserve")]}

    def opaque_operands(self) -> tuple[int, ...]:
        return (self.all_operands.index("reserve"),)

    def parameters(self) -> list[int]:
        return self._words(self.by_x, self.inplace)


def last_rnn_algorithm() -> str:
    """Return the algorithm that this thread's last call of a recurrent network on cuDNN used.

    Returns
    -------
    str
        A value of ``algo``; empty if there was no call.
    """
    return CUDNN.library.dnnops_cudnn_rnn_last_algorithm().decode()
