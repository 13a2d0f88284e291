"""The rewrites that move a graph to the GPU."""
