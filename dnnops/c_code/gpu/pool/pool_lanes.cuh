// Maxima of the numbers in a word: two of 16 bits, or one. A NaN counts as the maximum. Two numbers of 16 bits are
// compared by one instruction and without conversions, since pooling compares each number several times.

template <class T>
struct WideLanes {
  using Word = T;
  using Mask = bool;  // a property of each number
  static constexpr int COUNT = 1;
  static DEVICE Word lowest() { return -(T)INFINITY; }
  static DEVICE Mask mask(bool value) { return value; }
  static DEVICE Mask beats(T a, T b) { return !(a <= b) && b == b; }
  static DEVICE Mask without(Mask mask, Mask other) { return mask && !other; }
  static DEVICE T maximum(T a, T b) {
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == sizeof(float)) {
      float most;
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
      return most;
    }
#endif
    return beats(a, b) ? a : b;
  }
  static DEVICE void add(T *sums, T values, Mask mask) {
    if (mask) sums[0] += values;
  }
  static DEVICE T rounded(const T *sums) { return sums[0]; }
};

template <int CODE>
struct PairLanes {
  using Word = unsigned;
  using Mask = unsigned;  // all bits of a number, or none
  static constexpr int COUNT = 2;
  static constexpr bool IS_HALF = CODE == 2;
  using Half = Number<CODE>;

  static DEVICE unsigned lowest() { return IS_HALF ? 0xfc00fc00u : 0xff80ff80u; }
  static DEVICE unsigned mask(bool value) { return value ? ~0u : 0u; }
  static DEVICE unsigned without(unsigned mask, unsigned other) { return mask & ~other; }
  static DEVICE void add(float *sums, unsigned values, unsigned mask) {
    // Adding zero changes no bit, since a sum that starts at 0 is never -0.
    sums[0] += Half::low(values & mask);
    sums[1] += Half::high(values & mask);
  }

  // Whether a number is larger than another, or the only NaN.
  static DEVICE unsigned beats(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 900
    unsigned above, ordered;
    if (IS_HALF) {
      asm("set.gtu.u32.f16x2 %0, %1, %2;" : "=r"(above) : "r"(a), "r"(b));
      asm("set.num.u32.f16x2 %0, %1, %1;" : "=r"(ordered) : "r"(b));
    } else {
      asm("set.gtu.u32.bf16x2 %0, %1, %2;" : "=r"(above) : "r"(a), "r"(b));
      asm("set.num.u32.bf16x2 %0, %1, %1;" : "=r"(ordered) : "r"(b));
    }
    return above & ordered;
#else
    return (WideLanes<float>::beats(Half::low(a), Half::low(b)) ? 0xffffu : 0u) |
           (WideLanes<float>::beats(Half::high(a), Half::high(b)) ? 0xffff0000u : 0u);
#endif
  }

  static DEVICE unsigned maximum(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 800
    unsigned most;
    if (IS_HALF)
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    else
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
#else
    const unsigned larger = beats(a, b);
    return (a & larger) | (b & ~larger);
#endif
  }

  static DEVICE unsigned rounded(const float *sums) {
#if __CUDA_ARCH__ >= 800
    unsigned word;
    if (IS_HALF)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(sums[1]), "f"(sums[0]));
    else
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(sums[1]), "f"(sums[0]));
    return word;
#else
    return (unsigned)Half::bits(sums[0]) | (unsigned)Half::bits(sums[1]) << 16;
#endif
  }
};

template <int CODE>
struct LanesOf : PairLanes<CODE> {};
template <>
struct LanesOf<0> : WideLanes<float> {};
template <>
struct LanesOf<1> : WideLanes<double> {};

using Lanes = LanesOf<DTYPE>;
using Word = Lanes::Word;
constexpr int WORDS = 16 / (int)sizeof(Word);

union WordVector {
  uint4 vector;
  Word words[WORDS];
};

// Fills vectors with negative infinity, which never wins.
template <int COUNT>
DEVICE void fill_lowest(WordVector (&vectors)[COUNT]) {
  UNROLL
  for (int i = 0; i < COUNT; ++i) {
    UNROLL
    for (int word = 0; word < WORDS; ++word) vectors[i].words[word] = Lanes::lowest();
  }
}
