"""The version of dnnops."""

__version__ = "0.1.0"
