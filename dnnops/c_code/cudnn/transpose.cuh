// Copies each of a batch of matrices with its axes exchanged: dst[b][column][row] = src[b][row][column].
// Rows of dst may be wider than src has rows: the rest becomes zero.  Rows of src may be wider than what
// is copied of them.
//
// WIDTH is the size of an element in bytes; LOAD and STORE are how many of them move at once.
#if WIDTH == 2
typedef unsigned short element;
typedef unsigned int pair;
#elif WIDTH == 4
typedef unsigned int element;
typedef unsigned long long pair;
#else
typedef unsigned long long element;
typedef ulonglong2 pair;
#endif

constexpr int TILE = WIDTH == 8 ? 32 : 64;
constexpr int THREADS = 256;

union pair_of_elements {
  pair both;
  element each[2];
};

// TransposeParams of c_code/runtime/cudnn/conv_relayout.cpp.
struct transpose_params {
  long long rows, columns;           // of what is copied
  long long src_pitch, dst_pitch;    // elements from one row to the next
  long long dst_width;               // elements to write of each row of dst
  long long src_stride, dst_stride;  // from one matrix to the next
  int row_tiles, column_tiles;
  int slab_rows;  // of transpose_narrow
};

// Tiles pass through shared memory, so that both sides move along their rows.
#if WIDTH == 2
// Elements of two rows make a word, so that shared memory is used by words: words[c][q] is column c of the rows
// 2q and 2q + 1.
extern "C" __global__ void __launch_bounds__(THREADS) transpose(const element *__restrict__ src,
                                                                element *__restrict__ dst, transpose_params p) {
  __shared__ pair words[TILE][TILE / 2 + 1];
  const int column_tile = blockIdx.x % p.column_tiles, rest = blockIdx.x / p.column_tiles;
  const int row_tile = rest % p.row_tiles;
  const long long matrix = rest / p.row_tiles;
  src += matrix * p.src_stride;
  dst += matrix * p.dst_stride;
  const long long row0 = (long long)row_tile * TILE, column0 = (long long)column_tile * TILE;
  {
#if LOAD == 2
    typedef pair loaded;
#else
    typedef element loaded;
#endif
    constexpr int ACROSS = TILE / LOAD, DOWN = THREADS / ACROSS, STEPS = TILE / 2 / DOWN;
    const int x = threadIdx.x % ACROSS * LOAD, y = threadIdx.x / ACROSS;
    pair above[STEPS], below[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const long long r = row0 + 2 * (y + i * DOWN), c = column0 + x;
      const element *from = src + r * p.src_pitch + c;
      const bool inside = c < p.columns;
      above[i] = inside && r < p.rows ? *reinterpret_cast<const loaded *>(from) : 0;
      below[i] = inside && r + 1 < p.rows ? *reinterpret_cast<const loaded *>(from + p.src_pitch) : 0;
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int q = y + i * DOWN;
      words[x][q] = (above[i] & 0xffff) | below[i] << 16;
#if LOAD == 2
      words[x + 1][q] = above[i] >> 16 | (below[i] & 0xffff0000);
#endif
    }
  }
  __syncthreads();
  {
    constexpr int ACROSS = TILE / STORE, DOWN = THREADS / ACROSS;
    const int x = threadIdx.x % ACROSS * STORE, y = threadIdx.x / ACROSS;
#pragma unroll
    for (int i = 0; i < TILE / DOWN; ++i) {
      const int c = y + i * DOWN;
      if (column0 + c >= p.columns || row0 + x >= p.dst_width) continue;
      element *to = dst + (column0 + c) * p.dst_pitch + row0 + x;
#if STORE == 2
      *reinterpret_cast<pair *>(to) = words[c][x / 2];
#else
      *to = (element)(words[c][x / 2] >> 16 * (x % 2));
#endif
    }
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) transpose(const element *__restrict__ src,
                                                                element *__restrict__ dst, transpose_params p) {
  __shared__ element tile[TILE][TILE + 4 / (WIDTH < 4 ? WIDTH : 4)];
  const int column_tile = blockIdx.x % p.column_tiles, rest = blockIdx.x / p.column_tiles;
  const int row_tile = rest % p.row_tiles;
  const long long matrix = rest / p.row_tiles;
  src += matrix * p.src_stride;
  dst += matrix * p.dst_stride;
  const long long row0 = (long long)row_tile * TILE, column0 = (long long)column_tile * TILE;
  {
    constexpr int ACROSS = TILE / LOAD, DOWN = THREADS / ACROSS;
    const int x = threadIdx.x % ACROSS * LOAD, y = threadIdx.x / ACROSS;
#pragma unroll
    for (int i = 0; i < TILE / DOWN; ++i) {
      const int r = y + i * DOWN;
      if (column0 + x >= p.columns) continue;
      const bool inside = row0 + r < p.rows;
      const element *from = src + (row0 + r) * p.src_pitch + column0 + x;
#if LOAD == 2
      pair_of_elements loaded = {};
      if (inside) loaded.both = *reinterpret_cast<const pair *>(from);
      tile[r][x] = loaded.each[0];
      tile[r][x + 1] = loaded.each[1];
#else
      tile[r][x] = inside ? *from : 0;
#endif
    }
  }
  __syncthreads();
  {
    constexpr int ACROSS = TILE / STORE, DOWN = THREADS / ACROSS;
    const int x = threadIdx.x % ACROSS * STORE, y = threadIdx.x / ACROSS;
#pragma unroll
    for (int i = 0; i < TILE / DOWN; ++i) {
      const int c = y + i * DOWN;
      if (column0 + c >= p.columns || row0 + x >= p.dst_width) continue;
      element *to = dst + (column0 + c) * p.dst_pitch + row0 + x;
#if STORE == 2
      pair_of_elements stored;
      stored.each[0] = tile[x][c];
      stored.each[1] = tile[x + 1][c];
      *reinterpret_cast<pair *>(to) = stored.both;
#else
      *to = tile[x][c];
#endif
    }
  }
}
#endif

constexpr int NARROW = 32;
constexpr int SLAB = 64 * (NARROW + 1);

// For matrices with few columns: slabs of rows, of which `row_tiles` is the number, are contiguous in src.
// BACK is for few rows: slabs of columns, which are contiguous in dst.
extern "C" __global__ void __launch_bounds__(THREADS) transpose_narrow(const element *__restrict__ src,
                                                                       element *__restrict__ dst,
                                                                       transpose_params p) {
  __shared__ element slab[SLAB];
  const int tile = blockIdx.x % p.row_tiles;
  const long long matrix = blockIdx.x / p.row_tiles, first = (long long)tile * p.slab_rows;
  src += matrix * p.src_stride;
  dst += matrix * p.dst_stride;
  const auto in_tile = [&](long long size) { return (int)(size - first < p.slab_rows ? size - first : p.slab_rows); };
  // In shared memory as slab[i * pitch + j], i along the wide side; an odd pitch.
#if BACK
  const int narrow = (int)p.rows, pitch = narrow | 1, count = in_tile(p.columns), width = (int)p.dst_width;
  for (int k = threadIdx.x; k < count * narrow; k += THREADS) {
    const int i = k % count, j = k / count;
    slab[i * pitch + j] = src[j * p.src_pitch + first + i];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < count * width; k += THREADS) {
    const int i = k / width, j = k % width;
    dst[(first + i) * p.dst_pitch + j] = j < narrow ? slab[i * pitch + j] : 0;
  }
#else
  const int narrow = (int)p.columns, pitch = narrow | 1, width = (int)p.src_pitch;
  const int count = p.rows > first ? in_tile(p.rows) : 0, written = in_tile(p.dst_width);
  for (int k = threadIdx.x; k < count * width; k += THREADS) {
    const int i = k / width, j = k % width;
    const element value = src[first * width + k];
    if (j < narrow) slab[i * pitch + j] = value;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < written * narrow; k += THREADS) {
    const int i = k % written, j = k / written;
    dst[j * p.dst_pitch + first + i] = i < count ? slab[i * pitch + j] : 0;
  }
#endif
}

// Without an exchange of axes: rows of `columns` elements become rows of `dst_width`.
extern "C" __global__ void __launch_bounds__(THREADS) change_pitch(const element *__restrict__ src,
                                                                   element *__restrict__ dst, transpose_params p) {
  const int tile = blockIdx.x % p.row_tiles;
  const long long matrix = blockIdx.x / p.row_tiles, first = (long long)tile * TILE;
  src += matrix * p.src_stride;
  dst += matrix * p.dst_stride;
  const int count = (int)(p.rows - first < TILE ? p.rows - first : TILE), width = (int)p.dst_width;
  for (int k = threadIdx.x; k < count * width; k += THREADS) {
    const int i = k / width, j = k % width;
    dst[(first + i) * p.dst_pitch + j] = j < p.columns ? src[(first + i) * p.src_pitch + j] : 0;
  }
}
