// Convolution with float32 filters of one pixel as matrix products in the plain layout, forward and both
// gradients.
//
// A contiguous image is a matrix of channels by pixels, and so is its output: the filters times it. oneDNN's
// convolutions would first reorder the arrays into blocks of channels, which takes longer than the products.
// The same number of threads gives the same bits.
#include <algorithm>
#include <cstring>
#include <numeric>

#include <omp.h>

#include "../../base/huge_pages.hpp"
#include "../../base/pieces.hpp"
#include "../conv_ways.hpp"
#include "narrow_product.hpp"
#include "product_operands.hpp"

namespace dnnops {
namespace {

using namespace product;

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

// A factor of a product, as dnnl_sgemm takes it.
struct Factor {
  bool transposed;
  const float *data;
  int64_t leading;
};

// The products of several threads. dnnl_sgemm computes each in the thread that calls it, or in all of them if there is a
// single product, and does not throw.
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

// A number of images whose pixels lie side by side in one matrix, if images have few pixels.
struct Join {
  // dnnl_sgemm's kernel for AVX-512 computes 48 columns at a time, and 49 columns take as long as 64 or more. Rows
  // are computed in parts whose results stay in a cache until they are copied to their images.
  static constexpr int64_t kMostPixels = 128, kColumns = 800, kRows = 256;
  int64_t images = 1;

  Join(const Sizes &sizes, const Matrices &from, int64_t threads) {
    if (sizes.pixels > kMostPixels || from.transposed()) return;
    const int64_t for_each_thread = std::max<int64_t>(1, sizes.batch * sizes.groups / threads);
    images = std::min({kColumns / sizes.pixels, for_each_thread, sizes.batch});
  }
  int64_t columns(const Sizes &sizes) const { return images * sizes.pixels; }
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

// Whether copies of a transposed matrix of filters pay off. For a single image of 7 x 7 pixels with 512 and 2048
// channels, they take as long as the product.
bool pays_transpose(const Sizes &sizes) { return sizes.batch * sizes.pixels >= 1024; }

// The forward convolution, or the gradient with respect to the inputs, whose filters are transposed.
class Correlation {
 public:
  Correlation(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output)
      : forward_(problem.direction == CONV_FORWARD),
        sizes_(problem),
        rows_(forward_ ? sizes_.out_channels : sizes_.in_channels),
        depth_(forward_ ? sizes_.in_channels : sizes_.out_channels),
        threads_(thread_count()),
        transposes_(!forward_ && (pays_transpose(sizes_) || suits_narrow_product(sizes_.pixels, depth_))),
        in_(inputs[forward_ ? 0 : 1], Array::IMAGES_READ, layout_),
        filters_(inputs[forward_ ? 1 : 0], Array::FILTERS, layout_),
        out_(output, Array::IMAGES_WRITTEN, layout_),
        join_(sizes_, in_.matrices, threads_) {
    // Few images are cut into columns of pixels or, if these are few, rows of channels, so that every thread gets
    // the same number of products.
    const int64_t images = ceil_div(sizes_.batch, join_.images) * sizes_.groups;
    step_ = by_pixels() ? kKernelColumns : kKernelRows;
    units_ = by_pixels() ? sizes_.pixels : rows_;
    pieces_ = images >= 8 * threads_ ? 1 : std::min(threads_ / std::gcd(images, threads_), ceil_div(units_, step_));
    tasks_ = images * pieces_;
    if (transposes_) transposed_at_ = layout_.add(sizes_.filters());
    if (joins()) {
      in_columns_at_ = own_.add(depth_ * join_.columns(sizes_));
      out_columns_at_ = own_.add(std::min(rows_, Join::kRows) * join_.columns(sizes_));
      own_at_ = layout_.add(std::min(threads_, tasks_) * own_.size());
    }
  }

  int64_t scratch_bytes() const { return layout_.bytes(); }

  void compute() {
    scratch_ = layout_.allocate();
    in_.read(scratch_);
    filters_.read(scratch_);
    out_.place(scratch_);
    if (is_contiguous(out_.tensor)) prefer_huge_pages(out_.matrices.data, out_.size() * (int64_t)sizeof(float));
    matrix_ = filters_.matrices.data;
    if (transposes_) {
      transpose<false>(sizes_.groups, sizes_.out_channels, sizes_.in_channels, matrix_, scratch_ + transposed_at_);
      matrix_ = scratch_ + transposed_at_;
    }
#pragma omp parallel for num_threads(std::min(threads_, tasks_)) schedule(dynamic)
    for (int64_t task = 0; task < tasks_; ++task) {
      const int64_t image = task / pieces_, group = image % sizes_.groups, n = image / sizes_.groups * join_.images;
      const int64_t begin = cut(units_, step_, task % pieces_, pieces_);
      const int64_t end = cut(units_, step_, task % pieces_ + 1, pieces_);
      if (joins())
        multiply_joined(n, group, begin, end);
      else if (by_pixels())
        multiply(n, group, 0, rows_, begin, end);
      else
        multiply(n, group, begin, end, 0, sizes_.pixels);
    }
    product_.check();
    out_.write();
  }

 private:
  // The columns and rows that dnnl_sgemm's kernel for AVX-512 computes at a time.
  static constexpr int64_t kKernelColumns = 48, kKernelRows = 8;

  bool by_pixels() const { return sizes_.pixels >= 1024; }
  bool joins() const { return join_.images > 1; }
  // The filters of rows of the result.
  Factor filters(int64_t group, int64_t row) const {
    const float *part = matrix_ + group * rows_ * depth_;
    if (forward_ || transposes_) return {false, part + row * depth_, depth_};
    return {true, part + row, rows_};
  }

  void multiply(int64_t n, int64_t group, int64_t row, int64_t last_row, int64_t pixel, int64_t last_pixel) {
    const int64_t rows = last_row - row, columns = last_pixel - pixel;
    const Matrices &from = in_.matrices, &to = out_.matrices;
    const Factor left = filters(group, row);
    const float *right = from.at(n, group * depth_, pixel);
    float *result = to.at(n, group * rows_ + row, pixel);
    if (!from.transposed() && suits_narrow_product(columns, depth_))
      narrow_product(rows, columns, depth_, left.data, right, from.leading(), result, to.leading());
    else
      product_(rows, columns, depth_, left, {from.transposed(), right, from.leading()}, false, result, to.leading());
  }

  void multiply_joined(int64_t n, int64_t group, int64_t row, int64_t last_row) {
    const int64_t count = std::min(join_.images, sizes_.batch - n), pixels = sizes_.pixels, columns = count * pixels;
    const Matrices &from = in_.matrices, &to = out_.matrices;
    float *const mine = scratch_ + own_at_ + omp_get_thread_num() * own_.size();
    float *const in_columns = mine + in_columns_at_, *const out_columns = mine + out_columns_at_;
    copy_rows(depth_, count, pixels, from.at(n, group * depth_, 0), from.channel, from.image, in_columns, columns,
              pixels);
    for (; row < last_row; row += Join::kRows) {
      const int64_t rows = std::min(Join::kRows, last_row - row);
      product_(rows, columns, depth_, filters(group, row), {false, in_columns, columns}, false, out_columns, columns);
      copy_rows(rows, count, pixels, out_columns, columns, pixels, to.at(n, group * rows_ + row, 0), to.channel,
                to.image);
    }
  }

  const bool forward_;
  const Sizes sizes_;
  const int64_t rows_, depth_, threads_;
  const bool transposes_;  // or dnnl_sgemm reads the filters transposed
  Layout layout_, own_;  // of the call, and of each thread
  Array in_, filters_, out_;
  const Join join_;
  int64_t step_, units_, pieces_, tasks_;  // how the work is divided
  int64_t transposed_at_ = 0, in_columns_at_ = 0, out_columns_at_ = 0, own_at_ = 0;
  float *scratch_ = nullptr;
  const float *matrix_ = nullptr;
  Products product_;
};

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
    pieces = std::min(ceil_div(threads / parts, sizes.groups), ceil_div(rows, kRowStep));
  }
  static constexpr int64_t kRowStep = 16, kPixelStep = 16;
};

class GradWeights {
 public:
  GradWeights(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output)
      : sizes_(problem),
        transposed_(sizes_.in_channels > sizes_.out_channels && pays_transpose(sizes_)),
        rows_(transposed_ ? sizes_.in_channels : sizes_.out_channels),
        columns_(transposed_ ? sizes_.out_channels : sizes_.in_channels),
        threads_(thread_count()),
        shares_(sizes_, rows_, threads_),
        image_(inputs[0], Array::IMAGES_READ, layout_),
        top_(inputs[1], Array::IMAGES_READ, layout_),
        result_(output, Array::FILTERS, layout_) {
    if (!in_result()) sums_at_ = layout_.add(shares_.parts * sizes_.filters());
  }

  int64_t scratch_bytes() const { return layout_.bytes(); }

  void compute() {
    float *const scratch = layout_.allocate();
    image_.read(scratch);
    top_.read(scratch);
    result_.place(scratch);
    float *const result = result_.matrices.data, *const sums = in_result() ? result : scratch + sums_at_;
    const int64_t tasks = shares_.parts * sizes_.groups * shares_.pieces, count = sizes_.filters();
#pragma omp parallel for num_threads(std::min(threads_, tasks)) schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t piece = task % shares_.pieces, group = task / shares_.pieces % sizes_.groups;
      const int64_t part = task / shares_.pieces / sizes_.groups;
      sum_products(group, piece, part, sums + part * count);
    }
    product_.check();
    for (int64_t part = 0; part < shares_.parts && !in_result(); ++part) {
      const float *const from = sums + part * count;
      if (transposed_)
        (part ? transpose<true> : transpose<false>)(sizes_.groups, rows_, columns_, from, result);
      else
        by_pieces(count, [&](int64_t begin, int64_t length) {
          for (int64_t i = begin; i < begin + length; ++i) result[i] = part ? result[i] + from[i] : from[i];
        });
    }
    result_.write();
  }

 private:
  bool in_result() const { return shares_.parts == 1 && !transposed_; }

  // One product for each image that the part has pixels of.
  void sum_products(int64_t group, int64_t piece, int64_t part, float *sums) {
    const Matrices &left = (transposed_ ? image_ : top_).matrices, &right = (transposed_ ? top_ : image_).matrices;
    const int64_t row = cut(rows_, Shares::kRowStep, piece, shares_.pieces);
    const int64_t last_row = cut(rows_, Shares::kRowStep, piece + 1, shares_.pieces);
    const int64_t all_pixels = sizes_.batch * sizes_.pixels;
    const int64_t begin = cut(all_pixels, Shares::kPixelStep, part, shares_.parts);
    const int64_t end = cut(all_pixels, Shares::kPixelStep, part + 1, shares_.parts);
    for (int64_t at = begin, length; at < end; at += length) {
      const int64_t n = at / sizes_.pixels, pixel = at % sizes_.pixels;
      length = std::min(sizes_.pixels - pixel, end - at);
      product_(last_row - row, columns_, length,
               {left.transposed(), left.at(n, group * rows_ + row, pixel), left.leading()},
               {!right.transposed(), right.at(n, group * columns_, pixel), right.leading()}, at > begin,
               sums + (group * rows_ + row) * columns_, columns_);
    }
  }

  const Sizes sizes_;
  // Whether the transposed gradient is computed. dnnl_sgemm is faster if the result has at least as many rows as
  // columns: 256 to 64 channels of 56 x 56 pixels take 18.5 ms as 256 rows, and 24.8 ms as 64.
  const bool transposed_;
  const int64_t rows_, columns_, threads_;
  const Shares shares_;
  Layout layout_;
  Array image_, top_, result_;
  int64_t sums_at_ = 0;
  Products product_;
};

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
  // 0.7 times as fast, with 5 x 5 and 6 x 6 pixels 1.06 times, with 12 x 12 pixels 1.2 times. 512 to 2048 channels of
  // 7 x 7 pixels: 1.0 to 1.1 times. From 28 x 28 pixels on, 1.2 to 4.8 times.
  const Sizes sizes(problem);
  if (sizes.pixels < 25) return "not used for images of fewer than 25 pixels";
  // The gradients for 32 images: 0.82 to 1.06 times as fast with 7 x 7 pixels, 0.87 to 1.02 times with 11 x 11, 0.97
  // to 1.2 times with 14 x 14. One image of 7 x 7 pixels: 0.96 to 1.5 times; groups of 7 x 7 pixels: 1.5 times.
  if (problem.direction != CONV_FORWARD && sizes.groups == 1 && sizes.pixels < 128 &&
      sizes.batch * sizes.pixels >= 1024)
    return "not used for gradients of many images of fewer than 128 pixels";
  return nullptr;
}

void conv_product(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  if (problem.direction == CONV_GRAD_WEIGHTS)
    GradWeights(problem, inputs, output).compute();
  else
    Correlation(problem, inputs, output).compute();
}

int64_t product_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  return problem.direction == CONV_GRAD_WEIGHTS ? GradWeights(problem, inputs, output).scratch_bytes()
                                                : Correlation(problem, inputs, output).scratch_bytes();
}

}  // namespace

const OwnWay product_way = {
    ConvWay::PRODUCT, "product", product_obstacle, product_drawback, conv_product, product_scratch_bytes,
};

}  // namespace dnnops
