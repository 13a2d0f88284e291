// Scaled dot-product attention and its gradients in float32: products by oneDNN, and between them one pass over
// the scores of a block of queries, which stay in the cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <vector>

#include "elementary.hpp"
#include "philox.hpp"
#include "plan.hpp"

namespace dnnops {
namespace {

constexpr int64_t kRows = 128;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// params: the factor's bits, whether it is given, whether attention is causal, a bit for each of mask, query_lengths,
// key_lengths and state, and the bits of dropout's probability.
struct Problem {
  int64_t batch, heads, shared_heads, group, queries, keys, depth, value_depth;  // group: heads that share a key
  float scale;
  bool is_causal;
  const dnnops_tensor *mask = nullptr, *query_lengths = nullptr, *key_lengths = nullptr;
  int optional_count = 0;
  double dropout = 0;
  int64_t state[2] = {0, 0};

  Problem(const int64_t *params, const dnnops_tensor *inputs) {
    const dnnops_tensor &query = inputs[0], &key = inputs[1], &value = inputs[2];
    for (int i = 0; i < 3; ++i) {
      dnnl_dtype(inputs[i].dtype);
      if (inputs[i].ndim != 4) fail(DNNOPS_TYPE_ERROR, "query, key and value have to have 4 dimensions");
    }
    batch = query.shape[0], heads = query.shape[1], queries = query.shape[2], depth = query.shape[3];
    shared_heads = key.shape[1], keys = key.shape[2], value_depth = value.shape[3];
    if (key.shape[0] != batch || value.shape[0] != batch || value.shape[1] != shared_heads ||
        value.shape[2] != keys || key.shape[3] != depth)
      fail(DNNOPS_VALUE_ERROR, "batch, heads, keys or depth of query, key and value differ");
    if (shared_heads == 0 ? heads != 0 : heads % shared_heads != 0)
      fail(DNNOPS_VALUE_ERROR, "the heads of query have to be a multiple of those of key and value");
    double given;
    std::memcpy(&given, params, sizeof given);
    // Of no depth all scores are 0, whatever they are multiplied by.
    scale = (float)(params[1] ? given : 1 / std::sqrt((double)std::max<int64_t>(depth, 1)));
    group = shared_heads ? heads / shared_heads : 1;
    is_causal = params[2];
    const dnnops_tensor *next = inputs + 3;
    if (params[3] & 1) mask = next++;
    if (params[3] & 2) query_lengths = next++;
    if (params[3] & 4) key_lengths = next++;
    if (params[3] & 8) read_vector("state", *next++, 2, state);
    optional_count = (int)(next - inputs) - 3;
    std::memcpy(&dropout, params + 4, sizeof dropout);
    if (mask) {
      const int64_t sizes[4] = {batch, heads, queries, keys};
      bool fits = mask->ndim == 4 && (mask->dtype == DNNOPS_BOOL || mask->dtype == DNNOPS_FLOAT32);
      for (int i = 0; fits && i < 4; ++i) fits = mask->shape[i] == sizes[i] || mask->shape[i] == 1;
      if (!fits)
        fail(DNNOPS_VALUE_ERROR, "mask has to be float32 or bool of shape %s, or 1 in the place of a size",
             list_of(sizes, 4).c_str());
    }
    for (const dnnops_tensor *lengths : {query_lengths, key_lengths})
      if (lengths && (lengths->dtype != DNNOPS_INT64 || lengths->ndim != 1 || lengths->shape[0] != batch))
        fail(DNNOPS_VALUE_ERROR, "lengths have to be int64, and one for each batch entry");
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
  // How many keys the queries of a block that ends with `end` may see.
  int64_t key_count(int64_t n, int64_t end) const {
    const int64_t count = length_of(key_lengths, n, keys);
    return is_causal ? std::min(count, end) : count;
  }

  // Multiplies the first `count` of what there is of query i's scores by 0 or 1, as dropout has it.
  void drop(int64_t n, int64_t head, int64_t i, int64_t count, float *values) const {
    const uint32_t threshold = (uint32_t)(dropout * 4294967296.0);
    const int64_t first = ((n * heads + head) * queries + i) * keys;
    uint32_t words[kGroup];
    for (int64_t group = first / kGroup; group * kGroup < first + count; ++group) {
      draw((uint64_t)state[0], (uint64_t)state[1] + (uint64_t)(group * kBlocks), words);
      const int64_t begin = std::max(first, group * kGroup), end = std::min(first + count, (group + 1) * kGroup);
      float *from = values + (begin - first);
      const uint32_t *word = words + (begin - group * kGroup);
#pragma omp simd
      for (int64_t j = 0; j < end - begin; ++j) from[j] = word[j] >= threshold ? from[j] : 0.f;
    }
  }
  float kept_scale() const { return (float)(1 / (1 - dropout)); }

  // Hides what query i does not see of its first `count` scores, and adds the mask.
  void hide(int64_t n, int64_t head, int64_t i, int64_t count, float *scores) const {
    if (mask) {
      const auto step = [&](int axis) { return mask->shape[axis] == 1 ? 0 : mask->strides[axis]; };
      const char *row = static_cast<const char *>(mask->data) + n * step(0) + head * step(1) + i * step(2);
      const int64_t by = step(3);
      if (mask->dtype == DNNOPS_BOOL)
        for (int64_t j = 0; j < count; ++j) scores[j] = row[j * by] ? scores[j] : kHidden;
      else
        for (int64_t j = 0; j < count; ++j) scores[j] += *reinterpret_cast<const float *>(row + j * by);
    }
    if (is_causal)
      for (int64_t j = i + 1; j < count; ++j) scores[j] = kHidden;
  }
};

// The matrices of an array of four axes: rows dense, at a distance that products can take.
struct Matrices {
  float *data;
  int64_t strides[4];

  explicit Matrices(const dnnops_tensor &tensor) : data(static_cast<float *>(tensor.data)) {
    contiguous_strides(4, tensor.shape, strides);
  }
  // As it lies, if that can be.
  static bool read(const dnnops_tensor &tensor, Matrices &matrices) {
    int64_t found[4];
    if (!addressable_strides(tensor, found)) return false;
    const int64_t width = tensor.shape[3];
    if ((width != 1 && found[3] != 1) || found[2] < width) return false;
    std::copy(found, found + 4, matrices.strides);
    return true;
  }
  float *at(int64_t n, int64_t head, int64_t row = 0) const {
    return data + n * strides[0] + head * strides[1] + row * strides[2];
  }
  int64_t leading(int64_t width) const { return std::max(strides[2], std::max<int64_t>(width, 1)); }
};

// The inputs that are float arrays of four axes, packed where they have to be.
std::vector<Matrices> matrices_of(std::initializer_list<const dnnops_tensor *> tensors) {
  std::vector<Matrices> all;
  std::vector<bool> is_read;
  size_t bytes = 0;
  const auto size = [](const dnnops_tensor &tensor) {
    return (element_count(tensor.shape, tensor.ndim) * sizeof(float) + 63) / 64 * 64;
  };
  for (const dnnops_tensor *tensor : tensors) {
    all.emplace_back(*tensor);
    is_read.push_back(Matrices::read(*tensor, all.back()));
    if (!is_read.back()) bytes += size(*tensor);
  }
  char *scratch = thread_scratch(bytes);
  size_t i = 0;
  for (const dnnops_tensor *tensor : tensors) {
    if (!is_read[i]) {
      pack(*tensor, scratch, false);
      all[i].data = reinterpret_cast<float *>(scratch);
      scratch += size(*tensor);
    }
    ++i;
  }
  return all;
}

void product(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
             const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // a sum over nothing; oneDNN refuses some of these
    for (int64_t i = 0; i < m && beta == 0; ++i) std::fill_n(c + i * ldc, n, 0.f);
    return;
  }
  DNNL_CHECK(dnnl_sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc));
}

// A block's scores, of queries [begin, end) and the first `count` keys.
void block_scores(const Problem &problem, const Matrices &query, const Matrices &key, int64_t n, int64_t head,
                  int64_t begin, int64_t end, int64_t count, float *scores) {
  const int64_t shared = head / problem.group, depth = problem.depth;
  product('N', 'T', end - begin, count, depth, problem.scale, query.at(n, head, begin), query.leading(depth),
          key.at(n, shared), key.leading(depth), 0, scores, count);
  for (int64_t i = begin; i < end; ++i) problem.hide(n, head, i, count, scores + (i - begin) * count);
}

// What fails in a thread is thrown again outside of the parallel region.
class Failures {
 public:
  template <class Body>
  void run(Body &&body) {
    try {
      body();
    } catch (...) {
#pragma omp critical(dnnops_attention_failure)
      if (!first_) first_ = std::current_exception();
    }
  }
  void raise() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

void forward(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Problem problem(params, inputs);
  problem.check_lengths();
  const int64_t queries = problem.queries, width = problem.value_depth;
  if (problem.batch * problem.heads * queries == 0) return;
  const std::vector<Matrices> in = matrices_of({inputs, inputs + 1, inputs + 2});
  const Matrices out(outputs[0]);
  float *stats = static_cast<float *>(outputs[1].data);
  const int64_t blocks = (queries + kRows - 1) / kRows, tasks = problem.batch * problem.heads * blocks;
  Failures failures;
#pragma omp parallel
  {
    std::vector<float> memory;
    failures.run([&] { memory.resize(kRows * problem.keys); });
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) {
      failures.run([&] {
        // The longest ones of causal attention first.
        const int64_t begin = (blocks - 1 - task % blocks) * kRows, end = std::min(queries, begin + kRows);
        const int64_t head = task / blocks % problem.heads, n = task / blocks / problem.heads;
        const int64_t last = std::max(begin, std::min(end, problem.query_count(n)));
        const int64_t count = problem.key_count(n, last), shared = head / problem.group;
        float *block_stats = stats + (n * problem.heads + head) * queries, *scores = memory.data(), inverses[kRows];
        std::fill(block_stats + begin, block_stats + end, kHidden);
        if (last == begin || count == 0 || (int64_t)memory.size() < kRows * problem.keys) {
          std::fill(out.at(n, head, begin), out.at(n, head, begin) + (end - begin) * width, 0.f);
          return;
        }
        block_scores(problem, in[0], in[1], n, head, begin, last, count, scores);
        for (int64_t i = begin; i < last; ++i) {
          float *row = scores + (i - begin) * count, largest = largest_of(row, count), total = 0;
          inverses[i - begin] = 1;
          if (largest == kHidden) largest = 0;
#pragma omp simd reduction(+ : total)
          for (int64_t j = 0; j < count; ++j) total += row[j] = exponential(row[j] - largest);
          if (total == 0) continue;  // nothing is seen: the weights are zeros
          inverses[i - begin] = 1 / total;
          block_stats[i] = largest + std::log(total);
          if (problem.dropout > 0) {
            problem.drop(n, head, i, count, row);
            inverses[i - begin] *= problem.kept_scale();
          }
        }
        product('N', 'N', last - begin, width, count, 1, scores, count, in[2].at(n, shared), in[2].leading(width), 0,
                out.at(n, head, begin), std::max<int64_t>(width, 1));
        // The output's rows are divided, which are shorter than those of the weights.
        for (int64_t i = begin; i < last; ++i) {
          float *row = out.at(n, head, i);
          const float inverse = inverses[i - begin];
#pragma omp simd
          for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
        }
        std::fill(out.at(n, head, last), out.at(n, head, last) + (end - last) * width, 0.f);
      });
    }
  }
  failures.raise();
}

// Inputs after those of forward(): out, stats, out's gradient.  A task is a head of keys, whose gradients are sums.
void backward(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Problem problem(params, inputs);
  problem.check_lengths();
  const dnnops_tensor *last_inputs = inputs + 3 + problem.optional_count;
  const int64_t queries = problem.queries, width = problem.value_depth, depth = problem.depth;
  const int64_t group = problem.group, keys = problem.keys;
  const Matrices dquery(outputs[0]), dkey(outputs[1]), dvalue(outputs[2]);
  for (int i = 0; i < 3; ++i)
    std::fill_n(static_cast<float *>(outputs[i].data), element_count(outputs[i].shape, 4), 0.f);
  if (problem.batch * problem.heads * queries * keys == 0) return;
  const std::vector<Matrices> in = matrices_of({inputs, inputs + 1, inputs + 2, last_inputs, last_inputs + 2});
  const dnnops_tensor &stats = last_inputs[1];
  Failures failures;
#pragma omp parallel
  {
    std::vector<float> memory;
    failures.run([&] { memory.resize(2 * kRows * keys); });
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < problem.batch * problem.heads / group; ++task) {
      failures.run([&] {
        if (memory.empty()) return;
        const int64_t shared = task % problem.shared_heads, n = task / problem.shared_heads;
        float *weights = memory.data(), *slopes = weights + kRows * keys;
        const int64_t seen = problem.query_count(n);
        for (int64_t head = shared * group; head < (shared + 1) * group; ++head)
          for (int64_t begin = 0; begin < seen; begin += kRows) {
            const int64_t end = std::min(seen, begin + kRows), rows = end - begin, count = problem.key_count(n, end);
            if (count == 0) continue;
            block_scores(problem, in[0], in[1], n, head, begin, end, count, weights);
            const float *gout = in[4].at(n, head, begin);
            const int64_t gout_leading = in[4].leading(width);
            product('N', 'T', rows, count, width, 1, gout, gout_leading, in[2].at(n, shared), in[2].leading(width), 0,
                    slopes, count);
            for (int64_t i = 0; i < rows; ++i) {
              const float *out_row = in[3].at(n, head, begin + i), *gout_row = in[4].at(n, head, begin + i);
              const float logarithm = *reinterpret_cast<const float *>(
                  static_cast<const char *>(stats.data) + n * stats.strides[0] + head * stats.strides[1] +
                  (begin + i) * stats.strides[2]);
              const float from = logarithm == kHidden ? 0 : logarithm;
              float common = 0, *row = weights + i * count, *slope = slopes + i * count;
#pragma omp simd reduction(+ : common)
              for (int64_t j = 0; j < width; ++j) common += out_row[j] * gout_row[j];
              if (problem.dropout > 0) {
                problem.drop(n, head, begin + i, count, slope);
                const float scale = problem.kept_scale();
#pragma omp simd
                for (int64_t j = 0; j < count; ++j) slope[j] *= scale;
              }
#pragma omp simd
              for (int64_t j = 0; j < count; ++j) {
                row[j] = exponential(row[j] - from);
                slope[j] = row[j] * (slope[j] - common);
              }
              if (problem.dropout > 0) problem.drop(n, head, begin + i, count, row);
            }
            product('T', 'N', count, width, rows, problem.kept_scale(), weights, count, gout, gout_leading, 1, dvalue.at(n, shared),
                    std::max<int64_t>(width, 1));
            product('N', 'N', rows, depth, count, problem.scale, slopes, count, in[1].at(n, shared),
                    in[1].leading(depth), 0, dquery.at(n, head, begin), std::max<int64_t>(depth, 1));
            product('T', 'N', count, depth, rows, problem.scale, slopes, count, in[0].at(n, head, begin),
                    in[0].leading(depth), 1, dkey.at(n, shared), std::max<int64_t>(depth, 1));
          }
      });
    }
  }
  failures.raise();
}

int count_inputs(const int64_t *params) {
  return 3 + (params[3] & 1 ? 1 : 0) + (params[3] & 2 ? 1 : 0) + (params[3] & 4 ? 1 : 0) + (params[3] & 8 ? 1 : 0);
}

void backward_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Problem problem(params, inputs);
  const dnnops_tensor *last_inputs = inputs + 3 + problem.optional_count;
  const int64_t expected[4] = {problem.batch, problem.heads, problem.queries, problem.value_depth};
  for (int i = 0; i < 3; ++i) {
    const int64_t ndim = i == 1 ? 3 : 4;
    dnnl_dtype(last_inputs[i].dtype);
    if (last_inputs[i].ndim != ndim || std::memcmp(last_inputs[i].shape, expected, ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "the output, its gradient or the scores' statistics do not have the shape %s",
           list_of(expected, ndim).c_str());
  }
  for (int i = 0; i < 3; ++i)
    set_output(outputs[i], DNNOPS_FLOAT32, inputs[i].shape, 4);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_attention_shape(const dnnops_context *, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnAttention", inputs, count_inputs(params), [&] {
    const Problem problem(params, inputs);
    set_output(outputs[0], DNNOPS_FLOAT32, {problem.batch, problem.heads, problem.queries, problem.value_depth});
    set_output(outputs[1], DNNOPS_FLOAT32, {problem.batch, problem.heads, problem.queries});
  });
}
DNNOPS_EXPORT int dnnops_onednn_attention(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                          dnnops_tensor *outputs) {
  return guarded("OneDnnAttention", inputs, count_inputs(params), [&] { forward(params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_attention_grad_shape(const dnnops_context *, const int64_t *params,
                                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnAttentionGrad", inputs, count_inputs(params) + 3,
                 [&] { backward_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_attention_grad(const dnnops_context *, const int64_t *params,
                                               const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnAttentionGrad", inputs, count_inputs(params) + 3, [&] { backward(params, inputs, outputs); });
}
