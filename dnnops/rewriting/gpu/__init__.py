"""Rewrites of graphs on the GPU."""
