// Max pooling of channels-last images.
//
// A thread computes 16 bytes of channels of a window. Threads of a block share the pixels of windows that overlap
// through the level 1 cache.

KERNEL void __launch_bounds__(THREADS) max_pool_cells(const GRID_CONSTANT PoolCellsParams p) {
  wait_for_stream();
  Item item;
  if (!find_item(p, item) || !has_window(p, item.cell)) return;

  // All loads begin before the first comparison.
  WordVector x[PIXELS];
  fill_lowest(x);
  each_pixel<WINDOW_0, WINDOW_1, WINDOW_2>(p, item, item.first, [&](unsigned pixel, int i, int j, int k) {
    x[pixel_of_window(i, j, k)].vector = __ldg(static_cast<const uint4 *>(p.x) + place_of(p, item, pixel));
  });

  UNROLL
  for (int pixel = 1; pixel < PIXELS; ++pixel) {
    UNROLL
    for (int word = 0; word < WORDS; ++word)
      x[0].words[word] = Lanes::maximum(x[pixel].words[word], x[0].words[word]);
  }
  store_16_bytes(static_cast<uint4 *>(p.result) + place_of(p, item, item.cell), x[0].vector);
}
