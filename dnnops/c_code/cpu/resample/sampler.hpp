// The bilinear sampler and its gradients for a batch: operands, threads, and the selection of loops.
#ifndef DNNOPS_ONEDNN_SAMPLER_HPP
#define DNNOPS_ONEDNN_SAMPLER_HPP

#include <omp.h>

#include "sampler_loops.hpp"

namespace dnnops {

inline int64_t threads_for(int64_t elements) { return elements > 16384 ? thread_count() : 1; }

// -- threads -----------------------------------------------------------------------------------

// Calls body(n, slot, team) for each image. Each thread processes one image with its own slot; the images
// left over after whole rounds are processed by a team of all threads.
template <class Body>
void for_images(int64_t batch, int64_t threads, Body &&body) {
  const int64_t alone = batch / threads * threads;
#pragma omp parallel for if (threads > 1)
  for (int64_t n = 0; n < alone; ++n) body(n, omp_get_thread_num(), 1);
  for (int64_t n = alone; n < batch; ++n) body(n, 0, threads);
}

// Calls body(member, begin, end) for the part of a range that belongs to each member of a team.
template <class Body>
void share(int64_t count, int64_t team, Body &&body) {
#pragma omp parallel for if (team > 1)
  for (int64_t member = 0; member < team; ++member)
    body(member, count * member / team, count * (member + 1) / team);
}

// The number of channels from which looping over channels is faster than looping over points.
constexpr int64_t kSideBySide = 8;

// -- operands ----------------------------------------------------------------------------------

// Which axes are merged: (batch, channel, point) and (batch, point, coordinate).
constexpr int64_t kChannelsFirst[4] = {0, 1, 2, 4}, kCoordinatesLast[4] = {0, 1, 3, 4};

// The inputs with three axes each, in place or packed if they cannot be viewed so.
template <class T>
class Operands {
 public:
  explicit Operands(const dnnops_tensor *inputs, int count) : inputs_(inputs), count_(count) {
    for (int i = 0; i < count; ++i) {
      const int64_t *bounds = i == 1 ? kCoordinatesLast : kChannelsFirst;
      packed_[i] = !strided_view(bounds, inputs[i], views[i]);
      if (packed_[i]) views[i] = contiguous_view(bounds, inputs[i]);
    }
  }

  // Packs the inputs, with room for additional elements.
  void pack_all(int64_t room) {
    size_t bytes = 0;
    for (int i = 0; i < count_; ++i) bytes += packed_[i] ? size_of(inputs_[i]) : 0;
    char *next = thread_scratch(bytes + room * sizeof(T));
    for (int i = 0; i < count_; ++i) {
      data[i] = static_cast<const T *>(inputs_[i].data);
      if (!packed_[i]) continue;
      pack(inputs_[i], next, false);
      data[i] = reinterpret_cast<const T *>(next);
      next += size_of(inputs_[i]);
    }
    scratch = reinterpret_cast<T *>(next);
  }

  // One image.
  Pixels<const T> image(int64_t n) const {
    const int64_t *shape = inputs_[0].shape;
    const int64_t *strides = views[0].strides, step = strides[2];
    return {data[0] + n * strides[0], shape[1], shape[2], shape[3], strides[1], step * shape[3], step};
  }
  Points<T> points(int64_t n) const {
    return {data[1] + n * views[1].strides[0], views[1].strides[1], views[1].strides[2]};
  }
  Samples<const T> top(int64_t n) const {
    return {data[2] + n * views[2].strides[0], views[2].strides[1], views[2].strides[2]};
  }
  int64_t batch() const { return inputs_[0].shape[0]; }
  int64_t channels() const { return inputs_[0].shape[1]; }
  int64_t plane() const { return inputs_[0].shape[2] * inputs_[0].shape[3]; }
  int64_t point_count() const { return views[1].shape[1]; }
  bool has_dense_channels() const { return channels() >= kSideBySide && views[0].strides[1] == 1; }
  int64_t threads() const { return threads_for(batch() * channels() * point_count()); }

  View views[3];
  const T *data[3];
  T *scratch;

 private:
  static size_t size_of(const dnnops_tensor &tensor) {
    return (element_count(tensor.shape, tensor.ndim) * sizeof(T) + 63) / 64 * 64;
  }

  const dnnops_tensor *inputs_;
  int count_;
  bool packed_[3];
};

// Calls loops(Offset{}) with a type that can hold the offsets of a plane's pixels and of those just outside:
// 32 bits if possible, since twice as many are then gathered at once.
template <class Loops>
void for_offset(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, Loops &&loops) {
  if ((rows + 2) * row_step + (columns + 2) * column_step < std::numeric_limits<int32_t>::max())
    loops(int32_t{});
  else
    loops(int64_t{});
}

// Tile boundaries do not depend on the number of threads, so that each point always has the same position in
// a loop, whose vector part may round differently from its remainder.
inline int64_t tile_count(int64_t points) { return (points + kTile - 1) / kTile; }

// Calls body(begin, taps) for the tiles [first, last) of `count` points.
template <bool skip_zeros, class Offset, class T, class Pixel, class Body>
void for_tiles(const Pixels<Pixel> &image, const Points<T> &points, int64_t count, int64_t first, int64_t last,
               Body &&body) {
  Taps<T, Offset> taps;
  for (int64_t begin = first * kTile; begin < std::min(count, last * kTile); begin += kTile) {
    find_taps<skip_zeros>(image, points, begin, std::min(kTile, count - begin), taps);
    body(begin, taps);
  }
}

// -- the sampler -------------------------------------------------------------------------------

template <class T>
void sample(const dnnops_tensor *inputs, T *output) {
  Operands<T> operands(inputs, 2);
  const int64_t channels = operands.channels(), count = operands.point_count(), threads = operands.threads();
  const bool dense = operands.has_dense_channels();
  operands.pack_all(dense ? channels * (1 + threads * kTile) : 0);
  T *const zeros = operands.scratch, *const rooms = zeros + channels;
  if (dense) std::fill(zeros, zeros + channels, T(0));
  const Pixels<const T> any = operands.image(0);
  for_offset(any.rows, any.columns, any.row_step, any.column_step, [&](auto offset) {
    for_images(operands.batch(), threads, [&](int64_t n, int64_t slot, int64_t team) {
      const Pixels<const T> image = operands.image(n);
      const Samples<T> to{output + n * channels * count, count, 1};
      share(tile_count(count), team, [&](int64_t member, int64_t first, int64_t last) {
        T *const room = dense ? rooms + (slot + member) * channels * kTile : nullptr;
        const auto take = [&](int64_t at, const auto &taps) {
          if (dense)
            sample_pixels(image, taps, zeros, room, to, at);
          else
            sample_planes(image, taps, to, at);
        };
        for_tiles<true, decltype(offset)>(image, operands.points(n), count, first, last, take);
      });
    });
  });
}

// With enough channels, sums are computed channels-last and reordered at the end.
template <class T>
void sample_grad_image(const dnnops_tensor *inputs, T *output) {
  Operands<T> operands(inputs, 3);
  const int64_t channels = operands.channels(), plane = operands.plane(), threads = operands.threads();
  const int64_t rows = inputs[0].shape[2], columns = inputs[0].shape[3], count = operands.point_count();
  const bool dense = channels >= kSideBySide;
  const int64_t slots = operands.batch() < threads ? 1 : threads;
  operands.pack_all(dense ? slots * channels * (plane + kTile) : 0);
  for_offset(rows, columns, columns * channels, channels, [&](auto offset) {
    for_images(operands.batch(), threads, [&](int64_t n, int64_t slot, int64_t team) {
      // The team's members share the channels, so that no two threads add to the same pixel.
      share(channels, team, [&](int64_t, int64_t begin, int64_t end) {
        const int64_t width = end - begin;
        if (width == 0) return;
        Samples<const T> top = operands.top(n);
        top.data += begin * top.channel_step;
        T *const to = output + (n * channels + begin) * plane;
        Pixels<T> image{to, width, rows, columns, plane, columns, 1};
        T *const room = operands.scratch + (slot * channels + begin) * (plane + kTile);
        T *const sums = room + width * kTile;
        if (dense) image = {sums, width, rows, columns, 1, columns * width, width};
        std::fill(image.data, image.data + width * plane, T(0));
        const auto spread = [&](int64_t at, const auto &taps) {
          if (dense)
            spread_pixels(image, taps, top, room, at);
          else
            spread_planes(image, taps, top, at);
        };
        for_tiles<true, decltype(offset)>(image, operands.points(n), count, 0, tile_count(count), spread);
        if (!dense) return;
        for (int64_t i = 0; i < plane; i += columns)
          for (int64_t c = 0; c < width; ++c)
            for (int64_t k = i; k < i + columns; ++k) to[c * plane + k] = sums[k * width + c];
      });
    });
  });
}

template <class T>
void sample_grad_grid(const dnnops_tensor *inputs, T *output) {
  Operands<T> operands(inputs, 3);
  const int64_t channels = operands.channels(), count = operands.point_count(), threads = operands.threads();
  const bool dense = operands.has_dense_channels();
  operands.pack_all(dense ? channels * (1 + threads * kTile) : 0);
  T *const zeros = operands.scratch, *const rooms = zeros + channels;
  if (dense) std::fill(zeros, zeros + channels, T(0));
  const Pixels<const T> any = operands.image(0);
  const T half_width = T(0.5) * (T)(any.columns - 1), half_height = T(0.5) * (T)(any.rows - 1);
  for_offset(any.rows, any.columns, any.row_step, any.column_step, [&](auto offset) {
    for_images(operands.batch(), threads, [&](int64_t n, int64_t slot, int64_t team) {
      const Pixels<const T> image = operands.image(n);
      const Samples<const T> top = operands.top(n);
      share(tile_count(count), team, [&](int64_t member, int64_t first, int64_t last) {
        T *const room = dense ? rooms + (slot + member) * channels * kTile : nullptr;
        const auto slope = [&](int64_t at, const auto &taps) {
          T along_x[kTile] = {}, along_y[kTile] = {};
          if (dense)
            slope_pixels(image, taps, zeros, top, room, at, along_x, along_y);
          else
            slope_planes(image, taps, top, at, along_x, along_y);
          T *to = output + 2 * (n * count + at);
          for (int64_t i = 0; i < taps.count; ++i) {
            // If either coordinate is NaN, so are both derivatives.
            const T lost = 0 * (taps.across[i] + taps.down[i]);
            to[2 * i] = along_x[i] * half_width + lost;
            to[2 * i + 1] = along_y[i] * half_height + lost;
          }
        };
        for_tiles<false, decltype(offset)>(image, operands.points(n), count, first, last, slope);
      });
    });
  });
}

}  // namespace dnnops
#endif
