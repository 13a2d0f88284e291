"""Passes over the expressions that users write, before PyTensor specializes them (2)."""

from __future__ import annotations

from pytensor.graph.rewriting.basic import dfs_rewriter

from dnnops.rewriting.gpu.activation import SpellCudnnActivations
from dnnops.rewriting.gpu.required import RequireCudnn
from dnnops.rewriting.gpu.softmax import (
    local_gradient_of_log_of_softmax,
    local_log_of_softmax,
)
from dnnops.rewriting.passes.entry import (
    CPU,
    GPU,
    ByTags,
    Pass,
    before_the_move,
    in_networks,
    is_float,
    on_the_host,
)
from dnnops.rewriting.precision import Float16InFloat32
from dnnops.rewriting.recognize.activation import SpellActivations
from dnnops.rewriting.recognize.attention import RecognizeAttention
from dnnops.rewriting.recognize.batchnorm import RecognizeBatchNorm, RecognizeGpuBatchNorm
from dnnops.rewriting.recognize.cross_entropy import FuseCrossEntropy
from dnnops.rewriting.recognize.dense import SeparateScales, local_sum_of_products
from dnnops.rewriting.recognize.sizes import local_converted_size
from dnnops.rewriting.recognize.softmax import LocalSoftmaxGrad
from dnnops.rewriting.recognize.stable_logarithms import StableLogarithms

__all__ = ["PASSES"]

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
        on_the_host(RecognizeBatchNorm),
        CPU,
        "After the graphs within Ops are expanded (-0.01). Before the first merge (0), which would "
        "share parts of the expression with the rest of the graph.",
    ),
    Pass(
        -0.005,
        "recognize_gpu_batchnorm",
        before_the_move(RecognizeGpuBatchNorm),
        GPU,
        "As recognize_batchnorm.",
    ),
    Pass(
        -0.004,
        "local_gradient_of_log_of_softmax",
        dfs_rewriter(local_gradient_of_log_of_softmax),
        GPU,
        "As stable_logarithms, for cuDNN's softmax. By name before local_log_of_softmax, which "
        "replaces the softmax that it looks for.",
    ),
    Pass(
        -0.004,
        "local_log_of_softmax",
        dfs_rewriter(local_log_of_softmax),
        GPU,
        "As stable_logarithms, for cuDNN's softmax.",
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
        GPU,
        "As spell_activations.",
    ),
    Pass(
        -0.004,
        "stable_logarithms",
        # PyTensor excludes this tag where it compiles the inner graphs of a softmax.
        ByTags(lambda _, excluded: StableLogarithms("symbolic_op_recognition" not in excluded)),
        ("fast_run",),
        "Before canonicalization (1), which computes probabilities of constants and moves divisors "
        "within gradients. By name after spell_activations, for sigmoids of dnnops.",
    ),
    Pass(
        0.02,
        "float16_in_float32",
        on_the_host(Float16InFloat32),
        CPU,
        "Before all passes that look at dtypes, so that they see float32.",
    ),
    Pass(
        1.62,
        "converted_sizes",
        in_networks(dfs_rewriter(local_converted_size)),
        ("fast_run",),
        "After stabilization (1.5), when shapes are vectors of sizes. Before specialization (2), "
        "which folds the known sizes.",
    ),
    Pass(
        1.65,
        "dense_gradients",
        in_networks(dfs_rewriter(local_sum_of_products)),
        ("fast_run",),
        "After stabilization (1.5), which keeps sums of products. Before BlasOpt (1.7) and "
        "specialization (2), which turns Blockwise products into products of stacked matrices.",
    ),
    Pass(
        1.75,
        "separate_scales",
        in_networks(SeparateScales()),
        ("fast_run",),
        "After BlasOpt (1.7), which scales products. Before elementwise fusion (49), which takes "
        "the scales.",
    ),
    *(
        Pass(
            1.8,
            f"{library}_softmax_grad",
            dfs_rewriter(LocalSoftmaxGrad(is_float)),
            tags,
            "After stabilization (1.5), which makes log-softmax of logarithms of softmax.",
        )
        for library, tags in (("cudnn", GPU), ("onednn", CPU))
    ),
    Pass(
        1.85,
        "cudnn_attention",
        RecognizeAttention(True),
        GPU,
        "After cudnn_softmax_grad (1.8), whose Ops it looks for. Before specialization (2), which "
        "replaces products with other Ops.",
    ),
    Pass(
        1.85,
        "cudnn_cross_entropy",
        FuseCrossEntropy(is_float),
        GPU,
        "After cudnn_softmax_grad (1.8), whose Ops it looks for.",
    ),
    Pass(
        1.85,
        "onednn_attention",
        on_the_host(lambda: RecognizeAttention(False)),
        CPU,
        "As cudnn_attention.",
    ),
    Pass(
        1.85,
        "onednn_cross_entropy",
        FuseCrossEntropy(lambda dtype: dtype in ("float32", "float64")),
        CPU,
        "As cudnn_cross_entropy.",
    ),
)
