"""The passes of dnnops over a graph, in execution order.

PyTensor runs the passes of `optdb` by position. PyTensor's own passes merge equal nodes at 0,
canonicalize at 1, stabilize at 1.5, insert BLAS calls at 1.7, specialize at 2, fuse elementwise Ops
at 49, and add the destroy handler at 49.5. Ops may become in-place only after that. A mode runs a
pass if it includes one of its tags and excludes none.

The implementations of Ops on a GPU and on the CPU are in `dnnops.rewriting.registry`. The passes
``gpu_lift`` and ``to_onednn`` ask them node by node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    MergeOptimizer,
    NodeProcessingGraphRewriter,
    SequentialGraphRewriter,
    dfs_rewriter,
)
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.tensor.rewriting.shape import UnShapeOptimizer

import dnnops.rewriting.move.tensor_ops  # registers lifters
import dnnops.rewriting.move.to_gpu  # noqa: F401 - registers rewrites with PyTensor's own passes
from dnnops.rewriting.cpu.activation import ExpandActivations, FuseAgain
from dnnops.rewriting.cpu.ops import ElemwiseToCpu, ToOneDnn, local_onednn_inplace
from dnnops.rewriting.fuse.conv_merge import ConvMerge
from dnnops.rewriting.gpu.activation import SpellCudnnActivations
from dnnops.rewriting.gpu.required import RequireCudnn
from dnnops.rewriting.gpu.softmax import (
    local_gradient_of_log_of_softmax,
    local_log_of_softmax,
)
from dnnops.rewriting.inplace import ElemwiseAtOnce, GpuInplace, GpuInplaceElemwise
from dnnops.rewriting.move.lifting import EVERYTHING, GraphToGpu
from dnnops.rewriting.move.linkers import RefuseDeviceVariables
from dnnops.rewriting.precision import Float16InFloat32, ViewFloat16
from dnnops.rewriting.recognize.activation import CollectActivations, SpellActivations
from dnnops.rewriting.recognize.attention import RecognizeAttention
from dnnops.rewriting.recognize.batchnorm import RecognizeBatchNorm, RecognizeGpuBatchNorm
from dnnops.rewriting.recognize.cross_entropy import FuseCrossEntropy
from dnnops.rewriting.recognize.dense import SeparateScales, local_sum_of_products
from dnnops.rewriting.recognize.log_sigmoid import StableLogSigmoid
from dnnops.rewriting.recognize.log_softmax import StableLogSoftmax
from dnnops.rewriting.recognize.networks import InNetworks
from dnnops.rewriting.recognize.reduction import local_gpu_norm
from dnnops.rewriting.recognize.relu import local_comparison_with_extremum, local_relu
from dnnops.rewriting.recognize.sizes import local_converted_size
from dnnops.rewriting.recognize.softmax import LocalSoftmaxGrad, LocalWholeSoftmax
from dnnops.rewriting.static_sizes import (
    local_sizes_of_values,
    local_static_alloc,
    local_static_parts,
    local_static_ranges,
    local_static_reshape,
    local_static_shape,
    local_static_sizes,
)
from dnnops.rewriting.unused import local_unused_result

__all__ = ["PASSES", "PYTORCH_TAG", "ByTags", "Pass"]

#: Tag of rewrites for PyTorch's linker.
PYTORCH_TAG = "dnnops_pytorch"

Tags = frozenset[str]


class ByTags(RewriteDatabase):
    """A database entry whose rewriter depends on the tags of the mode.

    Parameters
    ----------
    make : callable
        Function that takes the included and the excluded tags of a query, and returns the rewriter,
        or None if there is nothing to do.
    """

    def __init__(self, make: Callable[[Tags, Tags], GraphRewriter | None]):
        super().__init__()
        self.make = make

    def query(self, *tags: Any, **kwtags: Any) -> GraphRewriter:
        """Return the rewriter for a query."""
        query = tags[0] if tags else None
        included, excluded = (
            frozenset(getattr(query, name, None) or ()) for name in ("include", "exclude")
        )
        return self.make(included, excluded) or SequentialGraphRewriter()


class Pass(NamedTuple):
    """One pass over a graph.

    Attributes
    ----------
    position : float
        Position among the passes of `optdb`.
    name : str
        Name in `optdb`.
    rewriter : GraphRewriter or RewriteDatabase
        Rewriter to run, or database to query for it.
    tags : tuple of str
        Tags of the modes that run the pass.
    reason : str
        Reason for the position.
    """

    position: float
    name: str
    rewriter: GraphRewriter | RewriteDatabase
    tags: tuple[str, ...]
    reason: str


def _on_the_host(make: Callable[[], GraphRewriter]) -> ByTags:
    """Return a database entry that does nothing for graphs that move to a GPU."""
    return ByTags(lambda included, excluded: None if "gpu" in included else make())


def _on_the_gpu(make: Callable[[], GraphRewriter]) -> ByTags:
    """Return a database entry whose rewriter is only made for graphs that move to a GPU."""
    return ByTags(lambda included, excluded: make())


def _before_the_move(make: Callable[[Tags, bool], GraphRewriter]) -> ByTags:
    """Return a database entry for a rewriter that must know which nodes will move to the GPU."""
    return ByTags(lambda included, excluded: make(excluded, EVERYTHING in included))


# The modules of these passes are not imported here, since most processes move nothing to a GPU.


def _write_out(excluded: Tags, everything: bool) -> GraphRewriter:
    from dnnops.rewriting.move.write_out import WriteOut

    return WriteOut(excluded, everything)


def _separate_host_scalars(excluded: Tags, everything: bool) -> GraphRewriter:
    from dnnops.rewriting.move.host_scalars import SeparateHostScalars

    return SeparateHostScalars(excluded, everything)


def _contiguous_transposes() -> GraphRewriter:
    from dnnops.rewriting.gpu.contiguous import local_contiguous_transpose

    return dfs_rewriter(local_contiguous_transpose)


def _channels_last() -> GraphRewriter:
    from dnnops.rewriting.layout import ChannelsLast

    return ChannelsLast()


def _horizontal_fusion(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "gpu" not in included:
        return None
    from dnnops.rewriting.fuse.horizontal import HorizontalFusion

    return HorizontalFusion()


def _mixed_precision() -> GraphRewriter:
    from dnnops.rewriting.mixed_precision.rewriter import MixedPrecision

    return MixedPrecision()


def _fuse_batchnorm_activation(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "fusion" in excluded:
        return None
    from dnnops.rewriting.fuse.batchnorm_activation import FuseBatchNormActivation

    return FuseBatchNormActivation()


def _separate_factors(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "gpu" not in included:
        return None
    from dnnops.rewriting.fuse.factors import SeparateFactors

    return SeparateFactors()


def _dropout_from_device(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "gpu" not in included:
        return None
    from dnnops.rewriting.gpu.dropout import DropoutFromDevice

    return DropoutFromDevice()


def _separate_averages(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "gpu" not in included:
        return None
    from dnnops.rewriting.gpu.averages import SeparateAverages

    return SeparateAverages()


def _fuse_dense(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if "fusion" in excluded:
        return None
    from dnnops.rewriting.fuse.dense import FuseDense

    return FuseDense()


def _fuse_conv_epilogue(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if not {"fusion", "cudnn"}.isdisjoint(excluded):
        return None
    from dnnops.rewriting.fuse.conv_epilogue import FuseConvEpilogue

    return FuseConvEpilogue()


def _fuse_pool_sum(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if not {"fusion", "cudnn"}.isdisjoint(excluded):
        return None
    from dnnops.rewriting.fuse.pool_sum import FusePoolSum

    return FusePoolSum()


def _merge_folded(included: Tags, excluded: Tags) -> GraphRewriter | None:
    if not {"fusion", "cudnn"}.isdisjoint(excluded):
        return None
    from dnnops.rewriting.fuse.fold_batchnorm import MergeFolded

    return MergeFolded()


def _in_networks(*steps: GraphRewriter) -> ByTags:
    """Return a database entry that rewrites only graphs of neural networks.

    In the modes of dnnops, every graph counts as a neural network.
    """
    return ByTags(lambda included, excluded: InNetworks(*steps, everywhere=_is_ours(included)))


def _is_ours(included: Tags) -> bool:
    """Return whether a mode is one of dnnops."""
    return bool({"onednn", "gpu"} & included)


def _partial_sums(included: Tags, excluded: Tags) -> GraphRewriter | None:
    from dnnops.rewriting.fuse.partial_sums import PartialSums

    return InNetworks(PartialSums(), everywhere=_is_ours(included))


def _without_sizes(included: Tags, excluded: Tags) -> GraphRewriter | None:
    # Passes for Numba and JAX read the feature at 100.
    return None if {"numba", "jax"} & included else UnShapeOptimizer()


def _is_float(dtype: str) -> bool:
    return dtype.startswith("float")


_CPU, _GPU = ("fast_run", "onednn"), ("gpu", "cudnn")

#: In the order in which they run; passes at the same position run in alphabetical order.
PASSES = (
    Pass(
        -0.02,
        "cudnn_required",
        RequireCudnn(),
        ("cudnn",),
        "First, before the graphs within Ops are expanded (-0.01), so that a mode that requires "
        "cuDNN fails before anything is rewritten.",
    ),
    Pass(
        -0.005,
        "recognize_batchnorm",
        _on_the_host(RecognizeBatchNorm),
        _CPU,
        "After the graphs within Ops are expanded (-0.01). Before the first merge (0), which would "
        "share parts of the expression with the rest of the graph.",
    ),
    Pass(
        -0.005,
        "recognize_gpu_batchnorm",
        _before_the_move(RecognizeGpuBatchNorm),
        _GPU,
        "As recognize_batchnorm.",
    ),
    Pass(
        -0.004,
        "local_gradient_of_log_of_softmax",
        dfs_rewriter(local_gradient_of_log_of_softmax),
        _GPU,
        "As stable_log_softmax, for cuDNN's softmax. By name before local_log_of_softmax, which "
        "replaces the softmax that it looks for.",
    ),
    Pass(
        -0.004,
        "local_log_of_softmax",
        dfs_rewriter(local_log_of_softmax),
        _GPU,
        "As stable_log_softmax, for cuDNN's softmax.",
    ),
    Pass(
        -0.004,
        "spell_activations",
        SpellActivations(),
        ("fast_run",),
        "Before PyTensor's first rewrites of its own tanh and sigmoid (1).",
    ),
    Pass(
        -0.004,
        "spell_cudnn_activations",
        SpellCudnnActivations(),
        _GPU,
        "As spell_activations.",
    ),
    Pass(
        -0.004,
        "stable_log_sigmoid",
        StableLogSigmoid(),
        ("fast_run",),
        "As stable_log_softmax. By name after spell_activations, for sigmoids of dnnops.",
    ),
    Pass(
        -0.004,
        "stable_log_softmax",
        StableLogSoftmax(),
        ("fast_run",),
        "Before canonicalization (1), which computes the softmax of constants and moves divisors "
        "within gradients.",
    ),
    Pass(
        0.02,
        "float16_in_float32",
        _on_the_host(Float16InFloat32),
        _CPU,
        "Before all passes that look at dtypes, so that they see float32.",
    ),
    Pass(
        1.62,
        "converted_sizes",
        _in_networks(dfs_rewriter(local_converted_size)),
        ("fast_run",),
        "After stabilization (1.5), when shapes are vectors of sizes. Before specialization (2), "
        "which folds the known sizes.",
    ),
    Pass(
        1.65,
        "dense_gradients",
        _in_networks(dfs_rewriter(local_sum_of_products)),
        ("fast_run",),
        "After stabilization (1.5), which keeps sums of products. Before BlasOpt (1.7) and "
        "specialization (2), which turns Blockwise products into products of stacked matrices.",
    ),
    Pass(
        1.75,
        "separate_scales",
        _in_networks(SeparateScales()),
        ("fast_run",),
        "After BlasOpt (1.7), which scales products. Before elementwise fusion (49), which takes "
        "the scales.",
    ),
    *(
        Pass(
            1.8,
            f"{library}_softmax_grad",
            dfs_rewriter(LocalSoftmaxGrad(_is_float)),
            tags,
            "After stabilization (1.5), which makes log-softmax of logarithms of softmax.",
        )
        for library, tags in (("cudnn", _GPU), ("onednn", _CPU))
    ),
    Pass(
        1.85,
        "cudnn_attention",
        RecognizeAttention(True),
        _GPU,
        "After cudnn_softmax_grad (1.8), whose Ops it looks for. Before specialization (2), which "
        "replaces products with other Ops.",
    ),
    Pass(
        1.85,
        "cudnn_cross_entropy",
        FuseCrossEntropy(_is_float),
        _GPU,
        "After cudnn_softmax_grad (1.8), whose Ops it looks for.",
    ),
    Pass(
        1.85,
        "onednn_attention",
        _on_the_host(lambda: RecognizeAttention(False)),
        _CPU,
        "As cudnn_attention.",
    ),
    Pass(
        1.85,
        "onednn_cross_entropy",
        FuseCrossEntropy(lambda dtype: dtype in ("float32", "float64")),
        _CPU,
        "As cudnn_cross_entropy.",
    ),
    *(
        Pass(
            48.5,
            f"{library}_softmax",
            dfs_rewriter(LocalWholeSoftmax(_is_float)),
            tags,
            "After PyTensor's own rewrites of softmax (1.5, 2). Before elementwise fusion (49), "
            "which would hide its neighbors.",
        )
        for library, tags in (("cudnn", _GPU), ("onednn", _CPU))
    ),
    Pass(
        48.6,
        "unused_results",
        dfs_rewriter(local_unused_result),
        ("fast_run", "fast_compile"),
        "After simplification. Before graphs move to a GPU (49.2) or to oneDNN (49.3): whether an "
        "Op can move may depend on its results.",
    ),
    Pass(
        48.65,
        "forget_sizes",
        ByTags(_without_sizes),
        ("gpu", "onednn"),
        "After the last passes that look at inferred sizes (48.6). Before elementwise fusion (49) "
        "and the move to a library: inferring the sizes of their new nodes takes a third of the "
        "time to rewrite a ResNet-50.",
    ),
    Pass(
        48.9,
        "recognize_relu",
        _in_networks(dfs_rewriter(local_comparison_with_extremum), dfs_rewriter(local_relu)),
        ("fast_run",),
        "After specialization (2). Before elementwise fusion (49), which would hide the maximum. "
        "Comparisons come first, since they have to see the maximum.",
    ),
    Pass(
        48.91,
        "collect_activations",
        CollectActivations(),
        ("fast_run",),
        "After specialization (2), which takes the last of PyTensor's tanh and sigmoid. Before "
        "expand_slow_activations (48.92), which writes out those that no library runs.",
    ),
    Pass(
        48.92,
        "expand_slow_activations",
        _on_the_host(lambda: ExpandActivations(after_fusion=False)),
        ("fast_run",),
        "After recognize_relu (48.9). Before elementwise fusion (49), so that nothing is fused "
        "twice.",
    ),
    Pass(
        48.94,
        "partial_sums",
        ByTags(_partial_sums),
        ("fast_run",),
        "After canonicalization (1), which flattens sums. Before elementwise fusion (49) and "
        "conv_merge (48.95), which take sums.",
    ),
    Pass(
        48.95,
        "conv_merge",
        ByTags(lambda included, excluded: None if "cudnn" in excluded else ConvMerge()),
        ("gpu",),
        "Before elementwise fusion (49), which would take the sums and factors that convolutions "
        "can include.",
    ),
    Pass(
        48.96,
        "gpu_separate_factors",
        ByTags(_separate_factors),
        ("gpu",),
        "Before elementwise fusion (49), which takes the factors.",
    ),
    Pass(
        48.97,
        "gpu_write_out",
        _before_the_move(_write_out),
        ("gpu",),
        "After everything that recognizes these Ops. Before elementwise fusion (49), which fuses "
        "the expressions that it writes.",
    ),
    Pass(
        49.1,
        "gpu_host_scalars",
        _before_the_move(_separate_host_scalars),
        ("gpu",),
        "After elementwise fusion (49), which merges these numbers. Before gpu_lift (49.2).",
    ),
    Pass(
        49.2,
        "gpu_lift",
        _before_the_move(GraphToGpu),
        ("gpu",),
        "After elementwise fusion (49), so that fused Ops move as one. Before the destroy handler "
        "(49.5).",
    ),
    Pass(
        49.205,
        "gpu_dropout_from_device",
        ByTags(_dropout_from_device),
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops. Before the destroy handler (49.5): the "
        "next state overwrites the last one.",
    ),
    Pass(
        49.206,
        "gpu_separate_averages",
        ByTags(_separate_averages),
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops. Before gpu_batchnorm_activation "
        "(49.28), which fuses them.",
    ),
    Pass(
        49.21,
        "gpu_contiguous_transposes",
        _on_the_gpu(_contiguous_transposes),
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
        _on_the_gpu(MergeOptimizer),
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
        _on_the_gpu(_mixed_precision),
        ("gpu",),
        "After gpu_lift (49.2), since host variables cannot be bfloat16, and after gpu_norms "
        "(49.25), so that norms are reductions. Before the destroy handler (49.5): an array in 16 "
        "bits cannot overwrite one in 32.",
    ),
    Pass(
        49.28,
        "gpu_batchnorm_activation",
        ByTags(_fuse_batchnorm_activation),
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops, and after gpu_unused_results (49.22), "
        "since an unused result would be a user. Before the destroy handler (49.5).",
    ),
    Pass(
        49.285,
        "gpu_conv_epilogue",
        ByTags(_fuse_conv_epilogue),
        ("gpu",),
        "After gpu_batchnorm_activation (49.28), which fuses relu and residual sums with the "
        "normalization that is folded here. Before channels_last (49.29), which gives convolutions "
        "their memory format.",
    ),
    Pass(
        49.286,
        "gpu_dense",
        ByTags(_fuse_dense),
        ("gpu",),
        "After gpu_lift (49.2), since it looks for GPU Ops, and after mixed_precision (49.27), "
        "which decides in which dtype products run. Before the destroy handler (49.5).",
    ),
    Pass(
        49.29,
        "channels_last",
        _on_the_gpu(_channels_last),
        ("gpu",),
        "After mixed_precision (49.27), which decides what runs on tensor cores. Before the "
        "destroy handler (49.5), which would check each replacement.",
    ),
    Pass(
        49.295,
        "gpu_merge_folded_batchnorm",
        ByTags(_merge_folded),
        ("gpu",),
        "After gpu_conv_epilogue (49.285), which folds batch normalization, and channels_last "
        "(49.29), which decides on the memory format of the filters.",
    ),
    Pass(
        49.297,
        "gpu_pool_sum",
        ByTags(_fuse_pool_sum),
        ("gpu",),
        "After channels_last (49.29), since only channels-last images have a kernel that adds. "
        "Before the destroy handler (49.5).",
    ),
    Pass(
        49.3,
        "to_onednn",
        ToOneDnn(),
        _CPU,
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
        ByTags(_horizontal_fusion),
        ("gpu", "fusion"),
        "After gpu_inplace_elemwise (50.6), which decides for each node what it overwrites.",
    ),
    Pass(
        70.0,
        "onednn_inplace",
        dfs_rewriter(
            local_onednn_inplace, failure_callback=NodeProcessingGraphRewriter.warn_inplace
        ),
        (*_CPU, "inplace"),
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

for _pass in PASSES:
    optdb.register(_pass.name, _pass.rewriter, *_pass.tags, position=_pass.position)
