// The gradient of max pooling on channels-last images, for windows that overlap.
//
// A thread reads the patch that consists of all windows with pixels in its cell, and adds up, for each pixel of the
// cell, the gradients of the windows whose maximum it is. Windows have a fixed order, and each pixel is written once,
// so results are identical in every run. A window is examined by each thread whose cell it reaches. Finding the
// position of its maximum would take most of the time, so a thread only compares the pixels of its cell with the
// maximum of those before them and with that of the window. An array to add comes last in each sum, which is rounded
// once.

// Windows that reach a cell along an axis.
constexpr int reach(int window, int stride) { return (window + stride - 1) / stride; }
constexpr int REACH_0 = reach(WINDOW_0, STRIDE_0), REACH_1 = reach(WINDOW_1, STRIDE_1),
              REACH_2 = reach(WINDOW_2, STRIDE_2);
// The place of the cell in the patch, and the size of the patch.
constexpr int BEFORE_0 = (REACH_0 - 1) * STRIDE_0, BEFORE_1 = (REACH_1 - 1) * STRIDE_1,
              BEFORE_2 = (REACH_2 - 1) * STRIDE_2;
constexpr int PATCH_0 = BEFORE_0 + WINDOW_0, PATCH_1 = BEFORE_1 + WINDOW_1, PATCH_2 = BEFORE_2 + WINDOW_2;

// Blocks that a multiprocessor runs at once. With two, a thread has 128 registers, which suffice for windows of 3x3 at
// distances of 2, but not if their sums have 16 bits and an array is added, or if an array is added to a large cell.
constexpr bool HAS_SPACE = ADDEND == NO_ADDEND || (sizeof(Bits) > 2 && STRIDE_0 * STRIDE_1 * STRIDE_2 <= 8);
constexpr int BLOCKS = HAS_SPACE && PATCH_0 * PATCH_1 * PATCH_2 <= 25 && REACH_0 * REACH_1 * REACH_2 <= 4 ? 2 : 1;

struct Patch {
  WordVector x[PATCH_0 * PATCH_1 * PATCH_2];
  WordVector gz[REACH_0][REACH_1][REACH_2];  // of the windows, zero if there is none
};

DEVICE int pixel_of_patch(int i, int j, int k) { return (i * PATCH_1 + j) * PATCH_2 + k; }

using Sums = Acc[STRIDE_0][STRIDE_1][STRIDE_2][Lanes::COUNT];

// Adds one window's gradient to the pixel of the cell that is its first maximum, if there is one.
DEVICE void add_window(const Patch &patch, const Item &item, int w0, int w1, int w2, int word, Sums &sums) {
  Word before[PIXELS];  // the maximum of the pixels before each
  Word most = Lanes::lowest();
  UNROLL
  for (int i = 0; i < WINDOW_0; ++i) {
    UNROLL
    for (int j = 0; j < WINDOW_1; ++j) {
      UNROLL
      for (int k = 0; k < WINDOW_2; ++k) {
        before[pixel_of_window(i, j, k)] = most;
        const int pixel = pixel_of_patch(w0 * STRIDE_0 + i, w1 * STRIDE_1 + j, w2 * STRIDE_2 + k);
        most = Lanes::maximum(patch.x[pixel].words[word], most);
      }
    }
  }
  const Word gz = patch.gz[w0][w1][w2].words[word];
  UNROLL
  for (int i = 0; i < STRIDE_0; ++i) {
    UNROLL
    for (int j = 0; j < STRIDE_1; ++j) {
      UNROLL
      for (int k = 0; k < STRIDE_2; ++k) {
        const int at_0 = BEFORE_0 - w0 * STRIDE_0 + i, at_1 = BEFORE_1 - w1 * STRIDE_1 + j,
                  at_2 = BEFORE_2 - w2 * STRIDE_2 + k;  // in the window
        if (at_0 >= WINDOW_0 || at_1 >= WINDOW_1 || at_2 >= WINDOW_2) continue;
        // The window's first pixel inside the image is chosen if all are -infinity, which beats nothing.
        const bool is_first = (at_0 == 0 || item.first[0] + i == 0) && (at_1 == 0 || item.first[1] + j == 0) &&
                              (at_2 == 0 || item.first[2] + k == 0);
        const Word x = patch.x[pixel_of_patch(BEFORE_0 + i, BEFORE_1 + j, BEFORE_2 + k)].words[word];
        const Word earlier = before[pixel_of_window(at_0, at_1, at_2)];
        const Lanes::Mask beats_earlier = Lanes::beats(x, earlier) | Lanes::mask(is_first);
        Lanes::add(sums[i][j][k], gz, Lanes::without(beats_earlier, Lanes::beats(most, x)));
      }
    }
  }
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) max_pool_overlap_grad(const GRID_CONSTANT PoolCellsParams p) {
  wait_for_stream();
  Item item;
  if (!find_item(p, item)) return;

  // All loads begin before the first comparison. Words of the addend are in the place of those of the result until these
  // are computed.
  WordVector out[STRIDE_0][STRIDE_1][STRIDE_2];
  load_addend(p, item, [&](int i, int j, int k) -> uint4 & { return out[i][j][k].vector; });
  Patch patch;
  fill_lowest(patch.x);
  const int first[3] = {item.first[0] - BEFORE_0, item.first[1] - BEFORE_1, item.first[2] - BEFORE_2};
  each_pixel<PATCH_0, PATCH_1, PATCH_2>(p, item, first, [&](unsigned pixel, int i, int j, int k) {
    patch.x[pixel_of_patch(i, j, k)].vector = __ldg(static_cast<const uint4 *>(p.x) + place_of(p, item, pixel));
  });
  UNROLL
  for (int i = 0; i < REACH_0; ++i) {
    UNROLL
    for (int j = 0; j < REACH_1; ++j) {
      UNROLL
      for (int k = 0; k < REACH_2; ++k) {
        const int window[3] = {item.cell[0] - (REACH_0 - 1) + i, item.cell[1] - (REACH_1 - 1) + j,
                               item.cell[2] - (REACH_2 - 1) + k};
        patch.gz[i][j][k].vector = {};
        if (has_window(p, window))
          patch.gz[i][j][k].vector = __ldg(static_cast<const uint4 *>(p.gz) + place_of(p, item, window));
      }
    }
  }

  UNROLL
  for (int word = 0; word < WORDS; ++word) {
    Sums sums = {};
    UNROLL
    for (int i = 0; i < REACH_0; ++i) {
      UNROLL
      for (int j = 0; j < REACH_1; ++j) {
        UNROLL
        for (int k = 0; k < REACH_2; ++k) add_window(patch, item, i, j, k, word, sums);
      }
    }
    UNROLL
    for (int i = 0; i < STRIDE_0; ++i) {
      UNROLL
      for (int j = 0; j < STRIDE_1; ++j) {
        UNROLL
        for (int k = 0; k < STRIDE_2; ++k) {
          Word &result = out[i][j][k].words[word];
          if constexpr (ADDEND != NO_ADDEND) Lanes::add(sums[i][j][k], result, Lanes::mask(true));
          result = Lanes::rounded(sums[i][j][k]);
        }
      }
    }
  }
  each_pixel<STRIDE_0, STRIDE_1, STRIDE_2>(p, item, item.first, [&](unsigned pixel, int i, int j, int k) {
    store_16_bytes(static_cast<uint4 *>(p.result) + place_of(p, item, pixel), out[i][j][k].vector);
  });
}
