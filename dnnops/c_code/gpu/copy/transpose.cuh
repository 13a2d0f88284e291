// Copies of arrays between memory formats, each as a batch of matrices with exchanged axes:
// dst[b][column][row] = src[b][row][column]. Rows of dst may be longer than src has rows: the rest becomes
// zero. Rows of src may be longer than the part that is copied.
//
// One launch makes one or two copies: its first blocks belong to the first copy, the others to the second.
// dnnops/gpu/kernels.py compiles this with CuPy, and tests compile it for the host. Macros: WIDTH, the size
// of an element in bytes; FIRST and SECOND, the kind of each copy, or NO_COPY. The differences between kinds
// are resolved at compile time: blocks are so short-lived that checks would cost measurable time.

#if WIDTH == 2
typedef unsigned short element;
#elif WIDTH == 4
typedef unsigned int element;
#else
typedef unsigned long long element;
#endif
typedef unsigned int word;

// The same values as in c_code/gpu/copy/copies.cpp.
constexpr int THREADS = 256;
// Kinds of copies, and flags for them: how many elements are loaded at once from a row of src, and stored to
// a row of dst, if the addresses are multiples of their size.
enum copy_kind {
  NO_COPY = -1,
  TILES = 0,
  SLABS_OF_ROWS = 1,
  SLABS_OF_COLUMNS = 2,
  SAME_AXES = 3,
  STRIPS_OF_ROWS = 4,
  STRIPS_OF_COLUMNS = 5,
  KINDS = 8,
  LOADS_PAIRS = 8,  // pairs of 16-bit elements
  LOADS_QUADS = 16,  // of 16-bit or 32-bit elements
  STORES_PAIRS = 32,
  STORES_QUADS = 64,
  NARROW_TILES = 128,  // for small arrays
  FILLS_GAPS = 256,    // SAME_AXES with spread: all rows of dst are written
  CROSSES = 512,       // slabs and strips continue from one matrix to the next
  LARGE_SLABS = 1024,   // slabs of more than 64 rows or columns
  HALF_VECTORS = 2048,  // strips: vectors have 8 bytes instead of 16
  VECTORS = 4096,       // multiplied by the number of vectors on the short side of a strip
};
enum copy_order {
  IN_ORDER = 0,
  TURNED_CONTIGUOUS = 1,  // for filters
  TURNED_CHANNELS_LAST = 2,
  EXCHANGED_CHANNELS_LAST = 3,
  SPREAD = 4,  // for images
};

struct copy_params {
  long long rows, columns;           // of the part that is copied
  long long src_pitch, dst_pitch;    // elements from one row to the next
  long long dst_width;               // the number of elements to write in each row of dst
  long long src_stride, dst_stride;  // from one matrix to the next
  int order;                         // the order of dst's rows: see row_of_dst
  int period;                        // for filters: the number of positions or of channels
  int sizes[2], steps[3];            // for images, from the last axis on
  int row_tiles, column_tiles;
  // The size of each tile but the last. For slabs and strips that cross matrices, the size of a matrix.
  int tile_rows, tile_columns;
  int slab_shift;  // slabs have 64 << slab_shift rows or columns
  int lane_shift;  // 1 << lane_shift threads copy a row, if axes are not exchanged
  int blocks;
};

struct copy_launch {
  const element *src[2];
  element *dst[2];
  copy_params copies[2];
};

constexpr int WARPS = THREADS / 32;

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }

// How many of `size` elements, counted from `first`, are among the next `most`.
DEVICE int within(long long size, long long first, int most) {
  return size - first < most ? (size > first ? (int)(size - first) : 0) : most;
}

// The row of dst that a column of src becomes. A column of filters is channel * positions + position, or
// position * channels + channel, and becomes the former, with the order of positions optionally reversed. A
// column of an image is a position; positions of dst in between are skipped.
DEVICE long long row_of_dst(const copy_params &p, long long column) {
  if (p.order == IN_ORDER) return column;
  const int c = (int)column;
  if (p.order == SPREAD) {
    const int x = c % p.sizes[0], rest = c / p.sizes[0], y = rest % p.sizes[1], z = rest / p.sizes[1];
    return (long long)z * p.steps[2] + (long long)y * p.steps[1] + x * p.steps[0];
  }
  const int high = c / p.period, low = c % p.period;
  if (p.order == TURNED_CONTIGUOUS) return (long long)high * p.period + p.period - 1 - low;
  const int positions = (int)p.columns / p.period;
  return (long long)low * positions + (p.order == TURNED_CHANNELS_LAST ? positions - 1 - high : high);
}

// Tiles pass through shared memory, so that both sides move along their rows. There, four rows of a column make a
// unit, and a column's units are permuted, so that units of several columns or rows never share a bank.
constexpr int TILE_ROWS = 64, UNITS = TILE_ROWS / 4;  // at most

template <int COUNT>
struct alignas(COUNT * WIDTH < 16 ? COUNT * WIDTH : 16) vector {
  element of[COUNT];
};
using quad = vector<4>;

DEVICE int unit_at(int column, int unit) { return column * UNITS + (unit ^ column >> 2 ^ (column & 3) << 2); }

template <int KIND>
DEVICE void copy_tile(const element *src, element *dst, const copy_params &p, int block, uint4 *shared) {
  constexpr int LOAD = KIND & LOADS_QUADS ? 4 : KIND & LOADS_PAIRS ? 2 : 1;
  constexpr int COLUMNS = KIND & NARROW_TILES ? 32 : 64;
  constexpr int ACROSS = COLUMNS / LOAD, ITEMS = UNITS * ACROSS / THREADS;
  quad *const units = reinterpret_cast<quad *>(shared);
  const int column_tile = block % p.column_tiles, rest = block / p.column_tiles;
  const long long row0 = (long long)(rest % p.row_tiles) * p.tile_rows;
  const long long column0 = (long long)column_tile * p.tile_columns, matrix = rest / p.row_tiles;
  const int rows = within(p.rows, row0, p.tile_rows), columns = within(p.columns, column0, p.tile_columns);
  {
    const int x = (int)threadIdx.x % ACROSS * LOAD, y = (int)threadIdx.x / ACROSS;
    const element *from = src + matrix * p.src_stride + (row0 + 4 * y) * p.src_pitch + column0 + x;
    vector<LOAD> loaded[ITEMS][4];
    UNROLL
    for (int i = 0; i < ITEMS; ++i, from += THREADS / ACROSS * 4 * p.src_pitch) {
      const int r = 4 * (y + i * (THREADS / ACROSS));
      UNROLL
      for (int j = 0; j < 4; ++j) {
        loaded[i][j] = {};
        if (x < columns && r + j < rows)
          loaded[i][j] = *reinterpret_cast<const vector<LOAD> *>(from + j * p.src_pitch);
      }
    }
    UNROLL
    for (int i = 0; i < ITEMS; ++i)
      UNROLL
      for (int k = 0; k < LOAD; ++k)
        units[unit_at(x + k, y + i * (THREADS / ACROSS))] = {
            {loaded[i][0].of[k], loaded[i][1].of[k], loaded[i][2].of[k], loaded[i][3].of[k]}};
  }
  __syncthreads();
  const int width = within(p.dst_width, row0, p.tile_rows);
  dst += matrix * p.dst_stride + row0;
  const auto place = [&](int c) { return dst + row_of_dst(p, column0 + c) * p.dst_pitch; };
  if constexpr (KIND & STORES_QUADS) {
    UNROLL
    for (int i = 0; i < COLUMNS * UNITS / THREADS; ++i) {
      const int c = (int)threadIdx.x / UNITS + i * (THREADS / UNITS), unit = threadIdx.x % UNITS;
      if (c < columns && 4 * unit < width)
        *reinterpret_cast<quad *>(place(c) + 4 * unit) = units[unit_at(c, unit)];
    }
  } else {
    UNROLL
    for (int i = 0; i < COLUMNS / WARPS; ++i) {
      const int c = warp() + i * WARPS;
      if (c >= columns) break;
      element *const to = place(c);
#if WIDTH == 2
      const auto pair = [&](int k) { return reinterpret_cast<const word *>(units + unit_at(c, k / 2))[k % 2]; };
      const int x = 2 * lane();
      const word value = pair(lane());
      if (KIND & STORES_PAIRS || ((size_t)to & 2) == 0) {
        if (x + 1 < width)
          *reinterpret_cast<word *>(to + x) = value;
        else if (!(KIND & STORES_PAIRS) && x < width)
          to[x] = (element)value;
      } else {
        // If a row begins at an odd address, a pair is one element and the one before it.
        if (x == 0) {
          if (width) to[0] = (element)value;
        } else if (x - 1 < width) {
          const word before = pair(lane() - 1);
          if (x < width)
            *reinterpret_cast<word *>(to + x - 1) = before >> 16 | value << 16;
          else
            to[x - 1] = (element)(before >> 16);
        }
        if (x + 1 == TILE_ROWS - 1 && x + 1 < width) to[x + 1] = (element)(value >> 16);
      }
#else
      UNROLL
      for (int x = lane(); x < TILE_ROWS; x += 32)
        if (x < width) to[x] = units[unit_at(c, x / 4)].of[x % 4];
#endif
    }
  }
}

// Where a row or column begins; it may belong to one of the next matrices.
template <int KIND>
DEVICE long long place_of(int i, int in_matrix, long long stride) {
  if constexpr (!(KIND & CROSSES)) return i;
  return i / in_matrix * stride + i % in_matrix;
}

// Where element k of a slab is in shared memory. An odd pitch already avoids bank conflicts; other pitches are skewed.
template <bool SKEWED>
DEVICE int slab_index(int k) {
  if (!SKEWED) return k;
  return WIDTH == 2 ? k + k / 64 * 2 : WIDTH == 4 ? k + k / 32 : k + k / 16;
}

constexpr int MAX_SHORT = 56;            // the maximum length of a slab's short side
constexpr int SLAB_VECTOR = 16 / WIDTH;  // the elements moved at once between memory and a slab

// Copies consecutive elements from memory to a slab.
//
// Loops are short, and those of slabs of 64 run once. With the compiler's default unrolling, most of the time
// was spent on loading code.
template <int KIND, bool SKEWED>
DEVICE void read_slab(const element *from, int count, element *slab) {
  constexpr int AT_ONCE = KIND & LARGE_SLABS ? 4 : (64 * MAX_SHORT / SLAB_VECTOR + THREADS - 1) / THREADS;
  const int vectors = ((size_t)from & 15) == 0 ? count / SLAB_VECTOR : 0;
  int k0 = threadIdx.x;
  do {
    uint4 loaded[AT_ONCE];
    UNROLL
    for (int i = 0; i < AT_ONCE; ++i)
      if (k0 + i * THREADS < vectors) loaded[i] = reinterpret_cast<const uint4 *>(from)[k0 + i * THREADS];
    UNROLL
    for (int i = 0; i < AT_ONCE; ++i) {
      const int k = k0 + i * THREADS;
      if (k >= vectors) continue;
      if constexpr (!SKEWED) {
        reinterpret_cast<uint4 *>(slab)[k] = loaded[i];
      } else {
        word *const to = reinterpret_cast<word *>(slab + slab_index<SKEWED>(k * SLAB_VECTOR));
        to[0] = loaded[i].x;
        to[1] = loaded[i].y;
        to[2] = loaded[i].z;
        to[3] = loaded[i].w;
      }
    }
  } while (KIND & LARGE_SLABS && (k0 += AT_ONCE * THREADS) < vectors);
  NO_UNROLL
  for (int k = vectors * SLAB_VECTOR + threadIdx.x; k < count; k += THREADS) slab[slab_index<SKEWED>(k)] = from[k];
}

template <bool SKEWED>
DEVICE void write_slab(element *to, int count, const element *slab) {
  const int vectors = ((size_t)to & 15) == 0 ? count / SLAB_VECTOR : 0;
  NO_UNROLL
  for (int k = threadIdx.x; k < vectors; k += THREADS) {
    if constexpr (!SKEWED) {
      reinterpret_cast<uint4 *>(to)[k] = reinterpret_cast<const uint4 *>(slab)[k];
    } else {
      const word *const from = reinterpret_cast<const word *>(slab + slab_index<SKEWED>(k * SLAB_VECTOR));
      reinterpret_cast<uint4 *>(to)[k] = make_uint4(from[0], from[1], from[2], from[3]);
    }
  }
  NO_UNROLL
  for (int k = vectors * SLAB_VECTOR + threadIdx.x; k < count; k += THREADS) to[k] = slab[slab_index<SKEWED>(k)];
}

// A warp's first part of a slab, 64 elements along the long side, and its first index along the short side.
// Warps with the same part share the short side.
template <int KIND>
struct Share {
  int parts = 1, part = 0, start = warp(), step = WARPS;
  DEVICE Share(int shift) {
    if constexpr (KIND & LARGE_SLABS) {
      parts = 1 << shift;
      part = warp() & (parts - 1);
      start = warp() >> shift;
      step = parts < WARPS ? WARPS >> shift : 1;
    }
  }
};

// Copies rows of a matrix with few columns, which are contiguous in src. Each column becomes a row of dst.
template <int KIND, bool SKEWED>
DEVICE void copy_slab_of_rows(const element *src, element *dst, const copy_params &p, int block, element *slab) {
  const int most = KIND & LARGE_SLABS ? 64 << p.slab_shift : 64, pitch = (int)p.src_pitch, columns = (int)p.columns;
  const long long matrix = block / p.row_tiles, first = (long long)(block % p.row_tiles) * most;
  const int count = within(p.rows, first, most), written = within(p.dst_width, first, most);
  read_slab<KIND, SKEWED>(src + matrix * p.src_stride + first * pitch, count * pitch, slab);
  __syncthreads();
  const Share<KIND> share(p.slab_shift);
  NO_UNROLL
  for (int part = share.part; part < share.parts; part += WARPS) {
    constexpr int APART = KIND & STORES_PAIRS ? 1 : 32;
    const int x = part * 64 + (KIND & STORES_PAIRS ? 2 : 1) * lane(), other = x + APART;
    const bool has[2] = {x < count, other < count};
    const int from[2] = {x * pitch, other * pitch};
    const auto place = [&](int i) { return place_of<KIND>((int)first + i, p.tile_rows, p.dst_stride); };
    element *const to = dst + matrix * p.dst_stride + place(x);
    const long long apart = KIND & STORES_PAIRS ? 1 : place(other) - place(x);
    constexpr int AT_ONCE = KIND & LARGE_SLABS ? 4 : MAX_SHORT / WARPS;
    int c0 = share.start;
    do {
      UNROLL
      for (int i = 0; i < AT_ONCE; ++i) {
        const int c = c0 + i * share.step;
        if (c >= columns) continue;
        const element a = has[0] ? slab[slab_index<SKEWED>(from[0] + c)] : 0;
        const element b = has[1] ? slab[slab_index<SKEWED>(from[1] + c)] : 0;
        element *const row = to + c * p.dst_pitch;
        if constexpr (KIND & STORES_PAIRS) {
          if (x < written) *reinterpret_cast<word *>(row) = a | (word)b << 16;
        } else {
          if (x < written) row[0] = a;
          if (other < written) row[apart] = b;
        }
      }
    } while (KIND & LARGE_SLABS && (c0 += AT_ONCE * share.step) < columns);
  }
}

// Copies columns of a matrix with few rows. They become rows of dst, which are contiguous there.
template <int KIND, bool SKEWED>
DEVICE void copy_slab_of_columns(const element *src, element *dst, const copy_params &p, int block, element *slab) {
  const int most = KIND & LARGE_SLABS ? 64 << p.slab_shift : 64, width = (int)p.dst_width, rows = (int)p.rows;
  const long long matrix = block / p.row_tiles, first = (long long)(block % p.row_tiles) * most;
  const int count = within(p.columns, first, most);
  src += matrix * p.src_stride;
  const Share<KIND> share(p.slab_shift);
  NO_UNROLL
  for (int part = share.part; part < share.parts; part += WARPS) {
    constexpr int APART = KIND & LOADS_PAIRS ? 1 : 32, AT_ONCE = MAX_SHORT / WARPS;
    const auto place = [&](int i) { return place_of<KIND>((int)first + i, p.tile_columns, p.src_stride); };
    const int x = part * 64 + (KIND & LOADS_PAIRS ? 2 : 1) * lane(), other = x + APART;
    const int to[2] = {x * width, other * width};
    const long long from_place = place(x), apart = KIND & LOADS_PAIRS ? 1 : place(other) - from_place;
    int r0 = share.start;
    do {
      word loaded[AT_ONCE];
      element others[AT_ONCE];
      element elements[AT_ONCE];
      UNROLL
      for (int i = 0; i < AT_ONCE; ++i) {
        const int r = r0 + i * share.step;
        const element *const from = src + r * p.src_pitch + from_place;
        if constexpr (KIND & LOADS_PAIRS) {
          loaded[i] = r < rows && x < count ? *reinterpret_cast<const word *>(from) : 0;
        } else {
          elements[i] = r < rows && x < count ? from[0] : 0;
          others[i] = r < rows && other < count ? from[apart] : 0;
        }
      }
      UNROLL
      for (int i = 0; i < AT_ONCE; ++i) {
        const int r = r0 + i * share.step;
        if constexpr (KIND & LOADS_PAIRS) {
          elements[i] = (element)loaded[i];
          others[i] = (element)(loaded[i] >> 16);
        }
        if (r < width && x < count) slab[slab_index<SKEWED>(to[0] + r)] = elements[i];
        if (r < width && other < count) slab[slab_index<SKEWED>(to[1] + r)] = others[i];
      }
    } while (KIND & LARGE_SLABS && (r0 += AT_ONCE * share.step) < width);
  }
  __syncthreads();
  write_slab<SKEWED>(dst + matrix * p.dst_stride + first * width, count * width, slab);
}

// A strip has 32 columns or rows of a matrix whose other side is short and consists of whole vectors. Each
// warp has its own strip and waits for no other warp.
template <int KIND>
struct Strip {
  static constexpr int LENGTH = (KIND & HALF_VECTORS ? 8 : 16) / WIDTH, COUNT = KIND / VECTORS, ACROSS = COUNT * LENGTH;
  static constexpr int AT_ONCE = ACROSS < 16 ? 16 / ACROSS : 1;  // strips of a warp in flight together
  using Vector = vector<LENGTH>;

  // Where a vector is in shared memory. Neither the vectors of one column nor the same vector of several
  // columns share a bank.
  static DEVICE int at(int column, int k) {
    if constexpr ((COUNT & (COUNT - 1)) == 0) k ^= column * COUNT / 8 & (COUNT - 1);
    return column * COUNT + k;
  }
};

// Copies columns, which become rows of dst.
template <int KIND>
DEVICE void copy_strips_of_columns(const element *src, element *dst, const copy_params &p, int block, uint4 *shared) {
  using S = Strip<KIND>;
  using Vector = typename S::Vector;
  Vector *const own = reinterpret_cast<Vector *>(shared) + warp() * 32 * S::COUNT;
  const long long matrix = block / p.row_tiles;
  const int first = block % p.row_tiles * (THREADS * S::AT_ONCE), columns = (int)p.columns, rows = (int)p.rows;
  src += matrix * p.src_stride;
  vector<S::ACROSS> loaded[S::AT_ONCE];
  UNROLL
  for (int i = 0; i < S::AT_ONCE; ++i) {
    const int column = first + i * THREADS + (int)threadIdx.x;
    const element *const from = src + place_of<KIND>(column, p.tile_columns, p.src_stride);
    UNROLL
    for (int r = 0; r < S::ACROSS; ++r) loaded[i].of[r] = column < columns && r < rows ? from[r * p.src_pitch] : 0;
  }
  UNROLL
  for (int i = 0; i < S::AT_ONCE; ++i) {
    const int start = first + i * THREADS + 32 * warp(), count = within(columns, start, 32);
    Vector *const to = reinterpret_cast<Vector *>(dst + matrix * p.dst_stride + start * p.dst_width);
    if constexpr (S::COUNT > 1) __syncwarp();
    UNROLL
    for (int k = 0; k < S::COUNT; ++k) {
      Vector v;
      UNROLL
      for (int j = 0; j < S::LENGTH; ++j) v.of[j] = loaded[i].of[k * S::LENGTH + j];
      if constexpr (S::COUNT > 1)
        own[S::at(lane(), k)] = v;
      else if (lane() < count)
        to[lane()] = v;
    }
    if constexpr (S::COUNT > 1) {
      __syncwarp();
      UNROLL
      for (int k = 0; k < S::COUNT; ++k) {
        const int q = 32 * k + lane(), c = q / S::COUNT;
        if (c < count) to[q] = own[S::at(c, q % S::COUNT)];
      }
    }
  }
}

// Copies rows, whose columns become rows of dst.
template <int KIND>
DEVICE void copy_strips_of_rows(const element *src, element *dst, const copy_params &p, int block, uint4 *shared) {
  using S = Strip<KIND>;
  using Vector = typename S::Vector;
  Vector *const own = reinterpret_cast<Vector *>(shared) + warp() * 32 * S::COUNT;
  const long long matrix = block / p.row_tiles;
  const int first = block % p.row_tiles * (THREADS * S::AT_ONCE), columns = (int)p.columns, rows = (int)p.rows;
  dst += matrix * p.dst_stride;
  Vector loaded[S::AT_ONCE][S::COUNT];
  UNROLL
  for (int i = 0; i < S::AT_ONCE; ++i) {
    const int start = first + i * THREADS + 32 * warp(), count = within(rows, start, 32);
    const Vector *const from =
        reinterpret_cast<const Vector *>(src + matrix * p.src_stride + start * p.src_pitch);
    UNROLL
    for (int k = 0; k < S::COUNT; ++k) {
      const int q = 32 * k + lane();
      loaded[i][k] = {};
      if (q / S::COUNT < count) loaded[i][k] = from[q];
    }
  }
  UNROLL
  for (int i = 0; i < S::AT_ONCE; ++i) {
    if constexpr (S::COUNT > 1) {
      __syncwarp();
      UNROLL
      for (int k = 0; k < S::COUNT; ++k) {
        const int q = 32 * k + lane();
        own[S::at(q / S::COUNT, q % S::COUNT)] = loaded[i][k];
      }
      __syncwarp();
      UNROLL
      for (int k = 0; k < S::COUNT; ++k) loaded[i][k] = own[S::at(lane(), k)];
    }
    const int row = first + i * THREADS + (int)threadIdx.x;
    element *const to = dst + place_of<KIND>(row, p.tile_rows, p.dst_stride);
    UNROLL
    for (int c = 0; c < S::ACROSS; ++c)
      if (row < rows && c < columns) to[c * p.dst_pitch] = loaded[i][c / S::LENGTH].of[c % S::LENGTH];
  }
}

// The row of src for a row of dst if positions are spread; -1 for rows in between.
DEVICE int row_of_src(const copy_params &p, int row) {
  const int z = row / p.steps[2], in_slice = row - z * p.steps[2];
  const int y = in_slice / p.steps[1], in_line = in_slice - y * p.steps[1];
  const int x = in_line / p.steps[0];
  if (in_line % p.steps[0] || x >= p.sizes[0] || y >= p.sizes[1]) return -1;
  return (z * p.sizes[1] + y) * p.sizes[0] + x;
}

// Copies without exchanging axes: rows of `columns` elements become rows of `dst_width`. If gaps are filled,
// some rows of dst come from src, and the others are zero.
template <int KIND>
DEVICE void copy_rows(const element *src, element *dst, const copy_params &p, int block) {
  constexpr bool LOADS = KIND & LOADS_QUADS, STORES = KIND & STORES_QUADS;
  constexpr int COUNT = LOADS || STORES ? 4 : 1, AT_ONCE = 4;
  const int most = 64 << p.slab_shift;
  const long long matrix = block / p.row_tiles, first = (long long)(block % p.row_tiles) * most;
  const int count = within(p.rows, first, most), columns = (int)p.columns, width = (int)p.dst_width;
  const int lanes = 1 << p.lane_shift, step = THREADS >> p.lane_shift;
  src += matrix * p.src_stride + (KIND & FILLS_GAPS ? 0 : first * p.src_pitch);
  dst += matrix * p.dst_stride + first * p.dst_pitch;
  for (int start = (int)threadIdx.x >> p.lane_shift; start < count; start += AT_ONCE * step) {
    int from[AT_ONCE];
    UNROLL
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = start + i * step;
      from[i] = row >= count ? -1 : KIND & FILLS_GAPS ? row_of_src(p, (int)first + row) : row;
    }
    for (int k = COUNT * ((int)threadIdx.x & (lanes - 1)); k < width; k += COUNT * lanes) {
      vector<COUNT> loaded[AT_ONCE];
      UNROLL
      for (int i = 0; i < AT_ONCE; ++i) {
        loaded[i] = {};
        if (from[i] < 0 || k >= columns) continue;
        const element *const at = src + from[i] * p.src_pitch + k;
        if constexpr (LOADS) {
          loaded[i] = *reinterpret_cast<const vector<COUNT> *>(at);
        } else {
          UNROLL
          for (int c = 0; c < COUNT; ++c) loaded[i].of[c] = k + c < columns ? at[c] : 0;
        }
      }
      UNROLL
      for (int i = 0; i < AT_ONCE; ++i) {
        const int row = start + i * step;
        if (row >= count) continue;
        element *const to = dst + row * p.dst_pitch + k;
        if constexpr (STORES) {
          *reinterpret_cast<vector<COUNT> *>(to) = loaded[i];
        } else {
          UNROLL
          for (int c = 0; c < COUNT; ++c)
            if (k + c < width) to[c] = loaded[i].of[c];
        }
      }
    }
  }
}

template <int KIND>
DEVICE void copy_array(const element *__restrict__ src, element *__restrict__ dst, const copy_params &p, int block,
                       uint4 *shared) {
  element *const slab = reinterpret_cast<element *>(shared);
  if constexpr (KIND % KINDS == TILES) copy_tile<KIND>(src, dst, p, block, shared);
  if constexpr (KIND % KINDS == SLABS_OF_ROWS) {
    if (p.src_pitch % 2)
      copy_slab_of_rows<KIND, false>(src, dst, p, block, slab);
    else
      copy_slab_of_rows<KIND, true>(src, dst, p, block, slab);
  }
  if constexpr (KIND % KINDS == SLABS_OF_COLUMNS) {
    if (p.dst_width % 2)
      copy_slab_of_columns<KIND, false>(src, dst, p, block, slab);
    else
      copy_slab_of_columns<KIND, true>(src, dst, p, block, slab);
  }
  if constexpr (KIND % KINDS == STRIPS_OF_ROWS) copy_strips_of_rows<KIND>(src, dst, p, block, shared);
  if constexpr (KIND % KINDS == STRIPS_OF_COLUMNS) copy_strips_of_columns<KIND>(src, dst, p, block, shared);
  if constexpr (KIND % KINDS == SAME_AXES) copy_rows<KIND>(src, dst, p, block);
}

// Given how many blocks per multiprocessor are enough, the compiler keeps everything that a thread loads in registers.
// Without a bound for slabs of columns, it used so many registers for 16-bit elements that a fourth block did not fit.
constexpr int LEAST_BLOCKS = FIRST % KINDS == SLABS_OF_COLUMNS ? (WIDTH == 2 ? 4 : 3)
                             : WIDTH == 2                       ? 1
                             : WIDTH == 8                       ? 3
                                                                : 5;
KERNEL void __launch_bounds__(THREADS, LEAST_BLOCKS) copy_arrays(const GRID_CONSTANT copy_launch launch) {
  extern __shared__ uint4 shared[];
  wait_for_stream();
  const int block = (int)blockIdx.x, first = launch.copies[0].blocks;
  if constexpr (SECOND == NO_COPY) {
    copy_array<FIRST>(launch.src[0], launch.dst[0], launch.copies[0], block, shared);
  } else if (block < first) {
    copy_array<FIRST>(launch.src[0], launch.dst[0], launch.copies[0], block, shared);
  } else {
    copy_array<SECOND>(launch.src[1], launch.dst[1], launch.copies[1], block - first, shared);
  }
}
