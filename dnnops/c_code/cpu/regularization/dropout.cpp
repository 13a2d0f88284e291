// Dropout and its gradient, with Philox4x32-10 random numbers as described in dnnops/nnet/regularization/dropout.py.
#include "philox.hpp"
#include "../../common/op.hpp"
#include "../base/pieces.hpp"
#include "../base/plan.hpp"

namespace dnnops {
namespace {

static_assert(kPiece % kGroup == 0, "groups would be cut");

// Packs eight bytes of 0 or 1 into the bits of one byte, lowest bit first.
uint8_t bits_of(const uint8_t *flags) {
  uint8_t bits = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  uint64_t word;
  std::memcpy(&word, flags, sizeof word);
  bits = (uint8_t)(word * 0x0102040810204080u >> 56);
#else
  for (int i = 0; i < 8; ++i) bits |= (uint8_t)(flags[i] << i);
#endif
  return bits;
}

// The loops below are separate functions because compilers cannot keep a lambda's captures in registers.

// Sets elements whose word is below the threshold to zero, and writes a bit for each element that is kept.
template <class T>
void drop(const T *from, T *to, int64_t count, const uint32_t *words, uint32_t threshold, T scale, uint8_t *bits) {
  uint8_t kept[kGroup] = {0};
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T value = from[i] * scale;
    to[i] = words[i] >= threshold ? value : (T)0;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) kept[i] = words[i] >= threshold;
  for (int64_t i = 0; i < count; i += 8) bits[i / 8] = bits_of(kept + i);
}

// Sets up to 32 elements to zero where their bit is not set.
template <class T>
void drop_by_bits(const T *from, T *to, int64_t count, const uint8_t *bytes, T scale) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < (count + 7) / 8; ++i) bits |= (uint32_t)bytes[i] << 8 * i;
#pragma omp simd
  for (int32_t i = 0; i < (int32_t)count; ++i) {
    const T value = from[i] * scale;
    to[i] = bits >> i & 1 ? value : (T)0;
  }
}

template <class T>
void forward(const dnnops_tensor &x, double p, DropoutPlace place, const dnnops_tensor &y, uint8_t *reserve) {
  const Pieces<T> source(x), result(y);
  const T scale = (T)dropout_scale(p);
  const uint32_t threshold = dropout_threshold(p);
  by_pieces(element_count(x.shape, x.ndim), [&](int64_t begin, int64_t count) {
    T read[kPiece], written[kPiece];
    const T *from = source.read(begin, count, read);
    T *to = result.target(begin, written);
    for (int64_t at = 0; at < count; at += kGroup) {
      uint32_t words[kGroup];
      draw(place.seed, place.offset + (uint64_t)((begin + at) / kGroup * kBlocks), words);
      uint8_t *bits = reserve + (begin + at) / 8;
      if (count - at >= kGroup)
        drop(from + at, to + at, kGroup, words, threshold, scale, bits);
      else
        drop(from + at, to + at, count - at, words, threshold, scale, bits);
    }
    result.finish(begin, count, written);
  });
}

template <class T>
void backward(const dnnops_tensor &gy, double p, const uint8_t *reserve, const dnnops_tensor &gx) {
  const Pieces<T> source(gy), result(gx);
  const T scale = (T)dropout_scale(p);
  by_pieces(element_count(gy.shape, gy.ndim), [&](int64_t begin, int64_t count) {
    T read[kPiece], written[kPiece];
    const T *from = source.read(begin, count, read);
    T *to = result.target(begin, written);
    for (int64_t at = 0; at < count; at += 32) {
      const uint8_t *bytes = reserve + (begin + at) / 8;
      if (count - at >= 32)
        drop_by_bits(from + at, to + at, 32, bytes, scale);
      else
        drop_by_bits(from + at, to + at, count - at, bytes, scale);
    }
    result.finish(begin, count, written);
  });
}

struct Params {
  static const char *op() { return "OneDnnDropout"; }
  static int input_count() { return 3; }
};
struct GradParams {
  static const char *op() { return "OneDnnDropoutGrad"; }
  static int input_count() { return 3; }
};

void check_data(const dnnops_tensor &x) {
  if (x.dtype != DNNOPS_FLOAT32 && x.dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "dropout supports float32 and float64, got %s", dtype_name(x.dtype));
}

void shape(const OpCall<Params> &call) {
  check_data(call.inputs[0]);
  dropout_shapes(call.inputs, call.outputs);
}

void shape(const OpCall<GradParams> &call) {
  check_data(call.inputs[0]);
  dropout_grad_shape(call.inputs, call.outputs);
}

void run(const OpCall<Params> &call) {
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs, &x = inputs[0];
  const double p = read_probability(inputs[1]);
  const DropoutPlace state = read_place(inputs[2]);
  auto *reserve = static_cast<uint8_t *>(outputs[1].data);
  if (x.dtype == DNNOPS_FLOAT32)
    forward<float>(x, p, state, outputs[0], reserve);
  else
    forward<double>(x, p, state, outputs[0], reserve);
  write_next_place(state, element_count(x.shape, x.ndim), outputs[2].data);
}

void run(const OpCall<GradParams> &call) {
  const dnnops_tensor &gy = call.inputs[0], &reserve = call.inputs[2];
  const double p = read_probability(call.inputs[1]);
  const auto *bytes = static_cast<const uint8_t *>(reserve.data);
  if (!is_contiguous(reserve)) {
    auto *packed = reinterpret_cast<uint8_t *>(thread_scratch(reserve.shape[0] + 1));
    bytes = Pieces<uint8_t>(reserve).read(0, reserve.shape[0], packed);
  }
  if (gy.dtype == DNNOPS_FLOAT32)
    backward<float>(gy, p, bytes, call.outputs[0]);
  else
    backward<double>(gy, p, bytes, call.outputs[0]);
}

}  // namespace

DNNOPS_OP(onednn_dropout, Params, shape, run)
DNNOPS_OP(onednn_dropout_grad, GradParams, shape, run)

}  // namespace dnnops
