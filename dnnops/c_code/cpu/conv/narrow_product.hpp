// float32 matrix products of few terms per sum, for one thread.
#ifndef DNNOPS_ONEDNN_NARROW_PRODUCT_HPP
#define DNNOPS_ONEDNN_NARROW_PRODUCT_HPP

#include <cstdint>

namespace dnnops {

// Whether narrow_product() can compute a product, and is faster than dnnl_sgemm.
bool suits_narrow_product(int64_t columns, int64_t depth);

// Row-major C (rows x columns) = A (rows x depth) B, where the rows of A are dense.
void narrow_product(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, int64_t ldb, float *c,
                    int64_t ldc);

}  // namespace dnnops
#endif
