"""Tools for those who change dnnops; ``python -m dnnops.devtools`` runs them in a checkout."""
