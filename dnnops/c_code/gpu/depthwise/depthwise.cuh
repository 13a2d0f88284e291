// The common parts of the depthwise kernels: types, vectors of channels, copies between global and shared memory.
// dnnops/gpu/kernels.py compiles this with CuPy, and tests compile it for the host.
//
// Macros set by c_code/gpu/depthwise/conv_depthwise.cpp: DTYPE (a dnnops_dtype), CHANNELS_LAST, FLIP, UP (for
// the gradient with respect to the image), filters KH x KW, strides SH, SW, dilations DH, DW; a thread's tile
// of TH x TW units and V channels; THREADS, the maximum per block; and some that are specific to a kernel.

constexpr int TAPS = KH * KW;
constexpr int VECTOR_BYTES = V * (int)sizeof(Bits);

// V channels of a pixel, or one, as loaded.
struct Raw {
  unsigned words[(VECTOR_BYTES + 3) / 4];
};

DEVICE Acc element(const Raw &raw, int i) {
#if DTYPE == 0
  return __uint_as_float(raw.words[i]);
#elif DTYPE == 1
  return __hiloint2double(raw.words[2 * i + 1], raw.words[2 * i]);
#else
  return i % 2 ? Number<DTYPE>::high(raw.words[i / 2]) : Number<DTYPE>::low(raw.words[i / 2]);
#endif
}

DEVICE Raw load_vector(const Bits *from) {
  Raw raw;
  if constexpr (VECTOR_BYTES == 16) {
    const uint4 q = __ldg(reinterpret_cast<const uint4 *>(from));
    raw.words[0] = q.x, raw.words[1] = q.y, raw.words[2] = q.z, raw.words[3] = q.w;
  } else if constexpr (VECTOR_BYTES == 8) {
    const uint2 q = __ldg(reinterpret_cast<const uint2 *>(from));
    raw.words[0] = q.x, raw.words[1] = q.y;
  } else if constexpr (VECTOR_BYTES == 4) {
    raw.words[0] = __ldg(reinterpret_cast<const unsigned *>(from));
  } else {
    raw.words[0] = __ldg(reinterpret_cast<const unsigned short *>(from));
  }
  return raw;
}

DEVICE Raw load_shared(const Bits *from) {
  static_assert(V == 1 || CHANNELS_LAST, "");
  Raw raw;
#if DTYPE == 0
  raw.words[0] = __float_as_uint(*from);
#elif DTYPE == 1
  raw.words[0] = __double2loint(*from);
  raw.words[1] = __double2hiint(*from);
#else
  raw.words[0] = *from;
#endif
  return raw;
}

// to = alpha * sums + beta * to; a beta of 0 does not read `to`.
DEVICE void store_vector(Bits *to, const Acc (&sums)[V], Acc alpha, Acc beta) {
  Acc values[V];
  UNROLL for (int v = 0; v < V; ++v) values[v] = alpha * sums[v];
  if (beta != 0) {
    const Raw old = load_vector(to);
    UNROLL for (int v = 0; v < V; ++v) values[v] += beta * element(old, v);
  }
  unsigned words[(VECTOR_BYTES + 3) / 4];
#if DTYPE == 0
  UNROLL for (int v = 0; v < V; ++v) words[v] = __float_as_uint(values[v]);
#elif DTYPE == 1
  UNROLL for (int v = 0; v < V; ++v) {
    words[2 * v] = __double2loint(values[v]);
    words[2 * v + 1] = __double2hiint(values[v]);
  }
#else
  UNROLL for (int v = 0; v < V; v += 2) {
    words[v / 2] = from_acc(values[v]);
    if (v + 1 < V) words[v / 2] |= (unsigned)from_acc(values[v + 1]) << 16;
  }
#endif
  if constexpr (VECTOR_BYTES == 16)
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (VECTOR_BYTES == 8)
    *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
  else if constexpr (VECTOR_BYTES == 4)
    *reinterpret_cast<unsigned *>(to) = words[0];
  else
    *reinterpret_cast<unsigned short *>(to) = (unsigned short)words[0];
}

// The addresses of a range of an array and of its copy in shared memory are equal modulo 16.
DEVICE int skew_of(const Bits *from) { return (int)(reinterpret_cast<unsigned long long>(from) & 15); }

DEVICE int chunks_of(const Bits *from, int count) { return (skew_of(from) + count * (int)sizeof(Bits) + 15) >> 4; }

// Copies the 16 aligned bytes number `chunk` of a range. If they extend beyond the array [begin, end), only
// its elements are copied.
DEVICE void copy_chunk_in(char *to, const Bits *from, int chunk, const Bits *begin, const Bits *end) {
  const char *source = reinterpret_cast<const char *>(from) - skew_of(from) + 16 * (long long)chunk;
  to += 16 * chunk;
  if (source >= reinterpret_cast<const char *>(begin) && source + 16 <= reinterpret_cast<const char *>(end)) {
    copy_16_bytes(to, source);
  } else {
    for (int b = 0; b < 16; b += sizeof(Bits))
      if (source + b >= reinterpret_cast<const char *>(begin) && source + b < reinterpret_cast<const char *>(end))
        *reinterpret_cast<Bits *>(to + b) = *reinterpret_cast<const Bits *>(source + b);
  }
}

// Copies a whole range with all threads of the block.
DEVICE void copy_in(char *to, const Bits *from, int count, const Bits *begin, const Bits *end) {
  const int chunks = chunks_of(from, count);
  for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) copy_chunk_in(to, from, chunk, begin, end);
}

// Copies a range back. Its first and last 16 bytes may be shared with other blocks.
DEVICE void copy_out(Bits *to, const char *from, int count) {
  const int skew = skew_of(to), bytes = skew + count * (int)sizeof(Bits), chunks = (bytes + 15) >> 4;
  char *target = reinterpret_cast<char *>(to) - skew;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
    const int at = 16 * chunk;
    if (at >= skew && at + 16 <= bytes) {
      *reinterpret_cast<uint4 *>(target + at) = *reinterpret_cast<const uint4 *>(from + at);
    } else {
      for (int b = at; b < at + 16; b += sizeof(Bits))
        if (b >= skew && b < bytes) *reinterpret_cast<Bits *>(target + b) = *reinterpret_cast<const Bits *>(from + b);
    }
  }
}

// Loads the filters of V channels, which are stored one after the other, in the order in which they are applied.
DEVICE void load_filters(Acc (&filters)[TAPS][V], const Bits *from) {
  UNROLL for (int m = 0; m < TAPS; ++m) {
    const Raw raw = load_vector(from + m * V);
    UNROLL for (int e = 0; e < V; ++e) {
      const int v = (m * V + e) / TAPS, k = (m * V + e) % TAPS;
      filters[FLIP ? TAPS - 1 - k : k][v] = element(raw, e);
    }
  }
}
