// The gradient of max pooling on channels-last images, for windows that do not overlap.
//
// A grid with the strides as distances divides each image into cells. A cell begins with a window, or has none if it is
// at the end of an axis. One thread computes 16 bytes of adjacent channels of a cell: it reads the window of the image
// and an element of the gradient for each channel, and writes all pixels of the cell. So arrays are read and written
// once, results are identical in every run, and the pooled image is not read.
//
// Macros: DTYPE, as in numbers.cuh; WINDOW_0 to WINDOW_2 and STRIDE_0 to STRIDE_2, the windows' sizes and distances.

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / (int)sizeof(Bits);
constexpr int PIXELS = WINDOW_0 * WINDOW_1 * WINDOW_2;  // of a window

union Vector {
  uint4 words;
  Bits items[WIDTH];
};

// Divides an index by the number of cells along an axis, and returns the remainder.
DEVICE int take_cell(const PoolCellsAxis &axis, unsigned &index) {
  const unsigned rest = index / (unsigned)axis.cells;
  const int cell = (int)(index - rest * (unsigned)axis.cells);
  index = rest;
  return cell;
}

// Calls a function with each pixel of a part of a cell that is inside the image: its place, as a number of vectors, and
// its coordinates in the cell.
template <int SIZE_0, int SIZE_1, int SIZE_2, class Visit>
DEVICE void each_pixel(const PoolCellsParams &p, const int *first, unsigned image, unsigned vector, Visit visit) {
  UNROLL
  for (int i = 0; i < SIZE_0; ++i) {
    const int at_0 = first[0] + i;
    const bool inside_0 = at_0 >= 0 && at_0 < p.axes[0].image;
    UNROLL
    for (int j = 0; j < SIZE_1; ++j) {
      const int at_1 = first[1] + j;
      const bool inside_1 = inside_0 && at_1 >= 0 && at_1 < p.axes[1].image;
      const unsigned row = (image * (unsigned)p.axes[0].image + (unsigned)at_0) * (unsigned)p.axes[1].image + (unsigned)at_1;
      UNROLL
      for (int k = 0; k < SIZE_2; ++k) {
        const int at_2 = first[2] + k;
        if (inside_1 && at_2 >= 0 && at_2 < p.axes[2].image)
          visit((row * (unsigned)p.axes[2].image + (unsigned)at_2) * p.vectors + vector, i, j, k);
      }
    }
  }
}

DEVICE int pixel_of_window(int i, int j, int k) { return (i * WINDOW_1 + j) * WINDOW_2 + k; }

KERNEL void __launch_bounds__(THREADS) max_pool_cells_grad(const GRID_CONSTANT PoolCellsParams p) {
  wait_for_stream();
  const unsigned item = blockIdx.x * (unsigned)THREADS + threadIdx.x;
  if (item >= p.items) return;
  unsigned index = item / p.vectors;
  const unsigned vector = item - index * p.vectors;
  const int cell_2 = take_cell(p.axes[2], index), cell_1 = take_cell(p.axes[1], index),
            cell_0 = take_cell(p.axes[0], index);
  const unsigned image = index;
  const int first[3] = {cell_0 * STRIDE_0 - p.axes[0].pad, cell_1 * STRIDE_1 - p.axes[1].pad,
                        cell_2 * STRIDE_2 - p.axes[2].pad};

  Vector gz = {};
  int chosen[WIDTH];
  UNROLL
  for (int c = 0; c < WIDTH; ++c) chosen[c] = -1;
  if (cell_0 < p.axes[0].top && cell_1 < p.axes[1].top && cell_2 < p.axes[2].top) {
    unsigned window = image * (unsigned)p.axes[0].top + (unsigned)cell_0;
    window = window * (unsigned)p.axes[1].top + (unsigned)cell_1;
    window = window * (unsigned)p.axes[2].top + (unsigned)cell_2;
    gz.words = __ldg(static_cast<const uint4 *>(p.gz) + (window * p.vectors + vector));

    // All loads begin before the first comparison.
    Vector x[PIXELS];
    bool is_inside[PIXELS] = {};
    each_pixel<WINDOW_0, WINDOW_1, WINDOW_2>(p, first, image, vector, [&](unsigned place, int i, int j, int k) {
      const int pixel = pixel_of_window(i, j, k);
      x[pixel].words = __ldg(static_cast<const uint4 *>(p.x) + place);
      is_inside[pixel] = true;
    });

    // The first maximum. A NaN counts as the maximum; if all are -infinity, it is the first pixel inside the image.
    const int start = pixel_of_window(max(0, -first[0]), max(0, -first[1]), max(0, -first[2]));
    Acc best[WIDTH];
    UNROLL
    for (int c = 0; c < WIDTH; ++c) {
      best[c] = -(Acc)INFINITY;
      chosen[c] = start;
    }
    UNROLL
    for (int pixel = 0; pixel < PIXELS; ++pixel) {
      if (!is_inside[pixel]) continue;
      UNROLL
      for (int c = 0; c < WIDTH; ++c) {
        const Acc candidate = to_acc(x[pixel].items[c]);
        if (!(candidate <= best[c]) && best[c] == best[c]) {
          best[c] = candidate;
          chosen[c] = pixel;
        }
      }
    }
  }

  each_pixel<STRIDE_0, STRIDE_1, STRIDE_2>(p, first, image, vector, [&](unsigned place, int i, int j, int k) {
    const bool is_in_window = i < WINDOW_0 && j < WINDOW_1 && k < WINDOW_2;
    Vector out = {};
    UNROLL
    for (int c = 0; c < WIDTH; ++c)
      if (is_in_window && chosen[c] == pixel_of_window(i, j, k)) out.items[c] = gz.items[c];
    store_16_bytes(static_cast<uint4 *>(p.result) + place, out.words);
  });
}
