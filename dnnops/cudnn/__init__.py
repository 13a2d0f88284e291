"""Ops on cuDNN: the GPU's backend of the abstract Ops in `dnnops.nnet`."""
