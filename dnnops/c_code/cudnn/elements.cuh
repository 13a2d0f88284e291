// Elements of arrays by their dnnops_dtype: how they lie in memory, and the type of the arithmetic with them.

template <int DTYPE_CODE>
struct Element;
template <>
struct Element<0> {
  using Bits = float;
  using Value = float;
  static DEVICE float value(float bits) { return bits; }
  static DEVICE float bits(float value) { return value; }
};
template <>
struct Element<1> {
  using Bits = double;
  using Value = double;
  static DEVICE double value(double bits) { return bits; }
  static DEVICE double bits(double value) { return value; }
};
template <>
struct Element<2> {
  using Bits = unsigned short;
  using Value = float;
#ifdef __CUDACC__
  static DEVICE float value(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static DEVICE unsigned short bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#else
  static float value(unsigned short bits) { return half_value(bits); }
  static unsigned short bits(float value) { return to_half(value); }
#endif
};
template <>
struct Element<3> {
  using Bits = unsigned short;
  using Value = float;
  static DEVICE float value(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
#ifdef __CUDACC__
  // Not cvt.rn.bf16.f32, which GPUs before compute capability 8.0 lack: to the nearest, of two the even one.
  static DEVICE unsigned short bits(float value) {
    const unsigned word = __float_as_uint(value);
    return value != value ? 0x7fff : (unsigned short)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }
#else
  static unsigned short bits(float value) { return to_bfloat(value); }
#endif
};

DEVICE float infinity_of(float) { return __uint_as_float(0x7f800000u); }
DEVICE double infinity_of(double) { return (double)__uint_as_float(0x7f800000u); }
