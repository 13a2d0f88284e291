"""Convolution: the Ops, the functions that users call, shapes and padding."""
