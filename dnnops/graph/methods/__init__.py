"""Methods of graphs that add operations."""
