"""Rewrites that recognize written-out expressions and replace them with single Ops."""
