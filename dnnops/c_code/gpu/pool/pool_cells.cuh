// Max pooling of channels-last images: the common parts of the kernels.
//
// A grid with the strides as distances divides each image into cells. A cell begins with a window, or has none if it is
// at the end of an axis. One thread computes 16 bytes of adjacent channels of a cell, or of the window that it begins
// with.
//
// Macros: DTYPE, as in numbers.cuh; WINDOW_0 to WINDOW_2 and STRIDE_0 to STRIDE_2, the windows' sizes and distances;
// STRIP, the number of cells along the second axis that are computed one after the other, before the next cell along
// the third axis. If windows overlap along both axes, the threads of a block then share more pixels than in a row.

constexpr int THREADS = 256;
constexpr int WIDTH = 16 / (int)sizeof(Bits);
constexpr int PIXELS = WINDOW_0 * WINDOW_1 * WINDOW_2;  // of a window

union Vector {
  uint4 words;
  Bits items[WIDTH];
};

// What a thread computes.
struct Item {
  int cell[3];
  int first[3];  // the cell's first pixel, which may be in the padding
  unsigned image, vector;
};

// Divides an index by the number of cells along an axis, and returns the remainder.
DEVICE int take_cell(const PoolCellsAxis &axis, unsigned &index) {
  const unsigned rest = index / (unsigned)axis.cells;
  const int cell = (int)(index - rest * (unsigned)axis.cells);
  index = rest;
  return cell;
}

// Returns whether this thread has one. The last strip may have cells that begin after the image and the windows.
DEVICE bool find_item(const PoolCellsParams &p, Item &item) {
  unsigned index = blockIdx.x * (unsigned)THREADS + threadIdx.x;
  if (index >= p.items) return false;
  const unsigned pixel = index / p.vectors;
  item.vector = index - pixel * p.vectors;
  const int in_strip = (int)(pixel % STRIP);
  index = pixel / STRIP;
  item.cell[2] = take_cell(p.axes[2], index);
  item.cell[1] = take_cell(p.axes[1], index) * STRIP + in_strip;
  item.cell[0] = take_cell(p.axes[0], index);
  item.image = index;
  item.first[0] = item.cell[0] * STRIDE_0 - p.axes[0].pad;
  item.first[1] = item.cell[1] * STRIDE_1 - p.axes[1].pad;
  item.first[2] = item.cell[2] * STRIDE_2 - p.axes[2].pad;
  return true;
}

DEVICE bool has_window(const PoolCellsParams &p, const int *window) {
  // As unsigned numbers, negative ones are too large.
  return (unsigned)window[0] < (unsigned)p.axes[0].top && (unsigned)window[1] < (unsigned)p.axes[1].top &&
         (unsigned)window[2] < (unsigned)p.axes[2].top;
}

// The place of a pixel's channels, as a number of vectors.
DEVICE unsigned place_of(const PoolCellsParams &p, const Item &item, unsigned pixel) {
  return pixel * p.vectors + item.vector;
}

// The same for a window in a pooled image.
DEVICE unsigned place_of(const PoolCellsParams &p, const Item &item, const int *window) {
  unsigned place = item.image * (unsigned)p.axes[0].top + (unsigned)window[0];
  place = place * (unsigned)p.axes[1].top + (unsigned)window[1];
  place = place * (unsigned)p.axes[2].top + (unsigned)window[2];
  return place_of(p, item, place);
}

// Calls a function with each pixel of a box that is inside the image: its number among the pixels of all images, and
// its coordinates in the box.
template <int SIZE_0, int SIZE_1, int SIZE_2, class Visit>
DEVICE void each_pixel(const PoolCellsParams &p, const Item &item, const int *first, Visit visit) {
  UNROLL
  for (int i = 0; i < SIZE_0; ++i) {
    const int at_0 = first[0] + i;
    const bool inside_0 = at_0 >= 0 && at_0 < p.axes[0].image;
    UNROLL
    for (int j = 0; j < SIZE_1; ++j) {
      const int at_1 = first[1] + j;
      const bool inside_1 = inside_0 && at_1 >= 0 && at_1 < p.axes[1].image;
      const unsigned row =
          (item.image * (unsigned)p.axes[0].image + (unsigned)at_0) * (unsigned)p.axes[1].image + (unsigned)at_1;
      UNROLL
      for (int k = 0; k < SIZE_2; ++k) {
        const int at_2 = first[2] + k;
        if (inside_1 && at_2 >= 0 && at_2 < p.axes[2].image)
          visit(row * (unsigned)p.axes[2].image + (unsigned)at_2, i, j, k);
      }
    }
  }
}

DEVICE int pixel_of_window(int i, int j, int k) { return (i * WINDOW_1 + j) * WINDOW_2 + k; }
