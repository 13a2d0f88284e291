// The cross-entropy between the softmax of each row and its label, and its gradient.
//
// Macros: DTYPE, as in numbers.cuh; COST_DTYPE, that of the costs; LABEL_BITS, 32 or 64; LANES, a power of 2 up to
// 256: the number of threads that share a row.

#if LABEL_BITS == 64
using Label = long long;
#else
using Label = int;
#endif

using Cost = Number<COST_DTYPE>;

constexpr int THREADS = 256, ROWS = THREADS / LANES, WARP_LANES = 32;
constexpr int WORD = 16 / sizeof(Bits);  // elements in 16 bytes

struct cross_entropy_launch {
  const void *x, *labels, *g;
  void *statistics, *result;  // the costs, or the gradient with respect to x
  void *flag;
  long long rows, classes, count, label_step, row_step, g_step, number;  // row_step: 0 if one row has all labels
  long long by_words;  // whether rows consist of words of 16 bytes
};

// The label of a row with negative ones wrapped around; -1 if it is out of bounds.
DEVICE long long label_of(const cross_entropy_launch &launch, long long row) {
  const long long label = static_cast<const Label *>(launch.labels)[row * launch.label_step];
  const long long counted = label < 0 ? label + launch.classes : label;
  return counted < 0 || counted >= launch.classes ? -1 : counted;
}

union Word {
  uint4 word;
  Bits elements[WORD];
};

// The maximum of some elements, and the sum of their exponentials after subtracting it. Two of them can be combined.
struct Exponentials {
  Acc top, sum;
  template <int COUNT>
  DEVICE void add(const Bits *elements) {
    Acc larger = top;
    UNROLL
    for (int k = 0; k < COUNT; ++k) {
      const Acc value = to_acc(elements[k]);
      if (value > larger) larger = value;
    }
    if (larger > top) {
      sum *= exp(top - larger);
      top = larger;
    }
    UNROLL
    for (int k = 0; k < COUNT; ++k) {
      const Acc value = to_acc(elements[k]);
      if (value != -(Acc)INFINITY) sum += exp(value - top);  // for a NaN, the sum becomes NaN
    }
  }
  DEVICE void add(const Exponentials &other) {
    const Acc larger = other.top > top ? other.top : top;
    if (larger == -(Acc)INFINITY) {
      sum += other.sum;
    } else {
      sum = sum * exp(top - larger) + other.sum * exp(other.top - larger);
      top = larger;
    }
  }
};

KERNEL void __launch_bounds__(256) cross_entropy(const GRID_CONSTANT cross_entropy_launch launch) {
  wait_for_stream();
  const int thread = threadIdx.x, lane = thread % LANES;
  const long long row = (long long)blockIdx.x * ROWS + thread / LANES;
  const Bits *x = static_cast<const Bits *>(launch.x) + row * launch.row_step * launch.classes;
  Exponentials own = {-(Acc)INFINITY, 0};
  if (row < launch.count) {
    if (launch.by_words) {
      const uint4 *words = reinterpret_cast<const uint4 *>(x);
      UNROLL_4
      for (int i = lane; i < launch.classes / WORD; i += LANES) {
        const Word read = {words[i]};
        own.add<WORD>(read.elements);
      }
    } else {
      for (long long i = lane; i < launch.classes; i += LANES) own.add<1>(x + i);
    }
  }
  for (int apart = (LANES < WARP_LANES ? LANES : WARP_LANES) / 2; apart; apart /= 2)
    own.add(Exponentials{__shfl_xor_sync(~0u, own.top, apart), __shfl_xor_sync(~0u, own.sum, apart)});
  if (LANES > WARP_LANES) {
    __shared__ Exponentials of_warps[THREADS / WARP_LANES];
    if (thread % WARP_LANES == 0) of_warps[thread / WARP_LANES] = own;
    __syncthreads();
    if (lane == 0)
      for (int i = 1; i < LANES / WARP_LANES; ++i) own.add(of_warps[thread / WARP_LANES + i]);
  }
  if (lane || row >= launch.count) return;
  // Infinity minus itself is NaN: with +infinity, or only -infinity, the results are NaN, as in NumPy.
  const bool is_finite = own.top - own.top == 0;
  const Acc nan = (Acc)INFINITY - (Acc)INFINITY;
  const Acc log_sum = is_finite ? log(own.sum) : nan;
  const long long label = label_of(launch, row);
  if (label < 0) *static_cast<volatile int *>(launch.flag) = (int)launch.number;
  auto *statistics = static_cast<Acc *>(launch.statistics) + 2 * row;
  statistics[0] = own.top;
  statistics[1] = log_sum;
  const Acc chosen = label < 0 ? nan : to_acc(x[label]);
  static_cast<Cost::Bits *>(launch.result)[row] = Cost::bits(log_sum - (chosen - own.top));
}

// What the gradient of a row's elements is computed from.
struct RowGradient {
  Acc g, top, log_sum;
  long long label;
  DEVICE Bits of(Bits x, long long i) const {
    const Acc softmax = exp(to_acc(x) - top - log_sum);
    return from_acc(g * (i == label ? softmax - 1 : softmax));
  }
};

// The gradient with respect to a row that is read at many labels. A block computes an element: the sum over all labels,
// which is added in the same order each time.
KERNEL void __launch_bounds__(256) cross_entropy_grad_of_one(const GRID_CONSTANT cross_entropy_launch launch) {
  __shared__ Acc sums[THREADS];
  wait_for_stream();
  const int thread = threadIdx.x;
  const long long i = blockIdx.x;
  const Acc *statistics = static_cast<const Acc *>(launch.statistics);
  const Acc value = to_acc(static_cast<const Bits *>(launch.x)[i]);
  const Acc softmax = launch.count ? exp(value - statistics[0] - statistics[1]) : 0;
  Acc sum = 0;
  for (long long row = thread; row < launch.count; row += THREADS) {
    const Acc g = Cost::acc(static_cast<const Cost::Bits *>(launch.g)[row * launch.g_step]);
    sum += g * (label_of(launch, row) == i ? softmax - 1 : softmax);
  }
  sums[thread] = sum;
  for (int apart = THREADS / 2; apart; apart /= 2) {
    __syncthreads();
    if (thread < apart) sums[thread] += sums[thread + apart];
  }
  if (thread == 0) static_cast<Bits *>(launch.result)[i] = from_acc(sums[0]);
}

KERNEL void __launch_bounds__(256) cross_entropy_grad(const GRID_CONSTANT cross_entropy_launch launch) {
  wait_for_stream();
  const int thread = threadIdx.x, lane = thread % LANES;
  const long long row = (long long)blockIdx.x * ROWS + thread / LANES;
  if (row >= launch.rows) return;
  const Bits *x = static_cast<const Bits *>(launch.x) + row * launch.classes;
  Bits *result = static_cast<Bits *>(launch.result) + row * launch.classes;
  if (row >= launch.count) {
    for (long long i = lane; i < launch.classes; i += LANES) result[i] = from_acc(0);
    return;
  }
  const Acc *statistics = static_cast<const Acc *>(launch.statistics) + 2 * row;
  const RowGradient gradient = {Cost::acc(static_cast<const Cost::Bits *>(launch.g)[row * launch.g_step]),
                                statistics[0], statistics[1], label_of(launch, row)};
  if (launch.by_words) {
    const uint4 *words = reinterpret_cast<const uint4 *>(x);
    UNROLL_4
    for (int i = lane; i < launch.classes / WORD; i += LANES) {
      Word word = {words[i]};
      UNROLL
      for (int k = 0; k < WORD; ++k) word.elements[k] = gradient.of(word.elements[k], (long long)i * WORD + k);
      store_16_bytes(result + (long long)i * WORD, word.word);
    }
  } else {
    for (long long i = lane; i < launch.classes; i += LANES) result[i] = gradient.of(x[i], i);
  }
}
