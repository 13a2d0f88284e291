"""Record what a compiled function runs on a GPU as a CUDA graph, and replay it."""
