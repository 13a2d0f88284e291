// The gradients of attention in 16 bits for heads with large scores. Those computed by cuDNN are then wrong: it takes
// weights from statistics in float32, which have too few digits. These kernels replace them, and otherwise do nothing.
//
// A warp computes a query, or a key. Its lanes each have a key (or a query) of 32 in turn for the scores, and columns
// for the sums. Scores, weights and sums are float32; both kernels compute the same scores.
//
// Macros: DTYPE, as in numbers.cuh; MOST_COLUMNS of queries, keys and values, a multiple of 32.

constexpr int WARPS = LARGE_THREADS / 32, HELD = MOST_COLUMNS / 32;

DEVICE float over_warp(float value, bool is_sum) {
  for (int apart = 16; apart; apart /= 2) {
    const float other = __shfl_xor_sync(~0u, value, apart);
    value = is_sum ? value + other : fmaxf(value, other);
  }
  return value;
}

DEVICE int counting(const long long *lengths, int n, int all) {
  if (!lengths) return all;
  const long long length = lengths[n];
  return length < 0 ? 0 : length > all ? all : (int)length;
}

// A head of the keys of one element of the batch, and the heads of queries that share it.
struct Heads {
  const AttentionLargeParams &p;
  int n, head, group;
  int queries, keys;  // without those after the lengths

  DEVICE Heads(const AttentionLargeParams &p, long long number) : p(p) {
    const int heads = (int)p.heads;
    n = (int)(number / heads), head = (int)(number % heads), group = (int)p.group;
    keys = counting(p.key_lengths, n, (int)p.keys);
    queries = keys ? counting(p.query_lengths, n, (int)p.queries) : 0;
  }
  // The number of a query among all, with those of heads before it.
  DEVICE long long number(int query_head, int query) const {
    return ((long long)n * p.heads * group + query_head) * p.queries + query;
  }
  DEVICE Bits *row(int array, int of_head, int index) const {
    return static_cast<Bits *>(p.arrays[array]) + n * p.steps[array][0] + of_head * p.steps[array][1] +
           index * p.steps[array][2];
  }
  // Whether any statistics are too large, or are not numbers. All threads of a block must call it.
  DEVICE bool are_large() const {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    const float *const stats = p.stats + number(head * group, 0);
    for (long long i = threadIdx.x; i < group * p.queries; i += LARGE_THREADS)
      if (stats[i] != -INFINITY && !(fabsf(stats[i]) < (float)p.limit)) found = 1;
    __syncthreads();
    return found;
  }
  // The scaled score of a key; minus infinity if it is masked out.
  DEVICE float score(int query_head, int query, int key) const {
    if (query >= queries || key >= keys || (p.is_causal && key > query)) return -INFINITY;
    float sum = product(row(LARGE_QUERY, query_head, query), row(LARGE_KEY, head, key), (int)p.depth);
    sum = rounded_product(sum, (float)p.scale);
    if (!p.mask) return sum;
    const char *const mask = static_cast<const char *>(p.mask) + n * p.mask_steps[0] + query_head * p.mask_steps[1] +
                             query * p.mask_steps[2] + key * p.mask_steps[3];
    if (p.mask_width == 1) return *mask ? sum : -INFINITY;
    return sum + to_acc(*reinterpret_cast<const Bits *>(mask));
  }
  // The gradient with respect to a weight.
  DEVICE float by_weight(int query_head, int query, int key) const {
    return product(row(LARGE_GOUT, query_head, query), row(LARGE_VALUE, head, key), (int)p.value_depth);
  }

 private:
  union Word {
    uint4 word;
    Bits elements[8];
  };
  DEVICE float product(const Bits *x, const Bits *y, int count) const {
    float sum = 0;
    if (p.vectors) {
      for (int i = 0; i < count; i += 8) {
        const Word a = {*reinterpret_cast<const uint4 *>(x + i)}, b = {*reinterpret_cast<const uint4 *>(y + i)};
        UNROLL
        for (int k = 0; k < 8; ++k) sum = fmaf(to_acc(a.elements[k]), to_acc(b.elements[k]), sum);
      }
    } else {
      for (int i = 0; i < count; ++i) sum = fmaf(to_acc(x[i]), to_acc(y[i]), sum);
    }
    return sum;
  }
};

// The sum of rows of 16-bit numbers, of which a lane has every 32nd column.
struct RowSum {
  float sums[HELD];
  DEVICE RowSum() {
    UNROLL
    for (int i = 0; i < HELD; ++i) sums[i] = 0;
  }
  DEVICE void add(float factor, const Bits *row, int columns) {
    UNROLL
    for (int i = 0; i < HELD; ++i) {
      const int column = threadIdx.x % 32 + 32 * i;
      if (column < columns) sums[i] += factor * to_acc(row[column]);
    }
  }
  DEVICE void store(Bits *row, int columns, float factor) const {
    UNROLL
    for (int i = 0; i < HELD; ++i) {
      const int column = threadIdx.x % 32 + 32 * i;
      if (column < columns) row[column] = from_acc(sums[i] * factor);
    }
  }
};

// The largest score of a query, or 0 if it sees no key, and the sum of the exponentials of the differences from it.
struct Total {
  float origin, divisor;
  DEVICE Total(const Heads &heads, int head, int query) {
    const int lane = threadIdx.x % 32;
    float top = -INFINITY, total = 0;
    for (int key = lane; key < heads.keys; key += 32) top = fmaxf(top, heads.score(head, query, key));
    top = over_warp(top, false);
    origin = top == -INFINITY ? 0 : top;
    for (int key = lane; key < heads.keys; key += 32) total += expf(heads.score(head, query, key) - origin);
    total = over_warp(total, true);
    divisor = total == 0 ? 1 : total;
  }
  DEVICE float weight(const Heads &heads, int head, int query, int key) const {
    return expf(heads.score(head, query, key) - origin) / divisor;
  }
};

// Calls visit(head, query) for the queries of this warp.
template <class Visit>
DEVICE void each_query(const AttentionLargeParams &p, const Heads &heads, long long part, Visit visit) {
  for (int i = threadIdx.x / 32; i < LARGE_ROWS; i += WARPS) {
    const long long index = part * LARGE_ROWS + i;
    if (index >= p.group * p.queries) break;
    visit(heads.head * heads.group + (int)(index / p.queries), (int)(index % p.queries));
  }
}

DEVICE long long query_parts(const AttentionLargeParams &p) { return (p.group * p.queries + LARGE_ROWS - 1) / LARGE_ROWS; }

// Writes dquery, and for each query the largest score, the sum of exponentials, and the mean gradient of weights.
KERNEL void __launch_bounds__(LARGE_THREADS) attention_large_dquery(GRID_CONSTANT const AttentionLargeParams p) {
  wait_for_stream();
  const long long parts = query_parts(p);
  const Heads heads(p, blockIdx.x / parts);
  if (!heads.are_large()) return;
  const int lane = threadIdx.x % 32;
  each_query(p, heads, blockIdx.x % parts, [&](int head, int query) {
    const Total total(heads, head, query);
    float mean = 0;
    for (int key = lane; key < heads.keys; key += 32) {
      const float weight = total.weight(heads, head, query, key);
      if (weight != 0) mean += weight * heads.by_weight(head, query, key);
    }
    mean = over_warp(mean, true);
    RowSum sum;
    for (int first = 0; first < heads.keys; first += 32) {
      const int key = first + lane;
      const float weight = total.weight(heads, head, query, key);
      const float own = weight == 0 ? 0 : weight * (heads.by_weight(head, query, key) - mean);
      for (int k = 0; k < 32; ++k) {
        const float factor = __shfl_sync(~0u, own, k);
        if (factor != 0) sum.add(factor, heads.row(LARGE_KEY, heads.head, first + k), (int)p.depth);
      }
    }
    sum.store(heads.row(LARGE_DQUERY, head, query), (int)p.depth, (float)p.scale);
    if (lane) return;
    float *const numbers = p.rows + LARGE_ROW_NUMBERS * heads.number(head, query);
    numbers[0] = total.origin, numbers[1] = total.divisor, numbers[2] = mean;
  });
}

KERNEL void __launch_bounds__(LARGE_THREADS) attention_large_dkey(GRID_CONSTANT const AttentionLargeParams p) {
  wait_for_stream();
  const long long parts = (p.keys + LARGE_ROWS - 1) / LARGE_ROWS;
  const Heads heads(p, blockIdx.x / parts);
  if (!heads.are_large()) return;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < LARGE_ROWS; i += WARPS) {
    const int key = (int)(blockIdx.x % parts) * LARGE_ROWS + i;
    if (key >= p.keys) break;
    RowSum dkey, dvalue;
    for (int head = heads.head * heads.group; head < (heads.head + 1) * heads.group; ++head)
      for (int first = 0; first < heads.queries; first += 32) {
        const int query = first + lane;
        float weight = 0, by_score = 0;
        if (query < heads.queries) {
          const float *const numbers = p.rows + LARGE_ROW_NUMBERS * heads.number(head, query);
          weight = expf(heads.score(head, query, key) - numbers[0]) / numbers[1];
          if (weight != 0) by_score = weight * (heads.by_weight(head, query, key) - numbers[2]);
        }
        for (int k = 0; k < 32; ++k) {
          const float factor = __shfl_sync(~0u, weight, k), slope = __shfl_sync(~0u, by_score, k);
          if (factor == 0) continue;
          dvalue.add(factor, heads.row(LARGE_GOUT, head, first + k), (int)p.value_depth);
          dkey.add(slope, heads.row(LARGE_QUERY, head, first + k), (int)p.depth);
        }
      }
    dkey.store(heads.row(LARGE_DKEY, heads.head, key), (int)p.depth, (float)p.scale);
    dvalue.store(heads.row(LARGE_DVALUE, heads.head, key), (int)p.value_depth, 1);
  }
}
