// Which tiles of the depthwise kernels to try, and when they are faster than cuDNN.
#include <algorithm>
#include <cmath>

#include "conv_depthwise.hpp"

namespace dnnops {

namespace {

constexpr size_t MAX_SPECS = 6;

void add_knob(PlanSpec &spec, DepthwiseKnob knob, int64_t value) {
  spec.knobs[2 * spec.knob_count] = knob;
  spec.knobs[2 * spec.knob_count + 1] = value;
  ++spec.knob_count;
}

PlanSpec spec_of(int64_t kernel, std::initializer_list<std::pair<DepthwiseKnob, int64_t>> knobs) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_KERNEL;
  spec.id = kernel;
  spec.math = USUAL_MATH;
  for (const auto &knob : knobs) add_knob(spec, knob.first, knob.second);
  return spec;
}

// The order of candidates is based on measurements of 936 plans for 12 layers of MobileNets, EfficientNets
// and ConvNeXts on an H200: batches of 64, images of 7 to 112 pixels, filters of 3, 5 and 7, strides 1 and 2,
// float32, float16 and some bfloat16.

double padded(int64_t size, int64_t tile) { return static_cast<double>((size + tile - 1) / tile * tile) / size; }

// The costs of a kernel, relative to a multiply-add, which costs 1. They are fitted: on average over layers,
// the measured plan with the lowest cost took 1.02 times as long as the fastest one.
struct Prices {
  double load;    // per source pixel
  double access;  // per memory access of a source pixel's loads
  double store;   // per store to shared memory
  double start;   // per thread tile and tap
  double idle;    // for low occupancy
  double wave;    // for a last wave of blocks that is not full
};
constexpr Prices CONTIGUOUS_DATA = {0.14, 0.06, 0.16, 2.3, 0.25, 0};
constexpr Prices CHANNELS_LAST_DATA = {2.5, 7.2, 0, 0.8, 0.18, 0.33};
constexpr Prices CHANNELS_LAST_FILTER = {3.0, 9.6, 0, 0.4, 0.07, 0.17};

// With more results per thread, the compiler spills its sums to memory; with wider tiles or more filters, too
// few threads have enough registers.
constexpr int64_t MAX_RESULTS = 256, MAX_ROW = 8, MAX_FILTERS = 64;

struct Tile {
  int64_t height, width, vector;
};

// The approximate number of blocks that a multiprocessor runs at a time.
double resident_blocks(const DepthwiseLaunch &launch, double registers) {
  const double most = std::min({2048.0 / launch.block, 65536 / (registers * launch.block),
                                (228 << 10) / (launch.shared + 1024.0)});
  return std::max(1.0, std::floor(most));
}

// The approximate time that the device takes per useful multiply-add.
double cost(const ConvCase &conv, bool last, const Tile &tile, const DepthwiseWork &work) {
  const bool filter = conv.direction == CONV_GRAD_WEIGHTS, up = conv.direction == CONV_GRAD_INPUTS;
  const Prices &prices = !last ? CONTIGUOUS_DATA : filter ? CHANNELS_LAST_FILTER : CHANNELS_LAST_DATA;
  const int64_t size[2] = {tile.height, tile.width};
  const double item = static_cast<double>(item_size(conv.dtype));
  double taps = 1, pixels = 1, loads = 1, padding = 1;
  int64_t source[2], step[2], of_unit[2], live_rows = 0;
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t length = conv.tensors[ROLE_FILTERS].shape[2 + axis];
    step[axis] = up ? 1 : conv.stride[axis];
    of_unit[axis] = up ? conv.stride[axis] : 1;
    const int64_t span = depthwise_span(up, static_cast<int>(length), static_cast<int>(conv.stride[axis]),
                                        static_cast<int>(conv.dilation[axis]));
    source[axis] = (size[axis] - 1) * step[axis] + span;
    taps *= static_cast<double>(length);
    pixels *= static_cast<double>(size[axis] * of_unit[axis]);
    loads *= static_cast<double>(source[axis]);
    padding *= static_cast<double>(work.params.tiles[axis] * size[axis] * of_unit[axis]) / work.params.out_size[axis];
    if (axis == 0)
      live_rows = std::min(size[0], filter ? length : (span + step[0] - 1) / step[0]) * of_unit[0] - (of_unit[0] - 1);
  }
  const auto ways = [&](int64_t distance) { return std::max(1.0, static_cast<double>(distance) * item / 4); };
  // A load is a vector of channels, or a shared memory access with bank conflicts.
  const double access = last ? 1.0 / tile.vector : ways(tile.width * step[1]);
  const double used = taps / (of_unit[0] * of_unit[1]);
  double time = used + loads / pixels * (prices.load + prices.access * access) + prices.start * (taps + 10) / pixels +
                prices.store * ways(tile.width * of_unit[1]);

  // The registers of a thread: the pixels of one row as loaded, the sums, and the filters or their gradients.
  const double row = static_cast<double>(filter ? 2 * source[1] + size[1] : 2 * source[1]) * tile.vector;
  const double registers = (filter ? 42 : 18) + (last && item == 2 ? row / 2 : row) +
                           (taps + static_cast<double>(live_rows * size[1] * of_unit[1])) * tile.vector;
  const DepthwiseLaunch &launch = work.launches.front();
  const double resident = resident_blocks(launch, registers);
  time *= std::max(1.0, registers / 128);
  time *= 1 + prices.idle * 1024 / (resident * launch.block);
  const double waves = launch.grid / (132 * resident);
  time *= 1 + prices.wave * (std::ceil(waves) / waves - 1);
  return time * padding;
}

struct Candidate {
  PlanSpec spec;
  DepthwiseWork work;
  double cost;
};

// Adds a plan if it can run and is not already listed.
template <class Cost>
void add_candidate(const ConvCase &conv, const Tile &tile, const PlanSpec &spec, Cost cost_of,
                   std::vector<Candidate> &candidates) {
  const auto taps = conv.tensors[ROLE_FILTERS].shape[2] * conv.tensors[ROLE_FILTERS].shape[3];
  const int64_t of_unit = conv.direction == CONV_GRAD_INPUTS ? conv.stride[0] * conv.stride[1] : 1;
  if (tile.height * tile.width * tile.vector * of_unit > MAX_RESULTS || tile.width * tile.vector > MAX_ROW) return;
  if (tile.vector > 1 && tile.vector * taps > MAX_FILTERS) return;
  try {
    DepthwiseWork work = depthwise_work(conv, spec);
    const auto is_same = [&](const Candidate &other) {
      const DepthwiseLaunch &a = work.launches.front(), &b = other.work.launches.front();
      return work.options == other.work.options && a.grid == b.grid && a.block == b.block && a.shared == b.shared;
    };
    if (std::any_of(candidates.begin(), candidates.end(), is_same)) return;
    const double time = cost_of(work);
    candidates.push_back({spec, std::move(work), time});
  } catch (const Error &) {
  }
}

constexpr int64_t HEIGHTS[] = {7, 14, 8, 4, 2}, WIDTHS[] = {4, 2, 1};

void add_channels_last(const ConvCase &conv, std::vector<Candidate> &candidates) {
  const bool filter = conv.direction == CONV_GRAD_WEIGHTS;
  for (int64_t vector = std::min<int64_t>(4, 16 / item_size(conv.dtype)); vector >= 1; vector /= 2) {
    // Shorter vectors were not better if a thread has many results anyway.
    if (conv.direction == CONV_GRAD_INPUTS && conv.stride[0] * conv.stride[1] > 1 && !candidates.empty()) break;
    for (int64_t height : HEIGHTS)
      for (int64_t width : WIDTHS) {
        const Tile tile{height, width, vector};
        PlanSpec spec = spec_of(DEPTHWISE_CHANNELS_LAST, {{KNOB_TILE_HEIGHT, height},
                                                          {KNOB_TILE_WIDTH, width},
                                                          {KNOB_VECTOR, vector},
                                                          {KNOB_THREADS, 256}});
        if (filter) add_knob(spec, KNOB_BLOCKS, 4);
        add_candidate(conv, tile, spec, [&](const DepthwiseWork &work) { return cost(conv, true, tile, work); },
                      candidates);
      }
  }
}

void add_contiguous_data(const ConvCase &conv, std::vector<Candidate> &candidates) {
  const Tensor &filters = conv.tensors[ROLE_FILTERS];
  // Results that pass through shared memory are written as vectors, but with large filters there is time to
  // write them directly.
  const double direct = filters.shape[2] * filters.shape[3] > 32 ? 0.8 : 1.6;
  for (int64_t height : HEIGHTS)
    for (int64_t width : WIDTHS)
      for (int64_t threads : {128, 256})
        for (int64_t staged : {1, 0}) {
          const Tile tile{height, width, 1};
          // Narrow tiles were only measured for images that wider ones do not fit, so they must be better by
          // a larger margin.
          const double factor =
              (width == 4 ? 1 : width == 2 ? 1.1 : 1.2) * (threads == 128 ? 1 : 1.05) * (staged ? 1 : direct);
          add_candidate(conv, tile,
                        spec_of(DEPTHWISE_CONTIGUOUS, {{KNOB_TILE_HEIGHT, height},
                                                       {KNOB_TILE_WIDTH, width},
                                                       {KNOB_THREADS, threads},
                                                       {KNOB_STAGED, staged}}),
                        [&](const DepthwiseWork &work) { return factor * cost(conv, false, tile, work); }, candidates);
        }
}

// Relative times of tiles with the same padding. They depend on how many threads share the shared memory of two
// stages, and on its bank conflicts, which increase with the width of the source below a tile. For stride 2, widths
// less than 4 were only measured for gradients of 14 and 7 pixels; for the latter they were 1.3 to 1.7 times as fast.
void add_contiguous_filter(const ConvCase &conv, std::vector<Candidate> &candidates) {
  const Tensor &top = conv.tensors[ROLE_TOP], &filters = conv.tensors[ROLE_FILTERS];
  const bool strided = conv.stride[0] > 1 || conv.stride[1] > 1;
  const bool tall = !strided && (item_size(conv.dtype) == 2 || filters.shape[2] * filters.shape[3] > 32);
  // In the order of HEIGHTS and WIDTHS.
  static const double by_height[3][5] = {
      {1, 1.2, 1.03, 1.05, 1.3}, {1.03, 1, 1.1, 1.15, 1.4}, {1, 1.3, 1, 1.05, 1.3}};
  static const double by_width[2][3] = {{1, 1.05, 1.15}, {1.08, 1, 1.05}};
  for (int h = 0; h < 5; ++h)
    for (int w = 0; w < 3; ++w)
      for (int64_t blocks : {4, 8}) {
        const Tile tile{HEIGHTS[h], WIDTHS[w], 1};
        const double time = by_height[strided ? 2 : tall][h] * by_width[strided][w] *
                            padded(top.shape[2], tile.height) * padded(top.shape[3], tile.width);
        add_candidate(conv, tile,
                      spec_of(DEPTHWISE_CONTIGUOUS, {{KNOB_TILE_HEIGHT, tile.height},
                                                     {KNOB_TILE_WIDTH, tile.width},
                                                     {KNOB_THREADS, tile.height > 8 ? 128 : 256},
                                                     {KNOB_BLOCKS, blocks}}),
                      [&](const DepthwiseWork &work) {
                        // Prefer fewer blocks if all of them run at once.
                        const DepthwiseLaunch &launch = work.launches.front();
                        const double at_once = 132.0 * resident_blocks(launch, 32);
                        return time * (blocks == 4 ? launch.grid > 1.1 * at_once ? 1.1 : 1 : 1.05);
                      },
                      candidates);
      }
}

}  // namespace

std::vector<PlanSpec> depthwise_specs(const ConvCase &conv) {
  std::vector<PlanSpec> specs;
  const Tensor &image = conv.tensors[ROLE_IMAGE];
  if (conv.groups != image.shape[1] || conv.groups != conv.tensors[ROLE_FILTERS].shape[0] || conv.spatial_ndim != 2)
    return specs;
  std::vector<Candidate> candidates;
  const int64_t formats = dense_formats(image) & dense_formats(conv.tensors[ROLE_TOP]);
  if (formats & FORMAT_CONTIGUOUS)
    conv.direction == CONV_GRAD_WEIGHTS ? add_contiguous_filter(conv, candidates)
                                        : add_contiguous_data(conv, candidates);
  // With one channel, both formats are the same, and there are no vectors.
  if (formats & FORMAT_CHANNELS_LAST && image.shape[1] > 1) add_channels_last(conv, candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate &a, const Candidate &b) { return a.cost < b.cost; });
  for (const Candidate &candidate : candidates) {
    // Keep one of each tile. Height, width and, if there are vectors, vector are the first knobs.
    const auto is_like_it = [&](const PlanSpec &other) {
      const int words = other.id == DEPTHWISE_CHANNELS_LAST ? 6 : 4;
      return other.id == candidate.spec.id && std::equal(other.knobs, other.knobs + words, candidate.spec.knobs);
    };
    if (specs.size() < MAX_SPECS && std::none_of(specs.begin(), specs.end(), is_like_it))
      specs.push_back(candidate.spec);
  }
  return specs;
}

// Based on times of PyTorch with cudnn.benchmark for the same layers. Where this returns false, the first
// plan was not always 1.1 times as fast, or nothing was measured.
bool depthwise_is_fast(const ConvCase &conv, const PlanSpec &spec) {
  const Tensor &image = conv.tensors[ROLE_IMAGE], &filters = conv.tensors[ROLE_FILTERS];
  const int64_t stride = conv.stride[0], taps = filters.shape[2] * filters.shape[3];
  const bool measured = conv.dtype != DNNOPS_FLOAT64 && stride == conv.stride[1] && stride <= 2 &&
                        conv.dilation[0] == 1 && conv.dilation[1] == 1 &&
                        std::min(filters.shape[2], filters.shape[3]) >= 3 && taps <= 49;
  if (!measured) return false;
  const bool is_float32 = conv.dtype == DNNOPS_FLOAT32;
  // cuDNN is slow here in any format: at least 1.3 times slower, usually 2 to 10 times.
  if (stride == 2 && conv.direction == CONV_GRAD_INPUTS) return true;
  if (spec.id == DEPTHWISE_CHANNELS_LAST) return stride == 1 && is_float32 && taps >= 25;
  if (conv.direction == CONV_GRAD_WEIGHTS)
    return stride == 1 && (is_float32 || image.shape[2] * image.shape[3] >= 14 * 14);
  return stride == 1 || !is_float32;
}

}  // namespace dnnops
