// The gradient of attention with respect to the query, and the sums of out * gout that the other gradients need. A
// block computes ROWS queries of a head.

constexpr int KEY_TILE = COLUMNS * DEPTH, STAGE = COLUMNS * (DEPTH + VALUE_DEPTH);
constexpr int SHARED_BYTES =
    ATTENTION_TILES_SHARED_BYTES(ROWS, COLUMNS, STAGES, DEPTH, VALUE_DEPTH, HOLD ? 0 : DEPTH + VALUE_DEPTH, 0);
static_assert(SHARED_BYTES <= ATTENTION_TILES_MOST_SHARED_BYTES, "a block has no more");

// From this size on, statistics have too few digits: with 2^7, weights are off by 2^-17.
constexpr float LARGE = SPLIT ? 128 : 8192;

KERNEL void __launch_bounds__(THREADS, LEAST_BLOCKS) attention_dquery(GRID_CONSTANT const AttentionTilesParams p) {
  wait_for_stream();
  float *const shared = shared_memory();
  const int query_tiles = ((int)p.queries + ROWS - 1) / ROWS, heads = (int)p.heads;
  const int first = (query_tiles - 1 - (int)blockIdx.x % query_tiles) * ROWS, number = (int)blockIdx.x / query_tiles;
  const Head head(p, number / heads, number % heads);
  const int key_head = head.head / (int)p.group;
  const Rows keys(p, TILES_KEY, head.n, key_head, (int)p.depth);
  const Rows values(p, TILES_VALUE, head.n, key_head, (int)p.value_depth);
  const Rows gouts(p, TILES_GOUT, head.n, head.head, (int)p.value_depth);
  const Rows outs(p, TILES_OUT, head.n, head.head, (int)p.value_depth);
  int end = first < head.queries ? head.keys : 0;
  if (head.is_causal && end > first + ROWS) end = first + ROWS;
  const int key_tiles = (end + COLUMNS - 1) / COLUMNS;

  OwnRows<DEPTH> query;
  OwnRows<VALUE_DEPTH> gout;
  float *const own = shared + STAGES * STAGE;
  query.load(own, Rows(p, TILES_QUERY, head.n, head.head, (int)p.depth), first, head.queries);
  gout.load(own + ROWS * DEPTH, gouts, first, head.queries);

  // The numbers of each row: see AttentionTilesParams.
  const int first_row = first + warp_row();
  float top[TILES][2], rest[TILES][2], delta[TILES][2];
  bool is_large = false;
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane_row();
      const float stats = row < head.queries ? p.stats[number * p.queries + row] : -INFINITY;
      is_large = is_large || (stats != -INFINITY && !(fabsf(stats) < LARGE));
      top[m][half] = stats == -INFINITY ? INFINITY : stats * LOG2_E;  // then all weights are 0
      rest[m][half] = 0;
    }
  if (is_any(is_large, shared)) {
    // Pass over all keys, as attention_out does.
    Totals totals;
    NO_UNROLL
    for (int first_key = 0; first_key < end; first_key += COLUMNS) {
      keys.copy<COLUMNS, DEPTH>(shared, first_key, end);
      end_copies();
      wait_for_copies<0>();
      __syncthreads();
      Scores scores;
      multiply_rows(scores, query, shared);
      mask_scores<true>(scores, head, first_row, first_key);
      UNROLL
      for (int m = 0; m < TILES; ++m)
        UNROLL
        for (int half = 0; half < 2; ++half) totals.add(scores[m], m, half);
      __syncthreads();
    }
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int half = 0; half < 2; ++half) {
        const float sum = row_sum(totals.total[m][half]);
        top[m][half] = sum == 0 ? INFINITY : totals.top[m][half];
        rest[m][half] = sum == 0 ? 0 : log2f(sum);
      }
  }
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

  float dquery[TILES][DEPTH / 8][4];
  clear(dquery);
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane_row();
      const bool exists = row < head.queries;
      float sum = 0;
      UNROLL
      for (int k = 0; k < VALUE_DEPTH / 16; ++k) {
        const int column = 16 * k + 4 * lane_quarter();
        const uint4 x = outs.read(row, column, exists), y = gouts.read(row, column, exists);
        sum += __uint_as_float(x.x) * __uint_as_float(y.x) + __uint_as_float(x.y) * __uint_as_float(y.y);
        sum += __uint_as_float(x.z) * __uint_as_float(y.z) + __uint_as_float(x.w) * __uint_as_float(y.w);
      }
      delta[m][half] = row_sum(sum);
      if (row >= p.queries || lane_quarter()) continue;
      float *const to = p.rows + number * p.queries + row;
      const long long all_rows = (long long)gridDim.x / query_tiles * p.queries;
      to[0] = top[m][half], to[all_rows] = rest[m][half], to[2 * all_rows] = delta[m][half];
    }
  NO_UNROLL
  for (int i = 0; i < key_tiles; ++i) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    begin_tile(i + STAGES - 1);
    const int first_key = i * COLUMNS;
    if (first_row >= head.queries || (head.is_causal && first_key >= first_row + 16 * TILES)) continue;
    const float *const tile = shared + i % STAGES * STAGE;
    Scores scores, gradients;
    multiply_rows(scores, query, tile);
    mask_scores<true>(scores, head, first_row, first_key);
    multiply_rows(gradients, gout, tile + KEY_TILE);
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int k = 0; k < COLUMNS / 2; ++k) {
        const int half = k % 4 / 2;
        float &score = scores[m][k / 4][k % 4];
        const float weight = weight_of(score, top[m][half], rest[m][half]);
        score = weight * (gradients[m][k / 4][k % 4] - delta[m][half]);
      }
    add_weighted<DEPTH>(dquery, scores, tile);
  }
  wait_for_copies<0>();
  store_rows(dquery, p, TILES_DQUERY, head.n, head.head, first, (int)p.queries, head.queries, (int)p.depth, (float)p.scale);
}
