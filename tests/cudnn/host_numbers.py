"""Conversions of 16-bit numbers for kernels that run on the host."""

from __future__ import annotations

__all__ = ["CONVERSIONS"]

#: What the device has instructions for; of the dtype that the macro DTYPE says.
CONVERSIONS = """
inline float low_half(unsigned word) {
  return DTYPE == 2 ? half_value((unsigned short)word) : bits_as<float>(word << 16);
}
inline float high_half(unsigned word) { return low_half(word >> 16); }
inline unsigned short half_bits(float value) {
  return DTYPE == 2 ? to_half(value) : to_bfloat(value);
}
"""
