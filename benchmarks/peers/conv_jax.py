"""JAX in the convolution suite: XLA with its own choice of algorithms.

JAX does not expose its stream. So one compiled function is timed: it shuts the gate of
`device_timer`, computes several convolutions in sequence, each on its own operands, and opens the
gate. Custom calls, which do nothing else on the device, keep this order.
"""

from __future__ import annotations

import gc
import json
import re
import time
from functools import cache, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import conv_data
from benchmarks.harness import BenchmarkError
from benchmarks.peers.conv_turns import ITEM_SIZE, OPERANDS, ConvTask

# Needed only for the sums of a sketch.
jax.config.update("jax_enable_x64", True)

_CALLS = ("timer_start_call", "timer_fence_call", "timer_stop_call")
_PRECISIONS = {"float32": lax.Precision.HIGHEST}
_SPECS = {
    ("contiguous", 2): ("NCHW", "OIHW", "NCHW"),
    ("contiguous", 3): ("NCDHW", "OIDHW", "NCDHW"),
    # cuDNN's preferred filter format for such images, so that XLA need not transpose them.
    ("channels_last", 2): ("NHWC", "OHWI", "NHWC"),
    ("channels_last", 3): ("NDHWC", "ODHWI", "NDHWC"),
}


def versions(device: str) -> dict[str, Any]:
    """Return the versions of what is measured."""
    # Set up the device now, not with the first row.
    for dtype in ITEM_SIZE:
        sketch(values((1000,), np.uint32(1), np.float32(1), dtype)).block_until_ready()
    return {"jax": jax.__version__}


def _hash_words(index: Any, seed: Any) -> Any:
    """Hash numbers as `conv_data.hash_words` does."""
    word, multiplier, half = index, jnp.uint32(conv_data.MULTIPLIER), jnp.uint32(16)
    for _ in range(2):
        word = ((word >> half) ^ word) * multiplier
    word = word ^ seed
    for _ in range(2):
        word = ((word >> half) ^ word) * multiplier
    return (word >> half) ^ word


@partial(jax.jit, static_argnums=(0, 3))
def values(shape: tuple[int, ...], seed: Any, scale: Any, dtype: str) -> Any:
    """Generate `conv_data.values` of this shape; `seed` is uint32 and `scale` float32."""
    index = lax.iota(jnp.uint32, prod(shape))
    total = jnp.full(index.shape, -conv_data.OFFSET, jnp.int32)
    for word_seed in (seed, seed + jnp.uint32(conv_data.SECOND_WORD)):
        word = _hash_words(index, word_seed)
        total += (word & jnp.uint32(0xFFFF)).astype(jnp.int32)
        total += (word >> jnp.uint32(16)).astype(jnp.int32)
    numbers = total.astype(jnp.float32) * (scale / jnp.float32(conv_data.STEPS))
    return numbers.astype(dtype).reshape(shape)


@partial(jax.jit, static_argnums=(0, 3))
def set_of_operands(counts: tuple[int, ...], seeds: Any, scales: Any, dtype: str) -> list[Any]:
    """Generate `values` of several one-dimensional arrays in one program."""
    return [values((n,), seeds[i], scales[i], dtype) for i, n in enumerate(counts)]


@jax.jit
def sketch(array: Any) -> Any:
    """Return `conv_data.sketch` of an array of any shape."""
    flat = array.reshape(-1)
    size = conv_data.SKETCH_SIZE
    place = lax.iota(jnp.uint32, flat.size)
    bit = _hash_words(place, jnp.uint32(conv_data.SIGN_SEED)) & jnp.uint32(1)
    signed = flat.astype(jnp.float64) * (bit.astype(jnp.float64) * 2 - 1)
    signed = jnp.pad(signed, (0, -flat.size % size))
    return signed.reshape(-1, size).sum(axis=0)


@cache
def register(path: str, platform: str) -> str:
    """Register the timer's custom calls, or return why there are none."""
    import ctypes

    library = ctypes.CDLL(path)
    for name in _CALLS:
        if not hasattr(library, name):
            return "the timer was built without JAX's headers"
        handler = jax.ffi.pycapsule(getattr(library, name))
        jax.ffi.register_ffi_target(name, handler, platform=platform)
    return ""


def passed(name: str, arrays: list[Any], others: list[Any]) -> list[Any]:
    """Pass arrays through a custom call that also waits for the other arrays."""
    call = jax.ffi.ffi_call(
        name,
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays],
        has_side_effect=True,
        input_output_aliases={i: i for i in range(len(arrays))},
    )
    return list(call(*arrays, *others))


class Convolution(ConvTask):
    """A convolution or one of its gradients, several times in sequence in one compiled function.

    ``case`` also has ``calls``, the number of times.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        platform = "CUDA" if case["device"] == "cuda" else "cpu"
        self.without_events = register(case["timer"], platform)
        self.calls = case["calls"]
        # As many sets as a turn has calls; successive turns use different sets.
        self.used = min(self.calls, self.sets)
        self.arrays: list[list[Any]] = self.operands(self._made)
        self.single: Any = None
        self.kept: list[Any] = []
        self.chain: Any = None
        self.synchronize()
        start = time.perf_counter()
        if self.without_events:
            function = self._single()
            self.prepare_s = time.perf_counter() - start
            result = function(*self.arrays[0])
        else:
            self.chain = self._compiled_chain()
            self.prepare_s = time.perf_counter() - start
            # This allocates memory and loads kernels.
            with self.ungated():
                result = self._turn()
                jax.block_until_ready((result, self.arrays))
        self.sketch = np.asarray(sketch(result)).tolist()
        del result
        self.next = 0

    def _made(self, number: int) -> list[Any]:
        """Return the operands of a set, in the order of memory.

        They are one-dimensional, so that rows that differ only in the memory format can share them
        and the programs that make them.
        """
        counts = tuple(prod(self.shape(name)) for name in self.read)
        seeds = np.array([conv_data.operand_seed(name, number) for name in self.read], "uint32")
        scales = np.array([self.scales[name] for name in self.read], "float32")
        return set_of_operands(counts, seeds, scales, self.dtype)

    def convolution(self, *flat: Any) -> Any:
        """Compute what is timed from the one-dimensional arrays in `read`."""
        case = self.case
        first, second = (
            array.reshape(self.physical_shape(name))
            for name, array in zip(self.read, flat, strict=True)
        )

        def forward(image: Any, filters: Any) -> Any:
            return lax.conv_general_dilated(
                image,
                filters,
                tuple(case["stride"]),
                [(pad, pad) for pad in case["pad"]],
                rhs_dilation=tuple(case["dilation"]),
                dimension_numbers=_SPECS[case["layout"], len(case["pad"])],
                feature_group_count=case["groups"],
                precision=_PRECISIONS.get(case["precision"], lax.Precision.DEFAULT),
            )

        if case["direction"] == "forward":
            return forward(first, second).reshape(-1)
        # The result is linear in the operand, so its transpose is the gradient and nothing more.
        shape = jax.ShapeDtypeStruct(self.physical_shape(self.written), self.dtype)
        if case["direction"] == "backward_data":
            transposed = jax.linear_transpose(lambda image: forward(image, first), shape)
        else:
            transposed = jax.linear_transpose(lambda filters: forward(first, filters), shape)
        return transposed(second)[0].reshape(-1)

    def _chain(self, *arrays: Any) -> tuple[Any, ...]:
        """Work on the sets in turns, between start and stop; return them, and a result."""
        flat = passed("timer_start_call", list(arrays), [])
        sets = [flat[i : i + 2] for i in range(0, len(flat), 2)]
        results: list[Any] = []
        for call in range(self.calls):
            results.append(self.convolution(*sets[call % self.used]))
            if call + 1 < self.calls:
                # Results take turns as well: each is kept until its set's next turn.
                held = results[-self.used :]
                following = (call + 1) % self.used
                sets[following] = passed("timer_fence_call", sets[following], held)
        flat = passed("timer_stop_call", [x for pair in sets for x in pair], results[-self.used :])
        return (*flat, results[0])

    def _compiled_chain(self) -> Any:
        arrays = [array for pair in self.arrays[: self.used] for array in pair]
        donated = tuple(range(len(arrays)))
        return jax.jit(self._chain, donate_argnums=donated).lower(*arrays).compile()

    def _turn(self) -> Any:
        """Run the chain on the next sets, and return its first result."""
        numbers = [(self.next + i) % self.sets for i in range(self.used)]
        arrays = [array for number in numbers for array in self.arrays[number]]
        # The chain donates their memory.
        for number in numbers:
            self.arrays[number] = []
        *flat, result = self.chain(*arrays)
        for i, number in enumerate(numbers):
            self.arrays[number] = flat[2 * i : 2 * i + 2]
        self.next = (self.next + self.calls) % self.sets
        return result

    def warm(self, calls: int) -> list[float]:
        # The constructor has run the first turn.
        return []

    def times(self, calls: int) -> list[float]:
        if self.without_events:
            return [self.slope(calls)]
        if calls != self.calls:
            raise BenchmarkError(f"compiled for {self.calls} calls, not for {calls}")

        def turn() -> None:
            # JAX launches the work from another thread.
            jax.block_until_ready(self._turn())

        return [self.timed(turn) / calls]

    def _single(self) -> Any:
        if self.single is None:
            self.single = jax.jit(self.convolution).lower(*self.arrays[0]).compile()
            self.kept = [self.single(*self.arrays[0])] * self.sets
        return self.single

    def run(self, number: int) -> None:
        self.kept[number] = self._single()(*self.arrays[number])

    def slope(self, calls: int) -> float:
        self._single()
        return super().slope(calls)

    def synchronize(self) -> None:
        jax.block_until_ready([self.arrays, self.kept])

    def _text(self) -> str:
        return (self.chain or self._single()).as_text()

    def facts(self) -> dict[str, Any]:
        text = self._text()
        return {
            "prepare_s": self.prepare_s,
            "sketch": self.sketch,
            "plan": plan_of(text),
            "others": other_kernels(text, 1 if self.chain is None else self.calls),
            "timer": "slope" if self.without_events else "events",
            "without_events": self.without_events,
            "sets": self.sets,
        }

    def close(self) -> None:
        """Return the memory to JAX's pool."""
        self.arrays = []
        self.kept = []
        self.chain = self.single = None


def plan_of(text: str) -> str:
    """Name the plan of the first convolution in an optimized module, as dnnops would.

    XLA runs convolutions only with engines of cuDNN's graph API, and writes the engine's number as
    ``algo_id``. ``is_cudnn_frontend`` is false even with knobs, which only engines have.
    """
    algorithm = re.search(r'"algorithm":\s*(?=\{)', text)
    if not algorithm:
        targets = re.findall(r'custom_call_target="(__cu[^"]*|__triton[^"]*)"', text)
        return targets[0] if targets else ""
    # A JSON object, followed by other text. Entries that are 0 may be missing.
    found, _ = json.JSONDecoder().raw_decode(text[algorithm.end() :])
    knobs = {int(kind): int(value) for kind, value in found.get("tuning_knobs", {}).items()}
    words = "".join(f"_k{kind}={value}" for kind, value in sorted(knobs.items()))
    return f"engine{found.get('algo_id', 0)}{words}"


def other_kernels(text: str, calls: int) -> float:
    """Return the number of fusions, copies and transpositions per convolution."""
    entry = text[text.find("\nENTRY") :]
    found = re.findall(r"= [^=\n]*? (?:fusion|copy|transpose|pad|reduce|convert)\(", entry)
    return round(len(found) / calls, 2)


def make_task(case: dict[str, Any]) -> ConvTask:
    """Prepare a row of the suite."""
    return Convolution(case)


def clear() -> None:
    """Free the memory of a failed row."""
    OPERANDS.clear()
    gc.collect()
