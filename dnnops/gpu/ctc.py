"""The CTC loss on a GPU, with cuDNN and with dnnops kernels for the cases cuDNN doesn't support."""

from __future__ import annotations

from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply

import dnnops.gpu.deferred  # noqa: F401  registers what C code calls
from dnnops.errors import DnnTypeError
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.library import GPU_KERNELS
from dnnops.gpuarray.op import host_operands, is_on_device
from dnnops.gpuarray.transfer import host_from_gpu, to_device
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.loss.ctc import CTC, integer_tensor
from dnnops.nnet.validate import named_operands, switch
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["GpuCTC", "GpuCTCBase", "GpuDnnCTC"]

#: Dtypes of labels and lengths that kernels read.
_INTEGERS = ("int32", "int64")


class GpuCTCBase(CudnnOp, CTC):
    """Base class of the CTC Ops on a GPU, with the operands of `CTC`.

    Activations and results are on the device. Labels and lengths are on the host, which checks them
    before anything runs.
    """

    function = "dnnops_cudnn_ctc"
    contiguous_only = True
    abstract_class = CTC
    #: ``Implementation`` in ``ctc.cpp``.
    implementation: ClassVar[int]
    #: Whether labels and lengths are on the device.
    labels_on_device = False

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        names = ["activations", "labels", "input_lengths"]
        if self.with_label_lengths:
            names.append("label_lengths")
        given = named_operands(name, names, inputs)
        (activations,) = device_operands(name, 3, activations=given.pop("activations"))
        operands = [activations]
        for operand, x in given.items():
            ndim, device = 2 if operand == "labels" else 1, activations.type.device
            if not (self.labels_on_device and is_on_device(x) and x.type.dtype in _INTEGERS):
                x = host_from_gpu(x) if is_on_device(x) else x
                x = integer_tensor(name, operand, x, ndim)
            elif x.type.ndim != ndim:
                raise DnnTypeError(f"{name}: {operand} must have {ndim} dimensions, got {x.type}")
            operands.append(to_device(x, device) if self.labels_on_device else x)
        batch = self.check_shapes([x.type.shape for x in operands])
        type_ = activations.type
        steps, _, classes = type_.shape
        cost_dtype = "float64" if type_.dtype == "float64" else "float32"
        outputs = [GpuArrayType(cost_dtype, (batch,), type_.device)()]
        if self.with_gradients:
            outputs.append(type_.clone(shape=(steps, batch, classes))())
        return Apply(self, operands, outputs)

    def changing_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of labels and lengths on the host."""
        return host_operands(node)

    def parameters(self) -> list[int]:
        given = self.with_label_lengths, self.with_gradients
        return [*map(int, given), self.implementation, int(self.labels_on_device)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        rest: list[Any] = [disconnected_type() for _ in inputs[1:]]
        if any(is_connected(g) for g in cotangents[1:]):
            return [self._no_second_derivative(inputs), *rest]
        if not is_connected(cotangents[0]):
            return [disconnected_type(), *rest]
        # Built from host variables; rewrites move the gradients to the device.
        gradients = pt.as_tensor_variable(self._gradients(inputs, outputs))
        factors = pt.as_tensor_variable(cotangents[0]).dimshuffle("x", 0, "x")
        weighted = factors * pt.cast(gradients, outputs[0].type.dtype)
        return [as_gradient(gradient_like(weighted, inputs[0])), *rest]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        if not is_connected(tangents[0]):
            return [disconnected_type() for _ in outputs]
        dtype = outputs[0].type.dtype
        gradients = pt.as_tensor_variable(self._gradients(inputs, outputs))
        tangent = pt.as_tensor_variable(tangents[0])
        moved = pt.cast(gradients, dtype) * pt.cast(tangent, dtype)
        along = gradient_like(moved.sum(axis=(0, 2)), outputs[0])
        return [along, *(self._no_second_derivative(inputs) for _ in outputs[1:])]


def _every_operand(node: Apply) -> range:
    return range(len(node.inputs))


@implements(CTC, on=GPU_KERNELS, operands=_every_operand)
class GpuCTC(GpuCTCBase):
    """`CTC` with dnnops kernels, called as ``GpuCTC()(activations, labels, input_lengths)``.

    Supports float16, bfloat16, float32 and float64, and labels of any length. Infinities and NaN
    are treated as in `dnnops.nnet.ctc`. Results are identical in every run.

    Parameters
    ----------
    with_gradients, with_label_lengths : bool
        See `CTC`.
    labels_on_device : bool
        Whether labels and lengths are on the device, as when `CTC` moves to a GPU. Such nodes can
        be part of a CUDA graph. A kernel checks the labels: if one does not fit, its cost is NaN
        and its gradient 0, and the next transfer to the host raises an error. Memory is allocated
        for labels that fill all columns, and sequences that fill all steps.
    """

    __props__ = ("with_gradients", "with_label_lengths", "labels_on_device")
    implementation = 2

    def __init__(
        self,
        with_gradients: bool = True,
        with_label_lengths: bool = False,
        labels_on_device: bool = False,
    ):
        super().__init__(with_gradients, with_label_lengths)
        self.labels_on_device = switch(type(self).__name__, "labels_on_device", labels_on_device)

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Any]:
        made = cls(op.with_gradients, op.with_label_lengths, labels_on_device=True)
        return list(made.make_node(*inputs).outputs)


class GpuDnnCTC(GpuCTCBase):
    """`CTC` on cuDNN, for float32 activations and labels of 1 to 255 symbols.

    Labels and lengths that are device variables are transferred to the host.

    Parameters
    ----------
    with_gradients, with_label_lengths : bool
        See `CTC`.
    deterministic : bool, default True
        Whether to use cuDNN's deterministic algorithm. The other algorithm is not faster, and its
        gradient is wrong for large activations; see `dnnops.dnn.dnn_ctc`.
    """

    __props__ = ("with_gradients", "with_label_lengths", "deterministic")

    def __init__(
        self,
        with_gradients: bool = True,
        with_label_lengths: bool = False,
        deterministic: bool = True,
    ):
        super().__init__(with_gradients, with_label_lengths)
        self.deterministic = switch(type(self).__name__, "deterministic", deterministic)

    @property
    def implementation(self) -> int:  # type: ignore[override]
        return 0 if self.deterministic else 1

    def make_node(self, *inputs: Any) -> Apply:
        node = super().make_node(*inputs)
        if (dtype := node.inputs[0].type.dtype) != "float32":
            raise DnnTypeError(
                f"{type(self).__name__}: cuDNN requires float32 activations, got {dtype}; "
                "dnnops.nnet.ctc supports any floating-point dtype"
            )
        return node
