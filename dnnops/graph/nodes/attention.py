"""Scaled dot-product attention and its gradients, as products, elementwise operations, reductions.

cuDNN recognizes these operations and computes them with one kernel (flash attention, Dao et al.,
2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.names import data_type, reduction_mode, rng_distribution
from dnnops.graph.nodes.base import Node
from dnnops.graph.tensors import Tensor, as_flag, as_number, strides_of

__all__ = ["Sdpa", "SdpaBackward"]

_FLOAT = data_type.FLOAT


def _swapped(sizes: Sequence[int]) -> list[int]:
    return [*sizes[:-2], sizes[-1], sizes[-2]]


def _as_probability(value: Any, what: str) -> float:
    if not 0 <= (number := as_number(value, what)) < 1:
        raise DnnValueError(f"{what} {value} is not in [0, 1)")
    return number


class _Attention(Node):
    """Base class of attention and its gradient."""

    checks: ClassVar[dict[str, Any]] = {
        "attn_scale": as_number,
        "causal_mask": as_flag,
        "dropout_probability": _as_probability,
    }
    optional = frozenset({"BIAS", "SEQ_LEN_Q", "SEQ_LEN_KV", "attn_scale", "dropout_probability"})

    last_compute_type = _FLOAT

    @property
    def leaves_unwritten(self) -> bool:  # type: ignore[override]
        # Some engines do not write the results of hidden queries.
        return "SEQ_LEN_Q" in self.inputs

    def check(self) -> None:
        has_dropout = self.parameters["dropout_probability"] is not None
        if has_dropout != ("SEED" in self.inputs and "OFFSET" in self.inputs):
            raise DnnTypeError(f"{self.where}: dropout needs a probability, a seed and an offset")
        if self.inputs["K"] is self.inputs["V"]:
            raise DnnNotSupportedError(
                f"{self.where}: K and V are one tensor, of which cuDNN would read one with the"
                " strides of the other; declare two tensors, and give both the same array"
            )

    def check_operands(self) -> tuple[list[int], list[int], list[int]]:
        """Check the shapes of queries, keys and values, and return them."""
        q, k, v = self.dims("Q", "K", "V")
        if len(q) != 4:
            raise DnnValueError(f"{self.where}: the operands must have 4 axes, got {q}")
        if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or q[1] % k[1]:
            raise DnnValueError(
                f"{self.where}: Q {q}, K {k} and V {v} do not fit; expected (batch, heads,"
                " positions, depth), with heads of Q a multiple of those of K and V"
            )
        if ("SEQ_LEN_Q" in self.inputs) != ("SEQ_LEN_KV" in self.inputs):
            raise DnnValueError(f"{self.where}: give both seq_len_q and seq_len_kv")
        for port in ("SEQ_LEN_Q", "SEQ_LEN_KV"):
            if port in self.inputs and self.inputs[port].dim != [q[0], 1, 1, 1]:
                raise DnnValueError(
                    f"{self.where}: {port} has dim {self.inputs[port].dim}; expected"
                    f" {[q[0], 1, 1, 1]}"
                )
        return q, k, v

    def numbers(self) -> dict[str, float]:
        """Return the numbers that the operations need, by the names of their tensors."""
        depth = self.inputs["Q"].dim[3]
        scale = self.parameters["attn_scale"]
        numbers = {"scale": depth**-0.5 if scale is None else scale}
        if "SEQ_LEN_Q" in self.inputs or self.parameters["causal_mask"]:
            numbers["hidden"] = float("-inf")
        probability = self.parameters["dropout_probability"]
        if probability is not None:
            numbers["kept_scale"] = 1 / (1 - probability)
            numbers["kept"] = 1 - probability
        return numbers

    def bind(self, make_number: Any) -> None:
        """Make the tensors of `numbers`, which the graph passes by value."""
        self.constants = {
            name: make_number(f"{self.name}::{name}", value)
            for name, value in self.numbers().items()
        }

    def scores(self, descriptors: Any, query: Any, key: Any) -> Tensor:
        """Make the operations of the scaled scores, with a bias."""
        q, k = query.dim, key.dim
        products = descriptors.virtual_tensor(query, [*q[:3], k[2]])
        key = _view(key, descriptors)
        self.multiply(descriptors, query, key, products, "SEQ_LEN_Q", "SEQ_LEN_KV")
        x = self.step(descriptors, "MUL", products, self.constants["scale"])
        if "BIAS" in self.inputs:
            x = self.step(descriptors, "ADD", x, self.inputs["BIAS"])
        return x

    def step(self, descriptors: Any, mode: str, *operands: Tensor, type_: Any = _FLOAT) -> Tensor:
        """Make an elementwise operation with a virtual result."""
        result = descriptors.virtual_tensor(operands[0], operands[0].dim, type_)
        return descriptors.pointwise(mode, operands, result)

    def condition(self, descriptors: Any, mode: str, *operands: Tensor) -> Tensor:
        result = descriptors.virtual_tensor(operands[0], operands[0].dim, data_type.BOOLEAN)
        return descriptors.pointwise(mode, operands, result, data_type.BOOLEAN)

    def index(self, descriptors: Any, x: Tensor, axis: int, compute: Any) -> Tensor:
        result = descriptors.virtual_tensor(x, x.dim, data_type.INT32)
        return descriptors.pointwise("GEN_INDEX", [x], result, compute, axis)

    def reduce(self, descriptors: Any, mode: str, x: Tensor, result: Tensor) -> Tensor:
        reduction = descriptors.make("REDUCTION", OPERATOR=reduction_mode[mode], COMP_TYPE=_FLOAT)
        descriptors.operation("REDUCTION", "REDUCTION", XDESC=x, YDESC=result, DESC=reduction)
        return result

    def multiply(
        self, descriptors: Any, a: Tensor, b: Tensor, result: Tensor, *lengths: str | None
    ) -> None:
        """Make a product; `lengths` are the operands with valid sizes of M, N and K."""
        of = {
            f"GEMM_{axis}_OVERRIDE_DESC": self.inputs.get(port)
            for axis, port in zip("MNK", lengths, strict=False)
            if port
        }
        descriptors.operation(
            "MATMUL",
            "MATMUL",
            ADESC=a,
            BDESC=b,
            CDESC=result,
            DESC=descriptors.make("MATMUL", COMP_TYPE=_FLOAT),
            **of,
        )

    def hide(self, descriptors: Any, x: Tensor) -> Tensor:
        """Make the operations that hide scores beyond lengths and after the query."""
        if "SEQ_LEN_Q" in self.inputs:
            row = self.index(descriptors, x, 2, data_type.INT32)
            column = self.index(descriptors, x, 3, data_type.INT32)
            counts = self.condition(
                descriptors,
                "LOGICAL_AND",
                self.condition(descriptors, "CMP_LT", row, self.inputs["SEQ_LEN_Q"]),
                self.condition(descriptors, "CMP_LT", column, self.inputs["SEQ_LEN_KV"]),
            )
            x = self.step(descriptors, "BINARY_SELECT", x, self.constants["hidden"], counts)
        if self.parameters["causal_mask"]:
            row, column = (self.index(descriptors, x, axis, _FLOAT) for axis in (2, 3))
            counts = self.condition(descriptors, "CMP_GE", row, column)
            x = self.step(descriptors, "BINARY_SELECT", x, self.constants["hidden"], counts)
        return x

    def kept(self, descriptors: Any, scores: Tensor) -> Tensor:
        """Make the random tensor that is 1 where a weight is kept, else 0."""
        result = descriptors.virtual_tensor(scores, scores.dim)
        distribution = descriptors.make("RNG", DISTRIBUTION=rng_distribution.BERNOULLI)
        probability = 1 - self.parameters["dropout_probability"]
        distribution.set("RNG_BERNOULLI_DIST_PROBABILITY", descriptors.double(probability))
        descriptors.operation(
            "RNG",
            "RNG",
            YDESC=result,
            DESC=distribution,
            SEED=self.inputs["SEED"],
            OFFSET_DESC=self.inputs["OFFSET"],
        )
        return result

    # -- expressions -----------------------------------------------------------------------

    def weights(self, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return expressions of the weights and of the logarithms of their denominators."""
        if self.parameters["dropout_probability"] is not None:
            raise DnnNotSupportedError(f"{self.where}: dropout has no expression in PyTensor")
        q, k = self.inputs["Q"].dim, self.inputs["K"].dim
        x = pt.matmul(values["Q"], _grouped(values["K"], q, k).dimshuffle(0, 1, 3, 2))
        x = x * np.asarray(self.numbers()["scale"], x.dtype)
        if "BIAS" in values:
            x = x + values["BIAS"]
        row, column = np.arange(q[2])[:, None], np.arange(k[2])
        seen: Any = None
        if "SEQ_LEN_Q" in values:
            seen = (row < values["SEQ_LEN_Q"]) & (column < values["SEQ_LEN_KV"])
        if self.parameters["causal_mask"]:
            before = pt.as_tensor_variable((row >= column)[None, None])
            seen = before if seen is None else seen & before
        if seen is not None:
            x = pt.where(seen, x, np.asarray(-np.inf, x.dtype))
        largest = pt.max(x, axis=3, keepdims=True)
        # Rows that are hidden altogether have weights of zero.
        largest = pt.where(pt.isinf(largest), np.asarray(0, x.dtype), largest)
        exponentials = pt.exp(x - largest)
        total = pt.sum(exponentials, axis=3, keepdims=True)
        is_seen = pt.gt(total, 0)
        safe = pt.where(is_seen, total, np.asarray(1, x.dtype))
        stats = pt.where(is_seen, largest + pt.log(safe), np.asarray(-np.inf, x.dtype))
        return exponentials / safe, stats


def _view(x: Tensor, descriptors: Any) -> Tensor:
    """Return a tensor of the same memory with the last two axes exchanged."""
    return Tensor(
        x.graph,
        x.name,
        _swapped(x.dim),
        _swapped(x.stride),
        x.data_type,
        is_virtual=x.is_virtual,
        uid=x.uid,
    )


def _grouped(x: Any, queries: Sequence[int], keys: Sequence[int]) -> Any:
    """Repeat the heads of keys or values for those of the queries."""
    return x if queries[1] == keys[1] else pt.repeat(x, queries[1] // keys[1], axis=1)


class Sdpa(_Attention):
    """Attention: the weighted sums of the values, and the statistics of the weights."""

    tag = "SDPA_FWD"
    checks: ClassVar[dict[str, Any]] = {**_Attention.checks, "generate_stats": as_flag}

    @property
    def results(self) -> list[str]:  # type: ignore[override]
        return ["O", "STATS"] if self.parameters["generate_stats"] else ["O"]

    def infer(self) -> None:
        q, _, v = self.check_operands()
        self.set_result("O", [*q[:3], v[3]], like=self.inputs["Q"])
        if "STATS" in self.outputs:
            self.outputs["STATS"].data_type = _FLOAT
            self.set_result("STATS", [*q[:3], 1])

    def lower(self, descriptors: Any) -> None:
        query, value, out = self.inputs["Q"], self.inputs["V"], self.outputs["O"]
        x = self.hide(descriptors, self.scores(descriptors, query, self.inputs["K"]))
        rows = [*query.dim[:3], 1]
        largest = self.reduce(descriptors, "MAX", x, descriptors.virtual_tensor(x, rows))
        exponentials = self.step(descriptors, "EXP", self.step(descriptors, "SUB", x, largest))
        total = self.reduce(descriptors, "ADD", exponentials, descriptors.virtual_tensor(x, rows))
        # The engines only support this form with the nodes of the statistics.
        stats = self.outputs.get("STATS") or descriptors.virtual_tensor(x, rows)
        descriptors.pointwise("ADD", [largest, self.step(descriptors, "LOG", total)], stats)
        # The engine requires the product's operand in the type of the values.
        narrow = value.data_type
        if self.parameters["dropout_probability"] is None:
            weights = self.step(descriptors, "DIV", exponentials, total, type_=narrow)
        else:
            weights = self.step(descriptors, "DIV", exponentials, total)
            weights = self.step(descriptors, "MUL", weights, self.kept(descriptors, x))
            factor = self.constants["kept_scale"]
            weights = self.step(descriptors, "MUL", weights, factor, type_=narrow)
        self.multiply(descriptors, weights, value, out, "SEQ_LEN_Q", None, "SEQ_LEN_KV")

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        weights, stats = self.weights(values)
        q, k = self.inputs["Q"].dim, self.inputs["K"].dim
        results = {"O": pt.matmul(weights, _grouped(values["V"], q, k)), "STATS": stats}
        return {port: results[port] for port in self.outputs}


class SdpaBackward(_Attention):
    """Gradients of attention with respect to queries, keys and values."""

    tag = "SDPA_BWD"
    results = ("DQ", "DK", "DV")

    def infer(self) -> None:
        q, k, v = self.check_operands()
        for port, expected in (
            ("O", [*q[:3], v[3]]),
            ("DO", [*q[:3], v[3]]),
            ("STATS", [*q[:3], 1]),
        ):
            (given,) = self.dims(port)
            if given != expected:
                raise DnnValueError(f"{self.where}: {port} has dim {given}; expected {expected}")
        for port, dim, like in (("DQ", q, "Q"), ("DK", k, "K"), ("DV", v, "V")):
            self.set_result(port, dim, like=self.inputs[like])

    def bind(self, make_number: Any) -> None:
        super().bind(make_number)
        if "kept" not in self.constants:
            self.constants["kept"] = make_number(f"{self.name}::kept", 1.0)

    def lower(self, descriptors: Any) -> None:
        query, key, value = (self.inputs[port] for port in ("Q", "K", "V"))
        out, gradient = self.inputs["O"], self.inputs["DO"]
        q = query.dim
        scores = [*q[:3], key.dim[2]]
        has_dropout = self.parameters["dropout_probability"] is not None
        kept = (
            self.kept(descriptors, descriptors.virtual_tensor(query, scores))
            if has_dropout
            else None
        )

        def drop(x: Tensor) -> Tensor:
            return x if kept is None else self.step(descriptors, "MUL", x, kept)

        def rescale(x: Tensor) -> Tensor:
            factor = self.constants.get("kept_scale")
            return x if factor is None else self.step(descriptors, "MUL", x, factor)

        terms = self.step(descriptors, "MUL", gradient, out)
        rows = [*q[:3], 1]
        sums = self.reduce(descriptors, "ADD", terms, descriptors.virtual_tensor(query, rows))
        sums = self.step(descriptors, "MUL", sums, self.constants["kept"])

        x = self.scores(descriptors, query, key)
        x = self.step(descriptors, "SUB", x, self.inputs["STATS"])
        weights = self.step(descriptors, "EXP", self.hide(descriptors, x))
        self._transposed_product(descriptors, rescale(drop(weights)), gradient, "DV")

        by_weights = descriptors.virtual_tensor(query, scores)
        turned = _view(value, descriptors)
        self.multiply(descriptors, gradient, turned, by_weights, "SEQ_LEN_Q", "SEQ_LEN_KV")
        by_scores = self.step(descriptors, "SUB", drop(by_weights), sums)
        by_scores = rescale(self.step(descriptors, "MUL", by_scores, weights))
        by_scores = self.step(descriptors, "MUL", by_scores, self.constants["scale"])
        self._transposed_product(descriptors, by_scores, query, "DK")

        whole = descriptors.virtual_tensor(key, key.dim, key.data_type, key.stride)
        descriptors.operation("RESHAPE", "RESHAPE", XDESC=_view(key, descriptors), YDESC=whole)
        self.multiply(
            descriptors, by_scores, whole, self.outputs["DQ"], "SEQ_LEN_Q", None, "SEQ_LEN_KV"
        )

    def _transposed_product(self, descriptors: Any, x: Tensor, factor: Tensor, port: str) -> None:
        """Multiply the transpose of scores by a factor, and sum the heads that share keys."""
        result, type_ = self.outputs[port], factor.data_type
        across = _swapped(x.dim)
        turned = descriptors.virtual_tensor(x, across, type_, _swapped(strides_of(x.dim)))
        descriptors.operation("RESHAPE", "RESHAPE", XDESC=x, YDESC=turned)
        lengths = ("SEQ_LEN_KV", None, "SEQ_LEN_Q")
        if factor.dim[1] == result.dim[1]:
            self.multiply(descriptors, turned, factor, result, *lengths)
            return
        every_head = [result.dim[0], factor.dim[1], *result.dim[2:]]
        unsummed = descriptors.virtual_tensor(result, every_head, type_)
        self.multiply(descriptors, turned, factor, unsummed, *lengths)
        self.reduce(descriptors, "ADD", unsummed, result)

    def expressions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        weights, _ = self.weights(values)
        q, k = self.inputs["Q"].dim, self.inputs["K"].dim
        key, value = (_grouped(values[port], q, k) for port in ("K", "V"))
        gradient, scale = values["DO"], np.asarray(self.numbers()["scale"], weights.dtype)

        def transposed(x: Any) -> Any:
            return x.dimshuffle(0, 1, 3, 2)

        def summed(x: Any) -> Any:
            if q[1] == k[1]:
                return x
            heads = pt.reshape(x, (k[0], k[1], q[1] // k[1], k[2], -1))
            return pt.sum(heads, axis=2)

        by_weights = pt.matmul(gradient, transposed(value))
        sums = pt.sum(gradient * values["O"], axis=3, keepdims=True)
        by_scores = weights * (by_weights - sums) * scale
        return {
            "DQ": pt.matmul(by_scores, key),
            "DK": summed(pt.matmul(transposed(by_scores), values["Q"])),
            "DV": summed(pt.matmul(transposed(weights), gradient)),
        }
