// Max pooling of images with any strides. cuDNN's maximum of numbers that are all -infinity is the lowest finite one.
//
// Macros: DTYPE, as in numbers.cuh; INDEX, an unsigned type that holds the number of threads; CHANNELS_LAST, the order
// of the result; WINDOW_0 to WINDOW_2, the windows' sizes, or 0 if they vary; LANES, 1, or 32 for large windows: the
// number of threads that share one.

constexpr int THREADS = 256;

struct Range {
  int begin, end;
};

// The part of a window inside the image.
DEVICE Range pixels_of(const PoolWindowsAxis &axis, INDEX window) {
  const int begin = (int)window * axis.stride - axis.pad;
  return {max(begin, 0), min(begin + axis.window, axis.image)};
}

// A NaN counts as the maximum.
DEVICE Acc larger(Acc a, Acc b) { return !(a <= b) && b == b ? a : b; }

DEVICE INDEX take(INDEX &index, INDEX size) {
  const INDEX rest = index / size, at = index - rest * size;
  index = rest;
  return at;
}

KERNEL void __launch_bounds__(THREADS) max_pool_windows(const GRID_CONSTANT PoolWindowsParams p) {
  wait_for_stream();
  const INDEX place = ((INDEX)blockIdx.x * THREADS + threadIdx.x) / LANES;
  if (place >= p.count) return;
  INDEX rest = place, channel = 0;
  if (CHANNELS_LAST) channel = take(rest, (INDEX)p.channels);
  Range pixels[3];
  UNROLL
  for (int axis = 2; axis >= 0; --axis)
    pixels[axis] = pixels_of(p.axes[axis], p.axes[axis].top == 1 ? 0 : take(rest, (INDEX)p.axes[axis].top));
  if (!CHANNELS_LAST) channel = take(rest, (INDEX)p.channels);
  const Bits *x = static_cast<const Bits *>(p.x) + (long long)rest * p.image_step + (long long)channel * p.channel_step;
  const auto read = [&](int i, int j, int k) {
    return to_acc(__ldg(x + i * p.axes[0].step + j * p.axes[1].step + k * p.axes[2].step));
  };

  Acc best = -(Acc)INFINITY;
  if constexpr (LANES > 1) {
    const int lane = (int)(threadIdx.x % LANES);
    const unsigned columns = pixels[2].end - pixels[2].begin, rows = pixels[1].end - pixels[1].begin;
    const unsigned count = (pixels[0].end - pixels[0].begin) * rows * columns;
    for (unsigned e = lane; e < count; e += LANES) {
      const unsigned row = e / columns, plane = row / rows;
      best = larger(read(pixels[0].begin + plane, pixels[1].begin + row % rows, pixels[2].begin + e % columns), best);
    }
    for (int apart = LANES / 2; apart; apart /= 2) best = larger(__shfl_xor_sync(~0u, best, apart), best);
    if (lane) return;
  } else if constexpr (WINDOW_0) {
    // Instead of a pixel outside the image, the last one inside is read again, so that there is no branch.
    UNROLL
    for (int i = 0; i < WINDOW_0; ++i) {
      UNROLL
      for (int j = 0; j < WINDOW_1; ++j) {
        UNROLL
        for (int k = 0; k < WINDOW_2; ++k)
          best = larger(read(min(pixels[0].begin + i, pixels[0].end - 1), min(pixels[1].begin + j, pixels[1].end - 1),
                             min(pixels[2].begin + k, pixels[2].end - 1)),
                        best);
      }
    }
  } else {
    for (int i = pixels[0].begin; i < pixels[0].end; ++i)
      for (int j = pixels[1].begin; j < pixels[1].end; ++j)
        for (int k = pixels[2].begin; k < pixels[2].end; ++k) best = larger(read(i, j, k), best);
  }
  static_cast<Bits *>(p.result)[place] = from_acc(best);
}

// The windows that contain a pixel.
DEVICE Range windows_of(const PoolWindowsAxis &axis, int pixel) {
  const int at = pixel + axis.pad;
  return {at < axis.window ? 0 : (at - axis.window) / axis.stride + 1, min(at / axis.stride + 1, axis.top)};
}

DEVICE bool is_same(Acc a, Acc b) { return a == b || (a != a && b != b); }

// The gradient for dense channels-last arrays, which cuDNN leaves out for windows of -infinity. A pixel that equals the
// maximum of a window gets its gradient unless an earlier one does. It is added to the result if ADDS.
KERNEL void __launch_bounds__(THREADS) max_pool_windows_grad(const GRID_CONSTANT PoolWindowsParams p) {
  wait_for_stream();
  const INDEX place = (INDEX)blockIdx.x * THREADS + threadIdx.x;
  if (place >= p.count) return;
  INDEX rest = place;
  const INDEX channel = take(rest, (INDEX)p.channels);
  int pixel[3];
  Range windows[3];
  UNROLL
  for (int axis = 2; axis >= 0; --axis) {
    pixel[axis] = (int)take(rest, (INDEX)p.axes[axis].image);
    windows[axis] = windows_of(p.axes[axis], pixel[axis]);
  }
  const Bits *const pooled = static_cast<const Bits *>(p.pooled), *const gz = static_cast<const Bits *>(p.gz);
  const Bits *const x = static_cast<const Bits *>(p.x) + (long long)rest * p.image_step + (long long)channel;
  const auto read = [&](int i, int j, int k) {
    return to_acc(__ldg(x + i * p.axes[0].step + j * p.axes[1].step + k * p.axes[2].step));
  };
  const Acc own = read(pixel[0], pixel[1], pixel[2]);
  // Whether no earlier pixel of the window is its maximum, too.
  const auto is_first = [&](const Range &depth, const Range &height, const Range &width) {
    for (int i = depth.begin; i <= pixel[0]; ++i) {
      const bool is_plane = i == pixel[0];
      for (int j = height.begin; j < (is_plane ? pixel[1] + 1 : height.end); ++j) {
        const bool is_row = is_plane && j == pixel[1];
        for (int k = width.begin; k < (is_row ? pixel[2] : width.end); ++k)
          if (is_same(read(i, j, k), own)) return false;
      }
    }
    return true;
  };
  Bits *const result = static_cast<Bits *>(p.result) + place;
  Acc sum = ADDS ? to_acc(*result) : 0;
  for (int i = windows[0].begin; i < windows[0].end; ++i)
    for (int j = windows[1].begin; j < windows[1].end; ++j)
      for (int k = windows[2].begin; k < windows[2].end; ++k) {
        const long long window = (((long long)rest * p.axes[0].top + i) * p.axes[1].top + j) * p.axes[2].top + k;
        const long long at = window * (long long)p.channels + (long long)channel;
        if (is_same(to_acc(__ldg(pooled + at)), own) &&
            is_first(pixels_of(p.axes[0], i), pixels_of(p.axes[1], j), pixels_of(p.axes[2], k)))
          sum += to_acc(__ldg(gz + at));
      }
  *result = from_acc(sum);
}
