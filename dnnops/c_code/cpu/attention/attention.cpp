// Scaled dot-product attention and its gradients: matrix products with one pass in between over the scores of
// a block of queries, which stay in the cache.
#include <exception>

#include "attention_problem.hpp"
#include "double_product.hpp"
#include "../../common/op.hpp"
#include "../base/row_sums.hpp"

namespace dnnops {
namespace {

using attention::Matrices;
using attention::matrices_of;
using attention::Problem;

constexpr int64_t kRows = 128;

// Inputs: query, key, value, those given; backward: also out, stats and the gradient with respect to out.
template <bool kBackward>
struct Params : attention::Words {
  static const char *op() { return kBackward ? "OneDnnAttentionGrad" : "OneDnnAttention"; }
  int input_count() const { return (kBackward ? 6 : 3) + __builtin_popcountll(given); }
};

// The matrix products of one thread; oneDNN computes those in float32.
template <class T>
class Products {
 public:
  void operator()(char transa, char transb, int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t lda,
                  const T *b, int64_t ldb, T beta, T *c, int64_t ldc) {
    if (m == 0 || n == 0) return;
    if (k == 0) {  // an empty sum, which oneDNN rejects in some cases
      for (int64_t i = 0; i < m && beta == 0; ++i) std::fill_n(c + i * ldc, n, T(0));
      return;
    }
    if constexpr (std::is_same_v<T, float>)
      DNNL_CHECK(dnnl_sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc));
    else
      multiply_(transa == 'T', transb == 'T', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }

 private:
  struct Nothing {};
  std::conditional_t<std::is_same_v<T, double>, DoubleProduct, Nothing> multiply_;
};

// The scores of queries [begin, end) and the first `count` keys.
template <class T>
void block_scores(Products<T> &product, const Problem<T> &problem, const Matrices<T> &query, const Matrices<T> &key,
                  int64_t n, int64_t head, int64_t begin, int64_t end, int64_t count, T *scores) {
  const int64_t shared = head / problem.group, depth = problem.depth;
  product('N', 'T', end - begin, count, depth, problem.scale, query.at(n, head, begin), query.leading(depth),
          key.at(n, shared), key.leading(depth), 0, scores, count);
  for (int64_t i = begin; i < end; ++i) problem.hide(n, head, i, count, scores + (i - begin) * count);
}

// Collects exceptions from threads and rethrows the first one outside of the parallel region.
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

template <class T>
void compute(const Params<false> &params, const dnnops_tensor *inputs, const dnnops_tensor *outputs) {
  const Problem<T> problem(params, inputs);
  problem.check_lengths();
  const int64_t queries = problem.queries, width = problem.value_depth;
  if (problem.batch * problem.heads * queries == 0) return;
  const std::vector<Matrices<T>> in = matrices_of<T>({inputs, inputs + 1, inputs + 2});
  const auto out = Matrices<T>::written(outputs[0]);
  const auto clear = [&](int64_t n, int64_t head, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::fill_n(out.at(n, head, i), width, T(0));
  };
  T *stats = static_cast<T *>(outputs[1].data);
  const int64_t blocks = (queries + kRows - 1) / kRows, tasks = problem.batch * problem.heads * blocks;
  Failures failures;
#pragma omp parallel
  {
    std::vector<T> memory;
    Products<T> product;
    failures.run([&] { memory.resize(kRows * problem.keys); });
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) {
      failures.run([&] {
        // With causal attention, start with the longest blocks.
        const int64_t begin = (blocks - 1 - task % blocks) * kRows, end = std::min(queries, begin + kRows);
        const int64_t head = task / blocks % problem.heads, n = task / blocks / problem.heads;
        const int64_t last = std::max(begin, std::min(end, problem.query_count(n)));
        const int64_t count = problem.key_count(n, last), shared = head / problem.group;
        T *block_stats = stats + (n * problem.heads + head) * queries, *scores = memory.data(), inverses[kRows];
        std::fill(block_stats + begin, block_stats + end, problem.kHidden);
        if (last == begin || count == 0 || (int64_t)memory.size() < kRows * problem.keys) {
          clear(n, head, begin, end);
          return;
        }
        block_scores(product, problem, in[0], in[1], n, head, begin, last, count, scores);
        for (int64_t i = begin; i < last; ++i) {
          T *row = scores + (i - begin) * count, largest = largest_of(row, count), total = 0;
          inverses[i - begin] = 1;
          if (largest == problem.kHidden) largest = 0;
#pragma omp simd reduction(+ : total)
          for (int64_t j = 0; j < count; ++j) total += row[j] = exponential(row[j] - largest);
          if (total == 0) continue;  // no visible key: the weights are zeros
          inverses[i - begin] = 1 / total;
          block_stats[i] = largest + std::log(total);
          if (problem.dropout > 0) {
            problem.drop(n, head, i, count, row);
            inverses[i - begin] *= problem.kept_scale();
          }
        }
        product('N', 'N', last - begin, width, count, 1, scores, count, in[2].at(n, shared), in[2].leading(width), 0,
                out.at(n, head, begin), out.leading(width));
        // Normalize the output, whose rows are shorter than those of the weights.
        for (int64_t i = begin; i < last; ++i) {
          T *row = out.at(n, head, i);
          const T inverse = inverses[i - begin];
#pragma omp simd
          for (int64_t j = 0; j < width; ++j) row[j] *= inverse;
        }
        clear(n, head, last, end);
      });
    }
  }
  failures.raise();
}

// Each task is a key head, whose gradients are sums over its query heads.
template <class T>
void compute(const Params<true> &params, const dnnops_tensor *inputs, const dnnops_tensor *outputs) {
  const Problem<T> problem(params, inputs);
  problem.check_lengths();
  const dnnops_tensor *last_inputs = inputs + 3 + problem.optional_count;
  const int64_t queries = problem.queries, width = problem.value_depth, depth = problem.depth;
  const int64_t group = problem.group, keys = problem.keys;
  const auto dquery = Matrices<T>::written(outputs[0]), dkey = Matrices<T>::written(outputs[1]),
             dvalue = Matrices<T>::written(outputs[2]);
  for (int i = 0; i < 3; ++i)
    std::fill_n(static_cast<T *>(outputs[i].data), element_count(outputs[i].shape, 4), T(0));
  if (problem.batch * problem.heads * queries * keys == 0) return;
  const std::vector<Matrices<T>> in = matrices_of<T>({inputs, inputs + 1, inputs + 2, last_inputs + 2});
  Failures failures;
#pragma omp parallel
  {
    std::vector<T> memory;
    Products<T> product;
    failures.run([&] { memory.resize(2 * kRows * keys); });
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < problem.batch * problem.heads / group; ++task) {
      failures.run([&] {
        if (memory.empty()) return;
        const int64_t shared = task % problem.shared_heads, n = task / problem.shared_heads;
        T *weights = memory.data(), *slopes = weights + kRows * keys;
        const int64_t seen = problem.query_count(n);
        for (int64_t head = shared * group; head < (shared + 1) * group; ++head)
          for (int64_t begin = 0; begin < seen; begin += kRows) {
            const int64_t end = std::min(seen, begin + kRows), rows = end - begin, count = problem.key_count(n, end);
            if (count == 0) continue;
            block_scores(product, problem, in[0], in[1], n, head, begin, end, count, weights);
            const T *gout = in[3].at(n, head, begin);
            const int64_t gout_leading = in[3].leading(width);
            product('N', 'T', rows, count, width, 1, gout, gout_leading, in[2].at(n, shared), in[2].leading(width), 0,
                    slopes, count);
            for (int64_t i = 0; i < rows; ++i) {
              // The statistics are not used: large ones are too inaccurate.
              T *row = weights + i * count, *slope = slopes + i * count;
              T largest = largest_of(row, count), total = 0, common = 0;
              if (largest == problem.kHidden) largest = 0;
              if (problem.dropout > 0) {
                problem.drop(n, head, begin + i, count, slope);
                const T scale = problem.kept_scale();
#pragma omp simd
                for (int64_t j = 0; j < count; ++j) slope[j] *= scale;
              }
#pragma omp simd reduction(+ : total, common)
              for (int64_t j = 0; j < count; ++j) {
                row[j] = exponential(row[j] - largest);
                total += row[j];
                common += row[j] * slope[j];
              }
              const T inverse = total == 0 ? 0 : 1 / total;
              common *= inverse;
#pragma omp simd
              for (int64_t j = 0; j < count; ++j) {
                row[j] *= inverse;
                slope[j] = row[j] * (slope[j] - common);
              }
              if (problem.dropout > 0) problem.drop(n, head, begin + i, count, row);
            }
            product('T', 'N', count, width, rows, problem.kept_scale(), weights, count, gout, gout_leading, 1,
                    dvalue.at(n, shared), dvalue.leading(width));
            product('N', 'N', rows, depth, count, problem.scale, slopes, count, in[1].at(n, shared),
                    in[1].leading(depth), 0, dquery.at(n, head, begin), dquery.leading(depth));
            product('T', 'N', count, depth, rows, problem.scale, slopes, count, in[0].at(n, head, begin),
                    in[0].leading(depth), 1, dkey.at(n, shared), dkey.leading(depth));
          }
      });
    }
  }
  failures.raise();
}

template <class T>
void describe(const Params<false> &params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Problem<T> problem(params, inputs);
  set_output(outputs[0], problem.kDtype, {problem.batch, problem.heads, problem.queries, problem.value_depth});
  set_output(outputs[1], problem.kDtype, {problem.batch, problem.heads, problem.queries});
}

template <class T>
void describe(const Params<true> &params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Problem<T> problem(params, inputs);
  const dnnops_tensor *last_inputs = inputs + 3 + problem.optional_count;
  const int64_t expected[4] = {problem.batch, problem.heads, problem.queries, problem.value_depth};
  for (int i = 0; i < 3; ++i) {
    const int64_t ndim = i == 1 ? 3 : 4;
    problem.check_dtype(last_inputs[i]);
    if (last_inputs[i].ndim != ndim || std::memcmp(last_inputs[i].shape, expected, ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "the output, its gradient or the scores' statistics do not have the shape %s",
           list_of(expected, ndim).c_str());
  }
  for (int i = 0; i < 3; ++i) set_output(outputs[i], inputs[i]);
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  for_float_dtype(call.inputs[0].dtype,
                  [&](auto zero) { describe<decltype(zero)>(call.params, call.inputs, call.outputs); });
}

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  for_float_dtype(call.inputs[0].dtype,
                  [&](auto zero) { compute<decltype(zero)>(call.params, call.inputs, call.outputs); });
}

}  // namespace

DNNOPS_OP(onednn_attention, Params<false>, shape, run)
DNNOPS_OP(onednn_attention_grad, Params<true>, shape, run)

}  // namespace dnnops
