"""Rewrites that fuse an Op with the Ops around it."""
