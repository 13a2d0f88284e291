// product_form.cpp on the host, with copies made by loops: products of copied operands are those of the operands. Fails
// if a check fails. Linked with host_cublaslt.cpp.
#include "gpu/products/product_form.hpp"

#include <cmath>
#include <random>

#include "host_require.hpp"

namespace dnnops {

void fail_cudnn(cudnnStatus_t, const char *call) { fail(DNNOPS_LIBRARY_ERROR, "%s", call); }
void fail_cuda(cudaError_t, const char *call) { fail(DNNOPS_LIBRARY_ERROR, "%s", call); }
void set_dense_strides(Tensor &, int64_t) {}

Copy make_copy(const Tensor &array, int64_t format, const Tensor &, int64_t inner_format, int64_t dtype, bool back) {
  REQUIRE(format == FORMAT_CONTIGUOUS && inner_format == FORMAT_CHANNELS_LAST && dtype == DNNOPS_FLOAT32 && !back);
  Copy copy = {};
  copy.params.rows = array.shape[1];
  copy.params.columns = array.shape[2];
  return copy;
}

Copies::Copies(const Handle &, const std::vector<Copy> &copies, int64_t) : blocks_(copies.size()) {
  for (size_t i = 0; i < copies.size(); ++i) arguments_.copies[i] = copies[i].params;
}

void Copies::run(const void *const *sources, void *const *targets, void *) {
  for (unsigned i = 0; i < blocks_; ++i) {
    const CopyParams &p = arguments_.copies[i];
    for (int64_t row = 0; row < p.rows; ++row)
      for (int64_t column = 0; column < p.columns; ++column)
        static_cast<float *>(targets[i])[column * p.rows + row] =
            static_cast<const float *>(sources[i])[row * p.columns + column];
  }
}

}  // namespace dnnops

using namespace dnnops;

namespace {

std::mt19937 random_bits(1);

// A column-major matrix of random numbers, as an operand and its memory.
struct Stored {
  Operand of;
  std::vector<float> memory;
  Stored(bool transposed, int64_t rows, int64_t columns, int64_t gap) {
    if (transposed) std::swap(rows, columns);
    of = {transposed, rows, columns, rows + gap, 0, 16};
    memory.resize(of.leading * columns);
    for (float &x : memory) x = std::normal_distribution<float>()(random_bits);
  }
  float at(int64_t row, int64_t column) const {
    return of.transposed ? memory[row * of.leading + column] : memory[column * of.leading + row];
  }
};

void check(bool left_transposed, bool right_transposed, int64_t m, int64_t n, int64_t k) {
  const Handle handle;
  const Stored left(left_transposed, m, k, 0), right(right_transposed, k, n, 0);
  ProductKey key;
  std::memset(&key, 0, sizeof key);
  key.dtype = DNNOPS_FLOAT32;
  key.settings = DNNOPS_PRODUCT_TF32;
  key.batches = key.bias_alignment = 1;
  key.left = left.of;
  key.right = right.of;
  key.result = key.addend = {0, m, n, m, 0, 16};
  key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const auto form = ProductForm::with_copies(key, handle);
  REQUIRE(!form == (left_transposed && !right_transposed));
  if (!form) return;
  REQUIRE(form->bytes() % 256 == 0 && form->left_alignment() == 16 && form->right_alignment() == 16);
  std::vector<char> copies(form->bytes());
  const void *a = left.memory.data(), *b = right.memory.data();
  form->copy(a, b, copies.data(), nullptr);
  REQUIRE((a == left.memory.data()) == left_transposed && (b == right.memory.data()) == !right_transposed);
  const MatrixLayout layout(stored_matrix(key.result), 1, CUDA_R_32F);
  std::vector<float> result(m * n, NAN);
  const float one = 1, zero = 0;
  char workspace;
  const cublasStatus_t status = cublaslt::functions().cublasLtMatmul(
      nullptr, form->operation(), &one, a, form->left(), b, form->right(), &zero, result.data(), layout, result.data(),
      layout, nullptr, &workspace, 1, nullptr);
  REQUIRE(status == CUBLAS_STATUS_SUCCESS);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += double(left.at(row, i)) * right.at(i, column);
      REQUIRE(std::abs(sum - result[column * m + row]) < 1e-5 * (1 + std::abs(sum)));
    }
}

}  // namespace

int main() {
  for (int i = 0; i < 20; ++i) {
    const auto size = [] { return std::uniform_int_distribution<int64_t>(1, 40)(random_bits); };
    for (const bool left : {false, true})
      for (const bool right : {false, true}) check(left, right, size(), size(), size());
  }
  // Copies of arrays with gaps are not supported.
  ProductKey key;
  std::memset(&key, 0, sizeof key);
  key.dtype = DNNOPS_FLOAT32;
  key.batches = 1;
  key.left = Stored(false, 5, 6, 3).of;
  key.right = Stored(false, 6, 4, 0).of;
  REQUIRE(!ProductForm::with_copies(key, Handle()));
}
