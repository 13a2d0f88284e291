// The parameters of the kernel in pool_cells.cuh, which is compiled with this file, too.
#ifndef DNNOPS_CUDNN_POOL_CELLS_PARAMS_HPP
#define DNNOPS_CUDNN_POOL_CELLS_PARAMS_HPP

struct PoolCellsAxis {
  int image, top, cells, pad;
};

struct PoolCellsParams {
  const void *x, *gz;
  void *result;
  PoolCellsAxis axes[3];  // an image with fewer spatial axes has unit axes before them
  unsigned vectors;       // of each pixel's channels
  unsigned items;         // vectors of all cells
};

#endif
