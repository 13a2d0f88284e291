#include "conv_blas.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "../base/plan.hpp"

namespace dnnops {
namespace {

Dgemm dgemm = nullptr;

}  // namespace

// In Fortran's column-major order, this is the transposed product.
void blas_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
               const double *b, int64_t ldb, double beta, double *c, int64_t ldc) {
  if (std::max({m, n, k, lda, ldb, ldc}) > INT_MAX)
    fail(DNNOPS_NOT_SUPPORTED, "matrix products of more than 2^31 rows or columns are not supported");
  char first = trans_b ? 'T' : 'N', second = trans_a ? 'T' : 'N';
  int rows = (int)n, columns = (int)m, inner = (int)k, stride_a = (int)lda, stride_b = (int)ldb, stride_c = (int)ldc;
  double one = 1;
  dgemm(&first, &second, &rows, &columns, &inner, &one, const_cast<double *>(b), &stride_b, const_cast<double *>(a),
        &stride_a, &beta, c, &stride_c);
}

namespace {

// Row-major C (m x n) = op(A) op(B) + beta C, with dense rows.
void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double *a, double *b, double beta,
          double *c) {
  blas_gemm(trans_a, trans_b, m, n, k, a, trans_a ? m : k, b, trans_b ? k : n, beta, c, n);
}

// The three spatial axes of a problem; missing leading axes have size 1.
struct Spatial {
  int64_t image[3], filter[3], top[3], stride[3], dilation[3], pad[3];
  int64_t image_count = 1, filter_count = 1, top_count = 1;
  explicit Spatial(const ConvProblem &problem) {
    const int64_t missing = 3 - problem.geometry.spatial_ndim;
    for (int64_t i = 0; i < 3; ++i) {
      const bool real = i >= missing;
      const int64_t j = real ? i - missing : 0;
      image[i] = real ? problem.image[2 + j] : 1;
      filter[i] = real ? problem.filters[2 + j] : 1;
      top[i] = real ? problem.top[2 + j] : 1;
      stride[i] = real ? problem.geometry.stride[j] : 1;
      dilation[i] = real ? problem.geometry.dilation[j] : 1;
      pad[i] = real ? problem.geometry.pad_begin[j] : 0;
      image_count *= image[i];
      filter_count *= filter[i];
      top_count *= top[i];
    }
  }
};

// Walks all (channel, filter tap) rows of the column matrix. touch(row pointer, image pointer) gets one run
// of output columns and the matching image elements (null for padding). Single-threaded, because between two
// images OpenMP threads would keep the cores from BLAS's own threads.
template <class Copy>
void for_columns(const Spatial &s, int64_t channels, double *columns, double *image, Copy &&copy) {
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t tap = 0; tap < s.filter_count; ++tap) {
      const int64_t kw = tap % s.filter[2], kh = tap / s.filter[2] % s.filter[1],
                    kd = tap / (s.filter[2] * s.filter[1]);
      double *row = columns + (channel * s.filter_count + tap) * s.top_count;
      for (int64_t d = 0; d < s.top[0]; ++d) {
        const int64_t id = d * s.stride[0] - s.pad[0] + kd * s.dilation[0];
        for (int64_t h = 0; h < s.top[1]; ++h, row += s.top[2]) {
          const int64_t ih = h * s.stride[1] - s.pad[1] + kh * s.dilation[1];
          const bool inside = id >= 0 && id < s.image[0] && ih >= 0 && ih < s.image[1];
          double *line = inside ? image + channel * s.image_count + (id * s.image[1] + ih) * s.image[2] : nullptr;
          copy(row, line, kw * s.dilation[2] - s.pad[2]);
        }
      }
    }
}

void image_to_columns(const Spatial &s, int64_t channels, double *image, double *columns) {
  for_columns(s, channels, columns, image, [&](double *row, const double *line, int64_t offset) {
    for (int64_t w = 0; w < s.top[2]; ++w) {
      const int64_t at = w * s.stride[2] + offset;
      row[w] = line && at >= 0 && at < s.image[2] ? line[at] : 0.0;
    }
  });
}

void columns_to_image(const Spatial &s, int64_t channels, double *columns, double *image) {
  std::memset(image, 0, channels * s.image_count * sizeof(double));
  for_columns(s, channels, columns, image, [&](const double *row, double *line, int64_t offset) {
    if (!line) return;
    for (int64_t w = 0; w < s.top[2]; ++w) {
      const int64_t at = w * s.stride[2] + offset;
      if (at >= 0 && at < s.image[2]) line[at] += row[w];
    }
  });
}

// The arrays that conv_blas() copies, and the layout of its scratch memory: the columns, then a contiguous copy of
// each operand that needs one, then the result if its filters are reversed.
struct Scratch {
  bool pointwise;  // the image itself serves as the columns
  bool copied[2], flip_result;
  int filters_at;  // the index of the input that holds the filters, or -1
  size_t offsets[3], bytes;

  Scratch(const ConvProblem &problem, const Spatial &s, const dnnops_tensor *inputs) {
    const int64_t direction = problem.direction;
    const bool flip = problem.geometry.filter_flip && s.filter_count > 1;
    pointwise = s.filter_count == 1;
    for (int i = 0; i < 3; ++i) pointwise = pointwise && s.stride[i] == 1 && s.pad[i] == 0 && s.image[i] == s.top[i];
    filters_at = direction == CONV_GRAD_INPUTS ? 0 : direction == CONV_FORWARD ? 1 : -1;
    flip_result = direction == CONV_GRAD_WEIGHTS && flip;
    bytes = pointwise ? 0 : problem.filters[1] * s.filter_count * s.top_count * sizeof(double);
    for (int i = 0; i < 2; ++i) {
      copied[i] = !is_contiguous(inputs[i]) || (i == filters_at && flip);
      offsets[i] = bytes;
      if (copied[i]) bytes += element_count(inputs[i].shape, inputs[i].ndim) * sizeof(double);
    }
    offsets[2] = bytes;
    if (flip_result) bytes += element_count(problem.filters, problem.ndim) * sizeof(double);
  }
};

}  // namespace

void conv_blas(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  if (!dgemm) fail(DNNOPS_NOT_SUPPORTED, "float64 requires a dgemm function, but none was registered");
  const Spatial s(problem);
  const int64_t groups = problem.geometry.groups, batch = problem.image[0];
  const int64_t in_channels = problem.filters[1], out_channels = problem.filters[0] / groups;
  const int64_t depth = in_channels * s.filter_count;
  const int64_t direction = problem.direction;
  const Scratch pieces(problem, s, inputs);
  char *scratch = thread_scratch(pieces.bytes);
  double *columns = reinterpret_cast<double *>(scratch), *operands[2];
  for (int i = 0; i < 2; ++i) {
    const bool flip = i == pieces.filters_at && problem.geometry.filter_flip;
    operands[i] = static_cast<double *>(inputs[i].data);
    if (!pieces.copied[i]) continue;
    operands[i] = reinterpret_cast<double *>(scratch + pieces.offsets[i]);
    pack(inputs[i], operands[i], flip);
  }
  double *result = pieces.flip_result ? reinterpret_cast<double *>(scratch + pieces.offsets[2])
                                      : static_cast<double *>(output.data);
  double *image = direction == CONV_GRAD_INPUTS ? result : operands[0];
  double *filters = direction == CONV_FORWARD ? operands[1] : direction == CONV_GRAD_INPUTS ? operands[0] : result;
  double *top = direction == CONV_FORWARD ? result : operands[1];

  for (int64_t n = 0; n < batch; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      double *image_part = image + (n * groups + g) * in_channels * s.image_count;
      double *top_part = top + (n * groups + g) * out_channels * s.top_count;
      double *filters_part = filters + g * out_channels * depth;
      double *matrix = pieces.pointwise ? image_part : columns;
      if (direction == CONV_GRAD_INPUTS) {
        gemm(true, false, depth, s.top_count, out_channels, filters_part, top_part, 0, matrix);
        if (!pieces.pointwise) columns_to_image(s, in_channels, columns, image_part);
        continue;
      }
      if (!pieces.pointwise) image_to_columns(s, in_channels, image_part, columns);
      if (direction == CONV_FORWARD)
        gemm(false, false, out_channels, s.top_count, depth, filters_part, matrix, 0, top_part);
      else
        gemm(false, true, out_channels, depth, s.top_count, top_part, matrix, n ? 1 : 0, filters_part);
    }
  if (pieces.flip_result) {
    dnnops_tensor computed = output;
    computed.data = result;
    pack(computed, output.data, true);
  }
}

int64_t blas_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs) {
  return (int64_t)Scratch(problem, Spatial(problem), inputs).bytes;
}

}  // namespace dnnops

DNNOPS_EXPORT void dnnops_onednn_set_dgemm(void *function) {
  dnnops::dgemm = reinterpret_cast<dnnops::Dgemm>(function);
}
