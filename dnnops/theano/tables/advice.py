"""Replacements of the names of Theano that are missing."""

from __future__ import annotations

__all__ = ["ADVICE"]

_STREAMS = "Draw from theano.sandbox.rng_mrg.MRG_RandomStreams"
_ABSTRACT = "Use conv2d, conv2d_grad_wrt_inputs or conv2d_grad_wrt_weights of theano.tensor.nnet"

#: Replacements of missing names, by the name alone or with its module.
ADVICE: dict[str, str] = {
    "AdvancedIncSubtensor1": "Use theano.tensor.inc_subtensor or set_subtensor",
    "AdvancedSubtensor1": "Index a tensor: x[indices]",
    "AdvancedBooleanSubtensor": "Index a tensor with a mask, or use AdvancedSubtensor",
    "ConvOp": _ABSTRACT,
    "Conv3D": "Use theano.tensor.nnet.conv3d",
    "Flatten": "Use theano.tensor.flatten",
    "MaxAndArgmax": "Use theano.tensor.max_and_argmax",
    "DownsampleFactorMax": "Use theano.tensor.signal.pool.pool_2d",
    "Rebroadcast": "Use theano.tensor.addbroadcast or patternbroadcast",
    "Tile": "Use theano.tensor.tile",
    "topk": "Use theano.tensor.sort and a slice",
    "argtopk": "Use theano.tensor.argsort and a slice",
    "topk_and_argtopk": "Use theano.tensor.argsort and a slice",
    "get_test_value": "PyTensor has no test values: evaluate with x.eval({input: value})",
    "recv": "PyTensor has no MPI Ops",
    "send": "PyTensor has no MPI Ops",
    "tests": "Theano's tests are not part of PyTensor: use dnnops' own (`make test`)",
    "theano.test": "Theano's tests are not part of PyTensor: use dnnops' own (`make test`)",
    "theano.sandbox.rng_curand": _STREAMS,
    "theano.sandbox.cuda.rng_curand": _STREAMS,
    "theano.sandbox.fourier": "Use theano.tensor.fft",
    "theano.sandbox.scan": "Use theano.scan",
    "theano.sandbox.gpuarray": "Use theano.gpuarray",
    "theano.sandbox.softsign": "Use theano.tensor.nnet.softsign",
    "theano.compat.six": "Install the package six, and import it",
    "theano.compat.python2x": "Use Python's built-in functions",
}
