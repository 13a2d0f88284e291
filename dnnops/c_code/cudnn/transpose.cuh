// Transposes each of a batch of matrices: dst[b][column][row] = src[b][row][column].
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

struct transpose_params {
  long long rows, columns;
  long long src_stride, dst_stride;  // from one matrix to the next
  int row_tiles, column_tiles;
};

// Tiles pass through shared memory, so that both sides move along their rows.
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
      if (row0 + r >= p.rows || column0 + x >= p.columns) continue;
      const element *from = src + (row0 + r) * p.columns + column0 + x;
#if LOAD == 2
      pair_of_elements loaded;
      loaded.both = *reinterpret_cast<const pair *>(from);
      tile[r][x] = loaded.each[0];
      tile[r][x + 1] = loaded.each[1];
#else
      tile[r][x] = *from;
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
      if (column0 + c >= p.columns || row0 + x >= p.rows) continue;
      element *to = dst + (column0 + c) * p.rows + row0 + x;
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

// For matrices with few columns (of which `row_tiles` is a number of slabs of TILE rows): a slab is
// contiguous in src.  BACK transposes the other way: few rows, slabs of columns that are contiguous in dst.
constexpr int NARROW = 32;

extern "C" __global__ void __launch_bounds__(THREADS) transpose_narrow(const element *__restrict__ src,
                                                                       element *__restrict__ dst,
                                                                       transpose_params p) {
  __shared__ element slab[TILE * (NARROW + 1)];
#if BACK
  const int narrow = (int)p.rows;
  const long long wide = p.columns;
#else
  const int narrow = (int)p.columns;
  const long long wide = p.rows;
#endif
  const int tile = blockIdx.x % p.row_tiles;
  const long long matrix = blockIdx.x / p.row_tiles;
  src += matrix * p.src_stride;
  dst += matrix * p.dst_stride;
  const long long first = (long long)tile * TILE;
  const int count = wide - first < TILE ? (int)(wide - first) : TILE;
  // In shared memory as slab[i * (narrow | 1) + j]: an odd pitch, i along the wide side.
  const int pitch = narrow | 1;
  for (int k = threadIdx.x; k < count * narrow; k += THREADS) {
#if BACK
    const int i = k % count, j = k / count;
    slab[i * pitch + j] = src[j * wide + first + i];
#else
    slab[k / narrow * pitch + k % narrow] = src[first * narrow + k];
#endif
  }
  __syncthreads();
  for (int k = threadIdx.x; k < count * narrow; k += THREADS) {
#if BACK
    dst[first * narrow + k] = slab[k / narrow * pitch + k % narrow];
#else
    const int i = k % count, j = k / count;
    dst[j * wide + first + i] = slab[i * pitch + j];
#endif
  }
}
