#include "conv_product.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "../base/huge_pages.hpp"
#include "../base/pieces.hpp"
#include "../base/plan.hpp"
#include "narrow_product.hpp"

namespace dnnops {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Where to cut `size` into `pieces` of whole steps.
int64_t cut(int64_t size, int64_t step, int64_t piece, int64_t pieces) {
  return std::min(size, ceil_div(size, step) * piece / pieces * step);
}

// The sizes of a problem, with channels per group.
struct Sizes {
  int64_t batch, groups, in_channels, out_channels, pixels;

  explicit Sizes(const ConvProblem &problem)
      : batch(problem.image[0]),
        groups(problem.geometry.groups),
        in_channels(problem.filters[1]),
        out_channels(problem.filters[0] / groups),
        pixels(element_count(problem.image + 2, problem.geometry.spatial_ndim)) {}
  int64_t filters() const { return groups * out_channels * in_channels; }
};

// Images as matrices of channels by pixels for dnnl_sgemm, which reads them transposed if channels come last.
struct Matrices {
  float *data;
  int64_t image, channel, pixel;  // strides in elements

  float *at(int64_t n, int64_t c, int64_t p) const { return data + n * image + c * channel + p * pixel; }
  bool transposed() const { return pixel != 1; }
  int64_t leading() const { return transposed() ? pixel : channel; }
};

// Describes an array without a copy. Returns false if it is not a matrix for each image.
bool as_matrices(const dnnops_tensor &tensor, Matrices &matrices) {
  int64_t strides[5];
  if (!addressable_strides(tensor, strides)) return false;
  matrices = {static_cast<float *>(tensor.data), strides[0], strides[1], 0};
  int64_t next = 0;
  for (int64_t axis = tensor.ndim - 1; axis >= 2; --axis) {
    if (tensor.shape[axis] == 1) continue;
    if (!matrices.pixel)
      matrices.pixel = strides[axis];
    else if (strides[axis] != next)
      return false;
    next = strides[axis] * tensor.shape[axis];
  }
  if (!matrices.pixel) matrices.pixel = 1;  // a single pixel
  if (tensor.shape[1] == 1) matrices.channel = matrices.pixel == 1 ? std::max<int64_t>(next, 1) : 1;
  return matrices.pixel == 1 || matrices.channel == 1;
}

// The scratch memory of a call, in floats.
class Layout {
 public:
  int64_t add(int64_t floats) {
    const int64_t offset = size_;
    size_ += ceil_div(floats, 16) * 16;
    return offset;
  }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * (int64_t)sizeof(float); }

 private:
  int64_t size_ = 0;
};

// An array that is used in place if its strides permit, and otherwise as a contiguous copy.
struct Array {
  const dnnops_tensor &tensor;
  bool in_place;
  Matrices matrices;
  int64_t offset = 0;

  // Results are written with adjacent pixels; filters are read and written as one contiguous matrix.
  enum Use { IMAGES_READ, IMAGES_WRITTEN, FILTERS };

  Array(const dnnops_tensor &tensor, Use use, Layout &layout) : tensor(tensor) {
    in_place = use == FILTERS ? is_contiguous(tensor)
                              : as_matrices(tensor, matrices) && (use == IMAGES_READ || matrices.pixel == 1);
    if (in_place) {
      matrices.data = static_cast<float *>(tensor.data);
      return;
    }
    const int64_t plane = element_count(tensor.shape + 2, tensor.ndim - 2);
    matrices = {nullptr, tensor.shape[1] * plane, plane, 1};
    offset = layout.add(size());
  }
  int64_t size() const { return element_count(tensor.shape, tensor.ndim); }
  void place(float *scratch) {
    if (!in_place) matrices.data = scratch + offset;
  }
  void read(float *scratch) {
    place(scratch);
    if (!in_place) pack(tensor, matrices.data, false);
  }
  void write() const {
    if (in_place) return;
    const Pieces<float> target(tensor);
    by_pieces(size(), [&](int64_t begin, int64_t count) { target.finish(begin, count, matrices.data + begin); });
  }
};

// A factor of a product, as dnnl_sgemm takes it.
struct Factor {
  bool transposed;
  const float *data;
  int64_t leading;
};

// The products of several threads. dnnl_sgemm computes each in the thread that calls it, and does not throw.
class Products {
 public:
  // Row-major C (m x n) = A B, or C += A B.
  void operator()(int64_t m, int64_t n, int64_t k, const Factor &a, const Factor &b, bool adds, float *c,
                  int64_t ldc) {
    const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1, a.data,
                                            a.leading, b.data, b.leading, adds ? 1 : 0, c, ldc);
    if (status != dnnl_success) {
#pragma omp atomic write
      status_ = status;
    }
  }
  void check() const { check_dnnl((dnnl_status_t)status_, "dnnl_sgemm"); }

 private:
  int status_ = dnnl_success;
};

// Whether to compute, or only to get the size of the scratch memory.
enum class Purpose { COMPUTE, SIZE };

// A number of images whose pixels lie side by side in one matrix, if images have few pixels.
struct Join {
  // dnnl_sgemm's kernel for AVX-512 computes 48 columns at a time, and 49 columns take as long as 64 or more. Rows
  // are computed in parts whose results stay in a cache until they are copied to their images.
  static constexpr int64_t kMostPixels = 128, kColumns = 800, kRows = 256;
  int64_t images, columns;

  Join(const Sizes &sizes, int64_t threads) {
    const int64_t most = std::max<int64_t>(1, sizes.batch * sizes.groups / threads);
    images = sizes.pixels > kMostPixels ? 1 : std::min({kColumns / sizes.pixels, most, sizes.batch});
    columns = images * sizes.pixels;
  }
};

// Copies matrices of `rows` by the pixels of an image into one, side by side, or back.
void copy_rows(int64_t rows, int64_t images, int64_t pixels, const float *from, int64_t from_row, int64_t from_image,
               float *to, int64_t to_row, int64_t to_image) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < images; ++n)
      std::memcpy(to + row * to_row + n * to_image, from + row * from_row + n * from_image, pixels * sizeof(float));
}

// to = from, or from + to, for a matrix of each group that becomes its transpose.
template <bool kAdds>
void transpose(int64_t groups, int64_t rows, int64_t columns, const float *from, float *to) {
  constexpr int64_t kBlock = 16;
  const int64_t blocks = ceil_div(columns, kBlock);
#pragma omp parallel for if (groups * rows * columns > 16384)
  for (int64_t task = 0; task < groups * blocks; ++task) {
    const int64_t group = task / blocks * rows * columns, first = task % blocks * kBlock;
    const int64_t last = std::min(columns, first + kBlock);
    for (int64_t begin = 0; begin < rows; begin += kBlock)
      for (int64_t column = first; column < last; ++column)
        for (int64_t row = begin; row < std::min(rows, begin + kBlock); ++row) {
          const float value = from[group + row * columns + column];
          float &result = to[group + column * rows + row];
          result = kAdds ? result + value : value;
        }
  }
}

// Computes the forward convolution, or the gradient with respect to the inputs, whose filters are transposed.
// Returns the size of the scratch memory in bytes.
int64_t correlate(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                  Purpose purpose) {
  const bool forward = problem.direction == CONV_FORWARD;
  const Sizes sizes(problem);
  const int64_t rows = forward ? sizes.out_channels : sizes.in_channels;
  const int64_t depth = forward ? sizes.in_channels : sizes.out_channels;
  const int64_t threads = thread_count();
  Layout layout, own;
  Array in(inputs[forward ? 0 : 1], Array::IMAGES_READ, layout);
  Array filters(inputs[forward ? 1 : 0], Array::FILTERS, layout);
  Array out(output, Array::IMAGES_WRITTEN, layout);
  const Join join(sizes, threads);
  const bool joins = join.images > 1 && !in.matrices.transposed();
  const int64_t transposed_at = forward ? 0 : layout.add(sizes.filters());

  // Few images are cut into columns of pixels or, if these are few, rows of channels, so that every thread gets
  // the same number of products.
  const int64_t images = (joins ? ceil_div(sizes.batch, join.images) : sizes.batch) * sizes.groups;
  const bool by_pixels = sizes.pixels >= 1024;
  const int64_t step = by_pixels ? 48 : 8, units = by_pixels ? sizes.pixels : rows;
  const int64_t pieces =
      images >= 8 * threads ? 1 : std::min(threads / std::gcd(images, threads), ceil_div(units, step));
  const int64_t tasks = images * pieces;
  const int64_t in_at = own.add(joins ? depth * join.columns : 0);
  const int64_t out_at = own.add(joins ? std::min(rows, Join::kRows) * join.columns : 0);
  const int64_t own_at = layout.add(std::min(threads, tasks) * own.size());
  if (purpose == Purpose::SIZE) return layout.bytes();
  float *scratch = reinterpret_cast<float *>(thread_scratch(layout.bytes()));
  in.read(scratch);
  filters.read(scratch);
  out.place(scratch);
  if (out.in_place && is_contiguous(output)) prefer_huge_pages(output.data, out.size() * (int64_t)sizeof(float));
  const float *matrix = filters.matrices.data;
  if (!forward) {
    transpose<false>(sizes.groups, sizes.out_channels, sizes.in_channels, matrix, scratch + transposed_at);
    matrix = scratch + transposed_at;
  }

  Products product;
#pragma omp parallel for num_threads(std::min(threads, tasks)) schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t image = task / pieces, group = image % sizes.groups;
    const int64_t n = image / sizes.groups * (joins ? join.images : 1);
    const int64_t begin = cut(units, step, task % pieces, pieces), end = cut(units, step, task % pieces + 1, pieces);
    const float *left = matrix + group * rows * depth;
    const Matrices &from = in.matrices, &to = out.matrices;
    if (joins) {
      float *const mine = scratch + own_at + thread_number() * own.size(), *const in_columns = mine + in_at;
      float *const out_columns = mine + out_at;
      const int64_t count = std::min(join.images, sizes.batch - n), columns = count * sizes.pixels;
      copy_rows(depth, count, sizes.pixels, from.at(n, group * depth, 0), from.channel, from.image, in_columns, columns,
                sizes.pixels);
      for (int64_t row = begin; row < end; row += Join::kRows) {
        const int64_t part = std::min(Join::kRows, end - row);
        product(part, columns, depth, {false, left + row * depth, depth}, {false, in_columns, columns}, false,
                out_columns, columns);
        copy_rows(part, count, sizes.pixels, out_columns, columns, sizes.pixels, to.at(n, group * rows + row, 0),
                  to.channel, to.image);
      }
      continue;
    }
    const int64_t row = by_pixels ? 0 : begin, pixel = by_pixels ? begin : 0;
    const int64_t part = by_pixels ? rows : end - begin, columns = by_pixels ? end - begin : sizes.pixels;
    const Factor right{from.transposed(), from.at(n, group * depth, pixel), from.leading()};
    float *const result = to.at(n, group * rows + row, pixel);
    left += row * depth;
    if (!right.transposed && suits_narrow_product(columns, depth))
      narrow_product(part, columns, depth, left, right.data, right.leading, result, to.leading());
    else
      product(part, columns, depth, {false, left, depth}, right, false, result, to.leading());
  }
  product.check();
  out.write();
  return layout.bytes();
}

// How threads share the gradient with respect to the weights: each computes some rows of each group's matrix,
// summed over a part of all pixels of the batch.
struct Shares {
  int64_t parts, pieces;

  Shares(const Sizes &sizes, int64_t rows, int64_t threads) {
    // Sums of more parts have to pay off: on two cores, 256 to 1024 channels take 0.52 ms in two parts of 98
    // pixels and 0.47 ms in rows, 64 to 256 channels 0.53 ms in two parts of 1568 pixels and 0.56 ms in rows.
    constexpr int64_t kFewestPixels = 1024, kMostSums = (int64_t)1 << 24;
    const int64_t most = std::min(sizes.batch * sizes.pixels / kFewestPixels, kMostSums / sizes.filters());
    parts = std::max<int64_t>(1, std::min(threads, most));
    while (threads % parts) --parts;
    pieces = std::min(ceil_div(threads / parts, sizes.groups), ceil_div(rows, kStep));
  }
  static constexpr int64_t kStep = 16;
};

int64_t grad_weights(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                     Purpose purpose) {
  const Sizes sizes(problem);
  // dnnl_sgemm is faster if the result has at least as many rows as columns: 256 to 64 channels of 56 x 56
  // pixels take 18.5 ms as 256 rows, and 24.8 ms as 64.
  const bool transposed = sizes.in_channels > sizes.out_channels;
  const int64_t rows = std::max(sizes.in_channels, sizes.out_channels);
  const int64_t columns = std::min(sizes.in_channels, sizes.out_channels);
  const int64_t threads = thread_count(), all_pixels = sizes.batch * sizes.pixels;
  const Shares shares(sizes, rows, threads);
  Layout layout;
  Array image(inputs[0], Array::IMAGES_READ, layout), top(inputs[1], Array::IMAGES_READ, layout);
  Array result(output, Array::FILTERS, layout);
  const bool direct = shares.parts == 1 && !transposed;
  const int64_t count = sizes.filters(), sums_at = direct ? 0 : layout.add(shares.parts * count);
  if (purpose == Purpose::SIZE) return layout.bytes();
  float *scratch = reinterpret_cast<float *>(thread_scratch(layout.bytes()));
  image.read(scratch);
  top.read(scratch);
  result.place(scratch);
  float *const out = result.matrices.data, *const sums = direct ? out : scratch + sums_at;
  const Matrices &left = (transposed ? image : top).matrices, &right = (transposed ? top : image).matrices;

  const int64_t tasks = shares.parts * sizes.groups * shares.pieces;
  Products product;
#pragma omp parallel for num_threads(std::min(threads, tasks)) schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t part = task / shares.pieces / sizes.groups, group = task / shares.pieces % sizes.groups;
    const int64_t piece = task % shares.pieces;
    const int64_t row = cut(rows, Shares::kStep, piece, shares.pieces);
    const int64_t last_row = cut(rows, Shares::kStep, piece + 1, shares.pieces);
    const int64_t begin = cut(all_pixels, 16, part, shares.parts), end = cut(all_pixels, 16, part + 1, shares.parts);
    float *sum = sums + part * count + (group * rows + row) * columns;
    for (int64_t at = begin; at < end;) {
      const int64_t n = at / sizes.pixels, pixel = at % sizes.pixels, length = std::min(sizes.pixels - pixel, end - at);
      product(last_row - row, columns, length,
              {left.transposed(), left.at(n, group * rows + row, pixel), left.leading()},
              {!right.transposed(), right.at(n, group * columns, pixel), right.leading()}, at > begin, sum, columns);
      at += length;
    }
  }
  product.check();
  for (int64_t part = 0; part < shares.parts && !direct; ++part) {
    const float *const from = sums + part * count;
    if (transposed)
      (part ? transpose<true> : transpose<false>)(sizes.groups, rows, columns, from, out);
    else
      by_pieces(count, [&](int64_t begin, int64_t length) {
        for (int64_t i = begin; i < begin + length; ++i) out[i] = part ? out[i] + from[i] : from[i];
      });
  }
  result.write();
  return layout.bytes();
}

int64_t convolve(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                 Purpose purpose) {
  const bool by_weights = problem.direction == CONV_GRAD_WEIGHTS;
  return (by_weights ? grad_weights : correlate)(problem, inputs, output, purpose);
}

}  // namespace

const char *product_obstacle(const ConvProblem &problem) {
  const ConvGeometry &geometry = problem.geometry;
  for (int64_t i = 0; i < geometry.spatial_ndim; ++i) {
    if (problem.filters[2 + i] != 1) return "it requires filters of one pixel";
    if (geometry.stride[i] != 1) return "it requires stride 1";
    if (geometry.pad_begin[i] != 0 || geometry.pad_end[i] != 0) return "it requires no padding";
  }
  return nullptr;
}

const char *product_drawback(const ConvProblem &problem) {
  // Measured on two AVX-512 cores beside oneDNN 3.2. 32 images of 256 to 256 channels, forward: with 4 x 4 pixels
  // 0.7 times as fast, with 5 x 5 and 6 x 6 pixels 1.06 times, with 12 x 12 pixels 1.2 times. From 28 x 28 pixels
  // on, 1.2 to 4.8 times.
  const Sizes sizes(problem);
  if (sizes.pixels < 25) return "not used for images of fewer than 25 pixels";
  // For the gradient with respect to the weights, dnnl_sgemm adds the sums of each image to those before it. 32
  // images: 0.88 to 1.06 times as fast with 7 x 7 pixels, 0.87 to 0.94 times with 11 x 11, 0.97 to 1.2 times with
  // 14 x 14. One image of 7 x 7 pixels: 1.1 to 1.5 times; groups of 7 x 7 pixels: 1.5 times.
  if (problem.direction == CONV_GRAD_WEIGHTS && sizes.groups == 1 && sizes.pixels < 128 &&
      sizes.batch * sizes.pixels >= 1024)
    return "not used for the gradient with respect to the weights from many images of fewer than 128 pixels";
  return nullptr;
}

void conv_product(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  convolve(problem, inputs, output, Purpose::COMPUTE);
}

int64_t product_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  return convolve(problem, inputs, output, Purpose::SIZE);
}

}  // namespace dnnops
