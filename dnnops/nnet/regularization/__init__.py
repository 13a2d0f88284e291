"""Regularization: dropout."""
