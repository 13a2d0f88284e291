"""Pooling and upsampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.graph.names import data_type, padding_mode, resample_mode
from dnnops.graph.nodes.base import Node
from dnnops.graph.tensors import as_flag, sizes_from
from dnnops.nnet.pool.functions import pool_2d, pool_3d

__all__ = ["Resample", "ResampleBackward"]

_POOLS = {
    resample_mode.MAXPOOL: "max",
    resample_mode.AVGPOOL_INCLUDE_PADDING: "average_inc_pad",
    resample_mode.AVGPOOL_EXCLUDE_PADDING: "average_exc_pad",
}


class _Resampling(Node):
    members: ClassVar[dict[str, Any]] = {"mode": resample_mode, "padding_mode": padding_mode}
    checks: ClassVar[dict[str, Any]] = {
        "window": sizes_from(1),
        "stride": sizes_from(1),
        "pre_padding": sizes_from(0),
        "post_padding": sizes_from(0),
    }

    def complete(self, ndim: int) -> None:
        """Fill in parameters that are not given, for a number of spatial axes."""
        p = self.parameters
        p["stride"] = p["stride"] or list(p["window"])
        for name in ("pre_padding", "post_padding"):
            p[name] = p[name] or [0] * ndim
        for name in ("window", "stride", "pre_padding", "post_padding"):
            if len(p[name]) != ndim:
                raise DnnValueError(
                    f"{self.where}: {name} must have a number for each of {ndim} spatial axes,"
                    f" got {p[name]}"
                )

    def top_dim(self, x: list[int]) -> list[int]:
        """Return the sizes of the result of pooling."""
        self.complete(len(x) - 2)
        p, sizes = self.parameters, []
        for axis, n in enumerate(x[2:]):
            left = n + p["pre_padding"][axis] + p["post_padding"][axis] - p["window"][axis]
            if left < 0:
                raise DnnValueError(
                    f"{self.where}: the window {p['window']} is larger than the padded {x}"
                )
            sizes.append(left // p["stride"][axis] + 1)
        return [*x[:2], *sizes]

    def fault(self, plan: Any) -> str:
        has_bfloat16 = any(x.data_type is data_type.BFLOAT16 for x in self.inputs.values())
        if plan.engine != 3 or not has_bfloat16:
            return ""
        return (
            "known to be wrong: maxima and averages of bfloat16 images (4, 16, 9, 9), with windows"
            " of 3 x 3, were those of other memory (cuDNN 9.19)"
        )

    def make_descriptor(self, descriptors: Any) -> Any:
        p = self.parameters
        ndim = len(p["window"])
        return descriptors.make(
            "RESAMPLE",
            MODE=p["mode"],
            PADDING_MODE=p["padding_mode"],
            COMP_TYPE=self.compute_data_type,
            SPATIAL_DIMS=ndim,
            WINDOW_DIMS=descriptors.fractions(p["window"]),
            STRIDES=descriptors.fractions(p["stride"]),
            PRE_PADDINGS=descriptors.fractions(p["pre_padding"]),
            POST_PADDINGS=descriptors.fractions(p["post_padding"]),
        )


class Resample(_Resampling):
    """Pooling, and the indices of maxima if they are requested."""

    tag = "RESAMPLE"
    checks: ClassVar[dict[str, Any]] = {**_Resampling.checks, "generate_index": as_flag}

    @property
    def results(self) -> list[str]:  # type: ignore[override]
        return ["Y", "INDEX"] if self.parameters["generate_index"] else ["Y"]

    def check(self) -> None:
        is_max = self.parameters["mode"] is resample_mode.MAXPOOL
        if self.parameters["generate_index"] and not is_max:
            raise DnnValueError(f"{self.where}: only max pooling has indices")

    def infer(self) -> None:
        (x,) = self.dims("X")
        for port in self.outputs:
            self.set_result(port, self.top_dim(x), like=self.inputs["X"])

    def lower(self, descriptors: Any) -> None:
        descriptors.operation(
            "RESAMPLE_FWD",
            "RESAMPLE_FWD",
            XDESC=self.inputs["X"],
            YDESC=self.outputs["Y"],
            IDXDESC=self.outputs.get("INDEX"),
            DESC=self.make_descriptor(descriptors),
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        p = self.parameters
        symmetric = p["pre_padding"] == p["post_padding"]
        # Other padding than -inf changes the maximum of negative numbers.
        fits = p["mode"] is not resample_mode.MAXPOOL or not any(p["pre_padding"])
        fits = fits or p["padding_mode"] is padding_mode.NEG_INF_PAD
        fits = fits and len(p["window"]) in (2, 3)
        if "INDEX" in self.outputs or p["mode"] not in _POOLS or not symmetric or not fits:
            raise DnnNotSupportedError(
                f"{self.where}: only pooling of 2 or 3 axes, without indices and with equal padding"
                " on both sides, has an expression in PyTensor; maxima with padding need"
                " NEG_INF_PAD"
            )
        pool = pool_2d if len(p["window"]) == 2 else pool_3d
        y = pool(
            values["X"],
            ws=tuple(p["window"]),
            ignore_border=True,
            stride=tuple(p["stride"]),
            pad=tuple(p["pre_padding"]),
            mode=_POOLS[p["mode"]],
        )
        return {"Y": y}


class ResampleBackward(_Resampling):
    """Gradient of pooling with respect to its input."""

    tag = "RESAMPLE_BPROP"
    results = ("DX",)
    optional = frozenset({"INDEX", "X", "Y"})

    def infer(self) -> None:
        (dy,) = self.dims("DY")
        dx = self.require_dim("DX", "the shape of the input")
        expected = self.top_dim(dx)
        if expected != dy:
            raise DnnValueError(f"{self.where}: DY has dim {dy}, but pooling gives {expected}")
        self.set_stride("DX", like=self.inputs["DY"])

    def lower(self, descriptors: Any) -> None:
        descriptors.operation(
            "RESAMPLE_BWD",
            "RESAMPLE_BWD",
            DXDESC=self.outputs["DX"],
            DYDESC=self.inputs["DY"],
            IDXDESC=self.inputs.get("INDEX"),
            XDESC=self.inputs.get("X"),
            YDESC=self.inputs.get("Y"),
            DESC=self.make_descriptor(descriptors),
        )
