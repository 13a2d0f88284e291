// The cross-entropy between the softmax of each row and its label, and its gradient.
//
// Macros: DTYPE, as in numbers.cuh; LABEL_BITS, 32 or 64; LANES, a power of 2: the number of threads that share a row.

#if LABEL_BITS == 64
using Label = long long;
#else
using Label = int;
#endif

constexpr int THREADS = 256, ROWS = THREADS / LANES;

struct cross_entropy_launch {
  const void *x, *labels, *g;
  void *statistics, *result;  // the costs, or the gradient with respect to x
  void *flag;
  long long rows, classes, count, label_step, g_step, number;
};

// The label of a row with negative ones wrapped around; -1 if it is out of bounds.
DEVICE long long label_of(const cross_entropy_launch &launch, long long row) {
  const long long label = static_cast<const Label *>(launch.labels)[row * launch.label_step];
  const long long counted = label < 0 ? label + launch.classes : label;
  return counted < 0 || counted >= launch.classes ? -1 : counted;
}

// The maximum of some elements, and the sum of their exponentials after subtracting it. Two of them can be combined.
struct Exponentials {
  Acc top, sum;
  DEVICE void add(Acc value) {
    if (value > top) {
      sum = sum * exp(top - value) + 1;
      top = value;
    } else if (value != -(Acc)INFINITY) {  // for a NaN, the sum becomes NaN
      sum += exp(value - top);
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
  __shared__ Acc tops[THREADS], sums[THREADS];
  const int thread = threadIdx.x, lane = thread % LANES;
  const long long row = (long long)blockIdx.x * ROWS + thread / LANES;
  const Bits *x = static_cast<const Bits *>(launch.x) + row * launch.classes;
  Exponentials own = {-(Acc)INFINITY, 0};
  if (row < launch.count)
    for (long long i = lane; i < launch.classes; i += LANES) own.add(to_acc(x[i]));
  for (int step = LANES / 2; step; step /= 2) {
    tops[thread] = own.top;
    sums[thread] = own.sum;
    __syncthreads();
    if (lane < step) own.add(Exponentials{tops[thread + step], sums[thread + step]});
    __syncthreads();
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
  static_cast<Bits *>(launch.result)[row] = from_acc(log_sum - (chosen - own.top));
}

KERNEL void __launch_bounds__(256) cross_entropy_grad(const GRID_CONSTANT cross_entropy_launch launch) {
  wait_for_stream();
  const int thread = threadIdx.x;
  const long long row = (long long)blockIdx.x * ROWS + thread / LANES;
  if (row >= launch.rows) return;
  const Bits *x = static_cast<const Bits *>(launch.x) + row * launch.classes;
  Bits *result = static_cast<Bits *>(launch.result) + row * launch.classes;
  const bool has_label = row < launch.count;
  Acc g = 0, top = 0, log_sum = 0;
  long long label = -1;
  if (has_label) {
    g = to_acc(static_cast<const Bits *>(launch.g)[row * launch.g_step]);
    top = static_cast<const Acc *>(launch.statistics)[2 * row];
    log_sum = static_cast<const Acc *>(launch.statistics)[2 * row + 1];
    label = label_of(launch, row);
  }
  for (long long i = thread % LANES; i < launch.classes; i += LANES) {
    Acc value = 0;
    if (has_label) {
      const Acc softmax = exp(to_acc(x[i]) - top - log_sum);
      value = g * (i == label ? softmax - 1 : softmax);
    }
    result[i] = from_acc(value);
  }
}
