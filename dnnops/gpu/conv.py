"""Convolution and its two gradients on cuDNN.

Each Op computes ``alpha * convolution + beta * out``. By default `alpha` is 1 and there is no
`out`. Users can pass them, and rewrites add them when they merge scaling and addition into a
convolution.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable

import dnnops.gpu.kernels  # noqa: F401 - registers what C code calls
from dnnops.arguments import is_int, one_of, shown, switch, switch_or_flag
from dnnops.compat import shape_inference
from dnnops.config import flag_value
from dnnops.dtypes import compute_dtype
from dnnops.errors import DnnNotSupportedError, DnnTypeError
from dnnops.gpu.algorithms import (
    DIRECTIONS,
    PRECISIONS,
    algorithm_flag,
    check_precision,
    parse_algorithm,
    precision_word,
    read_workspace_limit,
)
from dnnops.gpu.base import CudnnOp, as_gradient, device_operands, gradient_like
from dnnops.gpu.conv_padding import is_asymmetric, padded_explicitly
from dnnops.gpu.descriptors import apply_described, is_described, output_shape
from dnnops.gpu.library import GPU_CUDNN
from dnnops.gpuarray.layout import MEMORY_FORMATS
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.conv.base import ConvBase
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.validate import (
    int_vector,
    merge_shapes,
    spatial_shape,
    static_vector,
    vector_entries,
)
from dnnops.runtime.implementations import BuildContext, implements

__all__ = ["GpuDnnConv", "GpuDnnConvBase", "GpuDnnConvGradI", "GpuDnnConvGradW"]


class GpuDnnConvBase(CudnnOp, ConvBase):
    """Base class of convolution and its gradients on cuDNN.

    The Ops are called as ``op(first, second, [shape,] alpha, beta, out)``. As in Theano, a
    `GpuDnnConvDesc` can give the parameters: ``op(first, second, output, desc, alpha=1, beta=0)``.

    cuDNN isn't used for padding that differs before and after an axis. Instead, calling such an Op
    pads the image on the device and applies an Op with symmetric padding; see
    `dnnops.gpu.conv_padding` for the reason.

    Positional parameters are in Theano's order: `algo`, `inplace` and `num_groups` for the
    convolution, and `inplace`, `algo` and `num_groups` for the gradients.

    Parameters
    ----------
    algo : str or int, optional
        How to select the plan; see `dnnops.gpu.algorithms`. Default: the flag
        ``dnn.conv.algo_fwd``, ``algo_bwd_data`` or ``algo_bwd_filter``.
    inplace : bool
        Whether the result is written into `out`, which must then be given.
    num_groups, ndim, border_mode, subsample, filter_flip, filter_dilation
        See `dnnops.nnet.conv.op.ConvBase`.
    precision : str, optional
        Type to compute in. Default: the flag ``dnn.conv.precision``.
    memory_format : {'contiguous', 'channels_last'}
        Memory format of the result if the Op allocates it. Operands can have either format.
    accumulate : bool
        Whether the Op takes the operands `beta` and `out`.
    allow_tf32, deterministic : bool, optional
        Whether TF32 is allowed, and whether results must be the same in every run. Default: the
        flags ``dnn.allow_tf32`` and ``dnn.deterministic``.
    workspace_limit : int or str, optional
        Limit in bytes, or another value of the flag ``dnn.conv.workspace_limit``; -1 allows
        whatever can be allocated. Default: the flag.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter has the wrong type or an invalid value.
    DnnNotSupportedError
        If padding differs before and after an axis; raised by ``make_node``.
    """

    __props__ = (
        *ConvBase.__props__,
        "algo",
        "precision",
        "memory_format",
        "accumulate",
        "inplace",
        "allow_tf32",
        "deterministic",
        "workspace_limit",
    )
    function = "dnnops_cudnn_conv"
    #: `node` of ConvParams in c_code/gpu/conv/conv_case.hpp.
    node_word = 24
    #: An entry of `DIRECTIONS`.
    direction: str
    #: Names of the first two operands in error messages.
    operand_names: tuple[str, str]
    #: Number of operands before `alpha`.
    leading: int

    def __init__(
        self,
        algo: Any = None,
        inplace: bool = False,
        num_groups: int = 1,
        *,
        ndim: int = 2,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        precision: str | None = None,
        memory_format: str = "contiguous",
        accumulate: bool = False,
        allow_tf32: bool | None = None,
        deterministic: bool | None = None,
        workspace_limit: Any = None,
    ):
        ConvBase.__init__(
            self, ndim, border_mode, subsample, filter_flip, filter_dilation, num_groups
        )
        algo = algorithm_flag(self.direction) if algo is None else algo
        self.algo = shown(int(algo)) if is_int(algo) else algo
        parse_algorithm(self.algo, self.direction)
        precision = flag_value("dnn.conv.precision") if precision is None else precision
        self.precision: str = one_of(self.where, "precision", precision, PRECISIONS)
        self.memory_format = one_of(self.where, "memory_format", memory_format, MEMORY_FORMATS)
        self.accumulate = switch(self.where, "accumulate", accumulate)
        self.inplace = switch(self.where, "inplace", inplace)
        self.allow_tf32 = switch_or_flag(self.where, "allow_tf32", allow_tf32, "dnn.allow_tf32")
        self.deterministic = switch_or_flag(
            self.where, "deterministic", deterministic, "dnn.deterministic"
        )
        self.workspace_limit = read_workspace_limit(self.where, workspace_limit)
        if self.inplace and self.accumulate:
            self.destroy_map = {0: [self.leading + 2]}
        elif self.accumulate:
            self.matched_operands = (self.leading + 2,)

    def __str__(self) -> str:
        plain = type(self)(ndim=self.ndim)
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__props__
            if name in ("ndim", "algo") or getattr(self, name) != getattr(plain, name)
        ]
        return f"{type(self).__name__}{{{', '.join(shown)}}}"

    @classmethod
    def from_abstract(cls, op: ConvBase) -> GpuDnnConvBase:
        """Return the Op with the parameters of an abstract Op."""
        return cls(**op.conv_params())

    def parameters(self) -> list[int]:
        # In the order of ConvParams in c_code/gpu/conv/conv_case.hpp.
        return [
            *self.geometry(),
            DIRECTIONS.index(self.direction),
            precision_word(self.precision),
            int(self.allow_tf32),
            int(self.deterministic),
            self.workspace_limit,
            int(self.accumulate),
            int(self.memory_format == "channels_last"),
            int(flag_value("dnn.verbose")),
            0,
            round(flag_value("dnn.conv.time_limit") * 1e6),
            *parse_algorithm(self.algo, self.direction).words(),
            # The epilogue: see dnnops/gpu/fused/conv_activation.py.
            *(0, 0, 0),
        ]

    # Subclasses implement both: the first checks static shapes, the second takes symbolic ones.
    def _static_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _result_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def __call__(self, *operands: Any, **kwargs: Any) -> Any:
        if is_described(operands, kwargs):
            return apply_described(self, *operands, **kwargs)
        if is_asymmetric(self) and len(operands) >= self.leading:
            return padded_explicitly(self, operands, **kwargs)
        return super().__call__(*operands, **kwargs)

    def make_node(self, first: Any, second: Any, *others: Any) -> Apply:
        if is_asymmetric(self):
            raise DnnNotSupportedError(
                f"{self.where}: make_node does not support padding that differs before and after"
                f" an axis, got border_mode={self.border_mode}; call the Op, which pads the image"
            )
        shape, others = self._split_shape(others)
        alpha, beta, out = (*others, *(1.0, 1.0, None)[len(others) :])
        if out is None and self.inplace:
            raise DnnTypeError(f"{self.where}: inplace=True needs an operand out to write into")
        if (out is not None) != self.accumulate:
            return self.replace(accumulate=out is not None).make_node(
                first, second, *shape, alpha, beta, out
            )
        names = self.operand_names
        arrays = {names[0]: first, names[1]: second} | ({"out": out} if self.accumulate else {})
        first, second, *rest = device_operands(self.where, self.ndim + 2, **arrays)
        dtype = first.type.dtype
        check_precision(self.where, self.precision, dtype)
        sizes = static_vector(shape[0], self.ndim) if shape else None
        static = self._static_shape(first.type.shape, second.type.shape, sizes)
        inputs = [first, second, *shape, self._scalar("alpha", alpha)]
        if self.accumulate:
            static = merge_shapes(self.where, result=static, out=rest[0].type.shape)
            inputs += [self._scalar("beta", beta), rest[0]]
        output_type = GpuArrayType(dtype, static, first.type.device)
        return Apply(self, inputs, [output_type()])

    def _split_shape(self, others: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
        count = self.leading - 2
        if not count <= len(others) <= count + 3:
            expected = ", ".join((*self.operand_names, *("shape",) * count))
            raise DnnTypeError(
                f"{self.where}: expected the operands {expected}, and optionally alpha, beta and"
                f" out; the number of operands given is {2 + len(others)}"
            )
        shape = [int_vector(self.where, "the spatial shape", x, self.ndim) for x in others[:count]]
        return shape, others[count:]

    def _scalar(self, name: str, value: Any) -> Variable:
        scalar = pt.as_tensor_variable(value)
        if scalar.type.ndim != 0:
            raise DnnTypeError(f"{self.where}: {name} must be a scalar, got {scalar.type}")
        if isinstance(scalar, Constant):
            return pt.constant(scalar.data, dtype="float64")
        return scalar.astype("float64")

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        if self.accumulate:
            return [shapes[-1]]
        sizes = vector_entries(node.inputs[2], self.ndim) if self.leading == 3 else None
        return [self._result_shape(shapes[0], shapes[1], sizes)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[i != 2 or self.leading == 2] for i in range(len(node.inputs))]

    def host_expressions(self, *inputs: Any) -> list[Any]:
        operands, (alpha, *more) = inputs[: self.leading], inputs[self.leading :]
        (out,) = super().host_expressions(*operands)
        dtype = out.type.dtype
        terms = [(alpha, out)]
        if more and not _is_number(more[0], 0):  # cuDNN does not read what is multiplied by zero
            terms.append((more[0], more[1]))
        if len(terms) == 1 and _is_number(alpha, 1):
            return [out]
        wide = compute_dtype(dtype)
        total, *others = (pt.cast(factor, wide) * pt.cast(x, wide) for factor, x in terms)
        return [pt.cast(total + others[0] if others else total, dtype)]

    # The convolution's gradients with respect to the first two operands, times alpha.
    def _adjoints(self, first: Any, second: Any, g: Any, alpha: Any) -> list[Any]:
        raise NotImplementedError

    @classmethod
    def build(cls, op: Any, inputs: list[Any], context: BuildContext) -> list[Variable]:
        # Only a call pads asymmetrically; `make_node` raises an error.
        return [cls.from_abstract(op)(*inputs)]

    def inplace_versions(self) -> list[GpuDnnConvBase]:
        """Return the version that overwrites the operand that it adds to."""
        return [self.replace(inplace=True)] if self.accumulate else []

    def _plain(self) -> GpuDnnConvBase:
        return self.replace(accumulate=False, inplace=False)

    def _sibling(self, cls: type) -> Any:
        names = ("precision", "memory_format", "allow_tf32", "deterministic", "workspace_limit")
        return cls(**self.conv_params(), **{name: getattr(self, name) for name in names})

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        first, second, *others = inputs
        shape, (alpha, *rest) = others[: self.leading - 2], others[self.leading - 2 :]
        g = gradient_like(cotangents[0], first)
        adjoints = [as_gradient(x) for x in self._adjoints(first, second, g, alpha)]
        by_alpha = _inner_product(g, self._plain()(first, second, *shape))
        gradients = [*adjoints, *(disconnected_type() for _ in shape), by_alpha]
        if self.accumulate:
            beta, out = rest
            scaled = gradient_like(pt.as_tensor_variable(g) * beta.astype("float32"), out)
            gradients += [_inner_product(g, out), as_gradient(scaled)]
        return gradients

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Variable]:
        first, second, *others = inputs
        shape, (alpha, *rest) = others[: self.leading - 2], others[self.leading - 2 :]
        plain = self._plain()
        at = self.leading
        terms: list[Any] = []

        def moves(i: int) -> bool:
            return not isinstance(tangents[i].type, DisconnectedType)

        if moves(0):
            terms.append(plain(gradient_like(tangents[0], first), second, *shape, alpha))
        if moves(1):
            terms.append(plain(first, gradient_like(tangents[1], second), *shape, alpha))
        if moves(at):
            terms.append(plain(first, second, *shape, tangents[at]))
        if self.accumulate:
            beta, out = rest
            if moves(at + 1):
                terms.append(gradient_like(pt.as_tensor_variable(out) * tangents[at + 1], out))
            if moves(at + 2):
                terms.append(gradient_like(pt.as_tensor_variable(tangents[at + 2]) * beta, out))
        if not terms:
            return [disconnected_type()]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return [total]


def _is_number(x: Any, number: float) -> bool:
    return isinstance(x, Constant) and float(x.data) == number


def _inner_product(x: Any, y: Any) -> Any:
    product = pt.as_tensor_variable(x) * pt.as_tensor_variable(y)
    return product.sum(dtype="float64")


@implements(Conv, on=GPU_CUDNN, heavy=True)
class GpuDnnConv(GpuDnnConvBase):
    """`Conv` on cuDNN, called as ``GpuDnnConv(...)(img, kerns, alpha=1, beta=1, out=None)``.

    The result is ``alpha * convolution(img, kerns) + beta * out``. See `GpuDnnConvBase` for the
    parameters.
    """

    direction = "forward"
    abstract_class = Conv
    operand_names = ("img", "kerns")
    leading = 2
    packed_operands = (1,)

    def _static_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        return self.check_shapes(first, second)

    def _result_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        return self.output_shape(first, second)

    get_out_shape = staticmethod(output_shape)

    def _adjoints(self, first: Any, second: Any, g: Any, alpha: Any) -> list[Any]:
        return [
            self._sibling(GpuDnnConvGradI)(second, g, spatial_shape(first), alpha),
            self._sibling(GpuDnnConvGradW)(first, g, spatial_shape(second), alpha),
        ]


@implements(ConvGradInputs, on=GPU_CUDNN, operands=(0, 1), heavy=True)
class GpuDnnConvGradI(GpuDnnConvBase):
    """`ConvGradInputs` on cuDNN.

    Called as ``op(kerns, topgrad, shape, alpha=1, beta=1, out=None)``, where `shape` is an int64
    vector with the spatial sizes of the image. See `GpuDnnConvBase` for the parameters.
    """

    direction = "grad_inputs"
    abstract_class = ConvGradInputs
    operand_names = ("kerns", "topgrad")
    leading = 3
    packed_operands = (0,)

    def __init__(self, inplace: bool = False, algo: Any = None, num_groups: int = 1, **others: Any):
        super().__init__(algo, inplace, num_groups, **others)

    def _result_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        channels = None if first[1] is None else first[1] * self.num_groups
        return (second[0], channels, *sizes)

    def _static_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        shape = self._result_shape(first, second, sizes)
        self.check_shapes(shape, first, second)
        return shape

    def _adjoints(self, first: Any, second: Any, g: Any, alpha: Any) -> list[Any]:
        return [
            self._sibling(GpuDnnConvGradW)(g, second, spatial_shape(first), alpha),
            self._sibling(GpuDnnConv)(g, first, alpha),
        ]


@implements(ConvGradWeights, on=GPU_CUDNN, operands=(0, 1), heavy=True)
class GpuDnnConvGradW(GpuDnnConvBase):
    """`ConvGradWeights` on cuDNN.

    Called as ``op(img, topgrad, shape, alpha=1, beta=1, out=None)``, where `shape` is an int64
    vector with the spatial sizes of the filters. See `GpuDnnConvBase` for the parameters.
    """

    direction = "grad_weights"
    abstract_class = ConvGradWeights
    operand_names = ("img", "topgrad")
    leading = 3
    packed_operands = (5,)

    def __init__(self, inplace: bool = False, algo: Any = None, num_groups: int = 1, **others: Any):
        super().__init__(algo, inplace, num_groups, **others)

    def _result_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        channels = None if first[1] is None else first[1] // self.num_groups
        return (second[1], channels, *sizes)

    def _static_shape(self, first: Any, second: Any, sizes: Any) -> tuple[Any, ...]:
        shape = self._result_shape(first, second, sizes)
        self.check_shapes(first, shape, second)
        return shape

    def _adjoints(self, first: Any, second: Any, g: Any, alpha: Any) -> list[Any]:
        return [
            self._sibling(GpuDnnConvGradI)(g, second, spatial_shape(first), alpha),
            self._sibling(GpuDnnConv)(first, g, alpha),
        ]
