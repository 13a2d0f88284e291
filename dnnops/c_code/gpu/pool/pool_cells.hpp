// The gradient of max pooling with a dnnops kernel: where it applies, and its launch.
#ifndef DNNOPS_CUDNN_POOL_CELLS_HPP
#define DNNOPS_CUDNN_POOL_CELLS_HPP

#include <climits>
#include <string>

#include "../../common/pool_problem.hpp"

#include "pool_cells_params.hpp"

namespace dnnops {

// The same value as in pool_cells.cuh.
constexpr int64_t CELL_THREADS = 256;
// At most this many pixels: a thread keeps 16 bytes of each in registers.
constexpr int64_t MOST_CELL_PIXELS = 16;

struct PoolCells {
  bool exist = false;  // otherwise, cuDNN computes the gradient
  PoolCellsParams params;
  std::string options;  // of the compiler
  unsigned blocks;
};

// For channels-last arrays. Windows have to be small and must not overlap, and channels have to fill vectors.
inline PoolCells pool_cells(const PoolProblem &problem, int64_t dtype, int64_t item_bytes) {
  PoolCells cells;
  const int64_t bytes = problem.image[1] * item_bytes;
  if (problem.mode != POOL_MAX || bytes % 16) return cells;
  int64_t vectors = problem.image[0] * (bytes / 16), items = vectors, pixels = 1;
  const int64_t unit = 3 - problem.spatial_ndim;
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t i = axis - unit;
    const bool given = i >= 0;
    const int64_t image = given ? problem.image[2 + i] : 1, top = given ? problem.top[2 + i] : 1,
                  window = given ? problem.window[i] : 1, stride = given ? problem.stride[i] : 1,
                  pad = given ? problem.pad[i] : 0;
    // Windows of an axis with a single one do not overlap, whatever the stride.
    const int64_t step = top == 1 && stride < window ? window : stride;
    if (step < window || step > MOST_CELL_PIXELS) return cells;
    const int64_t count = (image + pad + step - 1) / step;
    pixels *= step;
    vectors *= image;
    items *= count;
    if (pixels > MOST_CELL_PIXELS || vectors > INT_MAX) return cells;
    cells.params.axes[axis] = {static_cast<int>(image), static_cast<int>(top), static_cast<int>(count),
                               static_cast<int>(pad)};
    const std::string number = std::to_string(axis) + "=";
    cells.options += "-DWINDOW_" + number + std::to_string(window) + " -DSTRIDE_" + number + std::to_string(step) + " ";
  }
  cells.options += "-DDTYPE=" + std::to_string(dtype);
  cells.params.x = cells.params.gz = nullptr;
  cells.params.result = nullptr;
  cells.params.vectors = static_cast<unsigned>(bytes / 16);
  cells.params.items = static_cast<unsigned>(items);
  cells.blocks = static_cast<unsigned>((items + CELL_THREADS - 1) / CELL_THREADS);
  cells.exist = true;
  return cells;
}

}  // namespace dnnops
#endif
