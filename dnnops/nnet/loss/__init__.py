"""Losses: cross-entropies and connectionist temporal classification."""
