// Elements of arrays of the dtype DTYPE (a dnnops_dtype), and the type that is computed in.
#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

#if DTYPE == 0
typedef float Element;
typedef float Real;
#elif DTYPE == 1
typedef double Element;
typedef double Real;
#else
typedef unsigned short Element;
typedef float Real;
#endif

DEVICE Real value_of(Element element) {
#if DTYPE < 2
  return element;
#elif DTYPE == 3
  return __uint_as_float((unsigned)element << 16);
#elif defined(__CUDACC__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
  return value;
#else
  return half_value(element);
#endif
}

DEVICE Element element_of(Real value) {
#if DTYPE < 2
  return value;
#elif defined(__CUDACC__)
  Element element;
#if DTYPE == 2
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element) : "f"(value));
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element) : "f"(value));
#endif
  return element;
#else
  return DTYPE == 2 ? to_half(value) : to_bfloat(value);
#endif
}

DEVICE bool is_nan(double value) { return value != value; }
