"""Run the conversions of an Op, and compare them with its `perform`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant

from dnnops.nnet.validate import accumulator_dtype
from tests.oracle import assert_close

DTYPES = ("float16", "float32", "float64")

#: Operands that are float32 even if the others are float16.
_STATISTICS = {"AttentionGrad": "stats", "RNNBackward": "reserve", "CrossEntropyGrad": "statistics"}

#: Values of the argument ``library`` for tests.
both_libraries = pytest.mark.parametrize(
    "library", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("jax", "torch")]
)


def converted(library: str, op: Any, *arrays: Any, symbolic: Collection[int] = ()) -> Callable:
    """Convert a node of an Op for JAX or PyTorch.

    Parameters
    ----------
    library : {'jax', 'torch'}
    op : Op
    *arrays : ndarray or number
        The operands. Scalars, and integer vectors of convolution, pooling and grid Ops, become
        constants of the node.
    symbolic : collection of int
        Indices of such operands that become variables nevertheless.

    Returns
    -------
    callable
        Function from NumPy arrays to a list of NumPy arrays.
    """
    inputs = []
    for i, value in enumerate(arrays):
        array = np.asarray(value)
        is_constant = array.ndim == 0 or (array.dtype == "int64" and op_takes_sizes(op))
        if is_constant and i not in symbolic:
            inputs.append(pt.constant(array))
        else:
            inputs.append(pt.tensor(dtype=array.dtype, shape=(None,) * array.ndim))
    node = op.make_node(*inputs)
    if library == "jax":
        import jax
        from pytensor.link.jax.dispatch import jax_funcify, jax_typify

        # Constants are not traced, as in a function of PyTensor.
        function, typify = jax_funcify(op, node=node), jax_typify
        places = [i for i, x in enumerate(node.inputs) if not isinstance(x, Constant)]

        def run(*values: Any) -> Any:
            given = [np.asarray(v) for v in values]

            def of_variables(*traced: Any) -> Any:
                operands = [typify(g) for g in given]
                for place, x in zip(places, traced, strict=True):
                    operands[place] = x
                return function(*operands)

            # Compiled functions run once.
            compiled = jax.jit(of_variables, compiler_options={"xla_backend_optimization_level": 0})
            return compiled(*(given[place] for place in places))

    else:
        import torch
        from pytensor.link.pytorch.dispatch import pytorch_funcify

        function = pytorch_funcify(op, node=node)

        def run(*values: Any) -> Any:
            return function(*(torch.from_numpy(np.array(v)) for v in values))

    def to_numpy(*values: Any) -> list[np.ndarray]:
        found = run(*values)
        return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]

    return to_numpy


def op_takes_sizes(op: Any) -> bool:
    """Return whether integer vectors among an Op's operands are sizes."""
    return any(name in type(op).__name__ for name in ("Conv", "Pool", "TransformerGrid"))


def perform(op: Any, *arrays: Any) -> list[np.ndarray]:
    """Run an Op's `perform`."""
    node = op.make_node(*arrays)
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, [np.asarray(a) for a in arrays], storage)
    return [value for (value,) in storage]


def of_dtype(op: Any, dtype: str, *arrays: Any) -> list[Any]:
    """Cast an Op's floating-point array operands."""
    names = getattr(op, "all_operands", getattr(op, "operands", ("g", "x", "labels", "statistics")))
    wide = str(accumulator_dtype(dtype))
    statistics = _STATISTICS.get(type(op).__name__)
    dtypes = [wide if name == statistics else dtype for name in names]
    dtypes += [dtype] * (len(arrays) - len(dtypes))
    return [
        a.astype(d) if isinstance(a, np.ndarray) and a.ndim and a.dtype.kind == "f" else a
        for a, d in zip(arrays, dtypes, strict=False)
    ]


def assert_converted(
    library: str,
    op: Any,
    *arrays: Any,
    dtype: str,
    skip: Sequence[int] = (),
    saved: Collection[int] = (),
    atol: float | None = None,
) -> None:
    """Compare an Op's conversion with its `perform`, which runs in float64.

    Parameters
    ----------
    library, op, *arrays
        As for `converted`.
    dtype : str
        Dtype of the conversion.
    skip : sequence of int
        Indices of results that are not compared.
    saved : collection of int
        Operands from a forward pass in float64. The reference receives them unrounded, because a
        conversion that recomputes them does not round them.
    atol : float, optional
        If given, elements are compared instead of norms, within this error in units of the dtype in
        which sums are computed. Use it if a result may be near zero, or has infinities or NaN.
        float16 results have an additional rounding.
    """
    given = of_dtype(op, dtype, *arrays)
    out = converted(library, op, *given)(*given)
    wide = of_dtype(op, "float64", *given)
    ref = perform(op, *(arrays[i] if i in saved else a for i, a in enumerate(wide)))
    types = [v.type.dtype for v in op.make_node(*given).outputs]
    assert len(out) == len(ref)
    for i, (o, r, dtype_of_result) in enumerate(zip(out, ref, types, strict=True)):
        assert o.dtype.name == dtype_of_result, f"result {i} is {o.dtype}, not {dtype_of_result}"
        assert o.shape == r.shape
        if i in skip:
            continue
        if o.dtype.kind != "f":
            np.testing.assert_array_equal(o, r)
        elif atol is not None:
            error = atol * float(np.finfo(accumulator_dtype(dtype)).eps)
            if o.dtype == "float16":
                error += float(np.finfo(dtype).eps)
                with np.errstate(over="ignore"):  # overflows are infinite in both
                    r = np.where(np.isinf(r.astype(dtype)), r.astype(dtype), r)
            np.testing.assert_allclose(o.astype("float64"), r, atol=error, rtol=error)
        else:
            assert_close(o, r, allow_zero=True)
