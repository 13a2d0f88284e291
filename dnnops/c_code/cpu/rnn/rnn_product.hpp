// Products of each step's rows with a matrix that is the same in all steps of a recurrent network.
#ifndef DNNOPS_ONEDNN_RNN_PRODUCT_HPP
#define DNNOPS_ONEDNN_RNN_PRODUCT_HPP

#include <memory>
#include <type_traits>

#include "rnn_loops.hpp"
#include "rnn_problem.hpp"

namespace dnnops::rnn {

// C (m x n) = A (m x k) W, or C += A W, with W packed once in oneDNN's preferred layout; dnnl_sgemm would
// repack it in each call. Rows of A are lda apart, those of C ldc.
class PackedProduct {
 public:
  PackedProduct(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldc, bool adds);
  // The sizes of the packed matrix and of oneDNN's scratch memory.
  size_t packed_bytes() const { return dnnl_memory_desc_get_size(packed_desc()); }
  size_t scratch_bytes() const { return dnnl_memory_desc_get_size(scratch_desc()); }
  // `w` is k x n, or transposed. If its layout already suits oneDNN, it is not copied.
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

// C (m x n) = A transposed (m x k) B, with oneDNN's matmul.
void matmul_columns(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                    int64_t ldc);

// The same product with the faster function. dnnl_sgemm usually takes 1.1 times as long as matmul, and for
// some k 1.4 times, but it is faster for a short k and needs no preparation for each k.
template <class T>
void multiply_columns(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c, int64_t ldc) {
  constexpr int64_t kLeastTerms = 256;
  constexpr double kLeastProducts = 1 << 26;
  if constexpr (std::is_same_v<T, float>)
    if (k >= kLeastTerms && (double)m * n * k >= kLeastProducts) return matmul_columns(m, n, k, a, lda, b, ldb, c, ldc);
  multiply_in_pieces<T>(m, n, k, a, lda, b, ldb, c, ldc);
}

// The distance between rows of this length in scratch memory. If it were a multiple of 1 KiB, or of the 4 KiB after
// which addresses share a place in the level 1 cache, products would take up to twice as long.
template <class T>
int64_t row_pitch(int64_t length) {
  constexpr int64_t kLine = 64 / sizeof(T);
  return length % (16 * kLine) ? length : length + kLine;
}

// The number of steps from which transposing the matrix pays off, since products with it are then faster.
constexpr int64_t kTransposeSteps = 8;
// The number of elements from which packing for matmul pays off: dnnl_sgemm's copies of that many, 2 MiB,
// fill the level 2 cache.
constexpr int64_t kPackedElements = 1 << 19;
// The number of rows and steps from which packing pays off if nothing has to be transposed.
constexpr int64_t kPackedRows = 4, kPackedSteps = 16;

template <class T>
class StepProduct {
 public:
  // C (m x n) = A (m x k) W, or C += A W. W is given as k x n, or transposed as n x k.
  StepProduct(const Problem &p, Scratch &scratch, int64_t n, int64_t k, bool transposed, int64_t lda, int64_t ldc, bool adds)
      : scratch_(scratch), n_(n), k_(k), lda_(lda), ldc_(ldc), transposed_(transposed), adds_(adds) {
    if (p.steps < kTransposeSteps) return;
    if constexpr (std::is_same_v<T, float>) {
      const bool pays = transposed || (p.batch >= kPackedRows && p.steps >= kPackedSteps);
      // With lengths, the number of rows varies between steps.
      if (!p.has_lengths && p.batch > 0 && n * k >= kPackedElements && pays) {
        try {
          packed_ = std::make_unique<PackedProduct>(p.batch, n, k, lda, ldc, adds);
          piece_ = scratch.add(elements(packed_->packed_bytes()));
          scratch_piece_ = scratch.add(elements(packed_->scratch_bytes()));
          return;
        } catch (const Error &) {
          packed_.reset();  // fall back to dnnl_sgemm
        }
      }
    }
    if (transposed) piece_ = scratch.add(row_pitch<T>(n) * k);
  }

  void prepare(const T *w) {
    w_ = w;
    if (piece_ < 0) return;
    T *const to = scratch_.get<T>(piece_);
    if constexpr (std::is_same_v<T, float>)
      if (packed_) return packed_->pack(w, transposed_, to, scratch_.get<T>(scratch_piece_));
    transpose(n_, k_, w, to, row_pitch<T>(n_));
    w_ = to;
  }

  // `m` is the number of all rows, unless there are lengths.
  void run(int64_t m, const T *a, T *c) {
    if constexpr (std::is_same_v<T, float>)
      if (packed_) return packed_->run(a, c);
    const bool is_transposed = transposed_ && piece_ < 0;
    const int64_t pitch = is_transposed ? k_ : piece_ < 0 ? n_ : row_pitch<T>(n_);
    multiply<T>(false, is_transposed, m, n_, k_, a, lda_, w_, pitch, adds_ ? 1 : 0, c, ldc_);
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
