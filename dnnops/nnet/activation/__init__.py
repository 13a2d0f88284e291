"""Activations, and softmax."""
