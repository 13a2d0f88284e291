"""The components of the package and the steps of a convolution, for ``docs/architecture.rst``.

``tests/project/test_architecture.py`` compares them with the sources and with real calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

__all__ = ["CALLS", "LAYERS", "Component", "Step", "picture"]


@dataclass(frozen=True)
class Component:
    """A folder or module of ``dnnops``, with a few words for the picture."""

    name: str
    words: str
    #: Modules of ``dnnops`` that belong to the component although they are in no folder of it.
    modules: tuple[str, ...] = ()


#: Rows of components, from the top. A component imports from the rows below it.
LAYERS: tuple[tuple[Component, ...], ...] = (
    (
        Component("cli", "commands", ("__main__", "startup")),
        Component("devtools", "new Ops"),
        Component("theano", "modules of Theano"),
    ),
    (Component("layers", "modules with parameters"),),
    (
        Component("explanation", "what functions run"),
        Component("rewriting", "passes over graphs, and modes", ("modes",)),
    ),
    (Component("capture", "CUDA graphs of functions"), Component("optim", "optimizers")),
    (
        Component("plans", "list, time, store"),
        Component("dnn", "as in Theano"),
        Component("link", "JAX, PyTorch"),
        Component("graph", "cuDNN graphs"),
    ),
    (
        Component("cpu", "oneDNN, BLAS, C++"),
        Component("gpu", "cuDNN, kernels"),
        Component("libcudnn", "cuDNN's C API"),
    ),
    (
        Component("nnet", "what is computed", ("mixed_precision",)),
        Component("gpuarray", "arrays on the GPU"),
    ),
    (Component("runtime", "finds, builds and loads libraries"),),
    (
        Component(
            "config",
            "flags, errors",
            (
                *("arguments", "tables", "display", "compat", "mode_flag", "errors", "dtypes"),
                *("flag_names", "hints", "foreign_arguments", "foreign_names", "__about__"),
                *("flag_values", "foreign_layers", "foreign_optimizers"),
            ),
        ),
        Component("c_code", "C and C++ sources"),
    ),
)


@dataclass(frozen=True)
class Step:
    """One step of a call: a file below ``dnnops``, a function in it, and what it does."""

    file: str
    function: str
    text: str


_CALL = Step(
    "nnet/conv/op.py",
    "conv2d",
    "checks the arguments and makes a node of the abstract Op `Conv`.",
)
_MODE = Step(
    "modes.py",
    "DnnMode.optimizer",
    "adds the tags of the mode's backend, which select passes from the list of :doc:`passes`.",
)
_LOAD = Step(
    "runtime/build.py",
    "RuntimeLibrary.address",
    "loads the runtime library, building it if necessary, and gives the C code the addresses of"
    " the two functions to call.",
)

#: Title, and steps. Python steps come first.
CALLS: dict[str, tuple[Step, ...]] = {
    "cpu": (
        _CALL,
        _MODE,
        Step(
            "rewriting/cpu/ops.py",
            "local_to_onednn",
            "replaces the node with one of `OneDnnConv`.",
        ),
        Step(
            "cpu/conv.py",
            "_OneDnnConvOp.parameters",
            "writes the Op's parameters as 64-bit words.",
        ),
        Step(
            "runtime/op.py",
            "RuntimeOp.c_code",
            "emits C code that reads the operands and calls two functions: one for the shape of the"
            " output, one to compute it.",
        ),
        _LOAD,
        Step(
            "c_code/abi/dnnops_emit.h",
            "dnnops_ndarray_read",
            "describes a NumPy array to the runtime library by address, dtype, shape and strides.",
        ),
        Step(
            "c_code/cpu/conv/conv.cpp",
            "dnnops_onednn_conv",
            "checks the shapes, selects the plan, and keeps it in the node for the next call. Plans"
            " that are no convolutions of oneDNN run from here: BLAS and those of conv_ways.cpp.",
        ),
        Step(
            "c_code/cpu/conv/conv_entry.cpp",
            "run_conv_entry",
            "packs the operands that oneDNN cannot address, such as filters to flip.",
        ),
        Step(
            "c_code/cpu/base/plan.cpp",
            "PlanRun::operator()",
            "calls ``dnnl_primitive_execute`` for the convolution and for the reorders around it.",
        ),
    ),
    "gpu": (
        _CALL,
        _MODE,
        Step(
            "rewriting/move/lifting.py",
            "GraphToGpu.apply",
            "decides which nodes move to the GPU, and puts transfers around them.",
        ),
        Step(
            "rewriting/registry.py",
            "lift",
            "replaces a `Conv` that moves with the class that is declared for it, `GpuDnnConv`.",
        ),
        Step(
            "gpu/conv.py",
            "GpuDnnConvBase.parameters",
            "writes the Op's parameters and algorithm as 64-bit words.",
        ),
        Step(
            "gpu/base.py",
            "CudnnOp.c_code",
            "wraps the C code of the next step: it enters the device and takes CuPy's stream.",
        ),
        Step(
            "runtime/op.py",
            "RuntimeOp.c_code",
            "emits the same C code as on the CPU.",
        ),
        _LOAD,
        Step(
            "c_code/abi/dnnops_cudnn_emit.h",
            "dnnops_cudnn_read",
            "describes a CuPy array to the runtime library, after copying it if cuDNN does not"
            " support its strides.",
        ),
        Step(
            "c_code/gpu/conv/conv.cpp",
            "dnnops_cudnn_conv",
            "reuses the node's plan if the operands have not changed; otherwise the next three"
            " steps select one.",
        ),
        Step(
            "c_code/gpu/conv/conv_call.cpp",
            "describe_case",
            "collects everything that a plan depends on, in a canonical form.",
        ),
        Step(
            "c_code/gpu/conv/conv_choose.cpp",
            "choose_plan",
            "follows the algorithm of the Op: it tries algorithms by number, guesses, times, or"
            " takes the named plan.",
        ),
        Step(
            "c_code/gpu/conv/conv_builder.cpp",
            "PlanBuilder::from_spec",
            "builds a plan, or records why it cannot run.",
        ),
        Step(
            "c_code/gpu/conv/conv_legacy.cpp",
            "LegacyPlan::execute",
            "calls ``cudnnConvolutionForward`` once the workspace is allocated. Other plans are in"
            " ``conv_graph.cpp``, ``conv_gemm.cpp`` and ``gpu/depthwise``.",
        ),
    ),
}

_WIDTH, _LEFT, _GAP = 360, 26, 8
_BOX, _PITCH = 42, 62
_STYLE = """
.components { max-width: 34rem; width: 100%; height: auto; display: block; margin: 1rem auto; }
.components text { fill: var(--color-foreground-primary, #000); font-family: sans-serif; }
.components .name { font: bold 13px monospace; text-anchor: middle; }
.components .words { font-size: 11px; text-anchor: middle; }
.components .side { font-size: 12px; text-anchor: middle; }
.components rect { fill: var(--color-background-secondary, #f8f9fb); stroke-width: 1.2;
  stroke: var(--color-foreground-muted, #6b6f76); }
.components path { fill: none; stroke: var(--color-brand-primary, #0a4bff); stroke-width: 1.6; }
.components marker path { fill: var(--color-brand-primary, #0a4bff); stroke: none; }
@media print {
  .components { max-width: 26rem; }
  .components text { fill: #000; }
  .components rect { fill: #fff; stroke: #000; }
  .components path { stroke: #000; }
  .components marker path { fill: #000; }
}
"""


def _boxes() -> dict[str, tuple[float, float, float]]:
    """Give the left edge, the top and the width of each component's box."""
    boxes = {}
    for row, components in enumerate(LAYERS):
        width = (_WIDTH - 2 - _LEFT - _GAP * (len(components) - 1)) / len(components)
        for column, component in enumerate(components):
            boxes[component.name] = (_LEFT + column * (width + _GAP), 2.0 + row * _PITCH, width)
    return boxes


def picture() -> str:
    """Draw the components as an SVG element, with arrows from each row to the rows it imports."""
    height = 4 + (len(LAYERS) - 1) * _PITCH + _BOX
    title = "Components of dnnops in rows; each imports from the rows below it"
    parts = [
        f'<svg class="components" role="img" aria-label="{title}" viewBox="0 0 {_WIDTH} {height}"'
        ' xmlns="http://www.w3.org/2000/svg">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        '<defs><marker id="components-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<path d="M18 4V{height - 6}" marker-end="url(#components-tip)"/>',
        f'<text class="side" transform="translate(12 {height / 2}) rotate(-90)">imports</text>',
    ]
    boxes = _boxes()
    for row, components in enumerate(LAYERS):
        for component in components:
            left, top, width = boxes[component.name]
            middle = left + width / 2
            words = escape(component.words)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BOX}" rx="5"/>'
                f'<text class="name" x="{middle:.1f}" y="{top + 18:.1f}">{component.name}</text>'
                f'<text class="words" x="{middle:.1f}" y="{top + 33:.1f}">{words}</text>'
            )
        if row + 1 < len(LAYERS):
            top = 2 + row * _PITCH + _BOX
            middle = (_LEFT + _WIDTH - 2) / 2
            parts.append(
                f'<path d="M{middle} {top + 2}V{top + _PITCH - _BOX - 2}"'
                ' marker-end="url(#components-tip)"/>'
            )
    return "".join(parts) + "</svg>"
