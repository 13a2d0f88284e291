// Max pooling with dnnops kernels, and its gradient: where they apply, and their launch.
#ifndef DNNOPS_CUDNN_POOL_CELLS_HPP
#define DNNOPS_CUDNN_POOL_CELLS_HPP

#include <algorithm>
#include <climits>
#include <string>

#include "../../common/pool_problem.hpp"

#include "pool_cells_params.hpp"

namespace dnnops {

// The same value as in pool_cells.cuh.
constexpr int64_t CELL_THREADS = 256;
// A thread keeps 16 bytes of each pixel in registers: of a cell, and of all windows with pixels in a cell.
constexpr int64_t MOST_CELL_PIXELS = 16, MOST_PATCH_PIXELS = 27;
// Overlapping windows are computed in strips of this many cells.
constexpr int64_t CELL_STRIP = 4;
// Indices and coordinates of pixels, also of those just outside the image, are of type int.
constexpr int64_t MOST_CELL_VECTORS = INT_MAX - 256;

// How a gradient's kernel reads the array that it adds: the macro ADDEND.
enum PoolAddend : int { NO_ADDEND = 0, ADDEND_OF_ELEMENTS = 1, ADDEND_OF_VECTORS = 2 };

struct PoolCells {
  bool exist = false;  // otherwise, cuDNN computes the pooled image or the gradient
  PoolCellsParams params = {};
  const char *program, *kernel;
  std::string options;  // of the compiler
  unsigned blocks;
};

// For channels-last arrays. Windows have to be small, and channels have to fill vectors. The same limits are in
// dnnops/gpu/fused/pool_sum.py.
inline PoolCells pool_cells(const PoolProblem &problem, bool gradient, int64_t dtype, int64_t item_bytes,
                            PoolAddend addend = NO_ADDEND) {
  PoolCells cells;
  const int64_t bytes = problem.image[1] * item_bytes;
  if (problem.mode != POOL_MAX || bytes % 16) return cells;
  const int64_t vectors = problem.image[0] * (bytes / 16);
  int64_t image_vectors = vectors, top_vectors = vectors, items = vectors, cell_pixels = 1, patch_pixels = 1;
  bool overlap = false;
  const int64_t unit = 3 - problem.spatial_ndim;
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t i = axis - unit;
    const bool given = i >= 0;
    const int64_t image = given ? problem.image[2 + i] : 1, top = given ? problem.top[2 + i] : 1,
                  window = given ? problem.window[i] : 1, stride = given ? problem.stride[i] : 1,
                  pad = given ? problem.pad[i] : 0;
    // Windows of an axis with a single one do not overlap, whatever the stride.
    const int64_t step = top == 1 && stride < window ? window : stride;
    if (window > MOST_PATCH_PIXELS || (gradient && step > MOST_CELL_PIXELS)) return cells;
    const bool overlaps = step < window;
    const int64_t strip = axis == 1 && overlaps ? CELL_STRIP : 1;
    const int64_t end = gradient ? (image + pad + step - 1) / step : top, count = (end + strip - 1) / strip;
    overlap = overlap || overlaps;
    cell_pixels *= gradient ? step : 1;
    patch_pixels *= gradient ? (window - 1) / step * step + window : window;
    image_vectors *= image;
    top_vectors *= top;
    items *= count * strip;
    if (cell_pixels > MOST_CELL_PIXELS || patch_pixels > MOST_PATCH_PIXELS ||
        std::max({image_vectors, top_vectors, items}) > MOST_CELL_VECTORS)
      return cells;
    cells.params.axes[axis] = {static_cast<int>(image), static_cast<int>(top), static_cast<int>(count),
                               static_cast<int>(pad)};
    const std::string number = std::to_string(axis) + "=";
    cells.options += "-DWINDOW_" + number + std::to_string(window) + " -DSTRIDE_" + number + std::to_string(step) + " ";
    if (axis == 1) cells.options += "-DSTRIP=" + std::to_string(strip) + " ";
  }
  if (gradient) cells.options += "-DADDEND=" + std::to_string(addend) + " ";
  cells.options += "-DDTYPE=" + std::to_string(dtype);
  cells.program = !gradient ? "pool_cells_forward" : overlap ? "pool_cells_overlap" : "pool_cells_grad";
  cells.kernel = !gradient ? "max_pool_cells" : overlap ? "max_pool_overlap_grad" : "max_pool_cells_grad";
  cells.params.vectors = static_cast<unsigned>(bytes / 16);
  cells.params.items = static_cast<unsigned>(items);
  cells.blocks = static_cast<unsigned>((items + CELL_THREADS - 1) / CELL_THREADS);
  cells.exist = true;
  return cells;
}

}  // namespace dnnops
#endif
