// The product of a recurrent network's steps: of each step's rows with a matrix that is the same in all.
#ifndef DNNOPS_ONEDNN_RNN_PRODUCT_HPP
#define DNNOPS_ONEDNN_RNN_PRODUCT_HPP

#include <memory>
#include <type_traits>

#include "rnn_loops.hpp"
#include "rnn_problem.hpp"

namespace dnnops::rnn {

// C (m x n) = A (m x k) W, or that added to C, with W laid out once as oneDNN wants it: dnnl_sgemm does that in each
// call.  Rows of A are lda apart, those of C ldc.
class PackedProduct {
 public:
  PackedProduct(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldc, bool adds);
  // Of the matrix laid out, and of what oneDNN needs besides.
  size_t packed_bytes() const { return dnnl_memory_desc_get_size(packed_desc()); }
  size_t scratch_bytes() const { return dnnl_memory_desc_get_size(scratch_desc()); }
  // `w` is k x n, or transposed.  If oneDNN likes it as it is, there is no copy.
  void pack(const float *w, bool transposed, void *packed, void *scratch);
  void run(const float *a, float *c);

 private:
  const_dnnl_memory_desc_t packed_desc() const { return dnnl_primitive_desc_query_md(desc_.get(), dnnl_query_weights_md, 0); }
  const_dnnl_memory_desc_t scratch_desc() const {
    return dnnl_primitive_desc_query_md(desc_.get(), dnnl_query_scratchpad_md, 0);
  }

  int64_t n_, k_;
  PrimitiveDesc desc_;
  Primitive primitive_;
  Memory a_, c_, packed_, scratch_;
};

// C (m x n) = A transposed (m x k) B, by oneDNN's matmul.
void matmul_columns(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                    int64_t ldc);

// The same by what is faster.  dnnl_sgemm takes 1.1 times as long as matmul, and for some k 1.4 times, but less where k is
// short, and it has nothing to prepare for each k.
template <class T>
void multiply_columns(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c, int64_t ldc) {
  constexpr int64_t kLeastTerms = 256;
  constexpr double kLeastProducts = 1 << 26;
  if constexpr (std::is_same_v<T, float>)
    if (k >= kLeastTerms && (double)m * n * k >= kLeastProducts) return matmul_columns(m, n, k, a, lda, b, ldb, c, ldc);
  multiply_in_pieces<T>(m, n, k, a, lda, b, ldb, c, ldc);
}

// From so many steps on it pays to transpose the matrix: products with it are faster so.
constexpr int64_t kTransposeSteps = 8;
// From so many elements on it pays to lay it out for matmul: dnnl_sgemm's copies of them, 2 MiB, fill the level 2 cache.
constexpr int64_t kPackedElements = 1 << 19;
// Where nothing has to be transposed: for so many rows and steps.
constexpr int64_t kPackedRows = 4, kPackedSteps = 16;

template <class T>
class StepProduct {
 public:
  // C (m x n) = A (m x k) W, or that added to C.  W is given transposed, n x k, or as k x n.
  StepProduct(const Problem &p, Scratch &scratch, int64_t n, int64_t k, bool transposed, int64_t lda, int64_t ldc, bool adds)
      : scratch_(scratch), n_(n), k_(k), lda_(lda), ldc_(ldc), transposed_(transposed), adds_(adds) {
    if (p.steps < kTransposeSteps) return;
    if constexpr (std::is_same_v<T, float>) {
      const bool pays = transposed || (p.batch >= kPackedRows && p.steps >= kPackedSteps);
      // With lengths the number of rows is not the same in all steps.
      if (!p.has_lengths && p.batch > 0 && n * k >= kPackedElements && pays) {
        try {
          packed_ = std::make_unique<PackedProduct>(p.batch, n, k, lda, ldc, adds);
          piece_ = scratch.add(elements(packed_->packed_bytes()));
          scratch_piece_ = scratch.add(elements(packed_->scratch_bytes()));
          return;
        } catch (const Error &) {
          packed_.reset();  // dnnl_sgemm does it
        }
      }
    }
    if (transposed) piece_ = scratch.add(n * k);
  }

  void prepare(const T *w) {
    w_ = w;
    if (piece_ < 0) return;
    T *const to = scratch_.get<T>(piece_);
    if constexpr (std::is_same_v<T, float>)
      if (packed_) return packed_->pack(w, transposed_, to, scratch_.get<T>(scratch_piece_));
    transpose(n_, k_, w, to);
    w_ = to;
  }

  // `m`: all rows, unless there are lengths.
  void run(int64_t m, const T *a, T *c) {
    if constexpr (std::is_same_v<T, float>)
      if (packed_) return packed_->run(a, c);
    const bool is_transposed = transposed_ && piece_ < 0;
    multiply<T>(false, is_transposed, m, n_, k_, a, lda_, w_, is_transposed ? k_ : n_, adds_ ? 1 : 0, c, ldc_);
  }

 private:
  static int64_t elements(size_t bytes) { return (int64_t)((bytes + sizeof(T) - 1) / sizeof(T)); }

  Scratch &scratch_;
  int64_t n_, k_, lda_, ldc_;
  bool transposed_, adds_;
  int piece_ = -1, scratch_piece_ = -1;
  const T *w_ = nullptr;
  std::unique_ptr<PackedProduct> packed_;
};

}  // namespace dnnops::rnn
#endif
