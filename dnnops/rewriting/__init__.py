"""The rewrites that put backend Ops into ordinary graphs: one concern a file."""
