"""Resampling of images, and conversion to and from neighborhoods."""
