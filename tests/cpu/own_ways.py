"""What tests of dnnops' own ways to compute a convolution share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dnnops.runtime.build import ONEDNN
from dnnops.runtime.op import _describe, empty_tensors, make_context, operand_access
from tests.cpu.conv.test_conv import PAIRS, expected_sums, in_double, operands
from tests.oracle import ConvCase, assert_close, run_op

THREADS = 2

FORWARD, GRAD_INPUTS, GRAD_WEIGHTS = range(3)
DIRECTIONS = pytest.mark.parametrize("index", range(3), ids=[pair[0].__name__ for pair in PAIRS])


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Run with two threads everywhere, because the number of threads decides what is used."""
    before = ONEDNN.library.omp_get_max_threads()
    ONEDNN.library.omp_set_num_threads(THREADS)
    yield
    ONEDNN.library.omp_set_num_threads(before)


def tensors(node: Any, arrays: tuple) -> ctypes.Array:
    described = empty_tensors(len(arrays))
    for variable, array, tensor in zip(node.inputs, arrays, described, strict=True):
        _describe(operand_access(variable.type), array, variable.type.dtype, tensor)
    return described


def run_into(op: Any, out: np.ndarray, *arrays: np.ndarray) -> None:
    """Compute into an array of any strides, which `perform` never does."""
    node = op.make_node(*arrays)
    words, context, result = op.words, make_context(0, 0), empty_tensors(1)[0]
    _describe(operand_access(node.outputs[0].type), out, out.dtype.name, result)
    status = ONEDNN.library.dnnops_onednn_conv(
        ctypes.byref(context),
        ctypes.c_void_p(words.ctypes.data),
        tensors(node, arrays),
        ctypes.byref(result),
    )
    assert status == 0


def in_exact_places(index: int, finite: np.ndarray) -> np.ndarray:
    """Return where results stay as they are: where a convolution in float64 is finite."""
    return finite


@dataclass(frozen=True)
class Way:
    """A way, and convolutions that it can compute. Functions get the index of a direction.

    Attributes
    ----------
    name : str
        Name of its plan.
    cases : callable
        Returns a strategy for random convolutions.
    repeated : callable
        Returns pairs of convolutions. The first one is repeated; the second one is computed in
        between, and needs as much scratch memory or more.
    spoilt : callable
        Returns a convolution that has a pixel ``[2, 3, 5, 6]``, away from the edges.
    unspoilt : callable
        Returns where results must not change if this pixel is not finite. Its second argument tells
        where the result is finite in float64.
    cancels : bool
        Whether sums of the random convolutions may be much smaller than their terms.
    bound : float, optional
        Bound of the relative error; that of float32 by default.
    copies : bool
        Whether operands of other strides are copied, so that they give the same bits.
    """

    name: str
    cases: Callable[[int], st.SearchStrategy[ConvCase]]
    repeated: Callable[[int], list[tuple[ConvCase, ConvCase]]]
    spoilt: Callable[[int], ConvCase]
    unspoilt: Callable[[int, np.ndarray], np.ndarray] = in_exact_places
    cancels: bool = True
    bound: float | None = None
    copies: bool = True

    def ops(self, case: ConvCase, index: int) -> tuple[Any, Any]:
        """Return the Op that takes this way, and the oracle."""
        backend, abstract = PAIRS[index]
        return backend(**case.params, algo=self.name), abstract(**case.params)

    def expected(self, oracle: Any, arrays: tuple) -> tuple[np.ndarray, float | None]:
        """Return the result in float64, and the bound of the relative error."""
        if self.cancels:
            return expected_sums(oracle, arrays, self.bound)
        return run_op(oracle, *in_double(arrays)), self.bound

    def check(self, case: ConvCase, index: int) -> None:
        """Compare with the oracle."""
        backend, oracle = self.ops(case, index)
        arrays = operands(case, index, "float32")
        expected, bound = self.expected(oracle, arrays)
        assert_close(run_op(backend, *arrays), expected, bound=bound, allow_zero=True)
