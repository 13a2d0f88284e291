// Numbers of the dtype DTYPE (a dnnops_dtype): as they lie in memory, and to compute with.  Programs that use it are
// compiled with CuPy by dnnops/cudnn/kernels.py, and tests compile them for the host.

#if DTYPE == 1
using Bits = double;
using Acc = double;
#elif DTYPE == 0
using Bits = float;
using Acc = float;
#else
using Bits = unsigned short;  // as it lies in memory
using Acc = float;
#endif

#ifdef __CUDACC__
DEVICE float low_half(unsigned word) {
  float value;
#if DTYPE == 2
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
#else
  value = __uint_as_float(word << 16);
#endif
  return value;
}
DEVICE float high_half(unsigned word) {
  float value;
#if DTYPE == 2
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(word));
#else
  value = __uint_as_float(word & 0xffff0000u);
#endif
  return value;
}
DEVICE unsigned short half_bits(float value) {
  unsigned short bits;
#if DTYPE == 2
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  return bits;
}
#endif

DEVICE Acc to_acc(Bits bits) {
#if DTYPE < 2
  return bits;
#else
  return low_half(bits);
#endif
}

DEVICE Bits from_acc(Acc value) {
#if DTYPE < 2
  return value;
#else
  return half_bits(value);
#endif
}
