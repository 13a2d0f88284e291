// Copies of arrays between memory formats, with the dnnops kernels in c_code/gpu/copy/transpose.cuh.
#ifndef DNNOPS_CUDNN_COPIES_HPP
#define DNNOPS_CUDNN_COPIES_HPP

#include <vector>

#include "../kernels/kernel_loader.hpp"
#include "../base/tensor.hpp"

namespace dnnops {

// The parameters of a copy's kernel: copy_params there.
struct CopyParams {
  int64_t rows, columns, src_pitch, dst_pitch, dst_width, src_stride, dst_stride;
  int32_t order, period, sizes[2], steps[3], row_tiles, column_tiles, tile_rows, tile_columns, slab_shift,
      lane_shift, blocks;
};

struct Copy {
  int kind;
  CopyParams params;
  unsigned shared_bytes;
  bool fills_gaps;  // for spreads: whether the copy also writes the zeros
};

// From `array`, dense in `format`, to `inner`, dense in `inner_format`, which may have more channels, filled
// with zeros; or back. Throws if the arrays are too large.
Copy make_copy(const Tensor &array, int64_t format, const Tensor &inner, int64_t inner_format, int64_t dtype,
               bool back);

// From filters, dense in `format`, to channels-last filters with input and output channels exchanged within
// each group. With `reversed`, the order of positions is reversed.
Copy make_exchange(const Tensor &filters, int64_t format, int64_t groups, bool reversed, int64_t dtype);

// From `array`, dense in `format`, to the positions of `inner`, a channels-last array, that are multiples of
// the strides. fills_gaps says whether the other positions become zero or stay unchanged.
Copy make_spread(const Tensor &array, int64_t format, const Tensor &inner, const int64_t *strides, int64_t dtype);

// One or two copies in one launch.
class Copies {
 public:
  Copies() = default;
  // Throws if the kernel is not available.
  Copies(const Handle &handle, const std::vector<Copy> &copies, int64_t dtype);
  void run(const void *const *sources, void *const *targets, void *stream);

 private:
  struct Arguments {
    const void *sources[2];
    void *targets[2];
    CopyParams copies[2];
  };
  Kernel kernel_;
  Arguments arguments_ = {};
  unsigned blocks_ = 0, shared_bytes_ = 0;
};

}  // namespace dnnops
#endif
