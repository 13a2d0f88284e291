// Numbers by their dnnops_dtype: as stored in memory (Bits), and for computation (Acc).
// dnnops/gpu/kernels.py compiles programs with this, using CuPy; tests compile them for the host, where
// host_cuda.hpp has the conversions.
#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

template <class T>
struct WideNumber {
  using Bits = T;
  using Acc = T;
  static DEVICE Acc acc(Bits bits) { return bits; }
  static DEVICE Bits bits(Acc value) { return value; }
};

template <int CODE>
struct Number;
template <>
struct Number<0> : WideNumber<float> {};
template <>
struct Number<1> : WideNumber<double> {};

// low() and high() return the two numbers packed in a word.

template <>
struct Number<2> {
  using Bits = unsigned short;
  using Acc = float;
#ifdef __CUDACC__
  static DEVICE float low(unsigned word) {
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
    return value;
  }
  static DEVICE float high(unsigned word) {
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(word));
    return value;
  }
  static DEVICE unsigned short bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#else
  static float low(unsigned word) { return half_value((unsigned short)word); }
  static float high(unsigned word) { return half_value((unsigned short)(word >> 16)); }
  static unsigned short bits(float value) { return to_half(value); }
#endif
  static DEVICE float acc(unsigned short bits) { return low(bits); }
};

template <>
struct Number<3> {
  using Bits = unsigned short;
  using Acc = float;
  static DEVICE float low(unsigned word) { return __uint_as_float(word << 16); }
  static DEVICE float high(unsigned word) { return __uint_as_float(word & 0xffff0000u); }
  static DEVICE float acc(unsigned short bits) { return low(bits); }
  static DEVICE unsigned short bits(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    // Round to nearest, ties to even.
    const unsigned word = __float_as_uint(value);
    return value != value ? 0x7fff : (unsigned short)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
#endif
  }
};

DEVICE bool is_nan(double value) { return value != value; }

// A product that is rounded. The compiler would fuse others with a sum, in one kernel and not in the next.
DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
DEVICE double rounded_product(double a, double b) { return __dmul_rn(a, b); }

#ifdef DTYPE  // for programs with a single dtype
using Bits = Number<DTYPE>::Bits;
using Acc = Number<DTYPE>::Acc;
DEVICE Acc to_acc(Bits bits) { return Number<DTYPE>::acc(bits); }
DEVICE Bits from_acc(Acc value) { return Number<DTYPE>::bits(value); }
#endif
