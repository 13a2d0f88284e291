"""Graph rewrites that insert backend Ops into ordinary graphs, one concern per file."""
