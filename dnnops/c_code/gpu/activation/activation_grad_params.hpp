// The parameters of the kernel in activation_grad.cuh, which is compiled with this file, too.
#ifndef DNNOPS_CUDNN_ACTIVATION_GRAD_PARAMS_HPP
#define DNNOPS_CUDNN_ACTIVATION_GRAD_PARAMS_HPP

struct ActivationGradParams {
  const void *x, *gy;
  void *gx;  // may be gy
  long long count;
  double coef;
};

#endif
