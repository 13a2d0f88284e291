// What dense.cuh takes; also included by the code that launches it.
#ifndef DNNOPS_DENSE_PARAMS_HPP
#define DNNOPS_DENSE_PARAMS_HPP

enum DenseActivation { DENSE_IDENTITY = 0, DENSE_RELU = 1, DENSE_GELU = 2 };

constexpr int DENSE_THREADS = 256;
// A thread computes so many elements, or words of 16 bytes.
constexpr int DENSE_ELEMENTS = 8, DENSE_WORDS = 2;

struct DenseParams {
  void *out;  // (rows, columns), in place
  const void *bias, *addend;  // null if there is none
  long long rows, columns, addend_row;  // the stride is in elements
  int activation;
  int from_zero;  // whether `out` holds nothing yet
  int by_words;   // whether rows consist of words of 16 bytes, less than 2**31 in all
};
#endif
