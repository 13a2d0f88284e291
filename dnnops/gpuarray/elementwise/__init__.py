"""Kernels of elementwise operations, and the operands that they take."""
