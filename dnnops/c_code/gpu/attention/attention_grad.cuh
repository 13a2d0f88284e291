// The gradient of attention if all keys of a head fit into one block. Weights and their gradients are float32.
//
// A block computes one head of keys and values: it processes all queries that share the head, one tile after
// the other, so every sum is added in the same order each time. Products run on tensor cores. 16-bit operands
// are exact in TF32; weights and gradients of scores are split into two TF32 numbers with 21 bits in total.
//
// Macros: DTYPE, as in numbers.cuh; WARPS per block; and KEYS, QUERIES per tile, DEPTH and VALUE_DEPTH, the
// sizes padded to multiples of 16.

constexpr int THREADS = 32 * WARPS, STRIP = 16;

constexpr int PITCH = ATTENTION_GRAD_PITCH(DEPTH), VALUE_PITCH = ATTENTION_GRAD_PITCH(VALUE_DEPTH);
constexpr int SCORE_PITCH = ATTENTION_GRAD_SCORE_PITCH(KEYS);

struct shared_arrays {
  Bits key[KEYS * PITCH], value[KEYS * VALUE_PITCH], query[QUERIES * PITCH], gout[QUERIES * VALUE_PITCH];
  float weights[QUERIES * SCORE_PITCH];    // scores at first
  float gradients[QUERIES * SCORE_PITCH];  // first with respect to weights, then to scores
};
static_assert(sizeof(shared_arrays) == ATTENTION_GRAD_SHARED_BYTES(KEYS, QUERIES, DEPTH, VALUE_DEPTH), "as is launched");

DEVICE shared_arrays &shared_memory() {
  extern __shared__ uint4 shared[];
  return *reinterpret_cast<shared_arrays *>(shared);
}

// A warp's part of a product with this many rows and columns: 16 rows, and every STEP-th block of 16 columns.
template <int ROWS, int COLUMNS>
struct Share {
  static constexpr int STRIPS = ROWS / STRIP, ALL = COLUMNS / STRIP, STEP = WARPS / STRIPS;
  static constexpr int BLOCKS = (ALL + STEP - 1) / STEP;
  static_assert(STEP > 0, "a warp has at most 16 rows");

  float sums[BLOCKS][2][4];

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < BLOCKS; ++i)
      UNROLL
      for (int j = 0; j < 8; ++j) sums[i][j / 4][j % 4] = 0;
  }
  static DEVICE int warp() { return (int)threadIdx.x / 32; }
  static DEVICE int first_row() { return warp() % STRIPS * STRIP; }
  static DEVICE int column(int i) { return (warp() / STRIPS + i * STEP) * STRIP; }
  // The same for all threads of a warp.
  static DEVICE bool has(int i) { return warp() / STRIPS < STEP && column(i) < COLUMNS; }
};

DEVICE unsigned low_word(unsigned pair) { return __float_as_uint(Number<DTYPE>::low(pair)); }
DEVICE unsigned high_word(unsigned pair) { return __float_as_uint(Number<DTYPE>::high(pair)); }

// Copies rows into shared memory, with zeros after their ends. Does not wait for the copies.
template <int ROWS, int COLUMNS>
DEVICE void load_rows(Bits *to, const AttentionGradParams &p, int array, long long offset, int rows, int columns) {
  const Bits *from = static_cast<const Bits *>(p.arrays[array]) + offset;
  const long long step = p.steps[array][2];
  constexpr int TO_STEP = ATTENTION_GRAD_PITCH(COLUMNS), PARTS = COLUMNS / 8;
  if (p.vectors >> array & 1) {
    for (int i = threadIdx.x; i < ROWS * PARTS; i += THREADS) {
      const int row = i / PARTS, column = i % PARTS * 8;
      Bits *const target = to + row * TO_STEP + column;
      if (row < rows && column < columns)
        copy_16_bytes(reinterpret_cast<char *>(target), reinterpret_cast<const char *>(from + row * step + column));
      else
        *reinterpret_cast<uint4 *>(target) = make_uint4(0, 0, 0, 0);
    }
  } else {
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
      const int row = i / COLUMNS, column = i % COLUMNS;
      to[row * TO_STEP + column] = row < rows && column < columns ? from[row * step + column] : (Bits)0;
    }
  }
}

// Multiplies rows of 16-bit numbers with each other, into shared memory.
template <int INNER>
DEVICE void multiply_rows(float *to, const Bits *left, const Bits *right) {
  using Part = Share<QUERIES, KEYS>;
  constexpr int STEP = ATTENTION_GRAD_PITCH(INNER);
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4;
  Part part;
  part.clear();
  // The inner axis may be in any order that is the same for both operands: a thread reads 4 neighbors.
  const auto read = [&](const Bits *from) { return *reinterpret_cast<const uint2 *>(from + row * STEP + 4 * column); };
  UNROLL_BY(Part::BLOCKS > 1 ? 2 : 4)
  for (int k = 0; k < INNER; k += 16) {
    const uint2 upper = read(left + Part::first_row() * STEP + k), lower = read(left + (Part::first_row() + 8) * STEP + k);
    const unsigned first[4] = {low_word(upper.x), low_word(lower.x), high_word(upper.x), high_word(lower.x)};
    const unsigned second[4] = {low_word(upper.y), low_word(lower.y), high_word(upper.y), high_word(lower.y)};
    UNROLL
    for (int i = 0; i < Part::BLOCKS; ++i) {
      if (!Part::has(i)) continue;
      UNROLL
      for (int tile = 0; tile < 2; ++tile) {
        const uint2 words = read(right + (Part::column(i) + 8 * tile) * STEP + k);
        const unsigned b[4] = {low_word(words.x), high_word(words.x), low_word(words.y), high_word(words.y)};
        add_product(part.sums[i][tile], first, b);
        add_product(part.sums[i][tile], second, b + 2);
      }
    }
  }
  UNROLL
  for (int i = 0; i < Part::BLOCKS; ++i) {
    if (!Part::has(i)) continue;
    UNROLL
    for (int j = 0; j < 4; ++j) {
      float *const target = to + (Part::first_row() + row + j % 2 * 8) * SCORE_PITCH + Part::column(i) + j / 2 * 8 + 2 * column;
      target[0] = part.sums[i][j / 2][j % 2 * 2];
      target[1] = part.sums[i][j / 2][j % 2 * 2 + 1];
    }
  }
}

// Adds products of float32 numbers with rows of 16-bit numbers. Of each block of 16 columns, one tile has the
// even ones and the other the odd ones.
template <class Part, int INNER>
DEVICE void add_products(Part &part, const float *left, int row_step, int inner_step, const Bits *right, int right_step) {
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4;
  left += (Part::first_row() + row) * row_step + column * inner_step;
  UNROLL_BY(Part::BLOCKS > 1 ? 2 : 4)
  for (int k = 0; k < INNER; k += 8) {
    unsigned high[4], rest[4];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const float value = left[j % 2 * 8 * row_step + (k + j / 2 * 4) * inner_step];
      high[j] = __float_as_uint(value) & 0xffffe000u;
      rest[j] = __float_as_uint(value - __uint_as_float(high[j]));
    }
    UNROLL
    for (int i = 0; i < Part::BLOCKS; ++i) {
      if (!Part::has(i)) continue;
      const Bits *const from = right + (k + column) * right_step + Part::column(i) + 2 * row;
      const unsigned upper = *reinterpret_cast<const unsigned *>(from);
      const unsigned lower = *reinterpret_cast<const unsigned *>(from + 4 * right_step);
      const unsigned even[2] = {low_word(upper), low_word(lower)}, odd[2] = {high_word(upper), high_word(lower)};
      add_product(part.sums[i][0], rest, even);
      add_product(part.sums[i][1], rest, odd);
      add_product(part.sums[i][0], high, even);
      add_product(part.sums[i][1], high, odd);
    }
  }
}

// Writes `rows` rows, of which only the first `counting` are nonzero.
template <class Part>
DEVICE void store_rows(const Part &part, const AttentionGradParams &p, int array, long long offset, int rows, int counting,
                       int columns, float factor) {
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4;
  UNROLL
  for (int i = 0; i < Part::BLOCKS; ++i) {
    if (!Part::has(i)) continue;
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const int place = Part::first_row() + row + 8 * half, first = Part::column(i) + 4 * column;
      if (place >= rows) continue;
      Bits values[4];
      UNROLL
      for (int j = 0; j < 4; ++j) values[j] = place < counting ? from_acc(part.sums[i][j % 2][half * 2 + j / 2] * factor) : (Bits)0;
      Bits *const to = static_cast<Bits *>(p.arrays[array]) + offset + place * p.steps[array][2] + first;
      if (p.vectors >> array & 1) {
        if (first < columns)
          *reinterpret_cast<uint2 *>(to) = make_uint2(values[0] | (unsigned)values[1] << 16, values[2] | (unsigned)values[3] << 16);
      } else {
        UNROLL
        for (int j = 0; j < 4; ++j)
          if (first + j < columns) to[j] = values[j];
      }
    }
  }
}

DEVICE float largest_of_warp(float value) {
  UNROLL
  for (int apart = 16; apart; apart /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}
DEVICE float sum_of_warp(float value) {
  UNROLL
  for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

// Replaces a row of scores by weights, and their gradients with respect to weights by those with respect to scores.
// Of the keys, the row sees at most the first `columns`. The statistics of large scores would be too inaccurate.
DEVICE void weigh_row(const AttentionGradParams &p, float *scores, float *gradients, const char *mask, int row,
                      int columns) {
  constexpr int COUNT = (KEYS + 31) / 32;
  const int lane = threadIdx.x % 32;
  float weights[COUNT], top = -INFINITY, total = 0, products = 0;
  UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const int key = lane + 32 * i;
    weights[i] = -INFINITY;
    if (key >= columns || (p.is_causal && key > row)) continue;
    float score = rounded_product(scores[key], (float)p.scale);
    if (p.mask_width == 1) {
      if (!mask[key * p.mask_steps[3]]) continue;
    } else if (p.mask_width == 2) {
      score += to_acc(*reinterpret_cast<const Bits *>(mask + key * p.mask_steps[3]));
    }
    weights[i] = score;
    top = fmaxf(top, score);
  }
  top = largest_of_warp(top);
  if (top == -INFINITY) top = 0;  // the row sees no key
  UNROLL
  for (int i = 0; i < COUNT; ++i) {
    weights[i] = expf(weights[i] - top);
    total += weights[i];
    if (weights[i] != 0) products += weights[i] * gradients[lane + 32 * i];
  }
  total = sum_of_warp(total);
  products = sum_of_warp(products);
  const float factor = total == 0 ? 0 : 1 / total, mean = products * factor;
  UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const int key = lane + 32 * i;
    if (key >= KEYS) continue;
    const float weight = weights[i] * factor;
    scores[key] = weight;
    gradients[key] = weight == 0 ? 0 : weight * (gradients[key] - mean);
  }
}

DEVICE int counting(const long long *lengths, int n, int all) {
  if (!lengths) return all;
  const long long length = lengths[n];
  return length < 0 ? 0 : length > all ? all : (int)length;
}

KERNEL void __launch_bounds__(THREADS) attention_grad(GRID_CONSTANT const AttentionGradParams p) {
  wait_for_stream();
  shared_arrays &shared = shared_memory();
  const int heads = (int)p.heads, group = (int)p.group, depth = (int)p.depth, value_depth = (int)p.value_depth;
  const int queries = (int)p.queries, keys = (int)p.keys, n = (int)blockIdx.x / heads, head = (int)blockIdx.x % heads;
  const int columns = counting(p.key_lengths, n, keys), rows = columns ? counting(p.query_lengths, n, queries) : 0;
  const float scale = (float)p.scale;
  const auto place = [&](int array, int of_head) { return n * p.steps[array][0] + of_head * p.steps[array][1]; };
  load_rows<KEYS, DEPTH>(shared.key, p, GRAD_KEY, place(GRAD_KEY, head), columns, depth);
  load_rows<KEYS, VALUE_DEPTH>(shared.value, p, GRAD_VALUE, place(GRAD_VALUE, head), columns, value_depth);
  Share<KEYS, DEPTH> dkey;
  Share<KEYS, VALUE_DEPTH> dvalue;
  dkey.clear();
  dvalue.clear();
  NO_UNROLL
  for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    NO_UNROLL
    for (int first = 0; first < queries; first += QUERIES) {
      const auto place_of_tile = [&](int array) { return place(array, query_head) + first * p.steps[array][2]; };
      Share<QUERIES, DEPTH> dquery;
      dquery.clear();
      if (first < rows) {
        __syncthreads();
        load_rows<QUERIES, DEPTH>(shared.query, p, GRAD_QUERY, place_of_tile(GRAD_QUERY), rows - first, depth);
        load_rows<QUERIES, VALUE_DEPTH>(shared.gout, p, GRAD_GOUT, place_of_tile(GRAD_GOUT), rows - first, value_depth);
        end_copies();
        wait_for_copies<0>();
        __syncthreads();
        multiply_rows<DEPTH>(shared.weights, shared.query, shared.key);
        multiply_rows<VALUE_DEPTH>(shared.gradients, shared.gout, shared.value);
        __syncthreads();
        for (int i = threadIdx.x / 32; i < QUERIES; i += WARPS) {
          const int row = first + i;
          const char *mask = static_cast<const char *>(p.mask);
          if (mask && row < rows) mask += n * p.mask_steps[0] + query_head * p.mask_steps[1] + row * p.mask_steps[2];
          weigh_row(p, shared.weights + i * SCORE_PITCH, shared.gradients + i * SCORE_PITCH, mask, row,
                    row < rows ? columns : 0);
        }
        __syncthreads();
        add_products<Share<QUERIES, DEPTH>, KEYS>(dquery, shared.gradients, SCORE_PITCH, 1, shared.key, PITCH);
        add_products<Share<KEYS, DEPTH>, QUERIES>(dkey, shared.gradients, 1, SCORE_PITCH, shared.query, PITCH);
        add_products<Share<KEYS, VALUE_DEPTH>, QUERIES>(dvalue, shared.weights, 1, SCORE_PITCH, shared.gout, VALUE_PITCH);
      }
      store_rows(dquery, p, GRAD_DQUERY, place_of_tile(GRAD_DQUERY), queries - first, rows - first, depth, scale);
    }
  }
  // Without queries, nothing has waited for the copies yet.
  end_copies();
  wait_for_copies<0>();
  store_rows(dkey, p, GRAD_DKEY, place(GRAD_DKEY, head), keys, columns, depth, scale);
  store_rows(dvalue, p, GRAD_DVALUE, place(GRAD_DVALUE, head), keys, columns, value_depth, 1);
}
