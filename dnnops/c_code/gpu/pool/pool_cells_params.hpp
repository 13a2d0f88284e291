// The parameters of the kernels in pool_cells_*.cuh, which are compiled with this file, too.
#ifndef DNNOPS_CUDNN_POOL_CELLS_PARAMS_HPP
#define DNNOPS_CUDNN_POOL_CELLS_PARAMS_HPP

struct PoolCellsAxis {
  int image, top;
  int cells;  // along the second axis, strips of cells
  int pad;
};

struct PoolCellsParams {
  const void *x, *gz;  // the second is for gradients
  const void *addend;  // for gradients to which an array is added
  long long addend_pitch;  // distance between its pixels, as a number of elements
  void *result;
  PoolCellsAxis axes[3];  // an image with fewer spatial axes has unit axes before them
  unsigned vectors;       // of each pixel's channels
  unsigned items;         // vectors of all cells
};

#endif
