"""The passes of dnnops over a graph, in execution order.

PyTensor runs the passes of `optdb` by position. PyTensor's own passes merge equal nodes at 0,
canonicalize at 1, stabilize at 1.5, insert BLAS calls at 1.7, specialize at 2, fuse elementwise Ops
at 49, and add the destroy handler at 49.5. Ops may become in-place only after that. A mode runs a
pass if it includes one of its tags and excludes none.

The entries are in `dnnops.rewriting.passes`, one file for each stage. The implementations of Ops on
a GPU and on the CPU are in `dnnops.rewriting.registry`. The passes ``gpu_lift`` and ``to_onednn``
ask them node by node.
"""

from __future__ import annotations

from pytensor.compile.mode import optdb

import dnnops.rewriting.move.tensor_ops  # registers lifters
import dnnops.rewriting.move.to_gpu  # noqa: F401 - registers rewrites with PyTensor's own passes
from dnnops.rewriting.passes import before_move, expressions, final, libraries
from dnnops.rewriting.passes.final import PYTORCH_TAG

__all__ = ["PASSES", "PYTORCH_TAG"]

#: In the order in which they run; passes at the same position run in alphabetical order.
PASSES = (*expressions.PASSES, *before_move.PASSES, *libraries.PASSES, *final.PASSES)

for _pass in PASSES:
    optdb.register(_pass.name, _pass.rewriter, *_pass.tags, position=_pass.position)
