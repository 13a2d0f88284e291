// Products on tensor cores. tests/emulation/host_cuda.hpp has the same functions for the host.
#ifdef __CUDACC__
// Rounds to the nearest TF32 number, ties away from zero.
DEVICE unsigned to_tf32(float value) {
  unsigned word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
}

// The power of 2 with a relative error of 2^-22; zero if it is subnormal.
DEVICE float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

// Adds the product of 16x8 and 8x8 TF32 numbers, whose lowest 13 bits are ignored. All threads of a warp must call it.
// With row = lane / 4 and column = lane % 4, a thread has
//   of a: (row, column), (row + 8, column), (row, column + 4), (row + 8, column + 4);
//   of b: (column, row), (column + 4, row);
//   of the sums: (row, 2 * column), (row, 2 * column + 1), and the same 8 rows below.
DEVICE void add_product(float *sums, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
