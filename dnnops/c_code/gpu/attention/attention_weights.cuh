// The weights of attention, which are the softmax of its scaled and masked scores, and the gradient with respect to
// the scores. A row holds the scores of a query.
//
// Macros: DTYPE, as in numbers.cuh; WIDTH: the number of adjacent scores that a thread moves at once; LANES, a power
// of 2: the number of threads that share a row; HELD: the number of times that each of them moves scores, or 0 if
// that is too many to keep them in registers; MASK: 0 without a mask, 1 if it is boolean, 2 if it is added.

constexpr int WARP_LANES = LANES < 32 ? LANES : 32;
constexpr int THREADS = LANES < 128 ? 128 : LANES, ROWS = THREADS / LANES, WARPS = LANES / WARP_LANES;

struct attention_weights_launch {
  const void *scores, *by_weights;  // the latter is the gradient with respect to the weights
  void *weights, *by_scores, *stats;  // the gradient has no statistics
  const void *mask, *query_lengths, *key_lengths;
  double scale;
  long long rows, heads, queries, keys, is_causal;
  long long mask_batch, mask_head, mask_query, mask_key;  // strides of the mask in elements
};

struct alignas(WIDTH * sizeof(Bits)) Pack {
  Bits of[WIDTH];
};

// Combines the values of all threads of a row.
template <class Combine>
DEVICE Acc over_row(Acc value, Combine combine) {
  for (int apart = WARP_LANES / 2; apart; apart /= 2) value = combine(value, __shfl_xor_sync(~0u, value, apart));
  if (WARPS == 1) return value;
  __shared__ Acc shared[THREADS / 32];
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  const Acc *own = shared + threadIdx.x / LANES * WARPS;
  value = own[0];
  for (int i = 1; i < WARPS; ++i) value = combine(value, own[i]);
  __syncthreads();  // before the next values are written
  return value;
}
DEVICE Acc larger(Acc a, Acc b) { return b > a || is_nan(b) ? b : a; }  // propagates NaN
DEVICE Acc sum_of(Acc a, Acc b) { return a + b; }

// What the threads of a row know about it.
struct Row {
  bool exists;
  long long first, number, allowed;  // the index of its first score; how many of its keys come before the masked ones
  long long mask_first;

  DEVICE Row(const attention_weights_launch &launch) {
    number = (long long)blockIdx.x * ROWS + threadIdx.x / LANES;
    exists = number < launch.rows;
    const long long query = number % launch.queries, head = number / launch.queries % launch.heads;
    const long long batch = number / launch.queries / launch.heads;
    first = number * launch.keys;
    allowed = exists ? launch.keys : 0;
    if (launch.is_causal && query + 1 < allowed) allowed = query + 1;
    if (exists && launch.key_lengths) {
      const long long length = static_cast<const long long *>(launch.key_lengths)[batch];
      if (length < allowed) allowed = length;
    }
    if (exists && launch.query_lengths && query >= static_cast<const long long *>(launch.query_lengths)[batch])
      allowed = 0;
    mask_first = batch * launch.mask_batch + head * launch.mask_head + query * launch.mask_query;
  }
  // The scaled score of a key; minus infinity if it is masked out.
  DEVICE Acc score(const attention_weights_launch &launch, long long key, Bits bits) const {
    if (key >= allowed) return -(Acc)INFINITY;
    const Acc scaled = rounded_product((Acc)launch.scale, to_acc(bits));
#if MASK
    const long long place = mask_first + key * launch.mask_key;
#endif
#if MASK == 1
    return static_cast<const unsigned char *>(launch.mask)[place] ? scaled : -(Acc)INFINITY;
#elif MASK == 2
    return scaled + to_acc(static_cast<const Bits *>(launch.mask)[place]);
#else
    return scaled;
#endif
  }
  // Calls visit(index, key) for the first of each WIDTH keys of this thread.
  template <class Visit>
  DEVICE void each(const attention_weights_launch &launch, Visit visit) const {
    const int lane = threadIdx.x % LANES;
#if HELD
    UNROLL
    for (int i = 0; i < HELD; ++i) {
      const long long key = (long long)(i * LANES + lane) * WIDTH;
      if (exists && key < launch.keys) visit(i, key);
    }
#else
    if (exists)
      for (long long key = (long long)lane * WIDTH; key < launch.keys; key += LANES * WIDTH) visit(0, key);
#endif
  }
};

DEVICE Pack load(const void *array, long long first) {
  return *reinterpret_cast<const Pack *>(static_cast<const Bits *>(array) + first);
}
DEVICE void store(void *array, long long first, const Pack &pack) {
  *reinterpret_cast<Pack *>(static_cast<Bits *>(array) + first) = pack;
}

KERNEL void __launch_bounds__(THREADS) attention_weights(const GRID_CONSTANT attention_weights_launch launch) {
  wait_for_stream();
  const Row row(launch);
  Acc held[HELD ? HELD : 1][WIDTH];
  const auto read = [&](int i, long long key) {
    Pack pack = {};
    if (key < row.allowed) pack = load(launch.scores, row.first + key);
    UNROLL
    for (int k = 0; k < WIDTH; ++k) held[i][k] = row.score(launch, key + k, pack.of[k]);
  };
  Acc top = -(Acc)INFINITY;
  row.each(launch, [&](int i, long long key) {
    read(i, key);
    UNROLL
    for (int k = 0; k < WIDTH; ++k) top = larger(top, held[i][k]);
  });
  top = over_row(top, larger);
  const Acc origin = top == -(Acc)INFINITY ? 0 : top;  // all keys are masked out
  Acc sum = 0;
  row.each(launch, [&](int i, long long key) {
    if (!HELD) read(i, key);
    UNROLL
    for (int k = 0; k < WIDTH; ++k) sum += held[i][k] = exp(held[i][k] - origin);
  });
  sum = over_row(sum, sum_of);
  const Acc divisor = sum > 0 ? sum : 1;
  row.each(launch, [&](int i, long long key) {
    if (!HELD) read(i, key);
    Pack pack;
    UNROLL
    for (int k = 0; k < WIDTH; ++k)
      pack.of[k] = from_acc((HELD ? held[i][k] : exp(held[i][k] - origin)) / divisor);
    store(launch.weights, row.first + key, pack);
  });
  if (row.exists && threadIdx.x % LANES == 0)
    static_cast<Acc *>(launch.stats)[row.number] = sum > 0 ? log(sum) + origin : -(Acc)INFINITY;
}

KERNEL void __launch_bounds__(THREADS) attention_weights_grad(const GRID_CONSTANT attention_weights_launch launch) {
  wait_for_stream();
  const Row row(launch);
  // The statistics of large scores are too inaccurate to compute the weights from them.
  Acc weights[HELD ? HELD : 1][WIDTH], gradients[HELD ? HELD : 1][WIDTH];
  const auto read = [&](int i, long long key) {
    Pack scores = {}, given = {};
    if (key < row.allowed) {
      scores = load(launch.scores, row.first + key);
      given = load(launch.by_weights, row.first + key);
    }
    UNROLL
    for (int k = 0; k < WIDTH; ++k) {
      weights[i][k] = row.score(launch, key + k, scores.of[k]);
      gradients[i][k] = to_acc(given.of[k]);
    }
  };
  Acc top = -(Acc)INFINITY;
  row.each(launch, [&](int i, long long key) {
    read(i, key);
    UNROLL
    for (int k = 0; k < WIDTH; ++k) top = larger(top, weights[i][k]);
  });
  top = over_row(top, larger);
  const Acc origin = top == -(Acc)INFINITY ? 0 : top;
  // A score adds to the output what its weight does, minus what it takes from the other weights.
  Acc sum = 0, shared = 0;
  row.each(launch, [&](int i, long long key) {
    if (!HELD) read(i, key);
    UNROLL
    for (int k = 0; k < WIDTH; ++k) {
      sum += weights[i][k] = exp(weights[i][k] - origin);
      shared += weights[i][k] * gradients[i][k];
    }
  });
  sum = over_row(sum, sum_of);
  const Acc divisor = sum > 0 ? sum : 1;
  shared = over_row(shared, sum_of) / divisor;
  row.each(launch, [&](int i, long long key) {
    if (!HELD) read(i, key);
    Pack out, by_scores;
    UNROLL
    for (int k = 0; k < WIDTH; ++k) {
      const Acc weight = (HELD ? weights[i][k] : exp(weights[i][k] - origin)) / divisor;
      out.of[k] = from_acc(weight);
      by_scores.of[k] = from_acc((Acc)launch.scale * weight * (gradients[i][k] - shared));
    }
    store(launch.weights, row.first + key, out);
    store(launch.by_scores, row.first + key, by_scores);
  });
}
