"""The networks of `benchmarks.model_zoo` in each library."""
