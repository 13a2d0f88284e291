"""Replacements of the names of Theano that are missing."""

from __future__ import annotations

import re

__all__ = ["ADVICE", "advice_for"]

_STREAMS = "Draw from theano.sandbox.rng_mrg.MRG_RandomStreams"
_ABSTRACT = "Use conv2d, conv2d_grad_wrt_inputs or conv2d_grad_wrt_weights of theano.tensor.nnet"
_TEST_VALUES = "PyTensor has no test values: evaluate with x.eval({input: value})"
_TESTS = "Theano's tests are not part of PyTensor: use dnnops' own (`make test`)"

#: Replacements of missing names, by the name alone or with its module.
ADVICE: dict[str, str] = {
    "AdvancedBooleanSubtensor": "Index a tensor with a mask, or use AdvancedSubtensor",
    "AdvancedBooleanIncSubtensor": "Use theano.tensor.inc_subtensor(x[mask], y)",
    "CAReduceDtype": "Use theano.tensor.elemwise.CAReduce, which has the same arguments",
    "ConvOp": _ABSTRACT,
    "Conv3D": "Use theano.tensor.nnet.conv3d",
    "DownsampleFactorMax": "Use theano.tensor.signal.pool.pool_2d",
    "NodeFinder": "Search fgraph.apply_nodes for the nodes of an Op",
    "PrintListener": "Use theano.gof.toolbox.Feature, whose methods an own class can define",
    "PoolGrad": "Use theano.tensor.signal.pool.MaxPoolGrad or AveragePoolGrad",
    "FAST_RUN": "Give the mode as the string 'FAST_RUN'",
    "MaxPoolRop": "Use theano.Rop of theano.tensor.signal.pool.pool_2d",
    "Raise": "Use theano.raise_op.Assert, or pytensor.raise_op.CheckAndRaise",
    "add_clear_storage": "Use theano.gof.vm.VM_Linker(allow_gc=True)",
    "chi2sf_inplace": "Use theano.tensor.chi2sf",
    "debug_error_message": _TEST_VALUES,
    "debug_assert": _TEST_VALUES,
    "default": "Use theano.ifelse.ifelse, or test for None in Python",
    "disable_log_handler": "PyTensor adds no log handler: use the logger 'pytensor'",
    "iv_inplace": "Use theano.tensor.iv",
    "get_context": "Use cupy.cuda.Device; the flag device selects one",
    "list_contexts": "Use cupy.cuda.runtime.getDeviceCount; the flag device selects one",
    "map_variables": "Use pytensor.graph.replace.graph_replace, or theano.clone",
    "missing_test_message": _TEST_VALUES,
    "nodes_constructed": "Compare theano.gof.graph.ops before and after",
    "recv": "PyTensor has no MPI Ops: exchange arrays with the package mpi4py",
    "send": "PyTensor has no MPI Ops: exchange arrays with the package mpi4py",
    "setdefault": "Use theano.ifelse.ifelse, or test for None in Python",
    "tests": _TESTS,
    "theano.test": _TESTS,
    "theano.compat.six": "Install the package six, and import it",
    "theano.compat.python2x": "Use Python's built-in functions",
    "theano.gof.callcache": "Use functools.cache",
    "theano.gof.sched": "Use theano.gof.graph.io_toposort with orderings",
    "theano.misc.cpucount": "Use os.cpu_count",
    "theano.misc.doubleop": "Write an Op: derive a class from theano.Op",
    "theano.misc.frozendict.FrozenOrderedDict": "Use theano.misc.frozendict.frozendict",
    "theano.misc.pkl_utils.load_reduce": "Use theano.misc.pkl_utils.CompatUnpickler",
    "theano.misc.pycuda_init": "Use CuPy in place of PyCUDA",
    "theano.misc.pycuda_utils": "Use CuPy in place of PyCUDA",
    "theano.misc.strutil": "Use textwrap, and the operator % of strings",
    "theano.pathparse": "Set os.environ['PATH']",
    "theano.sandbox.conv": "Use theano.tensor.nnet.conv",
    "theano.sandbox.blocksparse": "Use theano.tensor.nnet.blocksparse",
    "theano.sandbox.fourier": "Use theano.tensor.fft",
    "theano.sandbox.gpuarray": "Use theano.gpuarray",
    "theano.sandbox.minimal": "Write an Op as in PyTensor's documentation",
    "theano.sandbox.rng_curand": _STREAMS,
    "theano.sandbox.cuda.rng_curand": _STREAMS,
    "theano.sandbox.scan": "Use theano.scan",
    "theano.gradient.tensor": "Import theano.tensor",
    "theano.has_handlers": "Use logging.Logger.hasHandlers",
    "theano.rpath": "Use pytensor.__file__",
    "theano.sandbox.softsign": "Use theano.tensor.nnet.softsign",
    "theano.sandbox.solve": "Use theano.tensor.slinalg.solve",
    "theano.scalar.basic_sympy": "Use a theano.scalar.Composite of scalar Ops",
    "theano.sparse.sandbox": "Use the functions of theano.sparse",
    "theano.tensor.inc_code": "Write the C code of an Op with pytensor.link.c.op.COp",
    "theano.typed_list.opt": "Use pytensor.typed_list, which registers its rewrites",
}

_REWRITES = "PyTensor's rewrites have other names: find them in pytensor.tensor.rewriting"
_MOVES = "Rewrites of dnnops move graphs to a GPU: see dnnops.rewriting, or optimizer_excluding"
_KERNELS = "Write kernels with CuPy, in an Op on dnnops.gpuarray.GpuArrayType"
_MASKS = "Index a tensor with a mask, or use theano.tensor.set_subtensor and inc_subtensor"
_LINKERS = "See pytensor.link, and pytensor.compile.compilelock"
_GPU_OPS = (
    "The rewrites put Ops of dnnops on the GPU: apply the function of theano.tensor, or transfer"
    " with theano.gpuarray.basic_ops.gpu_from_host"
)
#: Replacements by a pattern of the module and name. The first that matches is used.
_PATTERNS = (
    (r"theano\.(tests?|.*\.tests)(\..*)?", _TESTS),
    (r"theano\.misc\.\w+(\.\w+)?", "`python -m dnnops doctor` checks an installation"),
    (r"theano\.logging_default_\w+", "Use the logger 'pytensor'"),
    (r"theano(\.\w+)*\.imported_scipy\w*", "PyTensor requires SciPy: import it"),
    (r"theano\.printing\.pydot_imported\w*", "Import pydot"),
    (r"theano\.version\.\w+", "Use theano.__version__"),
    (r"theano\.sandbox\.linalg\.ops\.\w+", "Tell properties of matrices with psd"),
    (r"theano\.config(defaults|parser)\.\w+", "Use theano.config, or pytensor.configparser"),
    (r"theano\.gpuarray\.(opt|opt_util)(\.\w+)?", _MOVES),
    (r"theano\.gpuarray\.\w+\.local_\w+", _MOVES),
    (r"theano\.gpuarray\.dnn\.\w*RNN\w+", "Use dnnops.dnn.RNNBlock"),
    (r"theano\.gpuarray\.dnn\.\w+", "See dnnops.dnn and dnnops.libcudnn"),
    (r"theano\.gpuarray\.cudnn_defs(\.\w+)?", "Use dnnops.libcudnn, cuDNN's own functions"),
    (r"theano\.gpuarray\.(kernel_codegen|fp16_help)(\.\w+)?", _KERNELS),
    (r"theano\.gpuarray\.basic_ops\.(C?GpuKernelBase|Kernel|get_\w+|infer_\w+)", _KERNELS),
    (r"theano\.gpuarray\.(type\.\w+|\w*pygpu\w*)", "Device arrays are cupy.ndarray"),
    (r"theano\.(gpuarray|sandbox\.cuda)(\.\w+)*", _GPU_OPS),
    (r"theano\.tensor\.xlogx\.\w+", "Use xlogx or xlogy0 of theano.tensor.xlogx"),
    (r"theano\.tensor\.nnet\.bn\.BN\w+", "Use theano.tensor.nnet.bn.batch_normalization"),
    (r"theano\.tensor\.nnet\.\w+\.\w*(s|S)oftsign", "Use theano.tensor.nnet.softsign"),
    (
        r"theano\.tensor\.nnet\.sigm\.(u|U)ltra_?\w+",
        "Use theano.tensor.nnet.ultra_fast_sigmoid",
    ),
    (r"theano(\.\w+)*\.(local_\w+|\w*_?(groupopt|seqopt|optimizer))", _REWRITES),
    (r"theano\.tensor\.(opt\w*|nnet\.(opt|bn|nnet|sigm)|blas\w*)(\.\w+)?", _REWRITES),
    (r"theano\.scan_module\.\w+(\.\w+)?", "Use theano.scan, or see pytensor.scan"),
    (r"theano\.sandbox\.(rng_mrg|multinomial)\.\w+", _STREAMS),
    (r"theano\.tensor\.raw_random\.\w+", "Use pytensor.tensor.random"),
    (r"theano\.tensor(\.\w+)?\.(MPI\w+|i?(send|recv)|mpi_\w+|comm)", ADVICE["send"]),
    (r"theano(\.\w+)*\.\w+Grad", "PyTensor's Ops have methods for gradients: use theano.grad"),
    (r"theano(\.\w+)*\.\w*(advanced_boolean|AdvancedBoolean)\w*", _MASKS),
    (r"theano\.gof\.(cc|cmodule|compilelock|lazylinker_c|link|vm)(\.\w+)?", _LINKERS),
    (r"theano\.gof(\.\w+)*", "See pytensor.graph"),
    (r"theano\.compile(\.\w+)*", "See pytensor.compile"),
    (r"theano\.scalar(\.\w+)*", "See pytensor.scalar"),
    (r"theano\.sparse(\.\w+)*", "See theano.sparse"),
    (r"theano\.tensor\.signal(\.\w+)*", "Use theano.tensor.signal.pool.pool_2d or pool_3d"),
    (r"theano\.tensor\.nnet(\.\w+)*", "See dnnops.nnet"),
    (r"theano\.tensor(\.\w+)*", "See pytensor.tensor"),
)


def advice_for(module: str, name: str) -> str | None:
    """Return what to use in place of a missing name, if Theano 1.0.5 had it or its kind.

    Parameters
    ----------
    module, name : str
    """
    dotted = f"{module}.{name}"
    exact = ADVICE.get(dotted) or ADVICE.get(name)
    return exact or next((text for p, text in _PATTERNS if re.fullmatch(p, dotted)), None)
