"""Passes that move a graph to a GPU or to oneDNN (49.2 to 49.45), and rewrite what has moved."""

from __future__ import annotations

from pytensor.graph.rewriting.basic import GraphRewriter, MergeOptimizer, dfs_rewriter

from dnnops.rewriting.cpu.activation import ExpandActivations, FuseAgain
from dnnops.rewriting.cpu.ops import ElemwiseToCpu, ToOneDnn
from dnnops.rewriting.move.lifting import GraphToGpu
from dnnops.rewriting.passes.entry import (
    CPU,
    Pass,
    before_the_move,
    on_the_gpu,
    unless_excluded,
    when_included,
)
from dnnops.rewriting.recognize.reduction import local_gpu_norm
from dnnops.rewriting.unused import local_unused_result

__all__ = ["PASSES"]


@when_included("gpu")
def _dropout_from_device() -> GraphRewriter:
    from dnnops.rewriting.gpu.dropout import DropoutFromDevice

    return DropoutFromDevice()


@when_included("gpu")
def _separate_averages() -> GraphRewriter:
    from dnnops.rewriting.gpu.averages import SeparateAverages

    return SeparateAverages()


@on_the_gpu
def _contiguous_transposes() -> GraphRewriter:
    from dnnops.rewriting.gpu.contiguous import local_contiguous_transpose

    return dfs_rewriter(local_contiguous_transpose)


@on_the_gpu
def _mixed_precision() -> GraphRewriter:
    from dnnops.rewriting.mixed_precision.rewriter import MixedPrecision

    return MixedPrecision()


@unless_excluded("fusion")
def _fuse_batchnorm_activation() -> GraphRewriter:
    from dnnops.rewriting.fuse.batchnorm_activation import FuseBatchNormActivation

    return FuseBatchNormActivation()


@unless_excluded("fusion", "cudnn")
def _fuse_conv_epilogue() -> GraphRewriter:
    from dnnops.rewriting.fuse.conv_epilogue import FuseConvEpilogue

    return FuseConvEpilogue()


@unless_excluded("fusion")
def _fuse_dense() -> GraphRewriter:
    from dnnops.rewriting.fuse.dense import FuseDense

    return FuseDense()


@on_the_gpu
def _channels_last() -> GraphRewriter:
    from dnnops.rewriting.layout import ChannelsLast

    return ChannelsLast()


@unless_excluded("fusion", "cudnn")
def _merge_folded() -> GraphRewriter:
    from dnnops.rewriting.fuse.fold_batchnorm import MergeFolded

    return MergeFolded()


@unless_excluded("fusion", "cudnn")
def _fuse_pool_sum() -> GraphRewriter:
    from dnnops.rewriting.fuse.pool_sum import FusePoolSum

    return FusePoolSum()


PASSES = (
    Pass(
        49.2,
        "gpu_lift",
        before_the_move(GraphToGpu),
        ("gpu",),
        "After elementwise fusion (49), so that fused Ops move as one. Before the destroy handler "
        "(49.5).",
    ),
    Pass(
        49.205,
        "gpu_dropout_from_device",
        _dropout_from_device,
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops. Before the destroy handler (49.5): the "
        "next state overwrites the last one.",
    ),
    Pass(
        49.206,
        "gpu_separate_averages",
        _separate_averages,
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops. Before gpu_batchnorm_activation "
        "(49.28), which fuses them.",
    ),
    Pass(
        49.21,
        "gpu_contiguous_transposes",
        _contiguous_transposes,
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops.",
    ),
    Pass(
        49.22,
        "gpu_unused_results",
        dfs_rewriter(local_unused_result),
        ("gpu",),
        "After gpu_lift (49.2), for results that only GPU Ops can omit.",
    ),
    Pass(
        49.23,
        "gpu_merge",
        on_the_gpu(MergeOptimizer),
        ("gpu",),
        "After gpu_lift (49.2), which applies Ops to equal operands. Before the destroy handler "
        "(49.5), which makes PyTensor's last merge (100) check the whole graph for each pair.",
    ),
    Pass(
        49.25,
        "gpu_norms",
        dfs_rewriter(local_gpu_norm),
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU reductions.",
    ),
    Pass(
        49.27,
        "mixed_precision",
        _mixed_precision,
        ("gpu",),
        "After gpu_lift (49.2), since host variables cannot be bfloat16, and after gpu_norms "
        "(49.25), so that norms are reductions. Before the destroy handler (49.5): an array in 16 "
        "bits cannot overwrite one in 32.",
    ),
    Pass(
        49.28,
        "gpu_batchnorm_activation",
        _fuse_batchnorm_activation,
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops, and after gpu_unused_results (49.22), "
        "since an unused result would be a user. Before the destroy handler (49.5).",
    ),
    Pass(
        49.285,
        "gpu_conv_epilogue",
        _fuse_conv_epilogue,
        ("gpu",),
        "After gpu_batchnorm_activation (49.28), which fuses relu and residual sums with the "
        "normalization that is folded here. Before channels_last (49.29), which gives convolutions "
        "their memory format.",
    ),
    Pass(
        49.286,
        "gpu_dense",
        _fuse_dense,
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops, and after mixed_precision (49.27), "
        "which decides in which dtype products run. Before the destroy handler (49.5).",
    ),
    Pass(
        49.29,
        "channels_last",
        _channels_last,
        ("gpu",),
        "After mixed_precision (49.27), which decides what runs on tensor cores. Before the "
        "destroy handler (49.5), which would check each replacement.",
    ),
    Pass(
        49.295,
        "gpu_merge_folded_batchnorm",
        _merge_folded,
        ("gpu",),
        "After gpu_conv_epilogue (49.285), which folds batch normalization, and channels_last "
        "(49.29), which decides on the memory format of the filters.",
    ),
    Pass(
        49.297,
        "gpu_pool_sum",
        _fuse_pool_sum,
        ("gpu",),
        "After channels_last (49.29), since only channels-last images have a kernel that adds. "
        "Before the destroy handler (49.5).",
    ),
    Pass(
        49.3,
        "to_onednn",
        ToOneDnn(),
        CPU,
        "After elementwise fusion (49), and after gpu_lift (49.2) has taken what runs on the GPU.",
    ),
    Pass(
        49.35,
        "expand_activations",
        ExpandActivations(after_fusion=True),
        ("fast_run",),
        "After gpu_lift (49.2) and to_onednn (49.3), for activations that neither has taken.",
    ),
    Pass(
        49.4,
        "fuse_activations",
        FuseAgain(),
        ("fast_run", "fusion"),
        "After expand_activations (49.35). Before the destroy handler (49.5).",
    ),
    Pass(
        49.45,
        "elemwise_to_cpu",
        ElemwiseToCpu(),
        ("onednn", "gpu"),
        "After fuse_activations (49.4), the last that fuses. Before elementwise Ops are in-place "
        "(50.45).",
    ),
)
