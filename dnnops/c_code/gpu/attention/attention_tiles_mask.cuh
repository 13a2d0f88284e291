// Which scores of a head of attention are masked out, for the kernels of float32 attention.

DEVICE int counting(const long long *lengths, int n, int all) {
  if (!lengths) return all;
  const long long length = lengths[n];
  return length < 0 ? 0 : length > all ? all : (int)length;
}

// A head of one element of the batch.
struct Head {
  int n, head;
  int queries, keys;  // without those after the lengths
  bool is_causal;
  float scale;  // of scores whose exponential has the base 2
  const char *mask;
  long long query_step, key_step;

  DEVICE Head(const AttentionTilesParams &p, int n, int head) : n(n), head(head) {
    keys = counting(p.key_lengths, n, (int)p.keys);
    queries = keys ? counting(p.query_lengths, n, (int)p.queries) : 0;
    is_causal = p.is_causal;
    scale = (float)p.scale * LOG2_E;
    query_step = p.mask_steps[2];
    key_step = p.mask_steps[3];
    mask = static_cast<const char *>(p.mask);
    if (MASK) mask += (n * p.mask_steps[0] + head * p.mask_steps[1]) * (MASK == 1 ? 1 : 4);
  }
  // Whether some of the scores from a query and a key on are masked, apart from what the mask says.
  DEVICE bool has_edge(int query, int query_count, int key, int key_count) const {
    return query + query_count > queries || key + key_count > keys || (is_causal && key + key_count > query + 1);
  }
  // A scaled score; minus infinity if it is masked out.
  DEVICE float masked(float score, int query, int key) const {
    if (query >= queries || key >= keys || (is_causal && key > query)) return -INFINITY;
#if MASK
    const long long place = query * query_step + key * key_step;
#endif
#if MASK == 1
    return mask[place] ? score : -INFINITY;
#elif MASK == 2
    return score + rounded_product(reinterpret_cast<const float *>(mask)[place], LOG2_E);
#else
    return score;
#endif
  }
};

// The weight of a score. The sum of exponentials of its row is 2^(top + rest).
DEVICE float weight_of(float score, float top, float rest) { return power_of_2(score - top - rest); }

// The largest of the scores of each row so far, and the sum of the exponentials of the others' differences from it, of
// this thread's columns.
struct Totals {
  float top[TILES][2], total[TILES][2];

  DEVICE Totals() {
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int half = 0; half < 2; ++half) top[m][half] = -INFINITY, total[m][half] = 0;
  }
  // Replaces scores of one of a thread's rows by these exponentials. Returns the factor of earlier ones.
  DEVICE float add(float (&scores)[COLUMNS / 8][4], int m, int half) {
    float largest = top[m][half];
    UNROLL
    for (int k = 0; k < COLUMNS / 4; ++k) largest = fmaxf(largest, scores[k / 2][2 * half + k % 2]);
    largest = row_max(largest);
    const float origin = largest == -INFINITY ? 0 : largest;  // all keys so far are masked out
    const float factor = power_of_2(top[m][half] - origin);
    top[m][half] = largest;
    float sum = 0;
    UNROLL
    for (int k = 0; k < COLUMNS / 4; ++k) {
      float &score = scores[k / 2][2 * half + k % 2];
      sum += score = power_of_2(score - origin);
    }
    total[m][half] = total[m][half] * factor + sum;
    return factor;
  }
};

// Scales and masks scores whose rows are queries (or keys, if not), and columns the other of the two.
template <bool QUERIES_ARE_ROWS>
DEVICE void mask_scores(Scores &scores, const Head &head, int first_row, int first_column) {
  const bool has_edge = QUERIES_ARE_ROWS ? head.has_edge(first_row, 16 * TILES, first_column, COLUMNS)
                                         : head.has_edge(first_column, COLUMNS, first_row, 16 * TILES);
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i)
      scores[m][i / 4][i % 4] = rounded_product(scores[m][i / 4][i % 4], head.scale);
  if (!MASK && !has_edge) return;
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int t = 0; t < COLUMNS / 8; ++t)
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + 16 * m + i / 2 * 8 + lane_row(), column = first_column + 8 * t + 2 * lane_quarter() + i % 2;
        scores[m][t][i] = QUERIES_ARE_ROWS ? head.masked(scores[m][t][i], row, column) : head.masked(scores[m][t][i], column, row);
      }
}
