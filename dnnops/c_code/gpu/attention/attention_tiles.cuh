// Attention in float32 by tiles: no array has the size of the scores. What the kernels share.
//
// Source: T. Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning",
// arXiv:2307.08691.
//
// A block has WARPS warps. Each of them has TILES * 16 rows, and the block passes over tiles of COLUMNS columns: in
// the kernels of the output and of the gradient with respect to the query, rows are queries and columns are keys; in
// that of the gradients with respect to keys and values, the other way round. Products run on tensor cores.
//
// Macros: WARPS, TILES, COLUMNS; STAGES, the number of tiles in shared memory; HOLD: whether a warp keeps its own rows
// in registers, instead of shared memory; LEAST_BLOCKS per multiprocessor; DEPTH and VALUE_DEPTH, multiples of 32;
// ALIGNED: whether all rows can be moved 16 bytes at a time; SPLIT: 0 to round operands to TF32, 1 to split them into
// two TF32 numbers with 21 bits in total; MASK: 0 without a mask, 1 if it is boolean, 2 if it is added.

constexpr int THREADS = 32 * WARPS, ROWS = 16 * TILES * WARPS;
constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float *shared_memory() {
  extern __shared__ uint4 shared[];
  return reinterpret_cast<float *>(shared);
}

// -- operands of products on tensor cores

// A number as it is kept for products: rounded once, if at all.
DEVICE unsigned prepared(unsigned word) { return SPLIT ? word : to_tf32(__uint_as_float(word)); }

template <int COUNT>
struct Operand {
  unsigned high[COUNT], low[SPLIT ? COUNT : 1];

  // Sets a number from a prepared one. The upper part is rounded to the nearest: the lower part is then at most 2^-11
  // of it and loses at most one bit, so a product without that of the lower parts is off by at most 2^-21, either way.
  // With a truncated upper part it would be off by up to 2^-19, always towards zero.
  DEVICE void set(int i, unsigned word) {
    high[i] = SPLIT ? (word + 0x1000u) & 0xffffe000u : word;
    if (SPLIT) low[SPLIT ? i : 0] = __float_as_uint(__uint_as_float(word) - __uint_as_float(high[i]));
  }
};
using Left = Operand<4>;
using Right = Operand<2>;

// Adds the products with a lower part, which are small: first that of `a`, or of `b`.
template <bool A_FIRST = true>
DEVICE void add_small_products(float *sums, const Left &a, const Right &b) {
#if SPLIT
  if (A_FIRST) add_product(sums, a.low, b.high);
  add_product(sums, a.high, b.low);
  if (!A_FIRST) add_product(sums, a.low, b.high);
#endif
}
DEVICE void add_products(float *sums, const Left &a, const Right &b) {
  add_small_products(sums, a, b);
  add_product(sums, a.high, b.high);
}

// A thread has the rows `row` and `row + 8` of each 16, and `quarter` of each 4 columns.
DEVICE int lane_row() { return (int)threadIdx.x % 32 / 4; }
DEVICE int lane_quarter() { return (int)threadIdx.x % 4; }
DEVICE int warp_row() { return (int)threadIdx.x / 32 * (16 * TILES); }

// Whether a condition is true in any thread of the block. Uses a number of shared memory, which no thread may still read.
DEVICE bool is_any(bool condition, float *shared) {
  if (threadIdx.x == 0) *shared = 0;
  __syncthreads();
  if (condition) *shared = 1;
  __syncthreads();
  const bool is = *shared != 0;
  __syncthreads();
  return is;
}

// -- tiles in shared memory

// Within 8 rows, parts of 16 bytes change places, such that neither of the two orders in which a warp reads a tile has
// bank conflicts: 2 adjacent rows of 4 parts, and every other row of 2 parts.
DEVICE int swizzle(int row) { return (row & 6) ^ (row & 1) << 2; }
template <int PITCH>
DEVICE int place_of(int row, int part) {
  return row * PITCH + ((part ^ swizzle(row)) << 2);
}

// Rows of an array, in global memory.
struct Rows {
  const float *from;
  long long step;
  int columns;

  DEVICE Rows(const AttentionTilesParams &p, int array, int n, int head, int size)
      : from(static_cast<const float *>(p.arrays[array]) + n * p.steps[array][0] + head * p.steps[array][1]),
        step(p.steps[array][2]),
        columns(size) {}

  // The four numbers from a column on, with zeros after the end.
  DEVICE uint4 read(int row, int column, bool exists) const {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (!exists || column >= columns) return words;
    const unsigned *const place = reinterpret_cast<const unsigned *>(from + row * step + column);
    if (ALIGNED) return *reinterpret_cast<const uint4 *>(place);
    words.x = place[0];
    if (column + 1 < columns) words.y = place[1];
    if (column + 2 < columns) words.z = place[2];
    if (column + 3 < columns) words.w = place[3];
    return words;
  }

  // Copies a tile into shared memory, with zeros for rows from `end` on and after the rows' ends. Does not wait.
  template <int COUNT, int PITCH>
  DEVICE void copy(float *to, int first, int end) const {
    constexpr int PARTS = PITCH / 4, ALL = COUNT * PARTS, TURNS = (ALL + THREADS - 1) / THREADS;
    if constexpr (ALIGNED && ALL % THREADS == 0 && THREADS % (8 * PARTS) == 0) {
      // A thread copies the same part of some rows, which have the same swizzle.
      constexpr int APART = THREADS / PARTS;
      const int row = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
      float *const target = to + place_of<PITCH>(row, part);
      const float *source = from + (first + row) * step + 4 * part;
      const int left = 4 * part < columns ? end - first - row : 0;
      UNROLL
      for (int i = 0; i < TURNS; ++i) {
        copy_16_bytes_or_zeros(target + i * APART * PITCH, source, i * APART < left);
        source += APART * step;
      }
    } else {
      UNROLL_4
      for (int i = 0; i < TURNS; ++i) {
        const int place = threadIdx.x + i * THREADS, row = place / PARTS, column = 4 * (place % PARTS);
        if (ALL % THREADS && place >= ALL) break;
        copy_part(to + place_of<PITCH>(row, place % PARTS), from + (first + row) * step + column, column,
                  first + row < end);
      }
    }
  }

 private:
  // Copies the four numbers from a column on.
  DEVICE void copy_part(float *to, const float *source, int column, bool exists) const {
#if ALIGNED
    copy_16_bytes_or_zeros(to, source, exists && column < columns);
#else
    UNROLL
    for (int j = 0; j < 4; ++j) {
      if (exists && column + j < columns)
        copy_bytes<4>(to + j, source + j);
      else
        to[j] = 0;
    }
#endif
  }
};

// The rows of a warp as the left operand of a product. The inner axis may be in any order that is the same for both
// operands: a thread has 4 neighbors of each 16, which are its numbers of two products.
#if HOLD
template <int PITCH>
struct OwnRows {
  unsigned words[TILES][PITCH / 16][2][4];

  DEVICE void load(float *, const Rows &rows, int first, int end) {
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int k = 0; k < PITCH / 16; ++k)
        UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = first + warp_row() + 16 * m + 8 * half + lane_row();
          const uint4 read = rows.read(row, 16 * k + 4 * lane_quarter(), row < end);
          unsigned *const to = words[m][k][half];
          to[0] = prepared(read.x), to[1] = prepared(read.y), to[2] = prepared(read.z), to[3] = prepared(read.w);
        }
  }
  DEVICE void get(Left *left, int m, int k) const {
    UNROLL
    for (int i = 0; i < 8; ++i) left[i / 4].set(i % 4, words[m][k][i % 2][i / 4 * 2 + i % 4 / 2]);
  }
};
#else
template <int PITCH>
struct OwnRows {
  const float *near[2];

  // Does not wait for the copies.
  DEVICE void load(float *shared, const Rows &rows, int first, int end) {
    rows.copy<ROWS, PITCH>(shared, first, end);
    UNROLL
    for (int i = 0; i < 2; ++i) near[i] = shared + warp_row() * PITCH + place_of<PITCH>(lane_row(), lane_quarter() + 4 * i);
  }
  DEVICE void get(Left *left, int m, int k) const {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint4 read = *reinterpret_cast<const uint4 *>(near[k % 2] + (16 * m + 8 * half) * PITCH + k / 2 * 32);
      left[0].set(half, prepared(read.x)), left[0].set(half + 2, prepared(read.y));
      left[1].set(half, prepared(read.z)), left[1].set(half + 2, prepared(read.w));
    }
  }
};
#endif

using Scores = float[TILES][COLUMNS / 8][4];

template <int N>
DEVICE void clear(float (&sums)[TILES][N][4]) {
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int i = 0; i < 4 * N; ++i) sums[m][i / 4][i % 4] = 0;
}

// Sets `scores` to the products of own rows and the rows of a tile. All kernels add the same products in the same order,
// if they say whether own rows are queries: where scores are large, other rounding would change the weights.
template <bool QUERIES_ARE_ROWS = true, int PITCH>
DEVICE void multiply_rows(Scores &scores, const OwnRows<PITCH> &own, const float *tile) {
  clear(scores);
  const float *const near[2] = {tile + place_of<PITCH>(lane_row(), lane_quarter()),
                                tile + place_of<PITCH>(lane_row(), lane_quarter() + 4)};
  UNROLL
  for (int k = 0; k < PITCH / 16; ++k) {
    Left left[TILES][2];
    UNROLL
    for (int m = 0; m < TILES; ++m) own.get(left[m], m, k);
    UNROLL
    for (int t = 0; t < COLUMNS / 8; ++t) {
      const uint4 read = *reinterpret_cast<const uint4 *>(near[k % 2] + 8 * t * PITCH + k / 2 * 32);
      Right right[2];
      right[0].set(0, prepared(read.x)), right[0].set(1, prepared(read.y));
      right[1].set(0, prepared(read.z)), right[1].set(1, prepared(read.w));
      UNROLL
      for (int m = 0; m < TILES; ++m) {
#if SPLIT
        // As in add_weighted(), tensor cores truncate: three times for 8 columns, each time the sum so far. Sums of 16
        // columns are added here. The small products come first, while the truncated sum is small, too.
        float part[4] = {};
        UNROLL
        for (int i = 0; i < 2; ++i) add_small_products<QUERIES_ARE_ROWS>(part, left[m][i], right[i]);
        UNROLL
        for (int i = 0; i < 2; ++i) add_product(part, left[m][i].high, right[i].high);
        UNROLL
        for (int i = 0; i < 4; ++i) scores[m][t][i] += part[i];
#else
        UNROLL
        for (int i = 0; i < 2; ++i) add_products(scores[m][t], left[m][i], right[i]);
#endif
      }
    }
  }
}

// Adds the products of weights, in registers as `scores` are, and the rows of a tile. In sums[m][4 * q + j], a thread
// has the columns 32 * q + 8 * quarter + j and, 4 further, the same for each of two rows.
template <int PITCH>
DEVICE void add_weighted(float (&sums)[TILES][PITCH / 8][4], const Scores &weights, const float *tile) {
  // Of the inner axis, a thread has the rows 2 * quarter and 2 * quarter + 1 of each 8, as it has the weights.
  const float *const near[2] = {tile + place_of<PITCH>(2 * lane_quarter(), lane_row()),
                                tile + place_of<PITCH>(2 * lane_quarter() + 1, lane_row())};
  const auto get_weights = [&](Left &left, int m, int t) {
    UNROLL
    for (int i = 0; i < 4; ++i) left.set(i, prepared(__float_as_uint(weights[m][t][i % 2 * 2 + i / 2])));
  };
  const auto get_rows = [&](Right *right, int t, int q) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint4 read = *reinterpret_cast<const uint4 *>(near[i] + 8 * t * PITCH + 32 * q);
      right[0].set(i, prepared(read.x)), right[1].set(i, prepared(read.y));
      right[2].set(i, prepared(read.z)), right[3].set(i, prepared(read.w));
    }
  };
#if SPLIT
  // Tensor cores truncate each sum: the errors of a sum over all tiles would add up, always towards zero. The sums of
  // each tile are added here, where additions round.
  UNROLL
  for (int q = 0; q < PITCH / 32; ++q) {
    float parts[TILES][4][4] = {};
    UNROLL
    for (int t = 0; t < COLUMNS / 8; ++t) {
      Right right[4];
      get_rows(right, t, q);
      UNROLL
      for (int m = 0; m < TILES; ++m) {
        Left left;
        get_weights(left, m, t);
        UNROLL
        for (int j = 0; j < 4; ++j) add_products(parts[m][j], left, right[j]);
      }
    }
    UNROLL
    for (int m = 0; m < TILES; ++m)
      UNROLL
      for (int i = 0; i < 16; ++i) sums[m][4 * q + i / 4][i % 4] += parts[m][i / 4][i % 4];
  }
#else
  UNROLL
  for (int t = 0; t < COLUMNS / 8; ++t) {
    Left left[TILES];
    UNROLL
    for (int m = 0; m < TILES; ++m) get_weights(left[m], m, t);
    UNROLL
    for (int q = 0; q < PITCH / 32; ++q) {
      Right right[4];
      get_rows(right, t, q);
      UNROLL
      for (int j = 0; j < 4; ++j)
        UNROLL
        for (int m = 0; m < TILES; ++m) add_products(sums[m][4 * q + j], left[m], right[j]);
    }
  }
#endif
}

// Writes one row of sums, times a factor; `half` is 1 for the second of the thread's two rows.
template <int N>
DEVICE void store_row(const float (&sums)[N][4], int half, float factor, float *to, int columns) {
  UNROLL
  for (int q = 0; q < N / 4; ++q)
    UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      const int column = 32 * q + 8 * lane_quarter() + 4 * odd;
      float values[4];
      UNROLL
      for (int j = 0; j < 4; ++j) values[j] = factor == 0 ? 0 : sums[4 * q + j][2 * half + odd] * factor;
      if (ALIGNED) {
        if (column < columns)
          *reinterpret_cast<uint4 *>(to + column) = make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]),
                                                               __float_as_uint(values[2]), __float_as_uint(values[3]));
      } else {
        UNROLL
        for (int j = 0; j < 4; ++j)
          if (column + j < columns) to[column + j] = values[j];
      }
    }
}

// Stores all rows of sums from `first` on that are before `end`; those from `counting` on are zero.
template <int N>
DEVICE void store_rows(const float (&sums)[TILES][N][4], const AttentionTilesParams &p, int array, int n, int head,
                       int first, int end, int counting, int columns, float factor) {
  float *const to = static_cast<float *>(p.arrays[array]) + n * p.steps[array][0] + head * p.steps[array][1];
  UNROLL
  for (int m = 0; m < TILES; ++m)
    UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + warp_row() + 16 * m + 8 * half + lane_row();
      if (row < end)
        store_row(sums[m], half, row < counting ? factor : 0, to + row * p.steps[array][2], columns);
    }
}

// Combine the values of the 4 threads that share a row.
DEVICE float row_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}
DEVICE float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
