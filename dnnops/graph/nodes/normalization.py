"""Batch, instance, layer and RMS normalization, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytensor.tensor as pt

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.names import norm_forward_phase, norm_mode
from dnnops.graph.nodes.base import Node
from dnnops.graph.tensors import as_flag, order_of

__all__ = ["BatchNormInference", "NormBackward", "NormForward"]

_INSIDE = {norm_mode.INSTANCE: 2}


def _averaged_axes(mode: Any, x: list[int], scale: list[int]) -> list[int]:
    """Return the axes along which statistics are computed."""
    if mode is norm_mode.BATCH:
        return [0, *range(2, len(x))]
    if mode is norm_mode.INSTANCE:
        return list(range(2, len(x)))
    # Layer and RMS normalization average over the axes of their scale.
    return [axis for axis, n in enumerate(scale) if n != 1]


class _Norm(Node):
    members: ClassVar[dict[str, Any]] = {"norm_mode": norm_mode}

    @property
    def mode(self) -> Any:
        """Kind of normalization."""
        return self.parameters["norm_mode"]

    @property
    def tag(self) -> str:  # type: ignore[override]
        return {
            norm_mode.BATCH: "BATCHNORM",
            norm_mode.INSTANCE: "INSTANCENORM",
            norm_mode.LAYER: "LAYERNORM",
            norm_mode.RMS: "RMSNORM",
        }[self.mode] + self.suffix

    suffix = ""
    #: Operands that broadcast to the data.
    vectors: ClassVar[tuple[str, ...]] = ("SCALE", "BIAS", "PREV_RUNNING_MEAN", "PREV_RUNNING_VAR")

    def axes(self) -> list[int]:
        """Return the axes along which statistics are computed."""
        return _averaged_axes(self.mode, self.inputs["X"].dim, self.inputs["SCALE"].dim)

    def stat_dim(self) -> list[int]:
        """Return the sizes of the statistics."""
        reduced = set(self.axes())
        return [1 if axis in reduced else n for axis, n in enumerate(self.inputs["X"].dim)]

    def check_operands(self) -> None:
        """Check that vectors broadcast to the data, and that numbers have one element."""
        for port in ("EPSILON", "MOMENTUM"):
            if port in self.inputs and any(n != 1 for n in self.inputs[port].dim):
                raise DnnValueError(
                    f"{self.where}: {port} has dim {self.inputs[port].dim}; expected one element"
                )
        for port in self.vectors:
            if port in self.inputs:
                x, other = self.dims("X", port)
                if any(n not in (1, size) for n, size in zip(other, x, strict=True)):
                    raise DnnValueError(f"{self.where}: {port} {other} does not broadcast to X {x}")
        if self.mode in (norm_mode.BATCH, norm_mode.INSTANCE):
            (scale,) = self.dims("SCALE")
            if len(scale) < 3:
                raise DnnValueError(f"{self.where}: X must have at least 3 axes, got {scale}")
            expected = [1, self.inputs["X"].dim[1], *[1] * (len(scale) - 2)]
            if scale != expected:
                raise DnnValueError(f"{self.where}: SCALE has dim {scale}; expected {expected}")

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        described["tag"] = self.tag
        del described["norm_mode"]
        return described


def _normalized(x: Any, mean: Any, inv: Any) -> Any:
    return (x if mean is None else x - mean) * inv


class NormForward(_Norm):
    """Normalization; in the training phase, also its statistics.

    The parameter ``norm_forward_phase`` is None for batch normalization, whose inference has other
    operands.
    """

    members: ClassVar[dict[str, Any]] = {
        "norm_mode": norm_mode,
        "norm_forward_phase": norm_forward_phase,
    }
    optional = frozenset(
        {"norm_forward_phase", "MOMENTUM", "PREV_RUNNING_MEAN", "PREV_RUNNING_VAR", "BIAS"}
    )

    def check(self) -> None:
        if self.mode is not norm_mode.BATCH and self.parameters["norm_forward_phase"] is None:
            raise DnnTypeError(f"{self.where}: norm_forward_phase is missing")
        if self.mode is not norm_mode.RMS and "BIAS" not in self.inputs:
            raise DnnTypeError(f"{self.where}: BIAS is missing")

    @property
    def results(self) -> list[str]:  # type: ignore[override]
        names = ["Y"]
        if self.mode is norm_mode.BATCH:
            names += ["MEAN", "INV_VARIANCE"]
            if "PREV_RUNNING_MEAN" in self.inputs:
                names += ["NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"]
        elif self.parameters["norm_forward_phase"] is norm_forward_phase.TRAINING:
            names += ["INV_VARIANCE"] if self.mode is norm_mode.RMS else ["MEAN", "INV_VARIANCE"]
        return names

    def infer(self) -> None:
        (x,) = self.dims("X")
        self.check_operands()
        self.set_result("Y", x, like=self.inputs["X"])
        for port in self.outputs:
            if port != "Y":
                self.set_result(port, self.stat_dim(), order=order_of(self.inputs["X"].stride))

    def lower(self, descriptors: Any) -> None:
        phase = self.parameters["norm_forward_phase"] or norm_forward_phase.TRAINING
        of, to = self.inputs.get, self.outputs.get
        descriptors.operation(
            "NORM_FORWARD",
            "NORM_FWD",
            MODE=self.mode,
            PHASE=phase,
            XDESC=of("X"),
            SCALE_DESC=of("SCALE"),
            BIAS_DESC=of("BIAS"),
            EPSILON_DESC=of("EPSILON"),
            EXP_AVG_FACTOR_DESC=of("MOMENTUM"),
            INPUT_RUNNING_MEAN_DESC=of("PREV_RUNNING_MEAN"),
            INPUT_RUNNING_VAR_DESC=of("PREV_RUNNING_VAR"),
            MEAN_DESC=to("MEAN"),
            INV_VARIANCE_DESC=to("INV_VARIANCE"),
            OUTPUT_RUNNING_MEAN_DESC=to("NEXT_RUNNING_MEAN"),
            OUTPUT_RUNNING_VAR_DESC=to("NEXT_RUNNING_VAR"),
            YDESC=to("Y"),
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        x, axes = values["X"], self.axes()
        mean = None if self.mode is norm_mode.RMS else pt.mean(x, axes, keepdims=True)
        centered = x if mean is None else x - mean
        variance = pt.mean(centered * centered, axes, keepdims=True)
        inv = 1 / pt.sqrt(variance + values["EPSILON"])
        y = centered * inv * values["SCALE"]
        if "BIAS" in values:
            y = y + values["BIAS"]
        results = {"Y": y, "MEAN": mean, "INV_VARIANCE": inv}
        if "PREV_RUNNING_MEAN" in values:
            dim = self.inputs["X"].dim
            count = 1
            for axis in axes:
                count *= dim[axis]
            factor = values["MOMENTUM"]
            unbiased = variance * (count / max(count - 1, 1))
            results["NEXT_RUNNING_MEAN"] = (1 - factor) * values[
                "PREV_RUNNING_MEAN"
            ] + factor * mean
            results["NEXT_RUNNING_VAR"] = (1 - factor) * values[
                "PREV_RUNNING_VAR"
            ] + factor * unbiased
        return {port: results[port] for port in self.outputs}


class NormBackward(_Norm):
    """Gradients of a normalization with respect to its data, scale and bias."""

    suffix = "_BPROP"
    checks: ClassVar[dict[str, Any]] = {"has_dbias": as_flag}
    optional = frozenset({"MEAN", "has_dbias"})

    def check(self) -> None:
        if self.mode is norm_mode.RMS and self.parameters.get("has_dbias") is None:
            raise DnnTypeError(f"{self.where}: has_dbias is missing")
        if self.mode is not norm_mode.RMS and "MEAN" not in self.inputs:
            raise DnnTypeError(f"{self.where}: MEAN is missing")

    @property
    def results(self) -> list[str]:  # type: ignore[override]
        has_bias = self.mode is not norm_mode.RMS or self.parameters["has_dbias"]
        return ["DX", "DSCALE", *(["DBIAS"] if has_bias else [])]

    def infer(self) -> None:
        dy, x = self.dims("DY", "X")
        if dy != x:
            raise DnnValueError(f"{self.where}: DY {dy} and X {x} have different shapes")
        self.check_operands()
        for port in ("MEAN", "INV_VARIANCE"):
            if port in self.inputs and self.inputs[port].dim != self.stat_dim():
                raise DnnValueError(
                    f"{self.where}: {port} has dim {self.inputs[port].dim}; expected"
                    f" {self.stat_dim()}"
                )
        self.set_result("DX", x, like=self.inputs["X"])
        for port in ("DSCALE", "DBIAS"):
            if port in self.outputs:
                self.set_result(port, self.inputs["SCALE"].dim, like=self.inputs["SCALE"])

    def lower(self, descriptors: Any) -> None:
        of, to = self.inputs.get, self.outputs.get
        descriptors.operation(
            "NORM_BACKWARD",
            "NORM_BWD",
            MODE=self.mode,
            XDESC=of("X"),
            MEAN_DESC=of("MEAN"),
            INV_VARIANCE_DESC=of("INV_VARIANCE"),
            DYDESC=of("DY"),
            SCALE_DESC=of("SCALE"),
            EPSILON_DESC=of("EPSILON"),
            DSCALE_DESC=to("DSCALE"),
            DBIAS_DESC=to("DBIAS"),
            DXDESC=to("DX"),
        )

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        dy, x, axes = values["DY"], values["X"], self.axes()
        scale = self.inputs["SCALE"].dim
        mean, inv = values.get("MEAN"), values.get("INV_VARIANCE")
        normalized = _normalized(x, mean, inv)
        outer = [axis for axis, n in enumerate(scale) if n == 1]
        g = dy * values["SCALE"]
        along = pt.mean(g * normalized, axes, keepdims=True)
        dx = g - normalized * along
        if mean is not None:
            dx = dx - pt.mean(g, axes, keepdims=True)
        results = {
            "DX": dx * inv,
            "DSCALE": pt.sum(dy * normalized, outer, keepdims=True),
            "DBIAS": pt.sum(dy, outer, keepdims=True),
        }
        return {port: results[port] for port in self.outputs}


class BatchNormInference(_Norm):
    """Batch normalization with given statistics."""

    suffix = "_INFERENCE"
    vectors = ("SCALE", "BIAS", "MEAN", "INV_VARIANCE")
    results = ("Y",)

    def infer(self) -> None:
        (x,) = self.dims("X")
        self.check_operands()
        self.set_result("Y", x, like=self.inputs["X"])

    def lower(self, descriptors: Any) -> None:
        """Make the four elementwise operations of which it consists."""
        step: Any = self.inputs["X"]
        operands = (("SUB", "MEAN"), ("MUL", "INV_VARIANCE"), ("MUL", "SCALE"), ("ADD", "BIAS"))
        for mode, port in operands:
            is_last = port == "BIAS"
            result = self.outputs["Y"] if is_last else descriptors.virtual_tensor(self.outputs["Y"])
            descriptors.pointwise(mode, [step, self.inputs[port]], result, self.compute_data_type)
            step = result

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        y = _normalized(values["X"], values["MEAN"], values["INV_VARIANCE"])
        return {"Y": y * values["SCALE"] + values["BIAS"]}
