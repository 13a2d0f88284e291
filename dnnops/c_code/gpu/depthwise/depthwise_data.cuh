// The output of a depthwise convolution, or the gradient with respect to its image: see DepthwiseParams.
//
// A thread goes down the rows of its tile's source pixels. It loads each pixel once, the next row while it
// computes with the current one, and adds it to all sums that use it. Sums stay in registers from the first
// row that they read to their last: all loops are unrolled, so that every index is a constant.

#if !FILTER_GRADIENT
constexpr int UP_H = UP ? SH : 1, UP_W = UP ? SW : 1;
constexpr int STEP_H = UP ? 1 : SH, STEP_W = UP ? 1 : SW;  // from the source pixels of a unit to those of the next one
constexpr int LEAST_H = depthwise_least(UP, KH, SH, DH), LEAST_W = depthwise_least(UP, KW, SW, DW);
constexpr int SPAN_H = depthwise_span(UP, KH, SH, DH), SPAN_W = depthwise_span(UP, KW, SW, DW);
constexpr int ROWS = (TH - 1) * STEP_H + SPAN_H, COLUMNS = (TW - 1) * STEP_W + SPAN_W;

// The last source row, relative to its unit's origin, that a result row reads.
DEVICE constexpr int last_place(int phase) {
  int last = 0;
  for (int tap = 0; tap < KH; ++tap)
    if (depthwise_hits(UP, phase, tap, SH, DH)) {
      const int place = depthwise_place(UP, phase, tap, SH, DH) - LEAST_H;
      last = place > last ? place : last;
    }
  return last;
}

// Passes the sums of each row to `store`. The tile's source pixels begin at (y, x) of an image of the given sizes;
// `load` takes places relative to that. Padding is skipped, so that infinite filters do not produce NaN.
template <class Load, class Store>
DEVICE void gather_tile(const Acc (&filters)[TAPS][V], int y, int height, int x, int width, Load load, Store store) {
  bool inside[COLUMNS];
  UNROLL for (int j = 0; j < COLUMNS; ++j) inside[j] = (unsigned)(x + j) < (unsigned)width;
  Acc sums[TH * UP_H][TW * UP_W][V];
  UNROLL for (int i = 0; i < TH * UP_H; ++i)
    UNROLL for (int j = 0; j < TW * UP_W; ++j)
      UNROLL for (int v = 0; v < V; ++v) sums[i][j][v] = 0;
  Raw next[COLUMNS];
  UNROLL for (int j = 0; j < COLUMNS; ++j)
    if ((unsigned)y < (unsigned)height && inside[j]) next[j] = load(0, j);
  UNROLL for (int i = 0; i < ROWS; ++i) {
    Raw now[COLUMNS];
    UNROLL for (int j = 0; j < COLUMNS; ++j) now[j] = next[j];
    if (i + 1 < ROWS)
      UNROLL for (int j = 0; j < COLUMNS; ++j)
        if ((unsigned)(y + i + 1) < (unsigned)height && inside[j]) next[j] = load(i + 1, j);
    if ((unsigned)(y + i) < (unsigned)height) {
      UNROLL for (int j = 0; j < COLUMNS; ++j) {
        if (!inside[j]) continue;
        UNROLL for (int phase_h = 0; phase_h < UP_H; ++phase_h)
          UNROLL for (int r = 0; r < KH; ++r) {
            const int above = i - (depthwise_place(UP, phase_h, r, SH, DH) - LEAST_H);
            if (!depthwise_hits(UP, phase_h, r, SH, DH) || above < 0 || above % STEP_H || above / STEP_H >= TH)
              continue;
            UNROLL for (int phase_w = 0; phase_w < UP_W; ++phase_w)
              UNROLL for (int s = 0; s < KW; ++s) {
                const int left = j - (depthwise_place(UP, phase_w, s, SW, DW) - LEAST_W);
                if (!depthwise_hits(UP, phase_w, s, SW, DW) || left < 0 || left % STEP_W || left / STEP_W >= TW)
                  continue;
                UNROLL for (int v = 0; v < V; ++v)
                  sums[above / STEP_H * UP_H + phase_h][left / STEP_W * UP_W + phase_w][v] +=
                      element(now[j], v) * filters[r * KW + s][v];
              }
          }
      }
    }
    UNROLL for (int t = 0; t < TH; ++t)
      UNROLL for (int phase = 0; phase < UP_H; ++phase)
        if (t * STEP_H + last_place(phase) == i) store(t * UP_H + phase, sums[t * UP_H + phase]);
  }
}

#if CHANNELS_LAST

// Threads are numbered by vector of channels (within a group), tile along the columns, tile along the rows,
// group, and image. Groups share the cached data around their borders, wherever they begin in memory.
KERNEL void __launch_bounds__(THREADS) depthwise_data(const DepthwiseParams p) {
  wait_for_stream();
  unsigned rest = blockIdx.x * (unsigned)blockDim.x + threadIdx.x;
  const int vector = rest % p.group;
  rest /= p.group;
  const int tile_w = rest % p.tiles[1];
  rest /= p.tiles[1];
  const int tile_h = rest % p.tiles[0];
  rest /= p.tiles[0];
  const int group = rest % p.groups, image = rest / p.groups;
  if (image >= p.batch) return;
  const int channel = (group * p.group + vector) * V;

  Acc filters[TAPS][V];
  load_filters(filters, static_cast<const Bits *>(p.other) + (long long)channel * TAPS);
  const int y = tile_h * TH * STEP_H + p.shift[0], x = tile_w * TW * STEP_W + p.shift[1];
  const int in_pixel = p.channels, in_row = p.in_size[1] * p.channels;
  const Bits *in = static_cast<const Bits *>(p.in) + image * p.in_stride + channel + (long long)y * in_row +
                   (long long)x * in_pixel;
  const int row = tile_h * TH * UP_H - p.lead[0], column = tile_w * TW * UP_W - p.lead[1];
  const int out_row = p.out_size[1] * p.channels;
  Bits *out = static_cast<Bits *>(p.result) + image * p.out_stride + channel + (long long)row * out_row +
              (long long)column * p.channels;
  const Acc alpha = (Acc)p.alpha, beta = (Acc)p.beta;
  gather_tile(
      filters, y, p.in_size[0], x, p.in_size[1],
      [&](int i, int j) { return load_vector(in + (i * in_row + j * in_pixel)); },
      [&](int i, const Acc(&sums)[TW * UP_W][V]) {
        if ((unsigned)(row + i) >= (unsigned)p.out_size[0]) return;
        UNROLL for (int j = 0; j < TW * UP_W; ++j)
          if ((unsigned)(column + j) < (unsigned)p.out_size[1])
            store_vector(out + (i * out_row + j * p.channels), sums[j], alpha, beta);
      });
}

#else

// A block takes whole planes (the adjacent images of one channel), or some rows of one plane. Either way, it reads and
// writes two ranges of memory, for any image width; they pass through shared memory in vectors of 16 bytes.
KERNEL void __launch_bounds__(THREADS) depthwise_data(const DepthwiseParams p) {
  extern __shared__ uint4 shared[];
  wait_for_stream();
  char *const space = reinterpret_cast<char *>(shared);
  const int chunk = blockIdx.x % p.chunks, first_plane = blockIdx.x / p.chunks * p.group;
  const int all_planes = p.batch * p.channels;
  const int planes = min(p.group, all_planes - first_plane);
  const int in_h = p.in_size[0], in_w = p.in_size[1], out_h = p.out_size[0], out_w = p.out_size[1];
  const int unit = chunk * p.chunk * TH;
  const int unit_count = min(p.chunk * TH, p.units[0] - unit);

  int y_begin = 0, y_end = in_h, row_begin = 0, row_end = out_h;
  if (p.chunks > 1) {
    y_begin = min(max(unit * STEP_H + p.shift[0], 0), in_h);
    y_end = max(min((unit + unit_count - 1) * STEP_H + SPAN_H + p.shift[0], in_h), y_begin);
    row_begin = max(unit * UP_H - p.lead[0], 0);
    row_end = min((unit + unit_count) * UP_H - p.lead[0], out_h);
  }
  const int in_plane = in_h * in_w, out_plane = out_h * out_w;
  const Bits *const all_in = static_cast<const Bits *>(p.in);
  const Bits *const from = all_in + (long long)first_plane * in_plane + y_begin * in_w;
  const int in_count = (planes - 1) * in_plane + (y_end - y_begin) * in_w;
  copy_in(space, from, in_count, all_in, all_in + (long long)all_planes * in_plane);
  end_copies();
  const Bits *const source = reinterpret_cast<const Bits *>(space + skew_of(from));

  Bits *const to = static_cast<Bits *>(p.result) + (long long)first_plane * out_plane + row_begin * out_w;
#if STAGED
  char *const stage = space + p.in_bytes;
  Bits *const target = reinterpret_cast<Bits *>(stage + skew_of(to));
#endif
  const Acc alpha = (Acc)p.alpha, beta = (Acc)p.beta;
  const int tiles_w = p.tiles[1], tiles_h = p.chunk, plane_tiles = tiles_h * tiles_w, items = planes * plane_tiles;
  const auto filters_of = [&](int item) {
    return static_cast<const Bits *>(p.other) + (first_plane + item / plane_tiles) % p.channels * TAPS;
  };
  Acc filters[TAPS][1];
  int item = threadIdx.x;
  if (item < items) load_filters(filters, filters_of(item));
  wait_for_copies<0>();
  __syncthreads();
  while (item < items) {
    const int plane = item / plane_tiles, tile = item % plane_tiles;
    const int unit_h = unit + tile / tiles_w * TH, unit_w = tile % tiles_w * TW;
    // Rows are counted from the first one that was copied.
    const int y = unit_h * STEP_H + p.shift[0] - y_begin, x = unit_w * STEP_W + p.shift[1];
    const Bits *const corner = source + (plane * in_plane + y * in_w + x);
    const int row = unit_h * UP_H - p.lead[0] - row_begin, column = unit_w * UP_W - p.lead[1];
    const int offset = plane * out_plane + row * out_w + column;
    gather_tile(
        filters, y, y_end - y_begin, x, in_w, [&](int i, int j) { return load_shared(corner + (i * in_w + j)); },
        [&](int i, const Acc(&sums)[TW * UP_W][1]) {
          if ((unsigned)(row + i) >= (unsigned)(row_end - row_begin)) return;
          UNROLL for (int j = 0; j < TW * UP_W; ++j)
            if ((unsigned)(column + j) < (unsigned)out_w) {
              const int at = offset + i * out_w + j;
              Acc value = alpha * sums[j][0];
              if (beta != 0) value += beta * to_acc(to[at]);
#if STAGED
              target[at] = from_acc(value);
#else
              to[at] = from_acc(value);
#endif
            }
        });
    item += blockDim.x;
    if (item < items) load_filters(filters, filters_of(item));
  }
#if STAGED
  __syncthreads();
  copy_out(to, stage, (planes - 1) * out_plane + (row_end - row_begin) * out_w);
#endif
}

#endif

#endif
