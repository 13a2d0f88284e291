"""Rewrites that replace abstract Ops with CPU Ops."""
