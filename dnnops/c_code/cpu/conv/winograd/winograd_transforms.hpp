// The one-dimensional transforms of Winograd's F(4, 3), and the two-dimensional one of F(4 x 4, 3 x 3) made of them.
//
// The interpolation points are 0, +-a, +-b and infinity with a = sqrt(1/2), b = sqrt(2). They halve the rounding error
// of the usual points 1 and 2 at the same number of operations: a * b = 1 keeps the powers of the points close to 1.
#ifndef DNNOPS_ONEDNN_WINOGRAD_TRANSFORMS_HPP
#define DNNOPS_ONEDNN_WINOGRAD_TRANSFORMS_HPP

#include "winograd_simd.hpp"

namespace dnnops::winograd {

constexpr float kA = 0.70710678118654752440f, kB = 1.41421356237309504880f;
constexpr float kA2 = 0.5f, kB2 = 2.0f, kA3 = kA2 * kA, kB3 = kB2 * kB;
// 1 / the product of the differences of +a (or -a) from the other points, and likewise for +b (or -b).
constexpr float kNormA = 1 / (2 * kA2 * (kA2 - kB2)), kNormB = 1 / (2 * kB2 * (kB2 - kA2));

// Six inputs of a tile: B' d.
struct TransformInput {
  static constexpr int kIn = kPatch, kOut = kPatch;
  static inline void apply(const Vec *d, Vec *out) {
    const Vec even_a = fma(-kB2, d[2], d[4]), odd_a = fma(-kB2, d[1], d[3]);
    const Vec even_b = fma(-kA2, d[2], d[4]), odd_b = fma(-kA2, d[1], d[3]);
    out[0] = fma(-(kA2 + kB2), d[2], d[0] + d[4]);
    out[1] = fma(kA, odd_a, even_a);
    out[2] = fma(-kA, odd_a, even_a);
    out[3] = fma(kB, odd_b, even_b);
    out[4] = fma(-kB, odd_b, even_b);
    out[5] = fma(-(kA2 + kB2), d[3], d[1] + d[5]);
  }
};

// Three taps of a filter: G w.
struct TransformFilter {
  static constexpr int kIn = kTaps, kOut = kPatch;
  static inline void apply(const Vec *w, Vec *out) {
    const Vec even_a = broadcast(kNormA) * fma(kA2, w[2], w[0]), odd_a = broadcast(kNormA * kA) * w[1];
    const Vec even_b = broadcast(kNormB) * fma(kB2, w[2], w[0]), odd_b = broadcast(kNormB * kB) * w[1];
    out[0] = w[0];
    out[1] = even_a + odd_a;
    out[2] = even_a - odd_a;
    out[3] = even_b + odd_b;
    out[4] = even_b - odd_b;
    out[5] = w[2];
  }
};

// The four outputs of a tile: A' m.
struct InverseOutput {
  static constexpr int kIn = kPatch, kOut = kTile;
  static inline void apply(const Vec *m, Vec *out) {
    const Vec sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    const Vec sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    out[0] = m[0] + (sum_a + sum_b);
    out[1] = fma(kA, difference_a, broadcast(kB) * difference_b);
    out[2] = fma(kA2, sum_a, broadcast(kB2) * sum_b);
    out[3] = fma(kA3, difference_a, fma(kB3, difference_b, m[5]));
  }
};

// The gradient with respect to a tile's four outputs: A y, the transpose of InverseOutput.
struct TransformOutputGradient {
  static constexpr int kIn = kTile, kOut = kPatch;
  static inline void apply(const Vec *y, Vec *out) {
    const Vec even_a = fma(kA2, y[2], y[0]), odd_a = fma(kA3, y[3], broadcast(kA) * y[1]);
    const Vec even_b = fma(kB2, y[2], y[0]), odd_b = fma(kB3, y[3], broadcast(kB) * y[1]);
    out[0] = y[0];
    out[1] = even_a + odd_a;
    out[2] = even_a - odd_a;
    out[3] = even_b + odd_b;
    out[4] = even_b - odd_b;
    out[5] = y[3];
  }
};

// The gradient with respect to three taps: G' u, the transpose of TransformFilter.
struct InverseFilterGradient {
  static constexpr int kIn = kPatch, kOut = kTaps;
  static inline void apply(const Vec *u, Vec *out) {
    const Vec sum_a = broadcast(kNormA) * (u[1] + u[2]), difference_a = u[1] - u[2];
    const Vec sum_b = broadcast(kNormB) * (u[3] + u[4]), difference_b = u[3] - u[4];
    out[0] = u[0] + (sum_a + sum_b);
    out[1] = fma(kNormA * kA, difference_a, broadcast(kNormB * kB) * difference_b);
    out[2] = fma(kA2, sum_a, fma(kB2, sum_b, u[5]));
  }
};

// Applies a transform to the columns, then to the rows: out(y, x) = sum of T(y, i) T(x, j) in(i, j).
template <class Transform, class Read, class Write>
inline __attribute__((always_inline)) void transform_2d(Read &&read, Write &&write) {
  Vec half[Transform::kOut][Transform::kIn];
#pragma GCC unroll 6
  for (int x = 0; x < Transform::kIn; ++x) {
    Vec column[Transform::kIn], out[Transform::kOut];
#pragma GCC unroll 6
    for (int y = 0; y < Transform::kIn; ++y) column[y] = read(y, x);
    Transform::apply(column, out);
#pragma GCC unroll 6
    for (int y = 0; y < Transform::kOut; ++y) half[y][x] = out[y];
  }
#pragma GCC unroll 6
  for (int y = 0; y < Transform::kOut; ++y) {
    Vec out[Transform::kOut];
    Transform::apply(half[y], out);
#pragma GCC unroll 6
    for (int x = 0; x < Transform::kOut; ++x) write(y, x, out[x]);
  }
}

}  // namespace dnnops::winograd
#endif
