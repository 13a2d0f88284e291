// float16 from and to float32, in arithmetic that compilers vectorize on any processor.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "elementary.hpp"
#include "pieces.hpp"

namespace dnnops {
namespace {

inline float widen(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
  // The exponent biases differ by 112. A multiplication also converts subnormal numbers.
  const float number = bits_as<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude << 13 | 0x7f800000;
  return bits_as<float>((magnitude >= 0x7c00 ? special : bits_as<uint32_t>(number)) | sign);
}

// Rounds to nearest, ties to even.
inline uint16_t narrow(float number) {
  const uint32_t bits = bits_as<uint32_t>(number), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  // Values that become subnormal are rounded by adding 0.5, which aligns their last digit with that of the sum.
  const uint32_t small = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : 0x7c00;
  const uint32_t half = magnitude < 0x38800000 ? small : magnitude >= 0x477ff000 ? special : normal;
  return (uint16_t)(half | sign);
}

void widen_all(const uint16_t *from, float *to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}
void narrow_all(const float *from, uint16_t *to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = narrow(from[i]);
}

template <class From, class To, class Cast>
void cast_all(const dnnops_tensor &x, const dnnops_tensor &y, Cast &&cast) {
  const Pieces<From> source(x);
  const Pieces<To> result(y);
  by_pieces(element_count(y.shape, y.ndim), [&](int64_t begin, int64_t count) {
    From read[kPiece];
    To written[kPiece];
    cast(source.read(begin, count, read), result.target(begin, written), count);
    result.finish(begin, count, written);
  });
}

struct Params {
  static const char *op() { return "OneDnnHalfCast"; }
  static int input_count() { return 1; }
};

void shape(const OpCall<Params> &call) {
  const dnnops_tensor &x = call.inputs[0];
  if (x.dtype != DNNOPS_FLOAT16 && x.dtype != DNNOPS_FLOAT32)
    fail(DNNOPS_TYPE_ERROR, "expected float16 or float32, got %s", dtype_name(x.dtype));
  set_output(call.outputs[0], x.dtype == DNNOPS_FLOAT16 ? DNNOPS_FLOAT32 : DNNOPS_FLOAT16, x.shape, x.ndim);
}

void run(const OpCall<Params> &call) {
  if (call.inputs[0].dtype == DNNOPS_FLOAT16)
    cast_all<uint16_t, float>(call.inputs[0], call.outputs[0], widen_all);
  else
    cast_all<float, uint16_t>(call.inputs[0], call.outputs[0], narrow_all);
}

}  // namespace

DNNOPS_OP(onednn_half_cast, Params, shape, run)

}  // namespace dnnops
