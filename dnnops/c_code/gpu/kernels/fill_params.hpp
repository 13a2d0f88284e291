// The parameters of the kernel that fills memory. dnnops/gpu/kernels.py prepends this file to its source.
#ifndef DNNOPS_FILL_PARAMS_HPP
#define DNNOPS_FILL_PARAMS_HPP

struct FillParams {
  unsigned char *to;
  long long bytes;
  unsigned word;  // the bytes that repeat from `to` on, the lowest one first
};

#endif
