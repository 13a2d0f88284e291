// Spatial transformers: affine grids, bilinear samples of images at the points of a grid, and the gradients
// of both. oneDNN does not provide them.
#include <vector>

#include "../../common/op.hpp"
#include "sampler.hpp"

namespace dnnops {
namespace {

// -- the grid ----------------------------------------------------------------------------------

// Evenly spaced from -1 to 1; 0 if there is only one.
std::vector<double> coordinates(int64_t count) {
  std::vector<double> values(count, 0.0);
  for (int64_t i = 0; count > 1 && i < count; ++i) values[i] = (double)(2 * i - (count - 1)) / (double)(count - 1);
  return values;
}

// theta must be contiguous.
template <class T>
void make_grid(const T *theta, const int64_t *shape, T *grid) {
  const int64_t batch = shape[0], rows = shape[1], columns = shape[2];
  const std::vector<double> xs = coordinates(columns), ys = coordinates(rows);
#pragma omp parallel for if (threads_for(batch * rows * columns) > 1)
  for (int64_t row = 0; row < batch * rows; ++row) {
    const T *of = theta + row / rows * 6;
    const double y = ys[row % rows], along_x = of[0], along_y = of[3];
    const double x_origin = of[1] * y + of[2], y_origin = of[4] * y + of[5];
    const double *x = xs.data();
    T *to = grid + row * columns * 2;
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      to[2 * i] = (T)(along_x * x[i] + x_origin);
      to[2 * i + 1] = (T)(along_y * x[i] + y_origin);
    }
  }
}

// Sums rows in parallel, then the row sums in order, so that the result does not depend on the number of threads.
template <class T>
void grid_grad(const T *top, const int64_t *shape, T *theta) {
  const int64_t batch = shape[0], rows = shape[1], columns = shape[2];
  const std::vector<double> xs = coordinates(columns), ys = coordinates(rows);
  std::vector<double> sums(4 * batch * rows);  // for each row, the sums of x, x times its column, y, y times its column
#pragma omp parallel for if (threads_for(batch * rows * columns) > 1)
  for (int64_t row = 0; row < batch * rows; ++row) {
    const T *from = top + row * columns * 2;
    const double *x = xs.data();
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t i = 0; i < columns; ++i) {
      s0 += from[2 * i];
      s1 += from[2 * i] * x[i];
      s2 += from[2 * i + 1];
      s3 += from[2 * i + 1] * x[i];
    }
    double *to = sums.data() + 4 * row;
    to[0] = s0, to[1] = s1, to[2] = s2, to[3] = s3;
  }
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t axis = 0; axis < 2; ++axis) {
      double by_x = 0, by_y = 0, by_one = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const double *from = sums.data() + 4 * (n * rows + row) + 2 * axis;
        by_x += from[1];
        by_y += from[0] * ys[row];
        by_one += from[0];
      }
      T *to = theta + 6 * n + 3 * axis;
      to[0] = (T)by_x, to[1] = (T)by_y, to[2] = (T)by_one;
    }
}

// Calls run(T{}, data) with the tensor's data, or with a contiguous copy.
template <class Run>
void with_contiguous(const dnnops_tensor &tensor, Run &&run) {
  const void *data = tensor.data;
  if (!is_contiguous(tensor)) {
    char *copy = thread_scratch(element_count(tensor.shape, tensor.ndim) * item_size(tensor.dtype));
    pack(tensor, copy, false);
    data = copy;
  }
  for_float_dtype(tensor.dtype, [&](auto zero) { run(zero, static_cast<const decltype(zero) *>(data)); });
}

// -- checks of operands, shapes of outputs -----------------------------------------------------

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() - 2;

void check_float(const dnnops_tensor &tensor) {
  for_float_dtype(tensor.dtype, [](auto) {});
}

// A size of -1 matches any size.
void expect_shape(const char *name, const dnnops_tensor &tensor, const std::vector<int64_t> &shape, int64_t dtype) {
  bool fits = tensor.ndim == (int64_t)shape.size() && tensor.dtype == dtype;
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] < 0 || tensor.shape[i] == shape[i];
  if (fits) return;
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "(" : ", ") + (size < 0 ? std::string("?") : std::to_string(size));
  fail(DNNOPS_VALUE_ERROR, "%s has to be %s%s), got %s", name, dtype_name(dtype), text.c_str(),
       describe(tensor).c_str());
}

// The shape of a grid. Inputs: theta, and the numbers of rows and columns.
std::vector<int64_t> grid_shape(const dnnops_tensor *inputs) {
  check_float(inputs[0]);
  expect_shape("theta", inputs[0], {-1, 2, 3}, inputs[0].dtype);
  int64_t sizes[2];
  read_vector("out_shape", inputs[1], 2, sizes);
  for (int64_t size : sizes)
    if (size < 1 || size > kMaxSize)
      fail(DNNOPS_VALUE_ERROR, "the output's sizes must be between 1 and %lld, got %s", (long long)kMaxSize,
           list_of(sizes, 2).c_str());
  return {inputs[0].shape[0], sizes[0], sizes[1], 2};
}

void check_grid_grad(const dnnops_tensor &top) {
  check_float(top);
  expect_shape("the grid's gradient", top, {-1, -1, -1, 2}, top.dtype);
}

// The shape of the samples.
std::vector<int64_t> samples_shape(const dnnops_tensor *inputs, int count) {
  const dnnops_tensor &image = inputs[0], &grid = inputs[1];
  check_float(image);
  expect_shape("the image", image, {-1, -1, -1, -1}, image.dtype);
  if (image.shape[2] < 1 || image.shape[3] < 1) fail(DNNOPS_VALUE_ERROR, "the image has no pixels");
  if (image.shape[2] > kMaxSize || image.shape[3] > kMaxSize)
    fail(DNNOPS_NOT_SUPPORTED, "images of more than %lld rows or columns are not supported", (long long)kMaxSize);
  expect_shape("the grid", grid, {image.shape[0], -1, -1, 2}, image.dtype);
  const std::vector<int64_t> shape{image.shape[0], image.shape[1], grid.shape[1], grid.shape[2]};
  if (count > 2) expect_shape("the output's gradient", inputs[2], shape, image.dtype);
  return shape;
}

// -- the Ops -----------------------------------------------------------------------------------

// Inputs: theta, the numbers of rows and columns.
struct GridParams {
  static const char *op() { return "OneDnnSpatialTransformerGrid"; }
  static int input_count() { return 1; }
};

void shape(const OpCall<GridParams> &call) {
  set_output(call.outputs[0], call.inputs[0].dtype, grid_shape(call.inputs).data(), 4);
}

void run(const OpCall<GridParams> &call) {
  const std::vector<int64_t> shape = grid_shape(call.inputs);
  with_contiguous(call.inputs[0], [&](auto zero, const auto *theta) {
    make_grid(theta, shape.data(), static_cast<decltype(zero) *>(call.outputs[0].data));
  });
}

// Inputs: the gradient with respect to a grid.
struct GridGradParams {
  static const char *op() { return "OneDnnSpatialTransformerGridGrad"; }
  static int input_count() { return 1; }
};

void shape(const OpCall<GridGradParams> &call) {
  check_grid_grad(call.inputs[0]);
  set_output(call.outputs[0], call.inputs[0].dtype, {call.inputs[0].shape[0], 2, 3});
}

void run(const OpCall<GridGradParams> &call) {
  check_grid_grad(call.inputs[0]);
  with_contiguous(call.inputs[0], [&](auto zero, const auto *top) {
    grid_grad(top, call.inputs[0].shape, static_cast<decltype(zero) *>(call.outputs[0].data));
  });
}

// The result of each sampler Op. The gradient with respect to the image only uses the image's shape.
enum Result { SAMPLES, GRAD_IMAGE, GRAD_GRID };

// Inputs: image, grid and, for the gradients, the gradient with respect to the samples.
template <Result kResult>
struct SamplerParams {
  static const char *op() {
    return kResult == SAMPLES      ? "OneDnnSpatialTransformerSampler"
           : kResult == GRAD_IMAGE ? "OneDnnSpatialTransformerSamplerGradImage"
                                   : "OneDnnSpatialTransformerSamplerGradGrid";
  }
  static int input_count() { return kResult == SAMPLES ? 2 : 3; }
};

template <Result kResult>
void shape(const OpCall<SamplerParams<kResult>> &call) {
  const std::vector<int64_t> samples = samples_shape(call.inputs, call.params.input_count());
  const int64_t *shape = kResult == SAMPLES ? samples.data() : call.inputs[kResult == GRAD_GRID].shape;
  set_output(call.outputs[0], call.inputs[0].dtype, shape, 4);
}

template <Result kResult>
void run(const OpCall<SamplerParams<kResult>> &call) {
  samples_shape(call.inputs, call.params.input_count());
  if (element_count(call.outputs[0].shape, 4) == 0) return;
  for_float_dtype(call.inputs[0].dtype, [&](auto zero) {
    auto *result = static_cast<decltype(zero) *>(call.outputs[0].data);
    if constexpr (kResult == SAMPLES)
      sample(call.inputs, result);
    else if constexpr (kResult == GRAD_IMAGE)
      sample_grad_image(call.inputs, result);
    else
      sample_grad_grid(call.inputs, result);
  });
}

}  // namespace

DNNOPS_OP(onednn_affine_grid, GridParams, shape, run)
DNNOPS_OP(onednn_affine_grid_grad, GridGradParams, shape, run)
DNNOPS_OP(onednn_sampler, SamplerParams<SAMPLES>, shape, run)
DNNOPS_OP(onednn_sampler_grad_image, SamplerParams<GRAD_IMAGE>, shape, run)
DNNOPS_OP(onednn_sampler_grad_grid, SamplerParams<GRAD_GRID>, shape, run)

}  // namespace dnnops
