// The gradients of attention with respect to keys and values. A block computes ROWS keys of a head: it passes over all
// queries that share the head, so every sum is added in the same order each time.

constexpr int QUERY_TILE = COLUMNS * DEPTH, STAGE = COLUMNS * (DEPTH + VALUE_DEPTH + TILES_ROW_NUMBERS);
constexpr int SHARED_BYTES =
    ATTENTION_TILES_SHARED_BYTES(ROWS, COLUMNS, STAGES, DEPTH, VALUE_DEPTH, HOLD ? 0 : DEPTH + VALUE_DEPTH,
                                 TILES_ROW_NUMBERS);
static_assert(SHARED_BYTES <= ATTENTION_TILES_MOST_SHARED_BYTES, "a block has no more");

KERNEL void __launch_bounds__(THREADS, LEAST_BLOCKS) attention_dkey(GRID_CONSTANT const AttentionTilesParams p) {
  wait_for_stream();
  float *const shared = shared_memory();
  const int group = (int)p.group, key_heads = (int)p.heads / group, key_tiles = ((int)p.keys + ROWS - 1) / ROWS;
  // Without keys at the end, causal tiles have fewer queries the later they come.
  const int first = (int)blockIdx.x % key_tiles * ROWS, number = (int)blockIdx.x / key_tiles;
  const int n = number / key_heads, key_head = number % key_heads;
  const Head any(p, n, key_head * group);
  // The first tile of queries that see a key of this block, and the number of all that do of a head.
  const int skipped = any.is_causal ? first / COLUMNS : 0;
  const int of_head = first < any.keys ? max((any.queries + COLUMNS - 1) / COLUMNS - skipped, 0) : 0;
  const int tiles = of_head * group;

  OwnRows<DEPTH> key;
  OwnRows<VALUE_DEPTH> value;
  float *const own = shared + STAGES * STAGE;
  key.load(own, Rows(p, TILES_KEY, n, key_head, (int)p.depth), first, any.keys);
  value.load(own + ROWS * DEPTH, Rows(p, TILES_VALUE, n, key_head, (int)p.value_depth), first, any.keys);
  const auto begin_tile = [&](int i) {
    float *const to = shared + i % STAGES * STAGE;
    if (i < tiles) {
      const int head = key_head * group + i / of_head, query = (skipped + i % of_head) * COLUMNS;
      Rows(p, TILES_QUERY, n, head, (int)p.depth).copy<COLUMNS, DEPTH>(to, query, any.queries);
      Rows(p, TILES_GOUT, n, head, (int)p.value_depth).copy<COLUMNS, VALUE_DEPTH>(to + QUERY_TILE, query, any.queries);
      float *const numbers = to + COLUMNS * (DEPTH + VALUE_DEPTH);
      for (int k = threadIdx.x; k < TILES_ROW_NUMBERS * COLUMNS; k += THREADS) {
        const int row = query + k % COLUMNS;
        // The heads of the whole batch: each of the three arrays has all their queries.
        const long long heads = (long long)gridDim.x / key_tiles * group;
        if (row < any.queries)
          copy_bytes<4>(numbers + k, p.rows + (k / COLUMNS * heads + n * p.heads + head) * p.queries + row);
        else
          numbers[k] = 0;
      }
    }
    end_copies();
  };
  UNROLL
  for (int i = 0; i < STAGES - 1; ++i) begin_tile(i);

  float dkey[TILES][DEPTH / 8][4], dvalue[TILES][VALUE_DEPTH / 8][4];
  clear(dkey);
  clear(dvalue);
  const int first_row = first + warp_row();
  NO_UNROLL
  for (int i = 0; i < tiles; ++i) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    begin_tile(i + STAGES - 1);
    const int first_query = (skipped + i % of_head) * COLUMNS;
    if (first_row >= any.keys || (any.is_causal && first_row >= first_query + COLUMNS)) continue;
    const float *const tile = shared + i % STAGES * STAGE;
    const float *const numbers = tile + COLUMNS * (DEPTH + VALUE_DEPTH) + 2 * lane_quarter();
    Scores scores, gradients;
    multiply_rows<false>(scores, key, tile);
#if MASK
    mask_scores<false>(scores, Head(p, n, key_head * group + i / of_head), first_row, first_query);
#else
    mask_scores<false>(scores, any, first_row, first_query);
#endif
    UNROLL
    for (int t = 0; t < COLUMNS / 8; ++t) {
      const uint2 tops = *reinterpret_cast<const uint2 *>(numbers + 8 * t);
      const uint2 rests = *reinterpret_cast<const uint2 *>(numbers + COLUMNS + 8 * t);
      const float top[2] = {__uint_as_float(tops.x), __uint_as_float(tops.y)};
      const float rest[2] = {__uint_as_float(rests.x), __uint_as_float(rests.y)};
      UNROLL
      for (int m = 0; m < TILES; ++m)
        UNROLL
        for (int i = 0; i < 4; ++i) scores[m][t][i] = weight_of(scores[m][t][i], top[i % 2], rest[i % 2]);
    }
    add_weighted<VALUE_DEPTH>(dvalue, scores, tile + QUERY_TILE);
    multiply_rows(gradients, value, tile + QUERY_TILE);
    UNROLL
    for (int t = 0; t < COLUMNS / 8; ++t) {
      const uint2 words = *reinterpret_cast<const uint2 *>(numbers + 2 * COLUMNS + 8 * t);
      const float delta[2] = {__uint_as_float(words.x), __uint_as_float(words.y)};
      UNROLL
      for (int m = 0; m < TILES; ++m)
        UNROLL
        for (int i = 0; i < 4; ++i) scores[m][t][i] *= gradients[m][t][i] - delta[i % 2];
    }
    add_weighted<DEPTH>(dkey, scores, tile);
  }
  wait_for_copies<0>();
  const int end = (int)p.keys;
  store_rows(dkey, p, TILES_DKEY, n, key_head, first, end, any.keys, (int)p.depth, (float)p.scale);
  store_rows(dvalue, p, TILES_DVALUE, n, key_head, first, end, any.keys, (int)p.value_depth, 1);
}
