"""Normalization: batch, local response and divisive."""
