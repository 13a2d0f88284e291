"""Parts of arrays whose places are read from device memory."""
