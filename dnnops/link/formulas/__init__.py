"""What Ops compute, written once for JAX and PyTorch.

Each function takes a *library*, `dnnops.link.jax.library` or `dnnops.link.pytorch.library`, then
the Op and its operands, floating-point ones in the dtype in which sums are taken, and gives a tuple
of results, which the caller casts.  The two libraries compile what is elementwise or a reduction
into loops of their own; where they have a faster function for the whole of it, that is used
instead.
"""
