// The parameters of the kernel that copies what moves between launches of a CUDA graph. dnnops/gpu/kernels.py prepends
// this file to its source.
#ifndef DNNOPS_GRAPH_COPIES_PARAMS_HPP
#define DNNOPS_GRAPH_COPIES_PARAMS_HPP

constexpr int TABLE_HEADER_BYTES = 64, COPY_WORDS = 3;

struct GraphCopiesParams {
  char *table;  // page-locked memory: a header, whose first word counts the launches that were read, and slots
  long long slot_bytes, slots;  // the number of slots is a power of two
  unsigned *counters;           // on the device: launches so far, and blocks of this one that have finished
  long long first, count;       // which copies of the slot are made: a destination, a source and bytes each
  long long is_last;            // whether the launch reads nothing of its slot after this
};

#endif
