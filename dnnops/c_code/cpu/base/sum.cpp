// Sums a float32 array over axes around adjacent ones that stay, which gives the gradient with respect to a bias or a
// mean over pixels. Sums are accumulated in float64.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../../common/op.hpp"
#include "plan.hpp"
#include "row_sums.hpp"

namespace dnnops {
namespace {

// The axes [first, last) stay.
struct Params {
  int64_t first, last;
  static const char *op() { return "CpuSum"; }
  static int input_count() { return 1; }
};

using Doubles = Vector<double>::Values;
using Floats = float __attribute__((vector_size(kVectorBytes / 2)));
constexpr int kWide = kLanes<double>;

inline Doubles load_wide(const float *from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return __builtin_convertvector(values, Doubles);
}

// The array as one of three axes (before, kept, after), with strides in elements.
struct View {
  const float *data;
  int64_t sizes[3], strides[3];
};

// Describes adjacent axes as one, if they have one stride.
bool as_one(const dnnops_tensor &tensor, const int64_t *strides, int64_t begin, int64_t end, int64_t &size,
            int64_t &stride) {
  size = 1, stride = 0;
  for (int64_t axis = end - 1; axis >= begin; --axis) {
    if (tensor.shape[axis] == 1) continue;
    if (size == 1)
      stride = strides[axis];
    else if (strides[axis] != stride * size)
      return false;
    size *= tensor.shape[axis];
  }
  return true;
}

View view_of(const dnnops_tensor &input, const Params &params) {
  View view;
  view.data = static_cast<const float *>(input.data);
  const int64_t bounds[4] = {0, params.first, params.last, input.ndim};
  int64_t strides[DNNOPS_MAX_NDIM];
  bool fits = addressable_strides(input, strides);
  for (int i = 0; i < 3 && fits; ++i)
    fits = as_one(input, strides, bounds[i], bounds[i + 1], view.sizes[i], view.strides[i]);
  // Columns that are adjacent in memory are rows of the transposed array.
  if (fits && view.sizes[2] == 1 && view.strides[1] != 1 && view.strides[0] == 1) {
    std::swap(view.sizes[0], view.sizes[2]);
    std::swap(view.strides[0], view.strides[2]);
  }
  if (fits && (view.sizes[2] == 1 ? view.strides[1] == 1 || view.sizes[1] == 1 : view.strides[2] == 1)) return view;
  float *packed = reinterpret_cast<float *>(thread_scratch(element_count(input.shape, input.ndim) * sizeof(float)));
  pack(input, packed, false);
  view.data = packed;
  for (int i = 0; i < 3; ++i)
    view.sizes[i] = element_count(input.shape + bounds[i], bounds[i + 1] - bounds[i]);
  view.strides[2] = 1;
  view.strides[1] = view.sizes[2];
  view.strides[0] = view.sizes[1] * view.sizes[2];
  return view;
}

double sum_of_row(const float *row, int64_t count) {
  Doubles sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kWide <= count; i += 4 * kWide)
    for (int k = 0; k < 4; ++k) sums[k] += load_wide(row + i + k * kWide);
  sums[0] += sums[1] + (sums[2] + sums[3]);
  double total = 0;
  for (int j = 0; j < kWide; ++j) total += sums[0][j];
  for (; i < count; ++i) total += row[i];
  return total;
}

// Adds rows of `count` adjacent elements to sums.
void add_rows(const float *rows, int64_t row_count, int64_t stride, int64_t count, double *sums) {
  int64_t j = 0;
  for (; j + 4 * kWide <= count; j += 4 * kWide) {
    Doubles found[4];
    std::memcpy(found, sums + j, sizeof found);
    for (int64_t i = 0; i < row_count; ++i)
      for (int k = 0; k < 4; ++k) found[k] += load_wide(rows + i * stride + j + k * kWide);
    std::memcpy(sums + j, found, sizeof found);
  }
  for (; j < count; ++j)
    for (int64_t i = 0; i < row_count; ++i) sums[j] += rows[i * stride + j];
}

// Elements per thread that are worth starting it.
constexpr int64_t kLeast = 8192;
// Elements of a row that are one unit of work, and columns whose sums one thread adds up.
constexpr int64_t kPart = 4096, kColumns = 512;

// Calls body(task, part) for each of `tasks`, each divided into parts if there are fewer tasks than threads. Adds up
// the sums of the parts: `width` sums for each task and part.
template <class Body>
void in_parts(int64_t tasks, int64_t units, int64_t elements, int64_t width, std::vector<double> &sums, Body &&body) {
  const int64_t threads = std::clamp<int64_t>(elements / kLeast, 1, thread_count());
  const int64_t parts = std::clamp<int64_t>((threads + tasks - 1) / tasks, 1, std::max<int64_t>(units, 1));
  sums.assign(tasks * parts * width, 0);
#pragma omp parallel for if (threads > 1)
  for (int64_t i = 0; i < tasks * parts; ++i) {
    const int64_t task = i / parts, part = i % parts;
    body(task, units * part / parts, units * (part + 1) / parts, sums.data() + i * width);
  }
  for (int64_t task = 0; task < tasks && parts > 1; ++task)
    for (int64_t j = 0; j < width; ++j) {
      double total = 0;
      for (int64_t part = 0; part < parts; ++part) total += sums[(task * parts + part) * width + j];
      sums[task * width + j] = total;
    }
}

void run(const OpCall<Params> &call) {
  const View view = view_of(call.inputs[0], call.params);
  float *const output = static_cast<float *>(call.outputs[0].data);
  const auto [before, kept, after] = view.sizes;
  const int64_t elements = before * kept * after;
  if (kept == 0) return;
  if (elements == 0) {
    std::fill_n(output, kept, 0.f);
    return;
  }
  std::vector<double> sums;
  if (after > 1 || kept == 1) {
    const bool is_row = after > 1;
    const int64_t length = is_row ? after : 1, pieces = (length + kPart - 1) / kPart;
    in_parts(kept, before * pieces, elements, 1, sums, [&](int64_t k, int64_t begin, int64_t end, double *sum) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t n = unit / pieces, from = unit % pieces * kPart;
        const float *const row = view.data + n * view.strides[0] + k * view.strides[1];
        *sum += sum_of_row(row + from, std::min(kPart, length - from));
      }
    });
    for (int64_t k = 0; k < kept; ++k) output[k] = (float)sums[k];
    return;
  }
  const int64_t groups = (kept + kColumns - 1) / kColumns, width = std::min(kept, kColumns);
  in_parts(groups, before, elements, width, sums, [&](int64_t group, int64_t begin, int64_t end, double *found) {
    const int64_t from = group * kColumns, columns = std::min(kColumns, kept - from);
    add_rows(view.data + begin * view.strides[0] + from, end - begin, view.strides[0], columns, found);
  });
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t j = group * kColumns; j < std::min(kept, (group + 1) * kColumns); ++j)
      output[j] = (float)sums[group * width + j - group * kColumns];
}

void shape(const OpCall<Params> &call) {
  const dnnops_tensor &input = call.inputs[0];
  dnnl_dtype(input.dtype);
  const auto [first, last] = call.params;
  if (first < 0 || first > last || last > input.ndim)
    fail(DNNOPS_TYPE_ERROR, "cannot keep the axes from %lld to %lld", (long long)first, (long long)last);
  set_output(call.outputs[0], DNNOPS_FLOAT32, input.shape + first, last - first);
}

}  // namespace

DNNOPS_OP(onednn_sum, Params, shape, run)

}  // namespace dnnops
