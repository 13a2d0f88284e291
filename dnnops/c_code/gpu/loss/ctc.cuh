// The CTC loss and its gradient. For each sequence, one pass over the steps goes from the start and one from
// the end, with a block each. They run at once and meet in the middle (ctc_first_half), where the cost is
// known. For the gradient, both continue over the values that the other one has stored (ctc_second_half).
//
// Logarithms are added in double; otherwise the rounding errors of the costs of long sequences would affect
// the gradient. Only what is added to the largest of several summands is computed in the dtype of the arrays.
// Everything is added in the same order each time.

#define NEVER (-INFINITY)

DEVICE Acc exp_of(double x) { return exp((Acc)x); }

// The logarithm of the sum of exponentials.
DEVICE double log_sum(double a, double b, double c) {
  const double top = max(a, max(b, c));
  if (top == NEVER) return NEVER;
  return top + (double)log(exp_of(a - top) + exp_of(b - top) + exp_of(c - top));
}

DEVICE double *shared_doubles() {
  extern __shared__ uint4 shared[];
  return reinterpret_cast<double *>(shared);
}

// The sum of the values of `lanes` threads, a power of two. `slots` has one element for each thread of the block.
DEVICE double sum_of_lanes(double *slots, double value, int lane, int lanes) {
  slots[lane] = value;
  for (int step = lanes / 2; step > 0; step /= 2) {
    __syncthreads();
    if (lane < step) slots[lane] += slots[lane + step];
  }
  __syncthreads();
  const double sum = slots[0];
  __syncthreads();
  return sum;
}

// The maximum, or NaN if there is a NaN.
DEVICE double top_of_lanes(double *slots, double value, int lane, int lanes) {
  slots[lane] = value;
  for (int step = lanes / 2; step > 0; step /= 2) {
    __syncthreads();
    if (lane < step && (slots[lane + step] > slots[lane] || is_nan(slots[lane + step]))) slots[lane] = slots[lane + step];
  }
  __syncthreads();
  const double top = slots[0];
  __syncthreads();
  return top;
}

DEVICE long long integer_at(const CtcIntegers &of, long long i) {
  return of.is_wide ? static_cast<const long long *>(of.data)[i] : static_cast<const int *>(of.data)[i];
}

// Checks one label on the device, and removes its padding. If it is refused, an error is reported, its cost becomes
// NaN and its gradient 0.
KERNEL void ctc_labels(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  double *const slots = shared_doubles();
  const long long n = blockIdx.x, begin = n * p.columns;
  const int lane = threadIdx.x, lanes = blockDim.x;
  const bool has_lengths = p.label_lengths.data;
  const long long steps = integer_at(p.input_lengths, n);
  const long long given = has_lengths ? integer_at(p.label_lengths, n) : p.columns;
  const auto symbol_at = [&](long long k) { return integer_at(p.labels, begin + k); };
  int error = CTC_ERRORS;
  if (steps < 0 || steps > p.all_steps)
    error = CTC_STEPS;
  else if (given < 0 || given > p.columns)
    error = CTC_LABEL_LENGTH;
  const int columns = error == CTC_ERRORS ? (int)given : 0;
  double kept = 0, bad = 0, repeats = 0;
  for (int k = lane; k < columns; k += lanes) {
    const long long symbol = symbol_at(k);
    if (symbol < 0 && !has_lengths) continue;
    if (symbol < 1 || symbol >= p.classes) bad = 1;
    int place = k;
    if (!has_lengths)
      for (int before = place = 0; before < k; ++before) place += symbol_at(before) >= 0;
    p.symbols[begin + place] = (int)symbol;
    ++kept;
  }
  const int count = (int)sum_of_lanes(slots, kept, lane, lanes);  // after this, all symbols are written
  if (top_of_lanes(slots, bad, lane, lanes) > 0) error = CTC_SYMBOL;
  const int *const symbols = p.symbols + begin;
  for (int i = lane; i < count; i += lanes) {
    int next = i + 1, former = i - 1;
    while (next < count && symbols[next] != symbols[i]) ++next;
    while (former >= 0 && symbols[former] != symbols[i]) --former;
    p.links[begin + i] = (next < count ? 2 * (next - i) : 0) + (former >= 0);
    repeats += i && symbols[i] == symbols[i - 1];
  }
  const long long least = count + (long long)sum_of_lanes(slots, repeats, lane, lanes);
  if (error == CTC_ERRORS && steps < least) error = CTC_TOO_FEW_STEPS;
  if (lane) return;
  const bool is_right = error == CTC_ERRORS;
  p.lengths[n] = is_right ? (int)steps : -1;
  p.begins[n] = (int)begin;
  p.ends[n] = (int)begin + (is_right ? count : 0);
  if (!is_right) *static_cast<volatile int *>(p.flag) = p.errors[error];
}

// Computes one row of activations with `lanes` threads. Infinite values and NaN give NaN.
KERNEL void ctc_normalizers(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  const int lanes = (int)p.lanes, lane = threadIdx.x % lanes;
  double *const slots = shared_doubles() + (threadIdx.x - lane);
  const long long row = blockIdx.x * (long long)(blockDim.x / lanes) + threadIdx.x / lanes;
  const long long t = row / p.batch, n = row % p.batch;
  const bool used = t < p.steps && t < p.lengths[n];
  const Bits *const from = static_cast<const Bits *>(p.activations) + row * p.classes;
  Acc top = NEVER;
  if (used)
    for (long long c = lane; c < p.classes; c += lanes) {
      const Acc value = to_acc(from[c]);
      if (value > top || is_nan(value)) top = value;
    }
  const double highest = top_of_lanes(slots, top, lane, lanes);
  double sum = 0;
  if (used)
    for (long long c = lane; c < p.classes; c += lanes) sum += exp_of((double)to_acc(from[c]) - highest);
  sum = sum_of_lanes(slots, sum, lane, lanes);
  // Infinity minus infinity is NaN.
  if (used && lane == 0) p.normalizers[n * p.steps + t] = highest - highest == 0 ? highest + log(sum) : NAN;
}

// One of the two passes of a sequence. Steps and places are counted from the pass's own start.
struct Pass {
  const CtcParams *p;
  const Bits *activations;
  const double *normalizers;
  const int *symbols;
  double *stored;  // (steps, places), or null
  int length, places;
  bool backward;

  DEVICE Pass(const CtcParams &params, long long n, bool from_the_end) : p(&params), backward(from_the_end) {
    activations = static_cast<const Bits *>(params.activations) + n * params.classes;
    normalizers = params.normalizers + n * params.steps;
    symbols = params.symbols + params.begins[n];
    stored = params.passes ? params.passes + n * params.steps * params.places : nullptr;
    length = params.lengths[n];
    places = 2 * (params.ends[n] - params.begins[n]) + 1;
  }

  DEVICE int step(int k) const { return backward ? length - 1 - k : k; }
  DEVICE int place(int r) const { return backward ? places - 1 - r : r; }
  DEVICE int symbol(int r) const {
    const int s = place(r);
    return s % 2 ? symbols[s / 2] : 0;
  }
  DEVICE bool skips(int r) const { return r >= 2 && symbol(r) != 0 && symbol(r) != symbol(r - 2); }
  DEVICE double emitted(int k, int symbol) const {
    const int t = step(k);
    return (double)to_acc(activations[t * p->batch * p->classes + symbol]) - normalizers[t];
  }
  DEVICE double *at(int k, int r) const { return stored + step(k) * p->places + place(r); }
  // The logarithm of the probability of the paths before a step; `before` is the row of the previous step.
  DEVICE double arrival(const double *before, int k, int r, bool skipping) const {
    if (k == 0) return r < 2 ? 0 : NEVER;
    return log_sum(before[r], r >= 1 ? before[r - 1] : NEVER, skipping ? before[r - 2] : NEVER);
  }

  // Walks from step `k` to before `end`, starting with rows[0], and leaves the last row in rows[0]. In the first half
  // it stores its rows; in the second half it adds the probabilities before each step to the rows of the other pass.
  DEVICE void walk(double **rows, int k, int end, bool second) const {
    // The data that a step reads for this thread's first place is read one step ahead.
    const int own = threadIdx.x;
    const bool has_own = own < places && k < end;
    const int own_symbol = has_own ? symbol(own) : 0;
    const bool own_skips = has_own && skips(own);
    double emission_ahead = has_own ? emitted(k, own_symbol) : 0;
    double stored_ahead = has_own && second ? *at(k, own) : 0;
    for (; k < end; ++k) {
      const double emission = emission_ahead, found = stored_ahead;
      if (has_own && k + 1 < end) {
        emission_ahead = emitted(k + 1, own_symbol);
        if (second) stored_ahead = *at(k + 1, own);
      }
      for (int r = own; r < places; r += blockDim.x) {
        const bool is_own = r == own;
        const double before = arrival(rows[0], k, r, is_own ? own_skips : skips(r));
        const double now = before + (is_own ? emission : emitted(k, symbol(r)));
        rows[1][r] = now;
        if (second)
          *at(k, r) = before + (is_own ? found : *at(k, r));
        else if (stored)
          *at(k, r) = now;
      }
      __syncthreads();
      double *const swapped = rows[0];
      rows[0] = rows[1];
      rows[1] = swapped;
    }
  }
};

// Where the two passes meet: the pass from the start has done the steps before, the other one the rest.
DEVICE int middle(int length) { return length / 2; }

DEVICE void find_rows(const CtcParams &p, double **rows, double *shared) {
  rows[0] = p.rows ? p.rows + blockIdx.x * 2 * p.places : shared;
  rows[1] = rows[0] + p.places;
}

// Blocks 2 n and 2 n + 1 process sequence n.
KERNEL void __launch_bounds__(1024) ctc_first_half(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  double *rows[2];
  find_rows(p, rows, shared_doubles());
  const Pass pass(p, blockIdx.x / 2, blockIdx.x % 2);
  if (pass.length <= 0) return;
  const int half = pass.backward ? pass.length - middle(pass.length) : middle(pass.length);
  pass.walk(rows, 0, half, false);
  for (int r = threadIdx.x; r < pass.places && half; r += blockDim.x)
    p.middles[blockIdx.x * p.places + r] = rows[0][r];
}

DEVICE void write_cost(const CtcParams &p, long long n, double cost) {
  p.totals[n] = cost;
#if DTYPE == 1
  static_cast<double *>(p.costs)[n] = cost;
#else
  static_cast<float *>(p.costs)[n] = (float)cost;
#endif
}

// To be called by all threads of the block of the pass from the start.
DEVICE void find_cost(const CtcParams &p, const Pass &pass, const double *before, double *slots) {
  const long long n = blockIdx.x / 2;
  const int k = middle(pass.length), lane = threadIdx.x, lanes = blockDim.x;
  double lost = 0;
  for (int t = lane; t < pass.length; t += lanes)
    if (is_nan(pass.normalizers[t])) lost = 1;
  lost = top_of_lanes(slots, lost, lane, lanes);
  const double *const after = p.middles + (blockIdx.x + 1) * p.places;
  const auto share = [&](int r) { return pass.arrival(before, k, r, pass.skips(r)) + after[pass.places - 1 - r]; };
  double top = NEVER;
  for (int r = lane; r < pass.places; r += lanes) top = max(top, share(r));
  top = top_of_lanes(slots, top, lane, lanes);
  double sum = 0;
  for (int r = lane; r < pass.places && top != NEVER; r += lanes) sum += exp_of(share(r) - top);
  sum = sum_of_lanes(slots, sum, lane, lanes);
  if (lane == 0) write_cost(p, n, lost ? NAN : top == NEVER ? INFINITY : -(top + log(sum)));
}

KERNEL void __launch_bounds__(1024) ctc_second_half(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  double *const slots = shared_doubles();
  double *rows[2];
  find_rows(p, rows, slots + blockDim.x);
  const Pass pass(p, blockIdx.x / 2, blockIdx.x % 2);
  if (pass.length <= 0) {
    if (threadIdx.x == 0 && !pass.backward) write_cost(p, blockIdx.x / 2, pass.length ? NAN : 0);
    return;
  }
  const int half = pass.backward ? pass.length - middle(pass.length) : middle(pass.length);
  for (int r = threadIdx.x; r < pass.places && half; r += blockDim.x)
    rows[0][r] = p.middles[blockIdx.x * p.places + r];
  __syncthreads();
  if (!pass.backward) find_cost(p, pass, rows[0], slots);
  if (p.gradients) pass.walk(rows, half, pass.length, true);
}

// One block per row of activations.
KERNEL void ctc_gradients(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  double *const slots = shared_doubles();
  const long long row = blockIdx.x, t = row / p.batch, n = row % p.batch;
  const int lane = threadIdx.x, lanes = blockDim.x;
  const Bits *const from = static_cast<const Bits *>(p.activations) + row * p.classes;
  Bits *const to = static_cast<Bits *>(p.gradients) + row * p.classes;
  const bool counts = t < p.lengths[n];
  const double cost = p.totals[n];
  if (!counts || !(cost - cost == 0)) {
    for (long long c = lane; c < p.classes; c += lanes) to[c] = from_acc(counts ? (Acc)NAN : (Acc)0);
    return;
  }
  const double normalizer = p.normalizers[n * p.steps + t];
  const auto softmax = [&](int c) { return exp_of((double)to_acc(from[c]) - normalizer); };
  for (long long c = lane; c < p.classes; c += lanes) to[c] = from_acc(softmax(c));
  const double *const places = p.passes + (n * p.steps + t) * p.places;
  const int begin = p.begins[n], length = p.ends[n] - begin;
  double blank = 0;
  for (int i = lane; i <= length; i += lanes) blank += exp_of(places[2 * i] + cost);
  blank = sum_of_lanes(slots, blank, lane, lanes);  // after this, all softmaxes are written
  if (lane == 0) to[0] = from_acc((Acc)(softmax(0) - blank));
  // The thread of the first of several equal symbols adds up all of them.
  for (int i = lane; i < length; i += lanes) {
    if (p.links[begin + i] % 2) continue;
    double sum = 0;
    for (int k = i, step = 1; step; k += step) {
      sum += exp_of(places[2 * k + 1] + cost);
      step = p.links[begin + k] / 2;
    }
    const int c = p.symbols[begin + i];
    to[c] = from_acc((Acc)(softmax(c) - sum));
  }
}

// Runs after cuDNN, one block per row. If the label's probability is 1 up to rounding, cuDNN's gradient lacks
// the label's part: it is only the softmax, 1 where it should be nearly 0.
KERNEL void ctc_certain(GRID_CONSTANT const CtcParams p) {
  wait_for_stream();
  const float roundings = 5e-7f;
  if (!(fabsf(static_cast<const float *>(p.costs)[blockIdx.x % p.batch]) < roundings)) return;
  float *const row = static_cast<float *>(p.gradients) + blockIdx.x * p.classes;
  for (long long k = threadIdx.x; k < p.classes; k += blockDim.x) row[k] = 0;
}
