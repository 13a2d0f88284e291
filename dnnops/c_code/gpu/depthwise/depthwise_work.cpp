// How the depthwise kernels are compiled and launched for a case: blocks, tiles, shared memory.
#include <algorithm>
#include <climits>

#include "conv_depthwise.hpp"

namespace dnnops {

namespace {

// The number of blocks over which the filter kernels spread their sums is about a multiple of this, on any device, so
// that every device adds in the same order. It is the number of multiprocessors of an H100 and an H200.
constexpr int64_t BLOCK_UNIT = 132;

constexpr int MAX_TAPS = 64, MAX_SPAN = 64, MAX_STRIDE = 8, MAX_UP = 4;
// The maximum number of sums and filters that a thread holds in registers.
constexpr int MAX_SUMS = 128;
// The maximum shared memory of a block, so that two fit on a multiprocessor.
constexpr int64_t MAX_SHARED = 100 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

[[noreturn]] void refuse(const char *reason) { fail(DNNOPS_NOT_SUPPORTED, "%s", reason); }

void require(bool condition, const char *reason) {
  if (!condition) refuse(reason);
}

struct Knobs {
  int64_t value[KNOB_COUNT];
  bool given[KNOB_COUNT];

  explicit Knobs(const PlanSpec &spec) {
    std::fill(value, value + KNOB_COUNT, 0);
    std::fill(given, given + KNOB_COUNT, false);
    for (int64_t i = 0; i < spec.knob_count; ++i) {
      const int64_t type = spec.knobs[2 * i];
      if (type < 0 || type >= KNOB_COUNT)
        fail(DNNOPS_VALUE_ERROR, "the depthwise kernels have no knob %lld", (long long)type);
      value[type] = spec.knobs[2 * i + 1];
      given[type] = true;
    }
  }

  int64_t get(DepthwiseKnob type, int64_t least, int64_t most) const {
    if (!given[type] || value[type] < least || value[type] > most)
      fail(DNNOPS_VALUE_ERROR, "knob %lld of the depthwise kernels has to be from %lld to %lld", (long long)type,
           (long long)least, (long long)most);
    return value[type];
  }
};

// Builds the work of one plan.
class Builder {
 public:
  Builder(const ConvCase &conv, const PlanSpec &spec)
      : conv_(conv),
        image_(conv.tensors[ROLE_IMAGE]),
        top_(conv.tensors[ROLE_TOP]),
        knobs_(spec),
        last_(spec.id == DEPTHWISE_CHANNELS_LAST),
        filter_(conv.direction == CONV_GRAD_WEIGHTS),
        item_(item_size(conv.dtype)),
        acc_(conv.dtype == DNNOPS_FLOAT64 ? 8 : 4) {
    if (spec.id != DEPTHWISE_CHANNELS_LAST && spec.id != DEPTHWISE_CONTIGUOUS)
      fail(DNNOPS_VALUE_ERROR, "the depthwise kernels are numbered 0 and 1, not %lld", (long long)spec.id);
    std::memset(&params_, 0, sizeof params_);
    require_depthwise();
  }

  DepthwiseWork build() {
    tile_h_ = static_cast<int>(knobs_.get(KNOB_TILE_HEIGHT, 1, 32));
    tile_w_ = static_cast<int>(knobs_.get(KNOB_TILE_WIDTH, 1, 16));
    threads_ = knobs_.get(KNOB_THREADS, 32, DEPTHWISE_THREADS);
    vector_ = last_ ? static_cast<int>(knobs_.get(KNOB_VECTOR, 1, 16 / item_)) : 1;
    set_sizes();
    if (last_) set_vectors();
    if (filter_)
      last_ ? filter_channels_last() : filter_contiguous();
    else
      last_ ? data_channels_last() : data_contiguous();
    return {options(), launches_, params_, workspace_};
  }

 private:
  int filter_size(int axis) const { return static_cast<int>(conv_.tensors[ROLE_FILTERS].shape[2 + axis]); }
  int stride(int axis) const { return static_cast<int>(conv_.stride[axis]); }
  int dilation(int axis) const { return static_cast<int>(conv_.dilation[axis]); }
  bool up() const { return conv_.direction == CONV_GRAD_INPUTS; }
  int taps() const { return filter_size(0) * filter_size(1); }

  void require_depthwise() {
    const Tensor &filters = conv_.tensors[ROLE_FILTERS];
    require(conv_.spatial_ndim == 2, "the depthwise kernels support one or two spatial axes");
    require(conv_.groups == image_.shape[1] && filters.shape[0] == conv_.groups,
            "not a depthwise convolution with as many input as output channels");
    require(is_packed(filters), "the depthwise kernels only support dense filters");
    const int64_t format = last_ ? FORMAT_CHANNELS_LAST : FORMAT_CONTIGUOUS;
    for (const Tensor *tensor : {&image_, &top_}) {
      require(dense_formats(*tensor) & format, last_ ? "this kernel only supports channels-last images"
                                                     : "this kernel only supports contiguous images");
      require(last_ || is_packed(*tensor), "this kernel does not support gaps between images");
      require(elements(*tensor) <= INT_MAX - (1 << 16),
              "the depthwise kernels only support arrays of less than 2**31 elements");
    }
    require(elements(filters) <= MAX_TAPS * filters.shape[0],
            "the depthwise kernels only support filters of up to 64 elements");
    for (int axis = 0; axis < 2; ++axis) {
      require(conv_.stride[axis] <= (up() ? MAX_UP : MAX_STRIDE),
              "the strides are too large for the depthwise kernels");
      require((filter_size(axis) - 1) * conv_.dilation[axis] < MAX_SPAN,
              "the dilations are too large for the depthwise kernels");
      require(conv_.pad[axis] < (1 << 20), "the padding is too large for the depthwise kernels");
    }
  }

  void set_sizes() {
    const Tensor &in = up() ? top_ : image_, &out = up() ? image_ : top_;
    params_.batch = static_cast<int>(image_.shape[0]);
    params_.channels = static_cast<int>(image_.shape[1]);
    params_.in_stride = in.strides[0];
    params_.out_stride = out.strides[0];
    for (int axis = 0; axis < 2; ++axis) {
      const int pad = static_cast<int>(conv_.pad[axis]), step = stride(axis);
      params_.in_size[axis] = static_cast<int>(in.shape[2 + axis]);
      params_.out_size[axis] = static_cast<int>(out.shape[2 + axis]);
      if (up()) {
        params_.lead[axis] = pad % step;
        params_.shift[axis] = pad / step + depthwise_least(true, filter_size(axis), step, dilation(axis));
        params_.units[axis] = (pad + params_.out_size[axis] - 1) / step - pad / step + 1;
      } else {
        params_.shift[axis] = -pad;
        params_.units[axis] = params_.out_size[axis];
      }
      params_.tiles[axis] = static_cast<int>(ceil_div(params_.units[axis], axis ? tile_w_ : tile_h_));
    }
  }

  void set_vectors() {
    const int64_t bytes = vector_ * item_;
    const auto is_multiple = [&](int64_t stride) { return params_.batch == 1 || stride % vector_ == 0; };
    require((vector_ & (vector_ - 1)) == 0 && params_.channels % vector_ == 0 && is_multiple(params_.in_stride) &&
                is_multiple(params_.out_stride),
            "the number of channels is not a multiple of the vector size");
    for (const Tensor &tensor : conv_.tensors)
      require(tensor.alignment >= bytes, "the arrays are not aligned to the vector size");
    require(taps() * vector_ <= MAX_SUMS, "a thread's filters do not fit in its registers");
  }

  // Sets the number of channel vectors that neighboring threads take: about 128 bytes, in groups of equal size.
  void set_groups(int64_t most) {
    const int64_t vectors = params_.channels / vector_, wanted = std::max<int64_t>(1, 128 / (vector_ * item_));
    int64_t best = 1;
    const auto cost = [&](int64_t group) {
      return group < wanted ? 2.0 * wanted / group : 1 + static_cast<double>(group) / wanted;
    };
    for (int64_t group = 1; group <= std::min(vectors, most); ++group)
      if (vectors % group == 0 && cost(group) < cost(best)) best = group;
    params_.group = static_cast<int>(best);
    params_.groups = static_cast<int>(vectors / best);
  }

  void launch(const char *kernel, int64_t blocks, int64_t block, int64_t shared) {
    require(blocks < INT_MAX, "there are too many pixels for the depthwise kernels");
    require(shared <= MAX_SHARED, "a block's pixels do not fit in shared memory");
    launches_.push_back(
        {kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(block), static_cast<unsigned>(shared)});
  }

  void data_channels_last() {
    set_groups(1 << 20);
    const int64_t count = static_cast<int64_t>(params_.group) * params_.groups * params_.tiles[0] * params_.tiles[1] *
                          params_.batch;
    require(count < INT_MAX, "there are too many pixels for the depthwise kernels");
    max_threads_ = threads_;
    launch("depthwise_data", ceil_div(count, threads_), threads_, 0);
  }

  // Takes one tile per thread: rows of tiles of a plane, or whole planes.
  int64_t share_planes(int64_t planes) {
    const int64_t of_plane = static_cast<int64_t>(params_.tiles[0]) * params_.tiles[1];
    params_.chunk = params_.tiles[0];
    int64_t group = std::max<int64_t>(1, std::min(planes, threads_ / of_plane));
    if (of_plane > threads_) params_.chunk = static_cast<int>(std::max<int64_t>(1, threads_ / params_.tiles[1]));
    fit_chunks();
    return group;
  }

  void fit_chunks() {
    params_.chunks = static_cast<int>(ceil_div(params_.tiles[0], params_.chunk));
    params_.chunk = static_cast<int>(ceil_div(params_.tiles[0], params_.chunks));
    params_.chunks = static_cast<int>(ceil_div(params_.tiles[0], params_.chunk));
  }

  int64_t plane(const int *size) const { return static_cast<int64_t>(size[0]) * size[1]; }

  // The shared memory for a range of rows or planes, which may start at any element.
  int64_t range_bytes(int64_t count) const { return round_up(count * item_, 16) + 16; }

  // The number of elements of one image that a block reads at a time.
  int64_t source_elements(int64_t group, int64_t span, int64_t step) const {
    if (params_.chunks == 1) return group * plane(params_.in_size);
    const int64_t rows = (static_cast<int64_t>(params_.chunk) * tile_h_ - 1) * step + span;
    return std::min<int64_t>(rows, params_.in_size[0]) * params_.in_size[1];
  }

  int64_t result_elements(int64_t group, int64_t unit) const {
    if (params_.chunks == 1) return group * plane(params_.out_size);
    return std::min<int64_t>(static_cast<int64_t>(params_.chunk) * tile_h_ * unit, params_.out_size[0]) *
           params_.out_size[1];
  }

  void data_contiguous() {
    staged_ = knobs_.get(KNOB_STAGED, 0, 1);
    const int64_t planes = static_cast<int64_t>(params_.batch) * params_.channels;
    int64_t group = share_planes(planes), shared = 0;
    const int64_t step = up() ? 1 : stride(0), unit = up() ? stride(0) : 1;
    const int64_t span = depthwise_span(up(), filter_size(0), stride(0), dilation(0));
    for (;;) {
      const int64_t in_bytes = range_bytes(source_elements(group, span, step));
      shared = in_bytes + (staged_ ? range_bytes(result_elements(group, unit)) : 0);
      params_.in_bytes = static_cast<int>(std::min<int64_t>(in_bytes, INT_MAX));
      if (shared <= MAX_SHARED) break;
      if (group > 1) {
        group = (group + 1) / 2;
      } else {
        require(params_.chunk > 1, "a block's pixels do not fit in shared memory");
        params_.chunk = (params_.chunk + 1) / 2;
        fit_chunks();
      }
    }
    params_.group = static_cast<int>(group);
    const int64_t tiles = group * params_.chunk * params_.tiles[1];
    // Use the fewest rounds that the number of threads allows, each with about the same number of tiles.
    const int64_t most = std::min<int64_t>(round_up(threads_, 32), DEPTHWISE_THREADS);
    max_threads_ = most;
    const int64_t block = std::min(most, round_up(ceil_div(tiles, ceil_div(tiles, most)), 32));
    launch("depthwise_data", ceil_div(planes, group) * params_.chunks, block, shared);
  }

  void set_splits(int64_t groups, int64_t most) {
    const int64_t blocks = knobs_.get(KNOB_BLOCKS, 1, 64) * BLOCK_UNIT;
    const int64_t splits = std::max<int64_t>(1, std::min(most, blocks / groups));
    // Use only as many splits as there are parts of this size.
    params_.splits = static_cast<int>(ceil_div(most, ceil_div(most, splits)));
    if (params_.splits == 1) return;
    workspace_ = static_cast<int64_t>(params_.splits) * params_.channels * taps() * acc_;
  }

  void add_up() {
    if (params_.splits > 1)
      launch("depthwise_sum", ceil_div(static_cast<int64_t>(params_.channels) * taps(), 32), 256, 0);
  }

  void filter_channels_last() {
    set_groups(std::min<int64_t>(threads_, 64));
    const int64_t lanes = threads_ / params_.group;
    max_threads_ = threads_;
    const int64_t tiles = static_cast<int64_t>(params_.batch) * params_.tiles[0] * params_.tiles[1];
    set_splits(params_.groups, ceil_div(tiles, lanes));
    const int64_t row = vector_ * (max_threads_ + params_.group);
    const int64_t round = depthwise_round(taps(), static_cast<int>(acc_), static_cast<int>(row));
    launch("depthwise_filter", static_cast<int64_t>(params_.groups) * params_.splits, lanes * params_.group,
           round * row * acc_);
    add_up();
  }

  void filter_contiguous() {
    const int64_t channels = params_.channels, capacity = share_planes(INT_MAX);
    // Take few channels per block, so that there are enough blocks, but ranges of a minimum length.
    const int64_t blocks = knobs_.get(KNOB_BLOCKS, 1, 64) * BLOCK_UNIT;
    const int64_t long_enough = ceil_div(256, std::max<int64_t>(1, plane(params_.in_size) * item_));
    int64_t group = std::max(ceil_div(channels, blocks), long_enough);
    group = std::max<int64_t>(1, std::min({group, capacity, channels}));
    int64_t images = std::max<int64_t>(1, std::min<int64_t>(capacity / group, params_.batch)), shared = 0;
    for (stages_ = 2;;) {
      params_.in_bytes =
          static_cast<int>(range_bytes(source_elements(group, (filter_size(0) - 1) * dilation(0) + 1, stride(0))));
      params_.out_bytes = static_cast<int>(range_bytes(result_elements(group, 1)));
      shared = stages_ * images * (static_cast<int64_t>(params_.in_bytes) + params_.out_bytes);
      if (shared <= MAX_SHARED) break;
      if (images > 1) {
        images = (images + 1) / 2;
      } else if (group > 1) {
        group = (group + 1) / 2;
      } else if (params_.chunk > 1) {
        params_.chunk = (params_.chunk + 1) / 2;
        fit_chunks();
      } else {
        require(stages_ > 1, "a block's pixels do not fit in shared memory");
        stages_ = 1;
      }
    }
    params_.group = static_cast<int>(group);
    params_.groups = static_cast<int>(ceil_div(channels, group));
    params_.images = static_cast<int>(images);
    const int64_t steps = ceil_div(params_.batch, images) * params_.chunks;
    set_splits(params_.groups, steps);
    const int64_t block = round_up(group * images * params_.chunk * params_.tiles[1], 32);
    require(block <= DEPTHWISE_THREADS, "the images are too wide");
    for (max_threads_ = 64; max_threads_ < block;) max_threads_ *= 2;
    const int64_t round = depthwise_round(taps(), static_cast<int>(acc_), static_cast<int>(2 * max_threads_));
    launch("depthwise_filter", static_cast<int64_t>(params_.groups) * params_.splits, block,
           std::max(shared, (round + 1) * max_threads_ * acc_));
    add_up();
  }

  std::string options() const {
    std::string text = "-std=c++17";
    const auto define = [&](const char *name, int64_t value) {
      text += std::string(" -D") + name + "=" + std::to_string(value);
    };
    define("DTYPE", conv_.dtype);
    define("CHANNELS_LAST", last_);
    define("FLIP", conv_.flip);
    define("KH", filter_size(0));
    define("KW", filter_size(1));
    define("SH", stride(0));
    define("SW", stride(1));
    define("DH", dilation(0));
    define("DW", dilation(1));
    define("TH", tile_h_);
    define("TW", tile_w_);
    define("V", vector_);
    define("THREADS", max_threads_);
    define("FILTER_GRADIENT", filter_);
    if (!filter_) {
      define("UP", up());
      if (!last_) define("STAGED", staged_);
    } else {
      define("TAIL_H", params_.out_size[0] % tile_h_ != 0);
      define("TAIL_W", params_.out_size[1] % tile_w_ != 0);
      if (last_)
        define("GROUP", params_.group);
      else
        define("STAGES", stages_);
    }
    return text;
  }

  const ConvCase &conv_;
  const Tensor &image_, &top_;
  const Knobs knobs_;
  const bool last_, filter_;
  const int64_t item_, acc_;
  int tile_h_ = 0, tile_w_ = 0, vector_ = 1;
  int64_t threads_ = 0, max_threads_ = 0, staged_ = 0, stages_ = 1, workspace_ = 0;
  std::vector<DepthwiseLaunch> launches_;
  DepthwiseParams params_;
};

}  // namespace

DepthwiseWork depthwise_work(const ConvCase &conv, const PlanSpec &spec) { return Builder(conv, spec).build(); }

}  // namespace dnnops
