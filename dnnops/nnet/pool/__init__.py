"""Pooling: the Ops, the functions that users call, and windows."""
