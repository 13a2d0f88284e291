// The functions of cuDNN's legacy API that are called here.
//
// NVIDIA has deprecated them, and newer releases may drop them from the header and the library. So they are
// declared here with opaque descriptors and looked up when the library is loaded. A missing function is a
// null pointer, and only Ops that need it raise an error.
#ifndef DNNOPS_CUDNN_LEGACY_HPP
#define DNNOPS_CUDNN_LEGACY_HPP

#include "check.hpp"

namespace dnnops {
namespace legacy {

using Handle = cudnnHandle_t;
using Descriptor = void *;

// X(name, parameters)
#define DNNOPS_LEGACY_FUNCTIONS(X)                                                                                   \
  X(cudnnCreateTensorDescriptor, (Descriptor *))                                                                     \
  X(cudnnDestroyTensorDescriptor, (Descriptor))                                                                      \
  X(cudnnSetTensorNdDescriptor, (Descriptor, int dtype, int ndim, const int *shape, const int *strides))             \
  X(cudnnScaleTensor, (Handle, Descriptor, void *, const void *alpha))                                               \
  X(cudnnCreateFilterDescriptor, (Descriptor *))                                                                     \
  X(cudnnDestroyFilterDescriptor, (Descriptor))                                                                      \
  X(cudnnSetFilterNdDescriptor, (Descriptor, int dtype, int format, int ndim, const int *shape))                     \
  X(cudnnCreateConvolutionDescriptor, (Descriptor *))                                                                \
  X(cudnnDestroyConvolutionDescriptor, (Descriptor))                                                                 \
  X(cudnnSetConvolutionNdDescriptor,                                                                                 \
    (Descriptor, int ndim, const int *pad, const int *stride, const int *dilation, int mode, int compute))           \
  X(cudnnSetConvolutionGroupCount, (Descriptor, int))                                                                \
  X(cudnnSetConvolutionMathType, (Descriptor, int))                                                                  \
  X(cudnnGetConvolutionNdForwardOutputDim, (Descriptor conv, Descriptor x, Descriptor w, int ndim, int *shape))      \
  X(cudnnGetConvolutionForwardWorkspaceSize,                                                                         \
    (Handle, Descriptor x, Descriptor w, Descriptor conv, Descriptor y, int algo, size_t *))                         \
  X(cudnnConvolutionForward,                                                                                         \
    (Handle, const void *alpha, Descriptor, const void *x, Descriptor, const void *w, Descriptor conv, int algo,     \
     void *workspace, size_t, const void *beta, Descriptor, void *y))                                                \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize,                                                                    \
    (Handle, Descriptor w, Descriptor dy, Descriptor conv, Descriptor dx, int algo, size_t *))                       \
  X(cudnnConvolutionBackwardData,                                                                                    \
    (Handle, const void *alpha, Descriptor, const void *w, Descriptor, const void *dy, Descriptor conv, int algo,    \
     void *workspace, size_t, const void *beta, Descriptor, void *dx))                                               \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize,                                                                  \
    (Handle, Descriptor x, Descriptor dy, Descriptor conv, Descriptor dw, int algo, size_t *))                       \
  X(cudnnConvolutionBackwardFilter,                                                                                  \
    (Handle, const void *alpha, Descriptor, const void *x, Descriptor, const void *dy, Descriptor conv, int algo,    \
     void *workspace, size_t, const void *beta, Descriptor, void *dw))                                               \
  X(cudnnCreatePoolingDescriptor, (Descriptor *))                                                                    \
  X(cudnnDestroyPoolingDescriptor, (Descriptor))                                                                     \
  X(cudnnSetPoolingNdDescriptor,                                                                                     \
    (Descriptor, int mode, int nan, int ndim, const int *window, const int *pad, const int *stride))                 \
  X(cudnnPoolingForward,                                                                                             \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor, void *y))       \
  X(cudnnPoolingBackward,                                                                                            \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *y, Descriptor, const void *dy, Descriptor,       \
     const void *x, const void *beta, Descriptor, void *dx))                                                         \
  X(cudnnSoftmaxForward,                                                                                             \
    (Handle, int algo, int mode, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor,         \
     void *y))                                                                                                       \
  X(cudnnSoftmaxBackward,                                                                                            \
    (Handle, int algo, int mode, const void *alpha, Descriptor, const void *y, Descriptor, const void *dy,           \
     const void *beta, Descriptor, void *dx))                                                                        \
  X(cudnnCreateCTCLossDescriptor, (Descriptor *))                                                                    \
  X(cudnnDestroyCTCLossDescriptor, (Descriptor))                                                                     \
  X(cudnnSetCTCLossDescriptor_v8, (Descriptor, int dtype, int normalization, int nan, int longest_label))            \
  X(cudnnSetCTCLossDescriptor_v9, (Descriptor, int dtype, int normalization, int out_of_bounds, int longest_label))  \
  X(cudnnGetCTCLossWorkspaceSize_v8,                                                                                 \
    (Handle, int algo, Descriptor, Descriptor x, Descriptor dx, size_t *))                                           \
  X(cudnnCTCLoss_v8,                                                                                                 \
    (Handle, int algo, Descriptor, Descriptor, const void *x, const int *labels, const int *label_lengths,           \
     const int *input_lengths, void *costs, Descriptor, void *dx, size_t, void *workspace))                          \
  X(cudnnCreateSpatialTransformerDescriptor, (Descriptor *))                                                         \
  X(cudnnDestroySpatialTransformerDescriptor, (Descriptor))                                                          \
  X(cudnnSetSpatialTransformerNdDescriptor, (Descriptor, int sampler, int dtype, int ndim, const int *shape))        \
  X(cudnnSpatialTfGridGeneratorForward, (Handle, Descriptor, const void *theta, void *grid))                         \
  X(cudnnSpatialTfGridGeneratorBackward, (Handle, Descriptor, const void *dgrid, void *dtheta))                      \
  X(cudnnSpatialTfSamplerForward,                                                                                    \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *x, const void *grid, const void *beta,           \
     Descriptor, void *y))                                                                                           \
  X(cudnnSpatialTfSamplerBackward,                                                                                   \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor, void *dx,       \
     const void *alpha_grid, Descriptor, const void *dy, const void *grid, const void *beta_grid, void *dgrid))      \
  X(cudnnCreateLRNDescriptor, (Descriptor *))                                                                        \
  X(cudnnDestroyLRNDescriptor, (Descriptor))                                                                         \
  X(cudnnSetLRNDescriptor, (Descriptor, unsigned n, double alpha, double beta, double k))                            \
  X(cudnnLRNCrossChannelForward,                                                                                     \
    (Handle, Descriptor, int mode, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor,       \
     void *y))                                                                                                       \
  X(cudnnLRNCrossChannelBackward,                                                                                    \
    (Handle, Descriptor, int mode, const void *alpha, Descriptor, const void *y, Descriptor, const void *dy,         \
     Descriptor, const void *x, const void *beta, Descriptor, void *dx))                                             \
  X(cudnnDivisiveNormalizationForward,                                                                               \
    (Handle, Descriptor, int mode, const void *alpha, Descriptor, const void *x, const void *means, void *temp,      \
     void *temp2, const void *beta, Descriptor, void *y))                                                            \
  X(cudnnDivisiveNormalizationBackward,                                                                              \
    (Handle, Descriptor, int mode, const void *alpha, Descriptor, const void *x, const void *means, const void *dy,  \
     void *temp, void *temp2, const void *beta, Descriptor, void *dx, void *dmeans))                                 \
  X(cudnnSetTensor, (Handle, Descriptor, void *y, const void *value))                                                \
  X(cudnnAddTensor, (Handle, const void *alpha, Descriptor, const void *a, const void *beta, Descriptor, void *c))   \
  X(cudnnTransformTensor,                                                                                            \
    (Handle, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor, void *y))                   \
  X(cudnnCreateReduceTensorDescriptor, (Descriptor *))                                                               \
  X(cudnnDestroyReduceTensorDescriptor, (Descriptor))                                                                \
  X(cudnnSetReduceTensorDescriptor, (Descriptor, int op, int compute, int nan, int indices, int indices_type))       \
  X(cudnnGetReductionIndicesSize, (Handle, Descriptor, Descriptor a, Descriptor c, size_t *))                        \
  X(cudnnGetReductionWorkspaceSize, (Handle, Descriptor, Descriptor a, Descriptor c, size_t *))                      \
  X(cudnnReduceTensor,                                                                                               \
    (Handle, Descriptor, void *indices, size_t, void *workspace, size_t, const void *alpha, Descriptor,              \
     const void *a, const void *beta, Descriptor, void *c))                                                          \
  X(cudnnCreateActivationDescriptor, (Descriptor *))                                                                 \
  X(cudnnDestroyActivationDescriptor, (Descriptor))                                                                  \
  X(cudnnSetActivationDescriptor, (Descriptor, int mode, int nan, double coef))                                      \
  X(cudnnSetActivationDescriptorSwishBeta, (Descriptor, double beta))                                                \
  X(cudnnActivationForward,                                                                                          \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *x, const void *beta, Descriptor, void *y))       \
  X(cudnnActivationBackward,                                                                                         \
    (Handle, Descriptor, const void *alpha, Descriptor, const void *y, Descriptor, const void *dy, Descriptor,       \
     const void *x, const void *beta, Descriptor, void *dx))

#define DNNOPS_DECLARE(name, parameters) extern cudnnStatus_t(*const name) parameters;
DNNOPS_LEGACY_FUNCTIONS(DNNOPS_DECLARE)
#undef DNNOPS_DECLARE

// Throws for a function that this version of cuDNN lacks.
[[noreturn]] void fail_missing(const char *name);

template <class Function>
Function require(Function function, const char *name) {
  if (!function) fail_missing(name);
  return function;
}

}  // namespace legacy

// Checks that a legacy function exists, calls it, and checks its status.
#define DNNOPS_LEGACY(name, ...) \
  ::dnnops::check(::dnnops::legacy::require(::dnnops::legacy::name, #name)(__VA_ARGS__), #name "(" #__VA_ARGS__ ")")

}  // namespace dnnops
#endif
