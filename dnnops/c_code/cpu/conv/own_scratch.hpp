// The scratch memory of dnnops' own ways to compute a convolution, and copies of operands in it.
#ifndef DNNOPS_ONEDNN_OWN_SCRATCH_HPP
#define DNNOPS_ONEDNN_OWN_SCRATCH_HPP

#include "../base/plan.hpp"
#include "../base/rounding.hpp"

namespace dnnops {

// Pieces of one block of scratch memory, in floats. Each begins a cache line.
class Layout {
 public:
  int64_t add(int64_t floats) {
    const int64_t offset = size_;
    size_ += round_up(floats, 16);
    return offset;
  }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * (int64_t)sizeof(float); }
  float *allocate() const { return reinterpret_cast<float *>(thread_scratch(bytes())); }

 private:
  int64_t size_ = 0;
};

// The operands as contiguous arrays, copied to scratch memory where necessary.
struct Operands {
  const dnnops_tensor *tensors[3];  // two inputs and the output
  bool copied[3];
  int64_t offsets[3] = {0, 0, 0};
  float *data[3];

  Operands(const dnnops_tensor *inputs, const dnnops_tensor &output, Layout &layout)
      : tensors{&inputs[0], &inputs[1], &output} {
    for (int i = 0; i < 3; ++i) {
      copied[i] = !is_contiguous(*tensors[i]);
      if (copied[i]) offsets[i] = layout.add(element_count(tensors[i]->shape, tensors[i]->ndim));
    }
  }
  void read(float *scratch) {
    for (int i = 0; i < 3; ++i) {
      data[i] = copied[i] ? scratch + offsets[i] : static_cast<float *>(tensors[i]->data);
      if (copied[i] && i < 2) pack(*tensors[i], data[i], false);
    }
  }
  void write() const {
    if (copied[2]) unpack(data[2], *tensors[2], false);
  }
};

}  // namespace dnnops
#endif
