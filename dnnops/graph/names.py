"""Enums of the graph API, with the names of cuDNN's frontend for Python.

The values are the names of cuDNN's own enums, so that numbers come from the installed headers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from dnnops.errors import DnnTypeError

__all__ = [
    "CudnnEnum",
    "as_data_type",
    "as_member",
    "as_members",
    "attention_implementation",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "data_type",
    "diagonal_alignment",
    "dtype_of",
    "heur_mode",
    "item_size",
    "knob_type",
    "norm_forward_phase",
    "norm_mode",
    "numerical_note",
    "padding_mode",
    "pointwise_mode",
    "reduction_mode",
    "resample_mode",
    "rng_distribution",
    "tensor_reordering",
]


class CudnnEnum(Enum):
    """Base class of enums whose values are names of cuDNN's headers.

    ``attribute_type`` is the type of attributes that have this enum's values.
    """

    @classmethod
    def attribute_type(cls) -> str:
        """Return the name, after ``CUDNN_TYPE_``, of the type of the backend's attributes."""
        return _ATTRIBUTE_TYPES[cls.__name__]

    def value_in_c(self) -> int:
        """Return the value in the headers of the installed cuDNN.

        Raises
        ------
        DnnNotSupportedError
            If the headers do not declare it.
        """
        from dnnops.graph.constants import constant

        return int(constant(self.value))


def _members(prefix: str, words: str) -> list[tuple[str, Any]]:
    return [(word, prefix + word) for word in words.split()]


def _enum(name: str, members: list[tuple[str, Any]], doc: str) -> Any:
    enum: Any = CudnnEnum(name, members, module=__name__)  # type: ignore[call-arg]
    enum.__doc__ = doc
    return enum


_ATTRIBUTE_TYPES = {
    "behavior_note": "BEHAVIOR_NOTE",
    "convolution_mode": "CONVOLUTION_MODE",
    "data_type": "DATA_TYPE",
    "heur_mode": "HEUR_MODE",
    "knob_type": "KNOB_TYPE",
    "norm_forward_phase": "NORM_FWD_PHASE",
    "norm_mode": "NORM_MODE",
    "numerical_note": "NUMERICAL_NOTE",
    "padding_mode": "PADDING_MODE",
    "pointwise_mode": "POINTWISE_MODE",
    "reduction_mode": "REDUCTION_OPERATOR_TYPE",
    "resample_mode": "RESAMPLE_MODE",
    "rng_distribution": "RNG_DISTRIBUTION",
    "tensor_reordering": "TENSOR_REORDERING_MODE",
}

data_type = _enum(
    "data_type",
    [
        ("NOT_SET", None),
        *_members(
            "CUDNN_DATA_",
            "FLOAT DOUBLE HALF INT8 INT32 INT8x4 UINT8 UINT8x4 INT8x32 BFLOAT16 INT64 BOOLEAN"
            " FP8_E4M3 FP8_E5M2 FAST_FLOAT_FOR_FP8 FP8_E8M0 FP4_E2M1 INT4",
        ),
    ],
    "Data types of tensors and computations (``cudnnDataType_t``).",
)
heur_mode = _enum(
    "heur_mode",
    [
        ("A", "CUDNN_HEUR_MODE_A"),
        ("B", "CUDNN_HEUR_MODE_B"),
        ("FALLBACK", "CUDNN_HEUR_MODE_FALLBACK"),
    ],
    "Heuristics that propose plans (``cudnnBackendHeurMode_t``).",
)
pointwise_mode = _enum(
    "pointwise_mode",
    _members(
        "CUDNN_POINTWISE_",
        "ABS ADD ADD_SQUARE ATAN2 BINARY_SELECT CEIL CMP_EQ CMP_GE CMP_GT CMP_LE CMP_LT CMP_NEQ COS"
        " DIV ELU_BWD ELU_FWD ERF EXP FLOOR FLOOR_MOD GELU_APPROX_TANH_BWD GELU_APPROX_TANH_FWD"
        " GELU_BWD GELU_FWD GEN_INDEX IDENTITY LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR MAX MIN MOD"
        " MUL NEG POW RECIPROCAL RELU_BWD RELU_FWD RSQRT SIGMOID_BWD SIGMOID_FWD SIN SOFTPLUS_BWD"
        " SOFTPLUS_FWD SQRT SUB SWISH_BWD SWISH_FWD TAN TANH_BWD TANH_FWD",
    ),
    "Elementwise operations (``cudnnPointwiseMode_t``).",
)
reduction_mode = _enum(
    "reduction_mode",
    _members("CUDNN_REDUCE_TENSOR_", "ADD MUL MIN MAX AMAX AVG NORM1 NORM2 MUL_NO_ZEROS"),
    "Reductions (``cudnnReduceTensorOp_t``).",
)
convolution_mode = _enum(
    "convolution_mode",
    [("CONVOLUTION", "CUDNN_CONVOLUTION"), ("CROSS_CORRELATION", "CUDNN_CROSS_CORRELATION")],
    "Whether a convolution flips its filters (``cudnnConvolutionMode_t``).",
)
norm_mode = _enum(
    "norm_mode",
    [
        ("LAYER", "CUDNN_LAYER_NORM"),
        ("INSTANCE", "CUDNN_INSTANCE_NORM"),
        ("BATCH", "CUDNN_BATCH_NORM"),
        ("RMS", "CUDNN_RMS_NORM"),
    ],
    "Kinds of normalization (``cudnnBackendNormMode_t``).",
)
norm_forward_phase = _enum(
    "norm_forward_phase",
    [
        ("INFERENCE", "CUDNN_NORM_FWD_INFERENCE"),
        ("TRAINING", "CUDNN_NORM_FWD_TRAINING"),
    ],
    "Whether a normalization also returns its statistics (``cudnnBackendNormFwdPhase_t``).",
)
resample_mode = _enum(
    "resample_mode",
    _members(
        "CUDNN_RESAMPLE_",
        "NEAREST BILINEAR AVGPOOL_INCLUDE_PADDING AVGPOOL_EXCLUDE_PADDING MAXPOOL",
    ),
    "Kinds of resampling (``cudnnResampleMode_t``).",
)
padding_mode = _enum(
    "padding_mode",
    [
        ("ZERO_PAD", "CUDNN_ZERO_PAD"),
        ("NEG_INF_PAD", "CUDNN_NEG_INF_PAD"),
        ("EDGE_VAL_PAD", "CUDNN_EDGE_VAL_PAD"),
    ],
    "Values of padding (``cudnnPaddingMode_t``).",
)
rng_distribution = _enum(
    "rng_distribution",
    _members("CUDNN_RNG_DISTRIBUTION_", "BERNOULLI UNIFORM NORMAL"),
    "Distributions of random numbers (``cudnnRngDistribution_t``).",
)
tensor_reordering = _enum(
    "tensor_reordering",
    _members("CUDNN_TENSOR_REORDERING_", "NONE INT8x32 F16x16 F8_128x4"),
    "Orders of elements in memory beside strides (``cudnnBackendTensorReordering_t``).",
)
behavior_note = _enum(
    "behavior_note",
    _members(
        "CUDNN_BEHAVIOR_NOTE_",
        "RUNTIME_COMPILATION REQUIRES_FILTER_INT8x32_REORDER REQUIRES_BIAS_INT8x32_REORDER"
        " SUPPORTS_CUDA_GRAPH_NATIVE_API CUBLASLT_DEPENDENCY",
    ),
    "What an engine needs or does (``cudnnBackendBehaviorNote_t``).",
)
numerical_note = _enum(
    "numerical_note",
    _members(
        "CUDNN_NUMERICAL_NOTE_",
        "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD"
        " WINOGRAD_TILE_4x4 WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 STRICT_NAN_PROP",
    ),
    "How an engine computes (``cudnnBackendNumericalNote_t``).",
)
knob_type = _enum(
    "knob_type",
    _members(
        "CUDNN_KNOB_TYPE_",
        "SPLIT_K SWIZZLE TILE_SIZE USE_TEX EDGE KBLOCK LDGA LDGB CHUNK_K SPLIT_H WINO_TILE MULTIPLY"
        " SPLIT_K_BUF TILEK STAGES REDUCTION_MODE CTA_SPLIT_K_MODE SPLIT_K_SLC IDX_MODE SLICED"
        " SPLIT_RS SINGLEBUFFER LDGC SPECFILT KERNEL_CFG WORKSPACE TILE_CGA TILE_CGA_M TILE_CGA_N"
        " BLOCK_SIZE OCCUPANCY ARRAY_SIZE_PER_THREAD NUM_C_PER_BLOCK SPLIT_COLS TILE_ROWS TILE_COLS"
        " LOAD_SIZE CTA_COUNT STREAM_K SPLIT_P_SLC TILE_M TILE_N WARP_SPEC_CFG",
    ),
    "Parameters of engines (``cudnnBackendKnobType_t``).",
)


class build_plan_policy(Enum):
    """Which plans to build: the first that the GPU supports, or all."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class attention_implementation(Enum):
    """How attention becomes operations of cuDNN.

    ``COMPOSITE`` consists of products, elementwise operations and reductions, and ``AUTO`` is the
    same.
    """

    AUTO = 0
    COMPOSITE = 1


class diagonal_alignment(Enum):
    """Corner of the scores in which the diagonal of a mask starts."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


def as_member(where: str, name: str, value: Any, kind: type[Enum]) -> Any:
    """Return a member of an enum.

    Raises
    ------
    DnnTypeError
        If the value is anything else. The message names the parameter.
    """
    if not isinstance(value, kind):
        raise DnnTypeError(
            f"{where}: {name} must be a member of {kind.__name__}, got {value!r}; members are"
            f" {', '.join(member.name for member in kind)}"
        )
    return value


def as_members(where: str, values: Any, kind: type[Enum]) -> set[Any]:
    """Return a sequence of members of an enum as a set.

    Raises
    ------
    DnnTypeError
        If it is anything else.
    """
    if not isinstance(values, list | tuple | set | frozenset):
        raise DnnTypeError(f"{where} takes a list of members of {kind.__name__}, got {values!r}")
    return {as_member(where, "each", value, kind) for value in values}


_DTYPES = {
    "float32": data_type.FLOAT,
    "float64": data_type.DOUBLE,
    "float16": data_type.HALF,
    "bfloat16": data_type.BFLOAT16,
    "int8": data_type.INT8,
    "uint8": data_type.UINT8,
    "int32": data_type.INT32,
    "int64": data_type.INT64,
    "bool": data_type.BOOLEAN,
    "float8_e4m3fn": data_type.FP8_E4M3,
    "float8_e5m2": data_type.FP8_E5M2,
}
_NAMES = {value: name for name, value in _DTYPES.items()}


def as_data_type(value: Any) -> Any:
    """Return a data type.

    Parameters
    ----------
    value : data_type, dtype of any library, str or None
        A data type, or a dtype such as ``"float16"``, ``numpy.float16`` or ``torch.float16``.

    Returns
    -------
    data_type

    Raises
    ------
    DnnTypeError
        If cuDNN has no such data type.
    """
    if isinstance(value, data_type):
        return value
    if value is None:
        return data_type.NOT_SET
    name = str(value).rpartition(".")[2]
    if name not in _DTYPES:
        try:
            name = np.dtype(value).name
        except TypeError:
            name = ""
    if name not in _DTYPES:
        raise DnnTypeError(
            f"{value!r} is not a data type of cuDNN; expected one of {list(_DTYPES)}"
        )
    return _DTYPES[name]


def dtype_of(value: Any) -> str | None:
    """Return the name of the dtype of arrays of a data type, or None if there is none."""
    return _NAMES.get(value)


_ITEM_SIZES = {
    "DOUBLE": 8,
    "INT64": 8,
    "FLOAT": 4,
    "INT32": 4,
    "HALF": 2,
    "BFLOAT16": 2,
}


def item_size(value: Any) -> int:
    """Return the number of bytes of an element; 1 if elements are smaller."""
    return _ITEM_SIZES.get(value.name, 1)
