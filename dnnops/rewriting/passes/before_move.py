"""Passes from specialization (2) to the move to a GPU (49.2): simplification and fusion."""

from __future__ import annotations

from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter
from pytensor.tensor.rewriting.shape import UnShapeOptimizer

from dnnops.rewriting.cpu.activation import ExpandActivations
from dnnops.rewriting.fuse.conv_merge import ConvMerge
from dnnops.rewriting.passes.entry import (
    CPU,
    GPU,
    ByTags,
    Pass,
    Tags,
    before_the_move,
    in_networks,
    is_float,
    is_ours,
    on_the_host,
    unless_excluded,
    when_included,
)
from dnnops.rewriting.recognize.activation import CollectActivations
from dnnops.rewriting.recognize.networks import InNetworks
from dnnops.rewriting.recognize.relu import local_comparison_with_extremum, local_relu
from dnnops.rewriting.recognize.softmax import LocalWholeSoftmax
from dnnops.rewriting.unused import local_unused_result

__all__ = ["PASSES"]


@ByTags
def _without_sizes(included: Tags, excluded: Tags) -> GraphRewriter | None:
    # Passes for Numba and JAX read the feature at 100.
    return None if {"numba", "jax"} & included else UnShapeOptimizer()


@ByTags
def _partial_sums(included: Tags, excluded: Tags) -> GraphRewriter | None:
    from dnnops.rewriting.fuse.partial_sums import PartialSums

    return InNetworks(PartialSums(), everywhere=is_ours(included))


@when_included("gpu")
def _separate_factors() -> GraphRewriter:
    from dnnops.rewriting.fuse.factors import SeparateFactors

    return SeparateFactors()


@before_the_move
def _write_out(excluded: Tags, everything: bool) -> GraphRewriter:
    from dnnops.rewriting.move.write_out import WriteOut

    return WriteOut(excluded, everything)


@before_the_move
def _separate_host_scalars(excluded: Tags, everything: bool) -> GraphRewriter:
    from dnnops.rewriting.move.host_scalars import SeparateHostScalars

    return SeparateHostScalars(excluded, everything)


PASSES = (
    *(
        Pass(
            48.5,
            f"{library}_softmax",
            dfs_rewriter(LocalWholeSoftmax(is_float)),
            tags,
            "After PyTensor's own rewrites of softmax (1.5, 2). Before elementwise fusion (49), "
            "which would hide its neighbors.",
        )
        for library, tags in (("cudnn", GPU), ("onednn", CPU))
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
        _without_sizes,
        ("gpu", "onednn"),
        "After the last passes that look at inferred sizes (48.6). Before elementwise fusion (49) "
        "and the move to a library: inferring the sizes of their new nodes takes a third of the "
        "time to rewrite a ResNet-50.",
    ),
    Pass(
        48.9,
        "recognize_relu",
        in_networks(dfs_rewriter(local_comparison_with_extremum), dfs_rewriter(local_relu)),
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
        on_the_host(lambda: ExpandActivations(after_fusion=False)),
        ("fast_run",),
        "After recognize_relu (48.9). Before elementwise fusion (49), so that nothing is fused "
        "twice.",
    ),
    Pass(
        48.94,
        "partial_sums",
        _partial_sums,
        ("fast_run",),
        "After canonicalization (1), which flattens sums. Before elementwise fusion (49) and "
        "conv_merge (48.95), which take sums.",
    ),
    Pass(
        48.95,
        "conv_merge",
        unless_excluded("cudnn")(ConvMerge),
        ("gpu",),
        "Before elementwise fusion (49), which would take the sums and factors that convolutions "
        "can include.",
    ),
    Pass(
        48.96,
        "gpu_separate_factors",
        _separate_factors,
        ("gpu",),
        "Before elementwise fusion (49), which takes the factors.",
    ),
    Pass(
        48.97,
        "gpu_write_out",
        _write_out,
        ("gpu",),
        "After everything that recognizes these Ops. Before elementwise fusion (49), which fuses "
        "the expressions that it writes.",
    ),
    Pass(
        49.1,
        "gpu_host_scalars",
        _separate_host_scalars,
        ("gpu",),
        "After elementwise fusion (49), which merges these numbers. Before gpu_lift (49.2).",
    ),
)
