// How the threads of an elementwise kernel load and store several adjacent elements.
// dnnops/gpuarray/elementwise/kernel.py writes the kernel after it.

#ifdef __CUDACC__
#define ENTRY extern "C" __global__
#else
#define ENTRY static
#endif

// Adjacent elements, which a thread moves at once.
template <int V, class T>
struct alignas(V * sizeof(T)) Pack {
  T of[V];
};

// Load the elements from `first` on of an array of n; past its end, repeat the last element.
template <int V, class T>
DEVICE Pack<V, T> load(const T *array, long long first, long long n) {
  Pack<V, T> pack;
  if (first + V <= n) {
    pack = *reinterpret_cast<const Pack<V, T> *>(array + first);
  } else {
    for (int k = 0; k < V; ++k) pack.of[k] = array[first + k < n ? first + k : n - 1];
  }
  return pack;
}

template <int V, class T>
DEVICE void store(T *array, long long first, long long n, const Pack<V, T> &pack) {
  if (first + V <= n) {
    *reinterpret_cast<Pack<V, T> *>(array + first) = pack;
  } else {
    for (int k = 0; k < V; ++k)
      if (first + k < n) array[first + k] = pack.of[k];
  }
}

// Find an element of an array whose last axis consists of `run` adjacent elements, after three
// axes with lengths `middle` and `inner` of the second and the third.
template <class T>
DEVICE T *row_element(T *array, long long first, unsigned run, unsigned middle, unsigned inner,
                      long long stride0, long long stride1, long long stride2) {
  const unsigned place = (unsigned)first, row = place / run, outer = row / inner;
  const unsigned index0 = outer / middle;
  return array + index0 * stride0 + (outer - index0 * middle) * stride1 +
         (row - outer * inner) * stride2 + (place - row * run);
}

// Iterate over the elements of an array, returning each one `run` times in a row.
template <class T>
struct Repeated {
  const T *array;
  unsigned run, count, left, at;
  DEVICE T next() {
    const T value = array[at];
    if (--left == 0) {
      left = run;
      if (++at == count) at = 0;
    }
    return value;
  }
};

template <class T>
DEVICE Repeated<T> repeat(const T *array, long long first, unsigned run, unsigned count) {
  const unsigned place = (unsigned)first, whole = place / run;
  return {array, run, count, run - (place - whole * run), whole % count};
}
