// Reductions over axes that other axes follow in memory. dnnops/gpuarray/column_reduction.py compiles this with
// CuPy, after the declarations of dnnops/gpuarray/reduction_source.py; a test compiles it for the host.
//
// The array consists of matrices, and each column of each matrix is reduced. A pack is WIDTH columns of a matrix, and
// the packs of all matrices are numbered in order. A block reduces the packs of one tile: `lanes` threads have one
// each, and further rows of threads have further rows of the matrices. It reduces all rows, or one of `parts` of them.
//
// Macro: WIDTH, a power of 2 that divides the number of columns and that the array is aligned to.

constexpr int MAX_THREADS = 1024;

// A value for finish_columns to combine.
struct Partial {
  Acc value;
};
DEVICE Acc acc_of(Partial partial) { return partial.value; }
DEVICE void assign(Partial &to, Acc value) { to.value = value; }
DEVICE void assign(Result &to, Acc value) { to = result_of(value); }

template <int BYTES>
struct WordsOf;
template <>
struct WordsOf<16> {
  using Type = uint4;
};
template <>
struct WordsOf<8> {
  using Type = uint2;
};
template <>
struct WordsOf<4> {
  using Type = unsigned;
};
template <>
struct WordsOf<2> {
  using Type = unsigned short;
};
template <>
struct WordsOf<1> {
  using Type = unsigned char;
};

template <class Element, int COUNT>
union Pack {
  typename WordsOf<COUNT * (int)sizeof(Element)>::Type words;
  Element of[COUNT];
};

// Elements that are stored at once.
template <class Element, int COUNT>
struct alignas(COUNT * sizeof(Element) < 16 ? COUNT * sizeof(Element) : 16) Stores {
  Element of[COUNT];
};

template <class Element, int COUNT>
DEVICE void store(Element *to, long long pack, const Acc (&values)[COUNT]) {
  Stores<Element, COUNT> stored;
  UNROLL
  for (int v = 0; v < COUNT; ++v) assign(stored.of[v], values[v]);
  reinterpret_cast<Stores<Element, COUNT> *>(to)[pack] = stored;
}

template <class Element, int COUNT>
DEVICE void add(Acc (&sums)[COUNT], const Pack<Element, COUNT> &pack) {
  UNROLL
  for (int v = 0; v < COUNT; ++v) sums[v] = combine(sums[v], acc_of(pack.of[v]));
}

// Combines the values of all rows of threads. The first row gets the result.
template <int COUNT>
DEVICE void combine_rows(Acc (&sums)[COUNT], int lane, int row, int rows, int lanes) {
  __shared__ Acc of_rows[COUNT][MAX_THREADS / 2];
  while (rows > 1) {
    const int left = (rows + 1) / 2;
    if (row >= left && row < rows) {
      UNROLL
      for (int v = 0; v < COUNT; ++v) of_rows[v][(row - left) * lanes + lane] = sums[v];
    }
    __syncthreads();
    if (row + left < rows) {
      UNROLL
      for (int v = 0; v < COUNT; ++v) sums[v] = combine(sums[v], of_rows[v][row * lanes + lane]);
    }
    __syncthreads();
    rows = left;
  }
}

// `packs` is the number of packs of all matrices, `inner` of one matrix, and `length` the number of rows. With more
// than one part, the values of the parts become the rows of matrices in `partial`.
template <int COUNT, class From>
DEVICE void reduce_tile(const From *from, Result *to, Partial *partial, long long packs, long long inner,
                        long long length, int lanes, int parts) {
  using Loaded = Pack<From, COUNT>;
  // Each thread has 64 bytes in flight, or 16 loads.
  constexpr int LOADS = sizeof(Loaded) < 4 ? 16 : 64 / (int)sizeof(Loaded);
  const unsigned tiles = gridDim.x / parts, part = blockIdx.x / tiles;
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = blockDim.x / lanes;
  const long long pack = (long long)(blockIdx.x % tiles) * lanes + lane;
  const bool active = row < rows && pack < packs;
  const long long matrix = pack < inner ? 0 : pack / inner;
  Acc sums[COUNT];
  UNROLL
  for (int v = 0; v < COUNT; ++v) sums[v] = IDENTITY;
  if (active) {
    const long long begin = length * part / parts, end = length * (part + 1) / parts, step = rows * inner;
    const auto *at = &reinterpret_cast<const Loaded *>(from)->words;
    at += matrix * (length - 1) * inner + pack + (begin + row) * inner;
    int left = (int)(end - begin) - row;
    for (; left > (LOADS - 1) * rows; left -= LOADS * rows, at += LOADS * step) {
      Loaded loaded[LOADS];
      UNROLL
      for (int k = 0; k < LOADS; ++k) loaded[k].words = __ldg(at + k * step);
      UNROLL
      for (int k = 0; k < LOADS; ++k) add(sums, loaded[k]);
    }
    // At most LOADS - 1 rows of this thread are left.
    Loaded loaded[LOADS - 1];
    UNROLL
    for (int k = 0; k < LOADS - 1; ++k)
      if (left > k * rows) loaded[k].words = __ldg(at + k * step);
    UNROLL
    for (int k = 0; k < LOADS - 1; ++k)
      if (left > k * rows) add(sums, loaded[k]);
  }
  combine_rows(sums, lane, row, rows, lanes);
  if (!active || row) return;
  if (parts > 1)
    store(partial, pack + (matrix * (parts - 1) + part) * inner, sums);
  else
    store(to, pack, sums);
}

KERNEL void __launch_bounds__(MAX_THREADS, 1)
    reduce_columns(const Stored *from, Result *to, Partial *partial, long long packs, long long inner,
                   long long length, int lanes, int parts) {
  reduce_tile<WIDTH>(from, to, partial, packs, inner, length, lanes, parts);
}

KERNEL void __launch_bounds__(MAX_THREADS, 1)
    finish_columns(const Partial *partial, Result *to, long long columns, long long inner, long long parts,
                   int lanes) {
  reduce_tile<1>(partial, to, nullptr, columns, inner, parts, lanes, 1);
}
