"""Regularization by dropout."""
