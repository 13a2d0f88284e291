"""Run every plan of a convolution, and check its results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pytensor import config

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnError
from dnnops.gpu import algorithms
from dnnops.plans import ConvPlan
from tests.gpu.conv.configurations import Configuration
from tests.gpu.conv.convolutions import PAIRS, in_dtype, operands, reference, result_shape
from tests.gpu.device import apply_op, make_node, rounded
from tests.oracle import repeat_command

#: Prefix of the reason of a plan that is rejected because its results are known to be wrong.
KNOWN_WRONG = "known to be wrong"
# Reasons that dnnops gives itself, which do not depend on the library.
_OWN_WORDS = (KNOWN_WRONG, "not deterministic", "it ", "its workspace")
_REFUSALS_ASKED_FOR = 3
_REPETITIONS = 3
_MOST_COMPLAINTS = 30
# Guard size before and behind an array; a multiple of the alignment of a fresh allocation.
_GUARD = 4096
# All bits set are NaN in every floating-point dtype.
_POISON = 0xFF
# For plans that may reject arrays with another alignment than those for which they were listed.
_REFUSED = "it is listed as runnable, but: "


class GuardedArray:
    """An array between two areas of NaN that must not be read or written.

    Parameters
    ----------
    xp : module
        CuPy, or NumPy for a check without a GPU.
    shape : tuple of int
    dtype : str
    memory_format : {'contiguous', 'channels_last'}
    offset : int
        Number of elements between an aligned address and the array.
    """

    def __init__(
        self, xp: Any, shape: Sequence[int], dtype: str, memory_format: str, offset: int = 0
    ):
        self.dtype = numpy_dtype(dtype)
        axes = range(len(shape))
        self._order = (0, *axes[2:], 1) if memory_format == "channels_last" else tuple(axes)
        self._shape = tuple(shape[axis] for axis in self._order)
        self._size = math.prod(shape) * self.dtype.itemsize
        self._start = _GUARD + offset * self.dtype.itemsize
        self.memory = xp.empty(self._start + self._size + _GUARD, "uint8")
        self.array = self._view(self.memory)
        self.poison()

    def _view(self, memory: Any) -> Any:
        if isinstance(memory, np.ndarray):
            view = np.ndarray(self._shape, self.dtype, buffer=memory, offset=self._start)
        else:
            import cupy

            view = cupy.ndarray(self._shape, self.dtype, memptr=memory.data + self._start)
        return view.transpose([self._order.index(axis) for axis in range(view.ndim)])

    def poison(self) -> None:
        """Fill the array and its surroundings with NaN."""
        if isinstance(self.memory, np.ndarray):
            self.memory[...] = _POISON
        else:
            self.memory.data.memset_async(_POISON, self.memory.nbytes)

    def write(self, values: np.ndarray) -> Any:
        """Fill the array with a host array's values, and return it."""
        filled = np.full(self.memory.shape, _POISON, "uint8")
        self._view(filled)[...] = values
        if isinstance(self.memory, np.ndarray):
            self.memory[...] = filled
        else:
            self.memory.set(filled)
        return self.array

    def read(self) -> tuple[np.ndarray, bool]:
        """Return the values on the host, and whether the surroundings are unchanged."""
        memory = self.memory if isinstance(self.memory, np.ndarray) else self.memory.get()
        end = self._start + self._size
        guards = (memory[: self._start], memory[end:])
        untouched = all((guard == _POISON).all() for guard in guards)
        return self._view(memory).copy(), untouched


def transforms(plan: ConvPlan) -> bool:
    """Return whether a plan transforms its operands by FFT or Winograd, which rounds more."""
    named = plan.api == "legacy" and re.search("FFT|WINOGRAD", plan.name)
    return bool(named) or any(note.startswith(("fft", "winograd")) for note in plan.notes)


#: Engines without tensor cores that gave inexact results for small integers with cuDNN 9.19, within
#: the bounds of direct algorithms. Transforms do this, but cuDNN does not note any here.
INEXACT_ENGINES = {("forward", 4), ("grad_inputs", 5), ("grad_weights", 4), ("grad_weights", 17)}


def is_exact(plan: ConvPlan, dtype: str) -> bool:
    """Return whether a plan must give the exact bits for small integers.

    Plans that transform their operands need not. Neither do plans that round partial sums to a
    16-bit result: the legacy algorithms that accumulate in it, and engines whose knob 0
    (CUDNN_KNOB_TYPE_SPLIT_K) splits a sum.
    """
    direction = "forward" if plan.name.endswith("_as_forward") else plan.direction
    unnoted = plan.api == "graph" and (direction, plan.number) in INEXACT_ENGINES
    if plan.api == "legacy":
        in_parts = not plan.deterministic
    else:
        in_parts = bool(re.search(r"_k0=(?!1(?!\d))", plan.name))
    return not (transforms(plan) or unnoted or (in_parts and dtype.endswith("16")))


class Judge:
    """Check a plan's results, and say what is wrong.

    Parameters
    ----------
    expected : ndarray
        The oracle's float64 result.
    output : GuardedArray
        Output of the plans.
    bound : callable
        Returns the largest relative error of a plan that transforms its operands or does not.
    exact : bool
        Whether plans that do not transform must give the exact bits.
    added_to : ndarray, optional
        Content of the output before each run. The default is NaN, which must not be read.
    """

    def __init__(
        self,
        expected: np.ndarray,
        output: GuardedArray,
        bound: Callable[[bool], float],
        exact: bool = False,
        added_to: np.ndarray | None = None,
    ):
        self.expected, self.output, self.bound = expected, output, bound
        self.exact, self.added_to = exact, added_to

    def complaints(self, plan: ConvPlan, run: Callable[[], str]) -> list[str]:
        """Run a plan several times, each on a fresh output; return what is wrong, in words.

        `run` returns the name of the plan that it used.
        """
        results = []
        found = []
        for _ in range(_REPETITIONS):
            self.output.poison()
            if self.added_to is not None:
                self.output.write(self.added_to)
            try:
                used = run()
            except DnnError as error:
                return [_REFUSED + str(error).partition("\n")[0]]
            if used != plan.name:
                return [f"{used} was run instead"]
            result, untouched = self.output.read()
            if not untouched:
                found.append("it writes beside its output")
            results.append(result)
        found += self._compared(plan, results[0])
        first = results[0].tobytes()
        if plan.deterministic and any(other.tobytes() != first for other in results[1:]):
            found.append("it is called deterministic, but its bits differ from run to run")
        return list(dict.fromkeys(found))

    def _compared(self, plan: ConvPlan, result: np.ndarray) -> Iterator[str]:
        out = result.astype("float64")
        missing = int(np.count_nonzero(~np.isfinite(out)))
        if missing:
            yield f"{missing} of {out.size} results are not written, or not finite"
            return
        if self.exact and is_exact(plan, self.output.dtype.name):
            exact = rounded(self.expected, self.output.dtype.name)
            wrong = int(np.count_nonzero(out != exact))
            if wrong:
                yield (
                    f"{wrong} of {out.size} results are inexact for small integers, by"
                    f" {np.max(np.abs(out - exact)):.3g} at most"
                )
        bound = self.bound(transforms(plan))
        norm = np.linalg.norm(self.expected.ravel())
        error = np.linalg.norm((out - self.expected).ravel())
        if not error <= bound * norm:
            yield f"relative error {error / norm if norm else np.inf:.3g} > {bound:.3g}"


def _poison_workspace(size: int | None) -> None:
    """Fill the memory that a plan's workspace will most likely use with NaN."""
    import cupy

    from dnnops.gpu.library import free_workspaces

    free_workspaces()
    step = 1 << 20  # the rounding of Arena::take()
    if size and size <= 1 << 28:
        memory = cupy.empty(-(-size // step) * step, "uint8")
        memory.data.memset_async(_POISON, memory.nbytes)


def _asked_for(rows: list[ConvPlan], seed: int) -> list[ConvPlan]:
    """Return rejected plans to request by name: all known to be wrong, and some others."""
    named = [row for row in rows if row.reason.startswith(_OWN_WORDS) and row.number is not None]
    wrong = [row for row in named if row.reason.startswith(KNOWN_WRONG)]
    others = [row for row in named if row not in wrong]
    np.random.default_rng(seed).shuffle(others)  # type: ignore[arg-type]
    return wrong + others[:_REFUSALS_ASKED_FOR]


def granted(plan: ConvPlan, run: Callable[[], str]) -> list[str]:
    """Return what is wrong if a rejected plan is requested by name."""
    try:
        # The error suggests other plans, which it times first.
        with config.change_flags(dnn__conv__time_limit=1e-6):
            run()
    except DnnError as error:
        if plan.reason in str(error):
            return []
        return [f"it is refused because {plan.reason!r}, but the error says: {error}"]
    return [f"it is refused because {plan.reason!r}, but runs when it is asked for"]


def walk(configuration: Configuration, search_seconds: float = 0, offset: int = 0) -> list[str]:
    """Run the plans of a configuration; return what is wrong with them.

    Parameters
    ----------
    configuration : Configuration
    search_seconds : float
        If not 0, run the plans that a search of this length finds in addition to those listed.
    offset : int
        Number of elements between an aligned address and each array. The plans are still those
        of aligned arrays, and may reject these.
    """
    import cupy

    case, index = configuration.case, configuration.index
    arrays = in_dtype(operands(case, index, configuration.integers), configuration.dtype)

    def guarded(shape: tuple[int, ...], offset: int) -> GuardedArray:
        layout = configuration.dtype, configuration.memory_format
        return GuardedArray(cupy, shape, *layout, offset=offset)

    def operands_at(offset: int) -> list[Any]:
        given = [a if a.dtype.kind == "i" else guarded(a.shape, offset) for a in arrays]
        return [*given, *configuration.factors, guarded(result_shape(case, index), offset)]

    def values(operands: list[Any]) -> list[Any]:
        return [x.array if isinstance(x, GuardedArray) else x for x in operands]

    op = PAIRS[index][0](**configuration.settings, accumulate=True, inplace=True)
    rows = _listed(op, values(operands_at(0)), search_seconds)
    given = operands_at(offset)
    for operand, array in zip(given, arrays, strict=False):
        if isinstance(operand, GuardedArray):
            operand.write(array)
    output = given[-1]
    judge = _judge(configuration, arrays, output)

    def runner(plan: ConvPlan) -> Callable[[], str]:
        def run() -> str:
            _poison_workspace(plan.workspace_bytes)
            result = apply_op(op.replace(algo=plan.name), *values(given))
            assert result is output.array
            return algorithms.last_plan()

        return run

    found = []
    runnable = [row for row in rows if not row.reason]
    for plan in runnable:
        try:
            complaints = judge.complaints(plan, runner(plan))
        except cupy.cuda.runtime.CUDARuntimeError as error:
            found.append(f"{plan.name}: {error}; no other plan can be run in this process")
            return found
        if offset:
            complaints = [words for words in complaints if not words.startswith(_REFUSED)]
        notes = ", ".join(plan.notes) or "none"
        found += [f"{plan.name} (notes: {notes}): {words}" for words in complaints]
    if not search_seconds and not offset:
        if not runnable:
            found.append("no plan can be run")
        for plan in _asked_for([row for row in rows if row.reason], case.seed):
            found += [f"{plan.name}: {words}" for words in granted(plan, runner(plan))]
    found += _changed(given[:2], arrays[:2], configuration.dtype)
    return found


def _judge(configuration: Configuration, arrays: list[np.ndarray], output: GuardedArray) -> Judge:
    alpha, beta = configuration.factors
    expected = reference(configuration.case, configuration.index, arrays)
    if not beta:
        return Judge(alpha * expected, output, configuration.bound, configuration.integers)
    rng = np.random.default_rng(configuration.case.seed)
    old = rounded(np.abs(expected).mean() * rng.standard_normal(expected.shape), output.dtype.name)
    return Judge(alpha * expected + beta * old, output, configuration.bound, added_to=old)


def _listed(op: Any, operands: list[Any], search_seconds: float) -> list[ConvPlan]:
    """Return the plans of an Op for operands, of which the last is the output."""
    from dnnops.plans.gpu import PlanList

    with PlanList(*make_node(op, *operands), operands[-1]) as listing:
        rows = listing.plans
        names = [row.name for row in rows if not row.reason]
        assert len(set(names)) == len(names), f"plans are listed twice: {sorted(names)}"
        if search_seconds:
            listing.search(search_seconds)
            rows = [row for row in listing.plans if row not in rows and row.name not in names]
        return rows


def _changed(given: list[GuardedArray], arrays: list[np.ndarray], dtype: str) -> list[str]:
    for operand, array in zip(given, arrays, strict=True):
        values, untouched = operand.read()
        if not untouched or (values.astype("float64") != rounded(array, dtype)).any():
            return ["an operand was written to, or what is beside it"]
    return []


def report(configuration: Configuration, found: list[str]) -> str:
    """Return the message of a failed run: what is wrong with which plan, and how to repeat it."""
    shown = found[:_MOST_COMPLAINTS]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more")
    lines = "\n  ".join(shown)
    return f"{configuration}\n  {lines}\nrepeat with: {repeat_command()}"
