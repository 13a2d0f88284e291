// The output of attention and the statistics of its scores. A block computes ROWS queries of a head.

constexpr float LN_2 = 0.6931471805599453f;
constexpr int KEY_TILE = COLUMNS * DEPTH, STAGE = COLUMNS * (DEPTH + VALUE_DEPTH);
constexpr int SHARED_BYTES = ATTENTION_TILES_SHARED_BYTES(ROWS, COLUMNS, STAGES, DEPTH, VALUE_DEPTH, HOLD ? 0 : DEPTH, 0);
static_assert(SHARED_BYTES <= ATTENTION_TILES_MOST_SHARED_BYTES, "a block has no more");

KERNEL void __launch_bounds__(THREADS, LEAST_BLOCKS) attention_out(GRID_CONSTANT const AttentionTilesParams p) {
  wait_for_stream();
  float *const shared = shared_memory();
  const int query_tiles = ((int)p.queries + ROWS - 1) / ROWS, heads = (int)p.heads;
  // The tiles of a head with most keys come first.
  const int first = (query_tiles - 1 - (int)blockIdx.x % query_tiles) * ROWS, number = (int)blockIdx.x / query_tiles;
  const Head head(p, number / heads, number % heads);
  const int key_head = head.head / (int)p.group;
  const Rows keys(p, TILES_KEY, head.n, key_head, (int)p.depth);
  const Rows values(p, TILES_VALUE, head.n, key_head, (int)p.value_depth);
  int end = first < head.queries ? head.keys : 0;
  if (head.is_causal && end > first + ROWS) end = first + ROWS;
  const int key_tiles = (end + COLUMNS - 1) / COLUMNS;

  OwnRows<DEPTH> query;
  query.load(shared + STAGES * STAGE, Rows(p, TILES_QUERY, head.n, head.head, (int)p.depth), first, head.queries);
  const auto begin_tile = [&](int i) {
    float *const to = shared + i % STAGES * STAGE;
    if (i < key_tiles) {
      keys.copy<COLUMNS, DEPTH>(to, i * COLUMNS, end);
      values.copy<COLUMNS, VALUE_DEPTH>(to + KEY_TILE, i * COLUMNS, end);
    }
    end_copies();
  };
  UNROLL
  for (int i = 0; i < STAGES - 1; ++i) begin_tile(i);

  float out[TILES][VALUE_DEPTH / 8][4];
  clear(out);
  Totals totals;
  const int first_row = first + warp_row();
  NO_UNROLL
  for (int i = 0; i < key_tiles; ++i) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    begin_tile(i + STAGES - 1);
    const int first_key = i * COLUMNS;
    if (first_row >= head.queries || (head.is_causal && first_key >= first_row + 16 * TILES)) continue;
    const float *const tile = shared + i % STAGES * STAGE;
    Scores scores;
    multiply_rows(scores, query, tile);
    mask_scores<true>(scores, head, first_row, first_key);
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const float factor = totals.add(scores[m], m, half);
        UNROLL
        for (int k = 0; k < VALUE_DEPTH / 4; ++k) out[m][k / 2][2 * half + k % 2] *= factor;
      }
    add_weighted<VALUE_DEPTH>(out, scores, tile + KEY_TILE);
  }
  wait_for_copies<0>();
  float *const to = static_cast<float *>(p.arrays[TILES_OUT]) + head.n * p.steps[TILES_OUT][0] + head.head * p.steps[TILES_OUT][1];
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(totals.total[m][half]);
      const int row = first_row + 16 * m + 8 * half + lane_row();
      if (row >= p.queries) continue;
      store_row(out[m], half, sum == 0 ? 0 : 1 / sum, to + row * p.steps[TILES_OUT][2], (int)p.value_depth);
      if (p.stats && lane_quarter() == 0)
        p.stats[number * p.queries + row] = sum == 0 ? -INFINITY : totals.top[m][half] * LN_2 + logf(sum);
    }
}
