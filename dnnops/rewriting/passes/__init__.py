"""The entries of `dnnops.rewriting.pipeline`, one stage of the rewriting per file."""
