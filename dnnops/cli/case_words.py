"""Describe convolutions in the plan cache in words.

Keys are read from files, and their members change between versions. Members that are missing or
have an unexpected type are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dnnops.display import show_size
from dnnops.dtypes import compute_dtype

__all__ = ["case_words", "cudnn_words"]

_DIRECTIONS = {"grad_inputs": "backward_data", "grad_weights": "backward_filter"}
_LONGEST = 120


def case_words(key: Mapping[str, Any]) -> str:
    """Describe the convolution that a key identifies.

    Parameters
    ----------
    key : dict
        Key with the members that `dnnops.plans.cache` documents. Others are ignored.

    Returns
    -------
    str
        Description such as ``forward 64x128x28x28, 128 filters 3x3, pad 1, float16 channels_last``.
    """
    case = key.get("case")
    if not isinstance(case, Mapping):
        return _shortened(key)
    image, filters = _shape(case, "image"), _shape(case, "filters")
    if len(image) < 3 or len(filters) != len(image):
        return _shortened(case)
    direction = str(case.get("direction", ""))
    parts = [
        f"{_DIRECTIONS.get(direction, direction)} {_times(image)}".strip(),
        f"{filters[0]} filters {_times(filters[2:])}",
    ]
    for name, usual in (("pad", 0), ("stride", 1), ("dilation", 1)):
        values = _integers(case.get(name))
        if any(value != usual for value in values):
            parts.append(f"{name} {_once(values)}")
    if case.get("groups", 1) != 1:
        parts.append(f"{case['groups']} groups")
    if case.get("flip"):
        parts.append("flipped")
    parts.append(f"{case.get('dtype', '')} {_layout(case['image'])}".strip())
    parts += _settings(case)
    policy = key.get("policy", "time")
    if policy != "time":
        parts.append(f"by {policy}")
    return ", ".join(parts)


def _settings(case: Mapping[str, Any]) -> list[str]:
    dtype, compute = case.get("dtype"), case.get("compute")
    settings = []
    if compute not in (None, compute_dtype(str(dtype))):
        settings.append(f"computed in {compute}")
    if case.get("allow_tf32") and dtype == "float32":
        settings.append("TF32")
    if case.get("deterministic"):
        settings.append("deterministic")
    limit = case.get("workspace_limit", -1)
    if isinstance(limit, int) and limit >= 0:
        settings.append(f"workspace up to {show_size(limit)}")
    if case.get("beta"):
        settings.append(f"beta {case['beta']}")
    return settings


def cudnn_words(version: Any) -> str:
    """Format cuDNN's version number, such as 91900, as 9.19.0."""
    if not isinstance(version, int):
        return str(version)
    # Up to cuDNN 8, the number has one digit less.
    major, rest = divmod(version, 10000 if version >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _shortened(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _integers(value: Any) -> tuple[int, ...]:
    if isinstance(value, Sequence) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return ()


def _shape(case: Mapping[str, Any], name: str) -> tuple[int, ...]:
    tensor = case.get(name)
    return _integers(tensor.get("shape")) if isinstance(tensor, Mapping) else ()


def _times(values: Sequence[int]) -> str:
    return "x".join(map(str, values))


def _once(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else _times(values)


def _layout(tensor: Mapping[str, Any]) -> str:
    """Return the name of a tensor's memory format, from its shape and its strides in elements."""
    shape, strides = _integers(tensor.get("shape")), _integers(tensor.get("strides"))
    if len(shape) != len(strides):
        return ""
    rank = len(shape)
    orders = {"contiguous": range(rank), "channels_last": (0, *range(2, rank), 1)}
    dense = [name for name, order in orders.items() if _is_dense(shape, strides, order)]
    return dense[0] if dense else "strided"


def _is_dense(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Return whether the axes are dense in this order; an axis of length 1 may have any stride."""
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True
