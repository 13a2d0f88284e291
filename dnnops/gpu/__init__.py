"""The GPU backend of the abstract Ops in `dnnops.nnet`: Ops that call cuDNN and dnnops kernels."""
