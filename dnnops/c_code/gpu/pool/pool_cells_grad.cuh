// The gradient of max pooling on channels-last images, for windows that do not overlap.
//
// A thread reads the window of its cell and an element of the gradient for each channel, and writes all pixels of the
// cell. So arrays are read and written once, results are identical in every run, and the pooled image is not read.

constexpr int CELL_PIXELS = STRIDE_0 * STRIDE_1 * STRIDE_2;

DEVICE int pixel_of_cell(int i, int j, int k) { return (i * STRIDE_1 + j) * STRIDE_2 + k; }

KERNEL void __launch_bounds__(THREADS) max_pool_cells_grad(const GRID_CONSTANT PoolCellsParams p) {
  wait_for_stream();
  Item item;
  if (!find_item(p, item)) return;
  const int *const first = item.first;

  // All loads begin before the first comparison.
  Vector addend[CELL_PIXELS];
  load_addend(p, item, [&](int i, int j, int k) -> uint4 & { return addend[pixel_of_cell(i, j, k)].words; });
  Vector gz = {};
  int chosen[WIDTH];
  UNROLL
  for (int c = 0; c < WIDTH; ++c) chosen[c] = -1;
  if (has_window(p, item.cell)) {
    gz.words = __ldg(static_cast<const uint4 *>(p.gz) + place_of(p, item, item.cell));

    Vector x[PIXELS];
    bool is_inside[PIXELS] = {};
    each_pixel<WINDOW_0, WINDOW_1, WINDOW_2>(p, item, first, [&](unsigned pixel, int i, int j, int k) {
      const int place = pixel_of_window(i, j, k);
      x[place].words = __ldg(static_cast<const uint4 *>(p.x) + place_of(p, item, pixel));
      is_inside[place] = true;
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

  each_pixel<STRIDE_0, STRIDE_1, STRIDE_2>(p, item, first, [&](unsigned pixel, int i, int j, int k) {
    const bool is_in_window = i < WINDOW_0 && j < WINDOW_1 && k < WINDOW_2;
    Vector out = {};
    UNROLL
    for (int c = 0; c < WIDTH; ++c)
      if (is_in_window && chosen[c] == pixel_of_window(i, j, k)) out.items[c] = gz.items[c];
    if constexpr (ADDEND != NO_ADDEND) {
      UNROLL
      for (int c = 0; c < WIDTH; ++c)
        out.items[c] = from_acc(to_acc(out.items[c]) + to_acc(addend[pixel_of_cell(i, j, k)].items[c]));
    }
    store_16_bytes(static_cast<uint4 *>(p.result) + place_of(p, item, pixel), out.words);
  });
}
