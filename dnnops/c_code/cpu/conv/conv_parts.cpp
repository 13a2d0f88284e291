#include "conv_parts.hpp"

#include <algorithm>
#include <memory>

#include "../../common/shapes.hpp"
#include "../base/plan.hpp"
#include "../base/rounding.hpp"

namespace dnnops {

namespace {

// The bytes of a thread's images in a part. With 1, 2, 4 and 8 MiB, two AVX-512 cores take about as long.
constexpr int64_t BYTES_PER_THREAD = 4 << 20;
// The filters are copied for each part, so its images have several times their bytes.
constexpr int64_t IMAGES_PER_FILTERS = 4;

int64_t parts_of(const ConvProblem &problem, const dnnops_tensor &output) {
  const int64_t size = sizeof(float), batch = problem.image[0];
  // Sums are added to the output, element by element.
  if (problem.direction == CONV_GRAD_WEIGHTS && !is_contiguous(output)) return 1;
  const int64_t images = size * (element_count(problem.image, problem.ndim) + element_count(problem.top, problem.ndim));
  const int64_t filters = size * element_count(problem.filters, problem.ndim);
  const int64_t wanted = std::max(BYTES_PER_THREAD * thread_count(), IMAGES_PER_FILTERS * filters);
  return std::clamp<int64_t>(ceil_div(images, wanted), 1, batch);
}

// The images from one on.
dnnops_tensor images_of(dnnops_tensor tensor, int64_t begin, int64_t count) {
  tensor.data = static_cast<char *>(tensor.data) + begin * tensor.strides[0];
  tensor.shape[0] = count;
  return tensor;
}

void add(float *sums, const float *terms, int64_t count) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < count; ++i) sums[i] += terms[i];
}

}  // namespace

ConvParts::ConvParts(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output)
    : whole_{problem, {inputs[0], inputs[1]}, output}, count_(parts_of(problem, output)) {}

ConvPart ConvParts::part(int64_t number) const {
  ConvPart part = whole_;
  if (count_ == 1) return part;
  const int64_t batch = whole_.problem.image[0], size = batch / count_, larger = batch % count_;
  const int64_t begin = number * size + std::min(number, larger), count = size + (number < larger);
  part.problem.image[0] = part.problem.top[0] = count;
  const int64_t direction = part.problem.direction;
  if (direction != CONV_GRAD_INPUTS) part.inputs[0] = images_of(part.inputs[0], begin, count);
  if (direction != CONV_FORWARD) part.inputs[1] = images_of(part.inputs[1], begin, count);
  if (direction != CONV_GRAD_WEIGHTS) part.output = images_of(part.output, begin, count);
  return part;
}

void ConvParts::run(const std::function<void(const ConvPart &)> &compute) const {
  const bool adds = count_ > 1 && whole_.problem.direction == CONV_GRAD_WEIGHTS;
  const int64_t count = adds ? element_count(whole_.output.shape, whole_.output.ndim) : 0;
  const std::unique_ptr<float[]> terms(adds ? new float[count] : nullptr);
  for (int64_t i = 0; i < count_; ++i) {
    ConvPart next = part(i);
    if (adds && i > 0) next.output.data = terms.get();
    compute(next);
    if (adds && i > 0) add(static_cast<float *>(whole_.output.data), terms.get(), count);
  }
}

}  // namespace dnnops
