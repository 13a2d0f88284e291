"""Passes after the destroy handler (49.5): Ops in place, and what a linker needs."""

from __future__ import annotations

from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    NodeProcessingGraphRewriter,
    dfs_rewriter,
)

from dnnops.rewriting.cpu.ops import local_onednn_inplace
from dnnops.rewriting.inplace import ElemwiseAtOnce, GpuInplace, GpuInplaceElemwise
from dnnops.rewriting.move.linkers import RefuseDeviceVariables
from dnnops.rewriting.passes.entry import CPU, Pass, when_included
from dnnops.rewriting.precision import ViewFloat16
from dnnops.rewriting.static_sizes import (
    local_sizes_of_values,
    local_static_alloc,
    local_static_parts,
    local_static_ranges,
    local_static_reshape,
    local_static_scalars,
    local_static_shape,
    local_static_sizes,
)

__all__ = ["PASSES", "PYTORCH_TAG"]

#: Tag of rewrites for PyTorch's linker.
PYTORCH_TAG = "dnnops_pytorch"


@when_included("gpu")
def _horizontal_fusion() -> GraphRewriter:
    from dnnops.rewriting.fuse.horizontal import HorizontalFusion

    return HorizontalFusion()


PASSES = (
    Pass(
        50.45,
        "elemwise_at_once",
        ElemwiseAtOnce(),
        ("gpu", "onednn", "inplace"),
        "After the destroy handler (49.5). Before PyTensor's pass over elementwise Ops (50.5), "
        "which checks the whole graph after each node.",
    ),
    Pass(
        50.55,
        "gpu_inplace",
        GpuInplace(),
        ("gpu", "inplace"),
        "After the destroy handler (49.5). Before gpu_inplace_elemwise, because updates in place "
        "save more than temporaries.",
    ),
    Pass(
        50.6,
        "gpu_inplace_elemwise",
        GpuInplaceElemwise(),
        ("gpu", "inplace"),
        "After gpu_inplace (50.55).",
    ),
    Pass(
        50.65,
        "gpu_horizontal_fusion",
        _horizontal_fusion,
        ("gpu", "fusion"),
        "After gpu_inplace_elemwise (50.6), which decides for each node what it overwrites.",
    ),
    Pass(
        70.0,
        "onednn_inplace",
        dfs_rewriter(
            local_onednn_inplace, failure_callback=NodeProcessingGraphRewriter.warn_inplace
        ),
        (*CPU, "inplace"),
        "After PyTensor has made Gemm in-place (70 and before). Before it makes elementwise Ops "
        "in-place.",
    ),
    *(
        Pass(
            99.9,
            rewriter.__name__,
            dfs_rewriter(rewriter),
            tags,
            "When the graph is final. Before PyTensor does the same for its own Ops (100).",
        )
        for rewriter, tags in (
            (local_sizes_of_values, ("jax",)),
            (local_static_alloc, ("jax", PYTORCH_TAG)),
            (local_static_parts, ("jax",)),
            (local_static_ranges, ("jax",)),
            (local_static_reshape, ("jax",)),
            (local_static_scalars, (PYTORCH_TAG,)),
            (local_static_shape, (PYTORCH_TAG,)),
            (local_static_sizes, ("jax", PYTORCH_TAG)),
        )
    ),
    Pass(
        100.2,
        "numba_refuses_device_variables",
        RefuseDeviceVariables(),
        ("numba",),
        "After everything that might move a variable.",
    ),
    Pass(
        100.3,
        "numba_views_float16",
        ViewFloat16(),
        ("numba",),
        "Last, since it checks every variable of the final graph.",
    ),
)
