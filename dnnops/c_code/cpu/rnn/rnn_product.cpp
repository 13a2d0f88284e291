#include "rnn_product.hpp"

namespace dnnops::rnn {
namespace {

MemoryDesc matrix_desc(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  const int64_t shape[] = {rows, columns}, strides[] = {row_stride, column_stride};
  return memory_desc(2, shape, strides);
}

Memory memory_at(const_dnnl_memory_desc_t desc, const void *data) {
  dnnl_memory_t memory;
  DNNL_CHECK(dnnl_memory_create(&memory, desc, cpu_engine(), const_cast<void *>(data)));
  return Memory(memory);
}

PrimitiveDesc matmul_desc(const MemoryDesc &a, const MemoryDesc &b, const MemoryDesc &c, const_dnnl_primitive_attr_t attributes) {
  dnnl_primitive_desc_t desc;
  DNNL_CHECK(dnnl_matmul_primitive_desc_create(&desc, cpu_engine(), a.get(), b.get(), nullptr, c.get(), attributes));
  return PrimitiveDesc(desc);
}

Primitive primitive_of(const PrimitiveDesc &desc) {
  dnnl_primitive_t primitive;
  DNNL_CHECK(dnnl_primitive_create(&primitive, desc.get()));
  return Primitive(primitive);
}

// Waits until the work is done, since some builds of oneDNN only queue it.
void execute(const Primitive &primitive, std::initializer_list<dnnl_exec_arg_t> arguments) {
  const dnnl_stream_t stream = cpu_stream();
  DNNL_CHECK(dnnl_primitive_execute(primitive.get(), stream, (int)arguments.size(), arguments.begin()));
  DNNL_CHECK(dnnl_stream_wait(stream));
}

}  // namespace

// Making a primitive takes only some microseconds, because oneDNN caches its code.
PackedProduct::PackedProduct(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldc, bool adds) : n_(n), k_(k) {
  const MemoryDesc a = matrix_desc(m, k, lda, 1), c = matrix_desc(m, n, ldc, 1);
  const int64_t shape[] = {k, n};
  const MemoryDesc any = memory_desc(2, shape, nullptr);
  const Attributes attributes = user_scratchpad();
  if (adds) {
    dnnl_post_ops_t sum;
    DNNL_CHECK(dnnl_post_ops_create(&sum));
    const std::unique_ptr<dnnl_post_ops, DnnlDeleter<dnnl_post_ops_t, dnnl_post_ops_destroy>> owned(sum);
    DNNL_CHECK(dnnl_post_ops_append_sum(sum, 1, 0, dnnl_data_type_undef));
    DNNL_CHECK(dnnl_primitive_attr_set_post_ops(attributes.get(), sum));
  }
  desc_ = matmul_desc(a, any, c, attributes.get());
  // On AVX2, the preferred layout is the plain one.
  if (dnnl_memory_desc_equal(packed_desc(), matrix_desc(k, n, n, 1).get()))
    desc_ = matmul_desc(a, matrix_desc(k, n, row_pitch<float>(n), 1), c, attributes.get());
  primitive_ = primitive_of(desc_);
  a_ = memory_at(a.get(), nullptr);
  c_ = memory_at(c.get(), nullptr);
}

void PackedProduct::pack(const float *w, bool transposed, void *packed, void *scratch) {
  const MemoryDesc given = transposed ? matrix_desc(k_, n_, 1, k_) : matrix_desc(k_, n_, n_, 1);
  scratch_ = memory_at(scratch_desc(), scratch);
  if (dnnl_memory_desc_equal(given.get(), packed_desc())) {
    packed_ = memory_at(packed_desc(), w);
    return;
  }
  packed_ = memory_at(packed_desc(), packed);
  dnnl_primitive_desc_t desc;
  DNNL_CHECK(dnnl_reorder_primitive_desc_create(&desc, given.get(), cpu_engine(), packed_desc(), cpu_engine(), nullptr));
  const PrimitiveDesc owned(desc);
  const Memory from = memory_at(given.get(), w);
  execute(primitive_of(owned), {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, packed_.get()}});
}

void PackedProduct::run(const float *a, float *c) {
  DNNL_CHECK(dnnl_memory_set_data_handle(a_.get(), const_cast<float *>(a)));
  DNNL_CHECK(dnnl_memory_set_data_handle(c_.get(), c));
  execute(primitive_, {{DNNL_ARG_SRC, a_.get()},
                       {DNNL_ARG_WEIGHTS, packed_.get()},
                       {DNNL_ARG_DST, c_.get()},
                       {DNNL_ARG_SCRATCHPAD, scratch_.get()}});
}

void matmul_columns(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                    int64_t ldc) {
  const MemoryDesc across = matrix_desc(m, k, 1, lda), down = matrix_desc(k, n, ldb, 1), target = matrix_desc(m, n, ldc, 1);
  // oneDNN manages the scratch memory, because this thread already uses its own.
  const PrimitiveDesc desc = matmul_desc(across, down, target, nullptr);
  const Memory from = memory_at(across.get(), a), other = memory_at(down.get(), b), to = memory_at(target.get(), c);
  execute(primitive_of(desc), {{DNNL_ARG_SRC, from.get()}, {DNNL_ARG_WEIGHTS, other.get()}, {DNNL_ARG_DST, to.get()}});
}

}  // namespace dnnops::rnn
