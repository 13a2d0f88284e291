// One elementwise operation on many arrays in a single launch. An item is the arrays of one application of the
// operation: its operands and results, of one size and in one order. dnnops/gpuarray/multi_elemwise/kernel.py defines the
// macros before this, and writes the kernel after it:
// ITEMS and ARRAYS, the number of items and the number of arrays of each; THREADS of a block; ROUNDS, how often each
// loads; and WIDTH, how many elements of each array it loads at once.

#ifdef __CUDACC__
#define ENTRY extern "C" __global__
#else
#define ENTRY static
#endif

constexpr long long BLOCK_SIZE = (long long)THREADS * WIDTH * ROUNDS;  // elements of a block

// Passed by value, so that a CUDA graph contains it and nothing has to be copied to the device before.
struct Items {
  long long size[ITEMS];
  unsigned long long array[ARRAYS][ITEMS];  // addresses
  unsigned first_block[ITEMS];
};

// The item of this block: the last one whose first block is not after it.
DEVICE int item_of_block(const Items &items, int count) {
  int item = 0;
  for (int end = count; end - item > 1;) {
    const int middle = (item + end) / 2;
    if (items.first_block[middle] <= blockIdx.x)
      item = middle;
    else
      end = middle;
  }
  return item;
}

template <class T>
DEVICE T *address(const Items &items, int array, int item) {
  const unsigned long long bits = items.array[array][item];
#ifdef __CUDACC__
  // Tells the compiler that the memory is global.
  return static_cast<T *>(__cvta_global_to_generic(bits));
#else
  return reinterpret_cast<T *>(bits);
#endif
}

DEVICE bool are_aligned(const Items &items, int item) {
  unsigned long long bits = 0;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) bits |= DENSE_ARRAYS >> i & 1 ? items.array[i][item] : 0;
  return bits % 16 == 0;
}

template <class T>
struct alignas(WIDTH * sizeof(T)) Pack {
  T of[WIDTH];
};

// At a multiple of 16 bytes, and with WIDTH elements left.
template <class T>
DEVICE void load(const T *from, Pack<T> &pack) {
  pack = *reinterpret_cast<const Pack<T> *>(from);
}
template <class T>
DEVICE void store(T *to, const Pack<T> &pack) {
  *reinterpret_cast<Pack<T> *>(to) = pack;
}

// Anywhere. Past the end of the array, the last element is repeated.
template <class T>
DEVICE void load_single(const T *from, long long left, Pack<T> &pack) {
  UNROLL
  for (int k = 0; k < WIDTH; ++k) pack.of[k] = from[k < left ? k : left - 1];
}
template <class T>
DEVICE void store_single(T *to, long long left, const Pack<T> &pack) {
  UNROLL
  for (int k = 0; k < WIDTH; ++k)
    if (k < left) to[k] = pack.of[k];
}
