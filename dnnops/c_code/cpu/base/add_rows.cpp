// Adds rows to those rows of an array that indices select, which gives the gradient with respect to an embedding.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../../common/op.hpp"
#include "plan.hpp"
#include "rounding.hpp"

namespace dnnops {
namespace {

// Inputs: the array, the rows and the indices.
struct Params {
  static const char *op() { return "CpuAddRows"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<Params> &call) {
  const dnnops_tensor &x = call.inputs[0], &rows = call.inputs[1], &indices = call.inputs[2];
  if (indices.dtype != DNNOPS_INT64 || indices.ndim != 1)
    fail(DNNOPS_TYPE_ERROR, "expected an int64 vector of indices, got %s", describe(indices).c_str());
  if (x.ndim < 1 || rows.ndim != x.ndim || rows.dtype != x.dtype || rows.shape[0] != indices.shape[0] ||
      !std::equal(x.shape + 1, x.shape + x.ndim, rows.shape + 1))
    fail(DNNOPS_VALUE_ERROR, "%s cannot be added to %lld rows of %s", describe(rows).c_str(),
         (long long)indices.shape[0], describe(x).c_str());
  set_output(call.outputs[0], x);
}

std::vector<int64_t> rows_of(const dnnops_tensor &indices, int64_t count) {
  std::vector<int64_t> found(indices.shape[0]);
  for (size_t i = 0; i < found.size(); ++i) {
    const int64_t given =
        *reinterpret_cast<const int64_t *>(static_cast<const char *>(indices.data) + i * indices.strides[0]);
    found[i] = given < 0 ? given + count : given;
    if (found[i] < 0 || found[i] >= count)
      fail(DNNOPS_INDEX_ERROR, "index %lld is out of bounds for %lld rows", (long long)given, (long long)count);
  }
  return found;
}

// The array itself if its elements are adjacent, else a copy in `memory`.
template <class T>
T *dense(const dnnops_tensor &tensor, std::vector<T> &memory) {
  if (is_contiguous(tensor)) return static_cast<T *>(tensor.data);
  memory.resize(element_count(tensor.shape, tensor.ndim));
  pack(tensor, memory.data(), false);
  return memory.data();
}

// Each thread adds some columns of all rows, in the order of the indices, so results do not depend on the threads.
template <class T>
void add(const OpCall<Params> &call) {
  const dnnops_tensor &x = call.inputs[0], &output = call.outputs[0];
  // Nothing is written if an index is out of bounds.
  const std::vector<int64_t> selected = rows_of(call.inputs[2], x.shape[0]);
  const int64_t width = element_count(x.shape + 1, x.ndim - 1);
  std::vector<T> copied_rows, copied_sums;
  const T *const rows = dense<T>(call.inputs[1], copied_rows);
  T *sums;
  if (output.data == x.data) {
    sums = dense<T>(x, copied_sums);
  } else {
    sums = static_cast<T *>(output.data);
    pack(x, sums, false);
  }
  constexpr int64_t kLeast = 16384, kLine = 64 / sizeof(T);
  const int64_t lines = ceil_div(width, kLine);
  const int64_t threads = std::clamp<int64_t>(width * (int64_t)selected.size() / kLeast, 1,
                                              std::max<int64_t>(1, std::min(lines, thread_count())));
#pragma omp parallel for if (threads > 1)
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t begin = lines * thread / threads * kLine;
    const int64_t end = std::min(width, lines * (thread + 1) / threads * kLine);
    for (size_t i = 0; i < selected.size(); ++i) {
      T *const sum = sums + selected[i] * width;
      const T *const row = rows + (int64_t)i * width;
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) sum[j] += row[j];
    }
  }
  if (sums != static_cast<T *>(output.data)) unpack(sums, output, false);
}

void run(const OpCall<Params> &call) {
  for_float_dtype(call.inputs[0].dtype, [&](auto zero) { add<decltype(zero)>(call); });
}

}  // namespace

DNNOPS_OP(onednn_add_rows, Params, shape, run)

}  // namespace dnnops
