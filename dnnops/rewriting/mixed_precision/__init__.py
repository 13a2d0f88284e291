"""Run float32 graphs on a GPU with 16-bit arrays between the heavy Ops."""
