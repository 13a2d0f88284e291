// The poolings that cuDNN does not support. dnnops/gpu/pool_kernels.py divides their results into tiles, one for each
// block of threads.
//
// Macros: DTYPE, as in numbers.cuh; AXES, the number of spatial axes; WINDOW, the size of the windows along each axis,
// or 0 if it varies; OFFSET, the type of offsets in arrays; CHUNKED, whether more than WINDOWS windows overlap a tile.

using Offset = OFFSET;

constexpr int THREADS = 256;
// At most this many windows of a tile are in shared memory at once.
constexpr int WINDOWS = 2048;
// The length of a tile along a spatial axis. Its product over the axes is at most 4096.
constexpr int LENGTH = 128;

// A number of items along an axis, and 2**31 / number + 1.
struct Extent {
  long long number, multiplier;
};

// The first axis is that of the channels of all images: for each, a window of one pixel.
struct Axis {
  long long image, top, window, stride, pad;
  Extent tile;      // pixels or, if the result is a pooled image, windows
  long long tiles;
  Extent windows;   // at most this many overlap a tile of pixels
};

struct pool_launch {
  const Bits *x, *other;
  Bits *result;
  double divisor;  // of sums; 0 is the number of pixels that the window has inside the image
  Axis axes[1 + AXES];
};

// Along one axis, some pixels or windows. Aligned, so that one instruction loads it.
struct alignas(2 * sizeof(Offset)) Range {
  Offset begin, end;
};

// The part of a window inside the image. All windows begin before its end, and end after its beginning.
DEVICE Range pixels_of(const Axis &axis, Offset window) {
  const Offset size = WINDOW ? WINDOW : (Offset)axis.window;
  const Offset begin = window * (Offset)axis.stride - (Offset)axis.pad, end = begin + size;
  return {max(begin, (Offset)0), min(end, (Offset)axis.image)};
}

// The windows that contain a pixel.
DEVICE Range windows_of(const Axis &axis, Offset pixel) {
  const Offset size = WINDOW ? WINDOW : (Offset)axis.window, stride = axis.stride;
  const Offset at = pixel + (Offset)axis.pad;
  return {at < size ? 0 : (at - size) / stride + 1, min(at / stride + 1, (Offset)axis.top)};
}

// Unless the tile is chunked, no number is larger than 4096, for which the product is exact enough.
template <bool IS_SMALL>
DEVICE Offset quotient(Offset dividend, const Extent &by) {
  if (!IS_SMALL) return dividend / (Offset)by.number;
  return (Offset)(wide_product((unsigned)dividend, (unsigned)by.multiplier) >> 31);
}

// Divides the index of an item of a tile into coordinates.
template <Extent Axis::*EXTENT, bool IS_SMALL = true>
DEVICE void split(const pool_launch &p, Offset index, Offset *at) {
  UNROLL
  for (int axis = AXES; axis > 0; --axis) {
    const Extent &extent = p.axes[axis].*EXTENT;
    const Offset rest = quotient<IS_SMALL>(index, extent);
    at[axis] = index - rest * (Offset)extent.number;
    index = rest;
  }
  at[0] = index;
}

// The coordinates of the first item of this block's tile.
DEVICE void find_tile(const pool_launch &p, Offset *at) {
  unsigned block = blockIdx.x;
  UNROLL
  for (int axis = AXES; axis >= 0; --axis) {
    const unsigned tiles = (unsigned)p.axes[axis].tiles, rest = axis ? block / tiles : 0;
    at[axis] = (Offset)(block - rest * tiles) * (Offset)p.axes[axis].tile.number;
    block = rest;
  }
}

template <long long Axis::*SIZE>
DEVICE bool contains(const pool_launch &p, const Offset *at) {
  bool is_inside = true;
  UNROLL
  for (int axis = 0; axis <= AXES; ++axis) is_inside = is_inside && at[axis] < (Offset)(p.axes[axis].*SIZE);
  return is_inside;
}

template <long long Axis::*SIZE>
DEVICE Offset offset_of(const pool_launch &p, const Offset *at) {
  Offset offset = at[0];
  UNROLL
  for (int axis = 1; axis <= AXES; ++axis) offset = offset * (Offset)(p.axes[axis].*SIZE) + at[axis];
  return offset;
}

// -- one window --------------------------------------------------------------------------------------------------------

struct Window {
  Range pixels[1 + AXES];

  DEVICE Window(const pool_launch &p, const Offset *at) {
    pixels[0] = {at[0], at[0] + 1};
    UNROLL
    for (int axis = 1; axis <= AXES; ++axis) pixels[axis] = pixels_of(p.axes[axis], at[axis]);
  }

  DEVICE Offset first_pixel(const pool_launch &p) const {
    Offset at[1 + AXES];
    UNROLL
    for (int axis = 0; axis <= AXES; ++axis) at[axis] = pixels[axis].begin;
    return offset_of<&Axis::image>(p, at);
  }

  // Calls a function with the offset of each pixel, in C order. If the compiler knows the size of the windows, there
  // is no branch: instead of a pixel outside the image, the function gets the last one inside, and false.
  template <int AXIS = 1, class Visit>
  DEVICE void each_pixel(const pool_launch &p, Visit visit, Offset before, bool is_inside = true) const {
    if constexpr (AXIS > AXES) {
      visit(before, is_inside);
    } else {
      const Offset begin = pixels[AXIS].begin, end = pixels[AXIS].end;
      const Offset steps = WINDOW ? WINDOW : end - begin;
      constexpr int AT_ONCE = WINDOW ? WINDOW : AXIS == AXES ? 4 : 1;
      UNROLL_BY(AT_ONCE)
      for (Offset i = 0; i < steps; ++i) {
        const Offset at = WINDOW && i ? min(begin + i, end - 1) : begin + i;
        each_pixel<AXIS + 1>(p, visit, before * (Offset)p.axes[AXIS].image + at,
                             is_inside && (!WINDOW || begin + i < end));
      }
    }
  }
};

struct Maximum {
  Offset place;
  Bits bits;
};

// A NaN counts as the maximum. A pixel that each_pixel() repeats changes nothing.
DEVICE Maximum first_maximum(const pool_launch &p, const Window &window) {
  Maximum best = {window.first_pixel(p), 0};
  best.bits = __ldg(p.x + best.place);
  Acc value = to_acc(best.bits);
  window.each_pixel(
      p,
      [&](Offset place, bool) {
        const Bits bits = __ldg(p.x + place);
        const Acc candidate = to_acc(bits);
        if (!(candidate <= value) && value == value) {
          best = {place, bits};
          value = candidate;
        }
      },
      window.pixels[0].begin);
  return best;
}

DEVICE Acc divisor_of(const pool_launch &p, const Window &window) {
  Offset inside = 1;
  UNROLL
  for (int axis = 1; axis <= AXES; ++axis) inside *= window.pixels[axis].end - window.pixels[axis].begin;
  return p.divisor != 0 ? (Acc)p.divisor : (Acc)inside;
}

// -- pooled images -----------------------------------------------------------------------------------------------------

// Calls a function with the window and the place of each element that this thread computes.
template <class Compute>
DEVICE void each_window(const pool_launch &p, Compute compute) {
  Offset origin[1 + AXES], at[1 + AXES];
  find_tile(p, origin);
  int items = 1;
  for (int axis = 0; axis <= AXES; ++axis) items *= (int)p.axes[axis].tile.number;
  for (int item = (int)threadIdx.x; item < items; item += THREADS) {
    split<&Axis::tile>(p, item, at);
    UNROLL
    for (int axis = 0; axis <= AXES; ++axis) at[axis] += origin[axis];
    if (contains<&Axis::top>(p, at)) compute(Window(p, at), offset_of<&Axis::top>(p, at));
  }
}

KERNEL void __launch_bounds__(THREADS) max_pool(const GRID_CONSTANT pool_launch p) {
  each_window(p, [&](const Window &window, Offset place) { p.result[place] = first_maximum(p, window).bits; });
}

KERNEL void __launch_bounds__(THREADS) average_pool(const GRID_CONSTANT pool_launch p) {
  each_window(p, [&](const Window &window, Offset place) {
    Acc sum = 0;
    window.each_pixel(
        p, [&](Offset pixel, bool is_inside) { sum += is_inside ? to_acc(__ldg(p.x + pixel)) : 0; },
        window.pixels[0].begin);
    p.result[place] = from_acc(sum / divisor_of(p, window));
  });
}

// The element of `other`, an array like x, at the maximum of each window.
KERNEL void __launch_bounds__(THREADS) max_pool_grad_grad(const GRID_CONSTANT pool_launch p) {
  each_window(p, [&](const Window &window, Offset place) {
    p.result[place] = __ldg(p.other + first_maximum(p, window).place);
  });
}

// -- gradients ---------------------------------------------------------------------------------------------------------

// Calls a function with the index of each window in some ranges along the axes, in C order.
template <int AXIS = 1, class Visit>
DEVICE void each_index(const pool_launch &p, const Range *windows, Visit visit, Offset before) {
  if constexpr (AXIS > AXES) {
    visit(before);
  } else {
    const Offset row = before * (Offset)p.axes[AXIS].windows.number;
    NO_UNROLL
    for (Offset i = windows[AXIS].begin; i < windows[AXIS].end; ++i)
      each_index<AXIS + 1>(p, windows, visit, row + i);
  }
}

// `other` is the gradient with respect to the pooled image. Each window of the tile is visited once, for what it adds
// to a pixel, and for its maximum; then each pixel collects from its windows in C order, so that results are identical
// in every run. A chunked tile has at most one pixel for each thread.
template <bool IS_MAX>
DEVICE void pool_grad(const pool_launch &p) {
  __shared__ Acc shares[WINDOWS];
  __shared__ Offset maxima[IS_MAX ? WINDOWS : 1];
  __shared__ Range windows_at[1 + AXES][LENGTH];  // of each coordinate in the tile, counted from the first window

  const int thread = (int)threadIdx.x;
  Offset origin[1 + AXES], first[1 + AXES], at[1 + AXES];
  find_tile(p, origin);
  first[0] = origin[0];
  int pixels = (int)p.axes[0].tile.number;
  Offset windows = p.axes[0].windows.number;
  UNROLL
  for (int axis = 1; axis <= AXES; ++axis) {
    const Axis &a = p.axes[axis];
    first[axis] = windows_of(a, origin[axis]).begin;
    for (int i = thread; i < (int)a.tile.number; i += THREADS) {
      const Range range = windows_of(a, origin[axis] + i);
      windows_at[axis][i] = {range.begin - first[axis], range.end - first[axis]};
    }
    pixels *= (int)a.tile.number;
    windows *= (Offset)a.windows.number;
  }

  Acc sum = 0;
  for (Offset begin = 0;; begin += WINDOWS) {
    const Offset rest = windows - begin;
    const int count = CHUNKED && rest > WINDOWS ? WINDOWS : (int)rest;
    for (int item = thread; item < count; item += THREADS) {
      split<&Axis::windows, !CHUNKED>(p, begin + item, at);
      UNROLL
      for (int axis = 0; axis <= AXES; ++axis) at[axis] += first[axis];
      if (!contains<&Axis::top>(p, at)) continue;
      const Window window(p, at);
      const Acc share = to_acc(__ldg(p.other + offset_of<&Axis::top>(p, at)));
      shares[item] = IS_MAX ? share : share / divisor_of(p, window);
      if (IS_MAX) maxima[item] = first_maximum(p, window).place;
    }
    __syncthreads();

    const bool is_last = !CHUNKED || rest <= WINDOWS;
    for (int item = thread; item < pixels; item += THREADS) {
      split<&Axis::tile>(p, item, at);
      Range ranges[1 + AXES];
      UNROLL
      for (int axis = 1; axis <= AXES; ++axis) ranges[axis] = windows_at[axis][at[axis]];
      const Offset channel = at[0];
      UNROLL
      for (int axis = 0; axis <= AXES; ++axis) at[axis] += origin[axis];
      if (!contains<&Axis::image>(p, at)) continue;
      const Offset place = offset_of<&Axis::image>(p, at);
      if (!CHUNKED) sum = 0;
      each_index(
          p, ranges,
          [&](Offset index) {
            if (CHUNKED) index -= begin;
            if (CHUNKED && (index < 0 || index >= count)) return;
            // Adding zero changes no bit, since a sum that starts at 0 is never -0.
            sum += !IS_MAX || maxima[index] == place ? shares[index] : 0;
          },
          channel);
      if (is_last) p.result[place] = from_acc(sum);
    }
    if (is_last) break;
    __syncthreads();
  }
}

KERNEL void __launch_bounds__(THREADS) max_pool_grad(const GRID_CONSTANT pool_launch p) { pool_grad<true>(p); }

KERNEL void __launch_bounds__(THREADS) average_pool_grad(const GRID_CONSTANT pool_launch p) { pool_grad<false>(p); }
