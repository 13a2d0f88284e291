// float32 matrix products of few terms per sum, for one thread.
#ifndef DNNOPS_ONEDNN_NARROW_PRODUCT_HPP
#define DNNOPS_ONEDNN_NARROW_PRODUCT_HPP

#include <cstdint>

namespace dnnops {

// Whether narrow_product() can compute a product of at least 64 columns, and is faster than dnnl_sgemm. On two AVX-512
// cores, 16 images of 28 x 28 pixels with 8 to 64 channels take 0.11 ms, and 0.19 ms with dnnl_sgemm; 24 to 144
// channels take 0.52 and 0.54 ms, 32 to 64 channels 0.32 and 0.29 ms.
inline bool suits_narrow_product(int64_t columns, int64_t depth) { return depth <= 24 && columns >= 64; }

// Row-major C (rows x columns) = A (rows x depth) B, where the rows of A are dense.
void narrow_product(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, int64_t ldb, float *c,
                    int64_t ldc);

}  // namespace dnnops
#endif
