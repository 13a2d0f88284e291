"""Rewrites that replace abstract Ops with those of the CPU."""
