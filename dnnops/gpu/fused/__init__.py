"""Ops that only fusion inserts, imported when it does."""
