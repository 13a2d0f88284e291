"""Rewrites that join an Op with the Ops around it."""
