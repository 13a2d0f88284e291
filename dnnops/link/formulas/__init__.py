"""Formulas of Ops, written once for JAX and PyTorch.

Each function takes a *library*, either `dnnops.link.jax.library` or `dnnops.link.pytorch.library`,
the Op and its operands, and returns a tuple of results, which the caller casts. Floating-point
operands are passed in the dtype of the accumulator. JAX and PyTorch compile elementwise operations
and reductions into fused loops. If a library has a faster function for a whole Op, the conversion
calls it instead of the formula.
"""
