// The gradient of a depthwise convolution with respect to its filters: see DepthwiseParams.
//
// A thread goes down the image rows below a tile of the output's gradient, as in depthwise_data.cuh, and adds to its
// own sums of all taps, over all tiles it is given. A block adds up the sums of its threads. If several blocks share a
// channel, each writes its part, and depthwise_sum adds them up. Everything is added in a fixed order.

#if FILTER_GRADIENT
constexpr int ROWS = (TH - 1) * SH + (KH - 1) * DH + 1, COLUMNS = (TW - 1) * SW + (KW - 1) * DW + 1;

// The image below the tile begins at (y, x) of an image of the given sizes. The tile has `tops_h` rows and `tops_w`
// columns (TAIL_H, TAIL_W: possibly fewer than a full tile). Both loads take places relative to that.
template <class Load, class LoadTop>
DEVICE void add_tile(Acc (&sums)[TAPS][V], int y, int height, int x, int width, int tops_h, int tops_w, Load load,
                     LoadTop load_top) {
  bool inside[COLUMNS];
  UNROLL for (int j = 0; j < COLUMNS; ++j) inside[j] = (unsigned)(x + j) < (unsigned)width;
  Acc tops[TH][TW][V];
  Raw next[COLUMNS], next_top[TW];
  const auto fetch = [&](int i) {
    UNROLL for (int j = 0; j < COLUMNS; ++j)
      if ((unsigned)(y + i) < (unsigned)height && inside[j]) next[j] = load(i, j);
    if (i % SH == 0 && i / SH < TH && !(TAIL_H && i / SH >= tops_h))
      UNROLL for (int u = 0; u < TW; ++u)
        if (!(TAIL_W && u >= tops_w)) next_top[u] = load_top(i / SH, u);
  };
  fetch(0);
  UNROLL for (int i = 0; i < ROWS; ++i) {
    Raw now[COLUMNS];
    UNROLL for (int j = 0; j < COLUMNS; ++j) now[j] = next[j];
    if (i % SH == 0 && i / SH < TH)
      UNROLL for (int u = 0; u < TW; ++u)
        UNROLL for (int v = 0; v < V; ++v) tops[i / SH][u][v] = element(next_top[u], v);
    if (i + 1 < ROWS) fetch(i + 1);
    if ((unsigned)(y + i) >= (unsigned)height) continue;
    UNROLL for (int j = 0; j < COLUMNS; ++j) {
      if (!inside[j]) continue;
      UNROLL for (int s = 0; s < KW; ++s) {
        const int left = j - s * DW;
        if (left < 0 || left % SW || left / SW >= TW || (TAIL_W && left / SW >= tops_w)) continue;
        UNROLL for (int r = 0; r < KH; ++r) {
          const int above = i - r * DH;
          if (above < 0 || above % SH || above / SH >= TH || (TAIL_H && above / SH >= tops_h)) continue;
          UNROLL for (int v = 0; v < V; ++v)
            sums[r * KW + s][v] += element(now[j], v) * tops[above / SH][left / SW][v];
        }
      }
    }
  }
}

// Stores a block's sum for a channel and tap.
DEVICE void store_sum(const DepthwiseParams &p, int split, int channel, int k, Acc sum) {
  const int at = channel * TAPS + (FLIP ? TAPS - 1 - k : k);
  if (p.splits > 1) {
    static_cast<Acc *>(p.partial)[(long long)split * p.channels * TAPS + at] = sum;
  } else {
    Bits *const to = static_cast<Bits *>(p.result) + at;
    Acc value = (Acc)p.alpha * sum;
    if (p.beta != 0) value += (Acc)p.beta * to_acc(*to);
    *to = from_acc(value);
  }
}

#if CHANNELS_LAST

// Threads of a block are numbered by vector of channels, then tile; blocks by group of vectors, then split.
KERNEL void __launch_bounds__(THREADS) depthwise_filter(const DepthwiseParams p) {
  extern __shared__ uint4 shared[];
  wait_for_stream();
  const int vector = threadIdx.x % p.group, lane = threadIdx.x / p.group, lanes = blockDim.x / p.group;
  const int first_channel = blockIdx.x % p.groups * p.group * V, split = blockIdx.x / p.groups;
  const int channel = first_channel + vector * V;
  const int tiles = p.batch * p.tiles[0] * p.tiles[1];
  const int share = (tiles + p.splits - 1) / p.splits, begin = split * share, end = min(begin + share, tiles);
  const int in_row = p.in_size[1] * p.channels, out_row = p.out_size[1] * p.channels;

  Acc sums[TAPS][V];
  UNROLL for (int k = 0; k < TAPS; ++k)
    UNROLL for (int v = 0; v < V; ++v) sums[k][v] = 0;
  for (int tile = begin + lane; tile < end; tile += lanes) {
    const int tile_w = tile % p.tiles[1], rest = tile / p.tiles[1];
    const int tile_h = rest % p.tiles[0], image = rest / p.tiles[0];
    const int row = tile_h * TH, column = tile_w * TW;
    const int y = row * SH + p.shift[0], x = column * SW + p.shift[1];
    const Bits *const in = static_cast<const Bits *>(p.in) + image * p.in_stride + channel + (long long)y * in_row +
                           (long long)x * p.channels;
    const Bits *const top = static_cast<const Bits *>(p.other) + image * p.out_stride + channel +
                            (long long)row * out_row + (long long)column * p.channels;
    add_tile(
        sums, y, p.in_size[0], x, p.in_size[1], p.out_size[0] - row, p.out_size[1] - column,
        [&](int i, int j) { return load_vector(in + (i * in_row + j * p.channels)); },
        [&](int t, int u) { return load_vector(top + (t * out_row + u * p.channels)); });
  }

  // Several taps at a time: each thread's sums are a row, by tap and channel of its vector.
  const int pitch = blockDim.x + p.group;
  constexpr int ROUND = depthwise_round(TAPS, sizeof(Acc), V * (THREADS + GROUP));
  Acc *const table = reinterpret_cast<Acc *>(shared);
  UNROLL for (int first = 0; first < TAPS; first += ROUND) {
    if (first) __syncthreads();
    UNROLL for (int k = 0; k < ROUND; ++k)
      if (first + k < TAPS)
        UNROLL for (int v = 0; v < V; ++v) table[(k * V + v) * pitch + threadIdx.x] = sums[first + k][v];
    __syncthreads();
    const int count = min(ROUND, TAPS - first) * V * p.group;
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
      const int of = at % p.group, row = at / p.group;
      Acc sum = 0;
      for (int l = 0; l < lanes; ++l) sum += table[row * pitch + l * p.group + of];
      store_sum(p, split, first_channel + of * V + row % V, first + row / V, sum);
    }
  }
}

#else

// A block processes the planes of a group of channels, for several images at a time, through shared memory;
// or some rows of one plane at a time. Threads are numbered by channel, image, tile along the rows, tile
// along the columns. While a block computes, the next planes are being copied.
KERNEL void __launch_bounds__(THREADS) depthwise_filter(const DepthwiseParams p) {
  extern __shared__ uint4 shared[];
  wait_for_stream();
  char *const space = reinterpret_cast<char *>(shared);
  const int split = blockIdx.x / p.groups, first_channel = blockIdx.x % p.groups * p.group;
  const int channels = min(p.group, p.channels - first_channel);
  const int in_h = p.in_size[0], in_w = p.in_size[1], out_h = p.out_size[0], out_w = p.out_size[1];
  const int in_plane = in_h * in_w, out_plane = out_h * out_w;
  const long long in_image = (long long)p.channels * in_plane, out_image = (long long)p.channels * out_plane;
  const Bits *const all_in = static_cast<const Bits *>(p.in), *const all_out = static_cast<const Bits *>(p.other);
  const Bits *const end_in = all_in + p.batch * in_image, *const end_out = all_out + p.batch * out_image;
  const int steps = (p.batch + p.images - 1) / p.images * p.chunks;
  const int share = (steps + p.splits - 1) / p.splits, begin = split * share, end = min(begin + share, steps);

  struct Step {
    int image, images, row, row_end, y, y_end;
  };
  const auto step_of = [&](int number) {
    Step step;
    const int chunk = number % p.chunks;
    step.image = number / p.chunks * p.images;
    step.images = min(p.images, p.batch - step.image);
    step.row = 0, step.row_end = out_h, step.y = 0, step.y_end = in_h;
    if (p.chunks > 1) {
      step.row = chunk * p.chunk * TH;
      step.row_end = min(step.row + p.chunk * TH, out_h);
      step.y = min(max(step.row * SH + p.shift[0], 0), in_h);
      step.y_end = max(min((step.row_end - 1) * SH + (KH - 1) * DH + 1 + p.shift[0], in_h), step.y);
    }
    return step;
  };
  const auto in_of = [&](const Step &step, int image) {
    return all_in + ((step.image + image) * in_image + (long long)first_channel * in_plane + step.y * in_w);
  };
  const auto out_of = [&](const Step &step, int image) {
    return all_out + ((step.image + image) * out_image + (long long)first_channel * out_plane + step.row * out_w);
  };
  // For each stage, shared memory holds p.in_bytes for each image and then p.out_bytes for each.
  const int stage_bytes = p.images * (p.in_bytes + p.out_bytes);
  const auto copy_step = [&](int number, int stage) {
    const Step step = step_of(number);
    char *const to = space + stage * stage_bytes;
    const int in_count = (channels - 1) * in_plane + (step.y_end - step.y) * in_w;
    const int out_count = (channels - 1) * out_plane + (step.row_end - step.row) * out_w;
    const int in_chunks = p.in_bytes >> 4, out_chunks = p.out_bytes >> 4;
    for (int at = threadIdx.x; at < step.images * in_chunks; at += blockDim.x) {
      const int image = at / in_chunks, chunk = at % in_chunks;
      const Bits *const from = in_of(step, image);
      if (chunk < chunks_of(from, in_count)) copy_chunk_in(to + image * p.in_bytes, from, chunk, all_in, end_in);
    }
    for (int at = threadIdx.x; at < step.images * out_chunks; at += blockDim.x) {
      const int image = at / out_chunks, chunk = at % out_chunks;
      const Bits *const from = out_of(step, image);
      if (chunk < chunks_of(from, out_count))
        copy_chunk_in(to + p.images * p.in_bytes + image * p.out_bytes, from, chunk, all_out, end_out);
    }
    end_copies();
  };

  const int plane_tiles = p.chunk * p.tiles[1], of_channel = p.images * plane_tiles;
  const int channel = threadIdx.x / of_channel, image = threadIdx.x % of_channel / plane_tiles;
  const int tile = threadIdx.x % plane_tiles, tile_h = tile / p.tiles[1], tile_w = tile % p.tiles[1];
  Acc sums[TAPS][1];
  UNROLL for (int k = 0; k < TAPS; ++k) sums[k][0] = 0;
  if (begin < end) copy_step(begin, 0);
  for (int number = begin; number < end; ++number) {
    const int stage = (number - begin) % STAGES;
    if (STAGES > 1 && number + 1 < end) {
      copy_step(number + 1, (number + 1 - begin) % STAGES);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const Step step = step_of(number);
    const int row = step.row + tile_h * TH, column = tile_w * TW;
    if (channel < channels && image < step.images && row < step.row_end) {
      // Rows are counted from the first one that was copied.
      const int y = row * SH + p.shift[0] - step.y, x = column * SW + p.shift[1];
      const char *const from = space + stage * stage_bytes;
      const Bits *const in =
          reinterpret_cast<const Bits *>(from + image * p.in_bytes + skew_of(in_of(step, image))) +
          (channel * in_plane + y * in_w + x);
      const Bits *const top =
          reinterpret_cast<const Bits *>(from + p.images * p.in_bytes + image * p.out_bytes +
                                         skew_of(out_of(step, image))) +
          (channel * out_plane + (row - step.row) * out_w + column);
      add_tile(
          sums, y, step.y_end - step.y, x, in_w, step.row_end - row, out_w - column,
          [&](int i, int j) { return load_shared(in + (i * in_w + j)); },
          [&](int t, int u) { return load_shared(top + (t * out_w + u)); });
    }
    __syncthreads();
    if (STAGES == 1 && number + 1 < end) copy_step(number + 1, 0);
  }

  // Several taps at a time: first the sums of every n-th thread of a channel, then the sums of these.
  constexpr int ROUND = depthwise_round(TAPS, sizeof(Acc), 2 * THREADS);
  Acc *const table = reinterpret_cast<Acc *>(shared), *const second = table + ROUND * THREADS;
  UNROLL for (int first = 0; first < TAPS; first += ROUND) {
    const int taps = min(ROUND, TAPS - first), pairs = taps * channels;
    const int parts = max(1, min(min(32, of_channel), (int)blockDim.x / pairs));
    UNROLL for (int k = 0; k < ROUND; ++k)
      if (first + k < TAPS) table[k * blockDim.x + threadIdx.x] = sums[first + k][0];
    __syncthreads();
    for (int at = threadIdx.x; at < pairs * parts; at += blockDim.x) {
      const int part = at % parts, pair = at / parts;
      const Acc *const of = table + (pair / channels * blockDim.x + pair % channels * of_channel);
      Acc sum = 0;
      for (int i = part; i < of_channel; i += parts) sum += of[i];
      if (parts == 1)
        store_sum(p, split, first_channel + pair % channels, first + pair / channels, sum);
      else
        second[at] = sum;
    }
    __syncthreads();
    if (parts > 1 && threadIdx.x < pairs) {
      Acc sum = 0;
      for (int i = 0; i < parts; ++i) sum += second[threadIdx.x * parts + i];
      store_sum(p, split, first_channel + threadIdx.x % channels, first + threadIdx.x / channels, sum);
    }
    __syncthreads();
  }
}

#endif

// Adds up the splits, with blocks of 32 x SUM_PARTS threads for 32 filter elements.
constexpr int SUM_PARTS = 8;
KERNEL void __launch_bounds__(32 * SUM_PARTS) depthwise_sum(const DepthwiseParams p) {
  __shared__ Acc table[SUM_PARTS][32];
  wait_for_stream();
  const int column = threadIdx.x % 32, part = threadIdx.x / 32;
  const int count = p.channels * TAPS, at = blockIdx.x * 32 + column;
  Acc sum = 0;
  if (at < count) {
    const Acc *const from = static_cast<const Acc *>(p.partial) + at;
#pragma unroll 8
    for (int split = part; split < p.splits; split += SUM_PARTS) sum += from[(long long)split * count];
  }
  table[part][column] = sum;
  __syncthreads();
  if (part || at >= count) return;
  for (int i = 1; i < SUM_PARTS; ++i) sum += table[i][column];
  Bits *const to = static_cast<Bits *>(p.result) + at;
  Acc value = (Acc)p.alpha * sum;
  if (p.beta != 0) value += (Acc)p.beta * to_acc(*to);
  *to = from_acc(value);
}

#endif
