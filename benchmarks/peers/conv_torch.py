"""PyTorch in the convolution suite: eager, with ``torch.backends.cudnn.benchmark``."""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from math import prod
from typing import Any

import torch

from benchmarks import conv_data
from benchmarks.peers.conv_turns import ITEM_SIZE, KEPT_BYTES, OPERANDS, ConvTask
from benchmarks.peers.gated_torch import OnTorchStream

# Time the plans that cuDNN's heuristics propose, up to a limit on their number.
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = False
torch.set_grad_enabled(False)

_MASK = {
    "backward_data": [True, False, False],
    "backward_filter": [False, True, False],
}
_WORD = 0xFFFFFFFF


def versions(device: str) -> dict[str, Any]:
    """Return the versions of what is measured."""
    # PyTorch loads its kernels now, not with the first row.
    for dtype in ITEM_SIZE:
        sketch(values(1000, 1, 1.0, dtype, device))
    return {"torch": torch.__version__, "torch_cudnn": torch.backends.cudnn.version()}


def _hash_words(index: torch.Tensor, seed: int) -> torch.Tensor:
    """Hash numbers as `conv_data.hash_words` does, in signed 64-bit integers."""
    word = index
    for _ in range(2):
        word = ((word >> 16) ^ word) * conv_data.MULTIPLIER & _WORD
    word = word ^ seed
    for _ in range(2):
        word = ((word >> 16) ^ word) * conv_data.MULTIPLIER & _WORD
    return (word >> 16) ^ word


def values(count: int, seed: int, scale: float, dtype: str, device: str) -> torch.Tensor:
    """Generate `conv_data.values`."""
    result = torch.empty(count, dtype=getattr(torch, dtype), device=device)
    for start in range(0, count, conv_data.CHUNK):
        stop = min(count, start + conv_data.CHUNK)
        index = torch.arange(start, stop, dtype=torch.int64, device=device)
        total = torch.full_like(index, -conv_data.OFFSET)
        for word_seed in (seed, (seed + conv_data.SECOND_WORD) & _WORD):
            word = _hash_words(index, word_seed)
            total += (word & 0xFFFF) + (word >> 16)
        result[start:stop] = total.to(torch.float32) * (scale / conv_data.STEPS)
    return result


def sketch(array: torch.Tensor) -> list[float]:
    """Return `conv_data.sketch` of an array."""
    size = conv_data.SKETCH_SIZE
    total = torch.zeros(size, dtype=torch.float64, device=array.device)
    for start in range(0, array.numel(), conv_data.CHUNK):
        part = array[start : start + conv_data.CHUNK]
        index = torch.arange(start, start + part.numel(), dtype=torch.int64, device=array.device)
        signs = (_hash_words(index, conv_data.SIGN_SEED) & 1).to(torch.float64) * 2 - 1
        signed = torch.zeros(
            -(-part.numel() // size) * size, dtype=torch.float64, device=array.device
        )
        signed[: part.numel()] = signs * part.to(torch.float64)
        total += signed.reshape(-1, size).sum(dim=0)
    return total.tolist()


class Convolution(OnTorchStream, ConvTask):
    """A convolution, or one of its gradients alone."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        torch.backends.cudnn.allow_tf32 = case["precision"] == "tf32"
        self.device = case["device"]
        # A gradient also takes the operand that it is computed for, but only reads its shape.
        flat = self.operands(self._made)
        self.sets_of_operands = [
            {name: self._shaped(name, array) for name, array in arrays.items()} for arrays in flat
        ]
        shape = self.physical_shape(self.written)
        unread = torch.empty(shape, dtype=getattr(torch, self.dtype), device=self.device)
        self.unread = {self.written: self._logical(unread)}
        self.kept: list[torch.Tensor | None] = [None] * self.sets
        self.synchronize()
        start = time.perf_counter()
        self.run(0)
        self.synchronize()
        self.prepare_s = time.perf_counter() - start
        self.sketch = sketch(self._flat(self.kept[0]))
        self.seconds = self.rough_seconds()
        self._free()

    def _logical(self, array: torch.Tensor) -> torch.Tensor:
        """Return a view of the array with channels second."""
        if self.case["layout"] == "contiguous":
            return array
        return array.permute(0, array.ndim - 1, *range(1, array.ndim - 1))

    def _made(self, number: int) -> dict[str, torch.Tensor]:
        """Return the operands of a set, in the order of memory."""
        made = {}
        for name in self.read:
            count, seed = prod(self.shape(name)), conv_data.operand_seed(name, number)
            made[name] = values(count, seed, self.scales[name], self.dtype, self.device)
        return made

    def _shaped(self, operand: str, flat: torch.Tensor) -> torch.Tensor:
        return self._logical(flat.reshape(self.physical_shape(operand)))

    def _flat(self, result: torch.Tensor | None) -> torch.Tensor:
        """Return the result's entries in the row's memory format, whatever its own is."""
        assert result is not None
        if self.case["layout"] == "channels_last":
            result = result.permute(0, *range(2, result.ndim), 1)
        return result.contiguous().reshape(-1)

    def _arguments(self, number: int) -> tuple[Any, ...]:
        case, operands = self.case, {**self.unread, **self.sets_of_operands[number]}
        zeros = [0] * len(case["pad"])
        params = (case["stride"], case["pad"], case["dilation"], False, zeros, case["groups"])
        if case["direction"] == "forward":
            return (operands["image"], operands["filters"], None, *params)
        arrays = (operands["output"], operands["image"], operands["filters"], None)
        return (*arrays, *params, _MASK[case["direction"]])

    def run(self, number: int) -> None:
        arguments = self._arguments(number)
        if self.case["direction"] == "forward":
            result = torch.ops.aten.convolution.default(*arguments)
        else:
            gradients = torch.ops.aten.convolution_backward.default(*arguments)
            result = gradients[_MASK[self.case["direction"]].index(True)]
        self.kept[number] = result

    def backend(self) -> str:
        """Return the implementation that PyTorch selects."""
        case, operands = self.case, {**self.unread, **self.sets_of_operands[0]}
        zeros = [0] * len(case["pad"])
        params = (case["stride"], case["pad"], case["dilation"], False, zeros, case["groups"])
        # Not public; for information only.
        with suppress(AttributeError, TypeError, RuntimeError):
            found = torch._C._select_conv_backend(
                operands["image"], operands["filters"], None, *params
            )
            return str(found).rpartition(".")[2]
        return ""

    def facts(self) -> dict[str, Any]:
        return {
            "prepare_s": self.prepare_s,
            "seconds": self.seconds,
            "sketch": self.sketch,
            "backend": self.backend(),
            "sets": self.sets,
        }

    def close(self) -> None:
        """Return memory to PyTorch and, if it is much, to the device."""
        self.sets_of_operands.clear()
        self.unread.clear()
        self.kept.clear()
        self._free()

    def _free(self) -> None:
        if self.device != "cuda":
            return
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > KEPT_BYTES:
            torch.cuda.empty_cache()


def make_task(case: dict[str, Any]) -> ConvTask:
    """Prepare a row of the suite."""
    return Convolution(case)


def clear() -> None:
    """Free the memory of a failed row."""
    OPERANDS.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
