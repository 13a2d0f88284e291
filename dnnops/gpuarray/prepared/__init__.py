"""Calls that are prepared once for operands of the same shapes, and run from C."""
