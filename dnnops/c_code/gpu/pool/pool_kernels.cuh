// The poolings that cuDNN does not support. dnnops/gpu/pool_kernels.py compiles this with CuPy, and a test
// compiles it for the host, where DEVICE is empty and __CUDACC_RTC__ is not defined.
//
// There are three spatial axes; unused ones have length 1. T is the type of the arrays, C the type for computation.
#ifdef __CUDACC_RTC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define DEVICE __device__ inline
#else
#define DEVICE inline
#endif

struct Geometry { long long image[3], top[3], window[3], stride[3], pad[3]; };

// The part of a window inside the image, along one axis.
DEVICE void inside(const Geometry &g, int axis, long long at, long long *begin, long long *end) {
  *begin = at * g.stride[axis] - g.pad[axis];
  *end = *begin + g.window[axis];
  if (*begin < 0) *begin = 0;
  if (*end > g.image[axis]) *end = g.image[axis];
}

// The windows that contain a pixel, along one axis.
DEVICE void windows_of(const Geometry &g, int axis, long long pixel, long long *begin, long long *end) {
  const long long at = pixel + g.pad[axis];
  *begin = at < g.window[axis] ? 0 : (at - g.window[axis]) / g.stride[axis] + 1;
  *end = at / g.stride[axis] + 1;
  if (*end > g.top[axis]) *end = g.top[axis];
}

// The divisor of a window's sum. Mode: 0 max, 1 sum, 2 average_inc_pad, 3 average_exc_pad.
DEVICE long long divisor(const Geometry &g, int mode, const long long *begin, const long long *end) {
  long long whole = 1, part = 1;
  bool padded = false;
  for (int axis = 0; axis < 3; ++axis) {
    whole *= g.window[axis];
    part *= end[axis] - begin[axis];
    padded = padded || g.pad[axis];
  }
  return mode == 1 ? 1 : (mode == 2 && padded) ? whole : part;
}

// The place of a window's first maximum in the image of one channel. A NaN counts as the maximum.
template <class T, class C>
DEVICE long long first_maximum(const Geometry &g, const T *image, const long long *begin, const long long *end) {
  long long best = -1;
  C value = 0;
  for (long long i = begin[0]; i < end[0]; ++i)
    for (long long j = begin[1]; j < end[1]; ++j)
      for (long long k = begin[2]; k < end[2]; ++k) {
        const long long place = (i * g.image[1] + j) * g.image[2] + k;
        const C candidate = C(image[place]);
        if (best < 0 || candidate > value || (candidate != candidate && value == value)) {
          best = place;
          value = candidate;
        }
      }
  return best;
}

DEVICE void split(long long index, const long long *shape, long long *channel, long long *at) {
  for (int axis = 2; axis >= 0; --axis) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  *channel = index;
}

template <class T, class C>
DEVICE void pool(const Geometry &g, int mode, const T *x, T *out, long long index) {
  long long channel, at[3], begin[3], end[3];
  split(index, g.top, &channel, at);
  for (int axis = 0; axis < 3; ++axis) inside(g, axis, at[axis], &begin[axis], &end[axis]);
  const T *image = x + channel * g.image[0] * g.image[1] * g.image[2];
  if (mode == 0) {
    out[index] = image[first_maximum<T, C>(g, image, begin, end)];
    return;
  }
  C sum = 0;
  for (long long i = begin[0]; i < end[0]; ++i)
    for (long long j = begin[1]; j < end[1]; ++j)
      for (long long k = begin[2]; k < end[2]; ++k) sum += C(image[(i * g.image[1] + j) * g.image[2] + k]);
  out[index] = T(sum / C(divisor(g, mode, begin, end)));
}

template <class T, class C>
DEVICE void pool_grad(const Geometry &g, int mode, const T *x, const T *gz, T *out, long long index) {
  long long channel, at[3], first[3], last[3], begin[3], end[3];
  split(index, g.image, &channel, at);
  for (int axis = 0; axis < 3; ++axis) windows_of(g, axis, at[axis], &first[axis], &last[axis]);
  const T *image = x + channel * g.image[0] * g.image[1] * g.image[2];
  const T *top = gz + channel * g.top[0] * g.top[1] * g.top[2];
  const long long place = (at[0] * g.image[1] + at[1]) * g.image[2] + at[2];
  C sum = 0;
  for (long long i = first[0]; i < last[0]; ++i)
    for (long long j = first[1]; j < last[1]; ++j)
      for (long long k = first[2]; k < last[2]; ++k) {
        inside(g, 0, i, &begin[0], &end[0]);
        inside(g, 1, j, &begin[1], &end[1]);
        inside(g, 2, k, &begin[2], &end[2]);
        const C share = C(top[(i * g.top[1] + j) * g.top[2] + k]);
        if (mode)
          sum += share / C(divisor(g, mode, begin, end));
        else if (first_maximum<T, C>(g, image, begin, end) == place)
          sum += share;
      }
  out[index] = T(sum);
}

template <class T, class C>
DEVICE void max_pool_grad_grad(const Geometry &g, const T *x, const T *ggx, T *out, long long index) {
  long long channel, at[3], begin[3], end[3];
  split(index, g.top, &channel, at);
  for (int axis = 0; axis < 3; ++axis) inside(g, axis, at[axis], &begin[axis], &end[axis]);
  const long long offset = channel * g.image[0] * g.image[1] * g.image[2];
  out[index] = ggx[offset + first_maximum<T, C>(g, x + offset, begin, end)];
}

#ifdef __CUDACC_RTC__
__device__ inline long long thread_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

template <class T, class C>
__global__ void pool_kernel(Geometry g, int mode, const T *x, T *out, long long count) {
  const long long index = thread_index();
  if (index < count) pool<T, C>(g, mode, x, out, index);
}
template <class T, class C>
__global__ void pool_grad_kernel(Geometry g, int mode, const T *x, const T *gz, T *out, long long count) {
  const long long index = thread_index();
  if (index < count) pool_grad<T, C>(g, mode, x, gz, out, index);
}
template <class T, class C>
__global__ void max_pool_grad_grad_kernel(Geometry g, const T *x, const T *ggx, T *out, long long count) {
  const long long index = thread_index();
  if (index < count) max_pool_grad_grad<T, C>(g, x, ggx, out, index);
}
#endif
