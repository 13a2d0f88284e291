// A pooling as both libraries see it: its checked sizes and the shape of its output.
#ifndef DNNOPS_POOL_PROBLEM_HPP
#define DNNOPS_POOL_PROBLEM_HPP

#include <algorithm>
#include <cstring>

#include "error.hpp"

namespace dnnops {

enum PoolMode : int64_t { POOL_MAX = 0, POOL_SUM = 1, POOL_AVERAGE_INC_PAD = 2, POOL_AVERAGE_EXC_PAD = 3 };

// The largest window, stride or padding: MAX_WINDOW in dnnops/nnet/pool/geometry.py.
constexpr int64_t LARGEST_WINDOW = int64_t(1) << 26;

// Only 8-byte fields and no padding, because the struct is part of cache keys.
struct PoolProblem {
  int64_t spatial_ndim, mode, ignore_border;
  int64_t image[5], top[5];
  int64_t window[3], stride[3], pad[3];
};

struct PoolWords {
  int64_t spatial_ndim, mode, ignore_border;
};

// vectors: window, stride and pad.
inline PoolProblem pool_problem(const PoolWords &words, const dnnops_tensor &image, const dnnops_tensor *vectors) {
  PoolProblem problem;
  std::memset(&problem, 0, sizeof problem);
  const int64_t spatial = problem.spatial_ndim = words.spatial_ndim;
  problem.mode = words.mode;
  problem.ignore_border = words.ignore_border;
  if (image.ndim != spatial + 2)
    fail(DNNOPS_TYPE_ERROR, "expected an array of %lld dimensions", (long long)(spatial + 2));
  std::memcpy(problem.image, image.shape, (spatial + 2) * sizeof(int64_t));
  int64_t *targets[] = {problem.window, problem.stride, problem.pad};
  const char *names[] = {"ws", "stride", "pad"};
  for (int which = 0; which < 3; ++which) {
    read_vector(names[which], vectors[which], spatial, targets[which]);
    for (int64_t i = 0; i < spatial; ++i)
      if (targets[which][i] < (which == 2 ? 0 : 1) || targets[which][i] > LARGEST_WINDOW)
        fail(DNNOPS_VALUE_ERROR, "%s has to be %s and at most %lld, got %s", names[which],
             which == 2 ? "at least 0" : "positive", (long long)LARGEST_WINDOW, list_of(targets[which], spatial).c_str());
  }
  std::copy(problem.image, problem.image + 2, problem.top);
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t size = problem.image[2 + i], ws = problem.window[i], st = problem.stride[i], padding = problem.pad[i];
    if (size < 1) fail(DNNOPS_VALUE_ERROR, "spatial axis %lld of the image is empty", (long long)i);
    if (padding >= ws)
      fail(DNNOPS_VALUE_ERROR, "pad %lld has to be smaller than ws %lld on spatial axis %lld", (long long)padding,
           (long long)ws, (long long)i);
    if (padding && !problem.ignore_border)
      fail(DNNOPS_VALUE_ERROR, "padding needs ignore_border=True");
    if (problem.ignore_border) {
      // If the window is larger than the padded image, the output is empty, as in Theano.
      const int64_t room = size + 2 * padding - ws;
      problem.top[2 + i] = room < 0 ? 0 : room / st + 1;
    } else if (st >= ws) {
      problem.top[2 + i] = (size - 1) / st + 1;
    } else {
      problem.top[2 + i] = std::max<int64_t>(0, (size - 1 - ws + st) / st) + 1;
    }
  }
  return problem;
}

}  // namespace dnnops
#endif
