// An attention problem: its operands, their checks, and which scores are hidden.
#ifndef DNNOPS_ONEDNN_ATTENTION_PROBLEM_HPP
#define DNNOPS_ONEDNN_ATTENTION_PROBLEM_HPP

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../regularization/philox.hpp"
#include "../base/plan.hpp"

namespace dnnops::attention {

// The optional operands, in order.
enum Given : int64_t { GIVEN_MASK = 1, GIVEN_QUERY_LENGTHS = 2, GIVEN_KEY_LENGTHS = 4, GIVEN_STATE = 8 };

struct Words {
  double scale;
  int64_t has_scale, is_causal, given;  // given: a bit for each optional operand
  double dropout;
};

template <class T>
struct Problem {
  static constexpr int64_t kDtype = std::is_same_v<T, float> ? DNNOPS_FLOAT32 : DNNOPS_FLOAT64;
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  int64_t batch, heads, shared_heads, group, queries, keys, depth, value_depth;  // group: query heads per key head
  T scale;
  bool is_causal;
  const dnnops_tensor *mask = nullptr, *query_lengths = nullptr, *key_lengths = nullptr;
  int optional_count = 0;
  double dropout;
  int64_t state[2] = {0, 0};

  Problem(const Words &words, const dnnops_tensor *inputs) {
    const dnnops_tensor &query = inputs[0], &key = inputs[1], &value = inputs[2];
    for (int i = 0; i < 3; ++i) {
      check_dtype(inputs[i]);
      if (inputs[i].ndim != 4) fail(DNNOPS_TYPE_ERROR, "query, key and value have to have 4 dimensions");
    }
    batch = query.shape[0], heads = query.shape[1], queries = query.shape[2], depth = query.shape[3];
    shared_heads = key.shape[1], keys = key.shape[2], value_depth = value.shape[3];
    if (key.shape[0] != batch || value.shape[0] != batch || value.shape[1] != shared_heads ||
        value.shape[2] != keys || key.shape[3] != depth)
      fail(DNNOPS_VALUE_ERROR, "batch, heads, keys or depth of query, key and value differ");
    if (shared_heads == 0 ? heads != 0 : heads % shared_heads != 0)
      fail(DNNOPS_VALUE_ERROR, "the heads of query have to be a multiple of those of key and value");
    // With a depth of 0, all scores are 0 for any scale.
    scale = (T)(words.has_scale ? words.scale : 1 / std::sqrt((double)std::max<int64_t>(depth, 1)));
    group = shared_heads ? heads / shared_heads : 1;
    is_causal = words.is_causal;
    dropout = words.dropout;
    const dnnops_tensor *next = inputs + 3;
    if (words.given & GIVEN_MASK) mask = next++;
    if (words.given & GIVEN_QUERY_LENGTHS) query_lengths = next++;
    if (words.given & GIVEN_KEY_LENGTHS) key_lengths = next++;
    if (words.given & GIVEN_STATE) read_vector("state", *next++, 2, state);
    optional_count = (int)(next - inputs) - 3;
    if (mask) {
      const int64_t sizes[4] = {batch, heads, queries, keys};
      bool fits = mask->ndim == 4 && (mask->dtype == DNNOPS_BOOL || mask->dtype == kDtype);
      for (int i = 0; fits && i < 4; ++i) fits = mask->shape[i] == sizes[i] || mask->shape[i] == 1;
      if (!fits)
        fail(DNNOPS_VALUE_ERROR, "mask must be %s or bool, with a shape that broadcasts to %s",
             dtype_name(kDtype), list_of(sizes, 4).c_str());
    }
    for (const dnnops_tensor *lengths : {query_lengths, key_lengths})
      if (lengths && (lengths->dtype != DNNOPS_INT64 || lengths->ndim != 1 || lengths->shape[0] != batch))
        fail(DNNOPS_VALUE_ERROR, "lengths have to be int64, and one for each batch entry");
  }

  static void check_dtype(const dnnops_tensor &operand) {
    if (operand.dtype != kDtype)
      fail(DNNOPS_TYPE_ERROR, "expected %s, got %s", dtype_name(kDtype), describe(operand).c_str());
  }
  static int64_t length_of(const dnnops_tensor *lengths, int64_t n, int64_t all) {
    if (!lengths) return all;
    return *reinterpret_cast<const int64_t *>(static_cast<const char *>(lengths->data) + n * lengths->strides[0]);
  }
  void check_lengths() const {
    const auto check = [&](const char *name, const dnnops_tensor *lengths, int64_t all) {
      for (int64_t n = 0; n < batch; ++n) {
        const int64_t given = length_of(lengths, n, all);
        if (given < 0 || given > all)
          fail(DNNOPS_VALUE_ERROR, "%s have to be between 0 and %lld, got %lld", name, (long long)all,
               (long long)given);
      }
    };
    check("query_lengths", query_lengths, queries);
    check("key_lengths", key_lengths, keys);
  }
  int64_t query_count(int64_t n) const { return length_of(query_lengths, n, queries); }
  // The number of keys visible to a block of queries that ends at `end`.
  int64_t key_count(int64_t n, int64_t end) const {
    const int64_t count = length_of(key_lengths, n, keys);
    return is_causal ? std::min(count, end) : count;
  }

  // Applies dropout to the first `count` scores of query i: multiplies each by 0 or 1.
  void drop(int64_t n, int64_t head, int64_t i, int64_t count, T *values) const {
    const uint32_t threshold = (uint32_t)(dropout * 4294967296.0);
    const int64_t first = ((n * heads + head) * queries + i) * keys;
    uint32_t words[kGroup];
    for (int64_t group = first / kGroup; group * kGroup < first + count; ++group) {
      draw((uint64_t)state[0], (uint64_t)state[1] + (uint64_t)(group * kBlocks), words);
      const int64_t begin = std::max(first, group * kGroup), end = std::min(first + count, (group + 1) * kGroup);
      T *from = values + (begin - first);
      const uint32_t *word = words + (begin - group * kGroup);
#pragma omp simd
      for (int64_t j = 0; j < end - begin; ++j) from[j] = word[j] >= threshold ? from[j] : 0;
    }
  }
  T kept_scale() const { return (T)(1 / (1 - dropout)); }

  // Adds the mask to the first `count` scores of query i, and hides those of keys that it must not see.
  void hide(int64_t n, int64_t head, int64_t i, int64_t count, T *scores) const {
    if (mask) {
      const auto step = [&](int axis) { return mask->shape[axis] == 1 ? 0 : mask->strides[axis]; };
      const char *row = static_cast<const char *>(mask->data) + n * step(0) + head * step(1) + i * step(2);
      const int64_t by = step(3);
      if (mask->dtype == DNNOPS_BOOL)
        for (int64_t j = 0; j < count; ++j) scores[j] = row[j * by] ? scores[j] : kHidden;
      else
        for (int64_t j = 0; j < count; ++j) scores[j] += *reinterpret_cast<const T *>(row + j * by);
    }
    if (is_causal)
      for (int64_t j = i + 1; j < count; ++j) scores[j] = kHidden;
  }
};

// The matrices of a four-axis array: rows are dense, at a distance that matrix products support.
template <class T>
struct Matrices {
  T *data;
  int64_t strides[4];

  explicit Matrices(const dnnops_tensor &tensor) : data(static_cast<T *>(tensor.data)) {
    contiguous_strides(4, tensor.shape, strides);
  }
  // Of an output, which has dense rows.
  static Matrices written(const dnnops_tensor &tensor) {
    Matrices matrices(tensor);
    for (int i = 0; i < 3; ++i) matrices.strides[i] = tensor.strides[i] / (int64_t)sizeof(T);
    return matrices;
  }
  // Uses the array in place if possible.
  static bool read(const dnnops_tensor &tensor, Matrices &matrices) {
    int64_t found[4];
    if (!addressable_strides(tensor, found)) return false;
    const int64_t width = tensor.shape[3];
    if ((width != 1 && found[3] != 1) || found[2] < width) return false;
    std::copy(found, found + 4, matrices.strides);
    return true;
  }
  T *at(int64_t n, int64_t head, int64_t row = 0) const {
    return data + n * strides[0] + head * strides[1] + row * strides[2];
  }
  int64_t leading(int64_t width) const { return std::max(strides[2], std::max<int64_t>(width, 1)); }
};

// The inputs that are four-axis float arrays, packed where necessary.
template <class T>
std::vector<Matrices<T>> matrices_of(std::initializer_list<const dnnops_tensor *> tensors) {
  std::vector<Matrices<T>> all;
  std::vector<bool> is_read;
  size_t bytes = 0;
  const auto size = [](const dnnops_tensor &tensor) {
    return (element_count(tensor.shape, tensor.ndim) * sizeof(T) + 63) / 64 * 64;
  };
  for (const dnnops_tensor *tensor : tensors) {
    all.emplace_back(*tensor);
    is_read.push_back(Matrices<T>::read(*tensor, all.back()));
    if (!is_read.back()) bytes += size(*tensor);
  }
  char *scratch = thread_scratch(bytes);
  size_t i = 0;
  for (const dnnops_tensor *tensor : tensors) {
    if (!is_read[i]) {
      pack(*tensor, scratch, false);
      all[i].data = reinterpret_cast<T *>(scratch);
      scratch += size(*tensor);
    }
    ++i;
  }
  return all;
}

}  // namespace dnnops::attention
#endif
