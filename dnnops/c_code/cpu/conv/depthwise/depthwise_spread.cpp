// The gradient of a depthwise convolution of stride 2 with respect to the image.
#include "depthwise_shift.hpp"

namespace dnnops::depthwise {
namespace {

// A pixel in row 2 * y + a and column 2 * x + b of the padded image gets tap (a + 2 * i, b + 2 * j) of the output in
// row y - i and column x - j: the image has four kinds of pixels, each of which gets its own taps. The rows and columns
// of outputs that a band reads begin kBefore before its own.
template <int K>
constexpr int kBefore = (K - 1) / 2;

// The rows 2 * y and 2 * y + 1 that contain pixels: y counts from first_pair() on.
int64_t first_pair(const Planes &planes) { return planes.pad[0] / 2; }
int64_t pair_count(const Planes &planes) {
  return (planes.image_shape[0] - 1 + planes.pad[0]) / 2 + 1 - first_pair(planes);
}

Buffer buffer_of(const Planes &planes) {
  const int64_t before = (planes.kernel - 1) / 2, pairs = round_up(ceil_div(planes.image_shape[1], 2), kLanes);
  return Buffer(planes.top_shape[1], before, before + (planes.pad[1] + 1) / 2 + pairs, before + 1, 1,
                pair_count(planes));
}

// How the sums for a vector of even and one of odd columns come from shifted outputs: odd padding makes the first
// column of the image an odd one, and the second one that of the next pair.
template <bool kOddPad>
constexpr int parity_of(int column) {
  return kOddPad ? 1 - column : column;
}
template <bool kOddPad>
constexpr int next_of(int column) {
  return kOddPad ? column : 0;
}

// Adds the products of row y - i of the outputs to two rows of pixels. shifted(offset) is that row from a column on.
template <int K, int N, bool kOddPad, class Shifted>
inline void add_row(int i, const Vec<N> (&taps)[K * K], Vec<N> (&sums)[2][2], Shifted &&shifted) {
#pragma GCC unroll 2
  for (int column = 0; column < 2; ++column)
#pragma GCC unroll 4
    for (int j = 0; j <= kBefore<K>; ++j) {
      if (parity_of<kOddPad>(column) + 2 * j >= K) continue;
      const Vec<N> gradients = shifted(next_of<kOddPad>(column) - j);
#pragma GCC unroll 2
      for (int a = 0; a < 2; ++a)
        if (a + 2 * i < K)
          sums[a][column] += taps[(a + 2 * i) * K + parity_of<kOddPad>(column) + 2 * j] * gradients;
    }
}

// Stores two rows of pixels from column x on, of which the first or the second may be null. A vector may reach into the
// next row, which is written later, but not beyond `end`.
template <int N>
inline void store_rows(const Vec<N> (&sums)[2][2], float *const (&to)[2], int64_t x, int64_t width, const float *end) {
#pragma GCC unroll 2
  for (int a = 0; a < 2; ++a) {
    if (!to[a]) continue;
    Vec<N> both[2] = {};
    interleave<N>(sums[a][0], sums[a][1], both);
    float *const at = to[a] + x;
    // The first row must not reach into what was already written of the second one.
    if (at + 2 * N <= (a == 0 && x > 0 && to[1] ? to[1] : end)) {
      store(at, both[0]);
      store(at + N, both[1]);
    } else {
      store_first(at, both[0], width - x);
      store_first(at + N, both[1], width - x - N);
    }
  }
}

void spread_inside(const Planes &planes, const float *top, const float *taps, float *image) {
  std::fill(image, image + planes.image_size(), 0.f);
  for_products(planes, [&](int64_t i, int64_t o, int64_t tap) { image[i] += top[o] * taps[tap]; });
}

template <int K, bool kOddPad>
void spread_planes(const Planes &planes, float *scratch) {
  constexpr int N = kLanes;
  const Buffer buffer = buffer_of(planes);
  const bool finite = are_finite(planes.taps, planes.channels * (K * K));
  const int64_t height = planes.image_shape[0], width = planes.image_shape[1];
  const auto pairs_of = [&](const Task &task) {
    return std::min(buffer.rows, pair_count(planes) - task.band * buffer.rows);
  };
  const auto copy = [&](const Task &task, float *rows) {
    copy_rows<1>(buffer, planes.top + task.plane * planes.top_size(), planes.top_shape, kBefore<K>,
                 first_pair(planes) + task.band * buffer.rows - kBefore<K>, pairs_of(task) + kBefore<K>, rows);
  };
  const auto compute = [&](const Task &task, const float *rows) {
    const float *const channel_taps = planes.taps + task.channel * (K * K);
    float *const image = planes.image + task.plane * planes.image_size();
    if (!finite && !are_finite(channel_taps, K * K)) {
      if (task.band == 0) spread_inside(planes, planes.top + task.plane * planes.top_size(), channel_taps, image);
      return;
    }
    Vec<N> taps[K * K];
#pragma GCC unroll 64
    for (int i = 0; i < K * K; ++i) taps[i] = broadcast<N>(channel_taps[i]);
    const int64_t pairs = pairs_of(task);
    int64_t y = 2 * (first_pair(planes) + task.band * buffer.rows) - planes.pad[0];
    const float *const end = image + std::min(y + 2 * pairs, height) * width;
    rows += planes.pad[1] / 2 + kBefore<K>;
    for (int64_t pair = 0; pair < pairs; ++pair, y += 2, rows += buffer.step) {
      float *const to[2] = {y < 0 ? nullptr : image + y * width, y + 1 < height ? image + (y + 1) * width : nullptr};
      for (int64_t x = 0; x < width; x += 2 * N) {
        Vec<N> sums[2][2] = {};
#pragma GCC unroll 4
        for (int i = 0; i <= kBefore<K>; ++i) {
          const float *const row = rows + (kBefore<K> - i) * buffer.step + x / 2;
          add_row<K, N, kOddPad>(i, taps, sums, [&](int offset) { return load<N>(row + offset); });
        }
        store_rows<N>(sums, to, x, width, end);
      }
    }
  };
  for_bands(planes, buffer, scratch, copy, compute);
}

int64_t widest_vector(const Planes &planes) {
  return std::max(planes.top_shape[1], ceil_div(planes.image_shape[1], 2));
}

#ifdef __AVX2__
template <int K, int N, bool kOddPad>
inline void spread_plane(const Planes &planes, const float *top, const Shift<N> *shifts, const float *channel_taps,
                         float *image) {
  const int64_t height = planes.image_shape[0], width = planes.image_shape[1], columns = planes.top_shape[1];
  const float *const end = image + height * width;
  Vec<N> taps[K * K];
#pragma GCC unroll 64
  for (int i = 0; i < K * K; ++i) taps[i] = broadcast<N>(channel_taps[i]);
  int64_t pair = first_pair(planes);
  for (int64_t y = 2 * pair - planes.pad[0]; y < height; ++pair, y += 2) {
    float *const to[2] = {y < 0 ? nullptr : image + y * width, y + 1 < height ? image + (y + 1) * width : nullptr};
    Vec<N> sums[2][2] = {};
#pragma GCC unroll 4
    for (int i = 0; i <= kBefore<K>; ++i) {
      if (pair - i < 0 || pair - i >= planes.top_shape[0]) continue;
      const Vec<N> row = load_first<N>(top + (pair - i) * columns, columns);
      add_row<K, N, kOddPad>(i, taps, sums, [&](int offset) { return shifts[offset + kBefore<K>](row); });
    }
    store_rows<N>(sums, to, 0, width, end);
  }
}

template <int K, int N, bool kOddPad>
void spread_narrow(const Planes &planes) {
  const bool finite = are_finite(planes.taps, planes.channels * (K * K));
  // From kBefore columns before to one column after.
  Shift<N> shifts[kBefore<K> + 2];
  for (int i = 0; i < kBefore<K> + 2; ++i)
    shifts[i] = Shift<N>(1, planes.pad[1] / 2 + i - kBefore<K>, planes.top_shape[1]);
#pragma omp parallel for collapse(2) num_threads(planes.threads) schedule(static)
  for (int64_t batch = 0; batch < planes.batch; ++batch)
    for (int64_t channel = 0; channel < planes.channels; ++channel) {
      const int64_t plane = batch * planes.channels + channel;
      const float *const top = planes.top + plane * planes.top_size(), *const taps = planes.taps + channel * (K * K);
      float *const image = planes.image + plane * planes.image_size();
      if (finite || are_finite(taps, K * K))
        spread_plane<K, N, kOddPad>(planes, top, shifts, taps, image);
      else
        spread_inside(planes, top, taps, image);
    }
}
#endif

template <int K, bool kOddPad>
void spread_any(const Planes &planes, float *scratch) {
#ifdef __AVX2__
  if (widest_vector(planes) <= kMostNarrow)
    return (widest_vector(planes) <= 8 ? spread_narrow<K, 8, kOddPad> : spread_narrow<K, kLanes, kOddPad>)(planes);
#endif
  spread_planes<K, kOddPad>(planes, scratch);
}

}  // namespace

int64_t spread_scratch(const Planes &planes) {
  return widest_vector(planes) <= kMostNarrow ? 0 : planes.threads * 2 * buffer_of(planes).size;
}

void spread(const Planes &planes, float *scratch) {
  with_constants(planes.kernel, 1, [&](auto kernel, auto) {
    if (planes.pad[1] % 2)
      spread_any<kernel, true>(planes, scratch);
    else
      spread_any<kernel, false>(planes, scratch);
  });
}

}  // namespace dnnops::depthwise
