"""Update running averages with an elementwise Op if their factor may change.

The kernels of batch normalization get the factor from the host, so that a captured function could
only repeat it. With the factor 1 they return the statistics of the batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import (
    Cast,
    Composite,
    add,
    and_,
    ge,
    get_scalar_type,
    le,
    mul,
    sub,
    switch,
)

from dnnops.config import flag_value
from dnnops.gpu.batchnorm import GpuDnnBatchNorm
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import depends_on_values

__all__ = ["SeparateAverages"]


class SeparateAverages(GraphRewriter):
    """Compute running averages with a factor that may change apart from their statistics."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if flag_value("dnn.cuda_graph") == "False":
            return
        pairs: list[tuple[Variable, Any]] = []
        for node in fgraph.toposort():
            op: Any = node.op
            if type(op) is not GpuDnnBatchNorm or not op.running_averages:
                continue
            *first, factor, mean, variance = node.inputs
            if not depends_on_values([factor]):
                continue
            make_node: Any = op.make_node
            results = list(make_node(*first, pt.constant(np.float64(1)), mean, variance).outputs)
            for place, old in ((-2, mean), (-1, variance)):
                average = GpuElemwise(_average(old.type.dtype))
                results[place] = average.make_node(old, results[place], factor).outputs[0]
            copy_stack_trace(node.outputs, results)
            pairs += zip(node.outputs, results, strict=True)
        used = [(old, new) for old, new in pairs if fgraph.clients[old]]
        fgraph.replace_all_validate(used, reason="separate_averages")


@cache
def _average(dtype: str) -> Composite:
    """Return the scalar Op for an average, a statistic and a factor, which must be from 0 to 1."""
    wide = get_scalar_type("float64")
    zero, one, nan = (wide.make_constant(np.float64(x)) for x in (0, 1, np.nan))
    old, new, factor = get_scalar_type(dtype)(), get_scalar_type(dtype)(), wide()
    total = add(mul(old, sub(one, factor)), mul(new, factor))
    is_right = and_(ge(factor, zero), le(factor, one))
    result = Cast(get_scalar_type(dtype))(switch(is_right, total, nan))
    return Composite([old, new, factor], [result])
