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

// CuPy has kernels compiled so that float32 operations flush subnormal numbers to zero. These keep them, at no cost.
#ifdef __CUDACC__
DEVICE float multiply_add(float x, float y, float z) {
  float sum;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(x), "f"(y), "f"(z));
  return sum;
}
DEVICE double multiply_add(double x, double y, double z) { return fma(x, y, z); }
DEVICE float plus(float x, float y) {
  float sum;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(y));
  return sum;
}
DEVICE float product(float x, float y) {
  float of;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(of) : "f"(x), "f"(y));
  return of;
}
DEVICE double widened(float value) {
  double wide;
  asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
  return wide;
}
DEVICE float narrowed(double value) {
  float nearest;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(nearest) : "d"(value));
  return nearest;
}
DEVICE double plus(double x, double y) { return x + y; }
DEVICE double product(double x, double y) { return x * y; }
DEVICE double widened(double value) { return value; }
#endif

// Whether a number is larger than 0; not for NaN. A comparison would take a subnormal float32 number for 0.
DEVICE bool is_positive(float value) { return (int)__float_as_uint(value) > 0 && value == value; }
DEVICE bool is_positive(double value) { return value > 0; }

// The power of 2 in a positive number, and its inverse. Both are normal numbers, also for subnormal numbers.
template <class T>
struct Power {
  T of, inverse;
};
DEVICE Power<float> power_in(float value) {
  const unsigned bits = __float_as_uint(value) & 0x7f800000u;
  const unsigned kept = bits < 0x800000u ? 0x800000u : bits > 0x7e800000u ? 0x7e800000u : bits;
  return {__uint_as_float(kept), __uint_as_float(0x7f000000u - kept)};
}
DEVICE Power<double> power_in(double value) {
  const int bits = __double2hiint(value) & 0x7ff00000;
  const int kept = bits < 0x100000 ? 0x100000 : bits > 0x7fd00000 ? 0x7fd00000 : bits;
  return {__hiloint2double(kept, 0), __hiloint2double(0x7fe00000 - kept, 0)};
}

#ifdef DTYPE  // for programs with a single dtype
using Bits = Number<DTYPE>::Bits;
using Acc = Number<DTYPE>::Acc;
DEVICE Acc to_acc(Bits bits) { return Number<DTYPE>::acc(bits); }
DEVICE Bits from_acc(Acc value) { return Number<DTYPE>::bits(value); }
#endif
