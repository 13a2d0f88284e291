#include "conv_relayout.hpp"

#include <cstdio>

#include "kernel_loader.hpp"

namespace dnnops {

namespace {

// As in transpose.cuh.
constexpr int64_t NARROW = 32;
constexpr int64_t SLAB = 64 * (NARROW + 1);
constexpr unsigned THREADS = 256;
constexpr int64_t ALIGNMENT = 256;
constexpr int64_t MIN_BLOCKS = 1024;

struct TransposeParams {
  int64_t rows, columns, src_pitch, dst_pitch, dst_width, src_stride, dst_stride;
  int32_t row_tiles, column_tiles, slab_rows, unused;
};

int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

Role result_role(int64_t direction) {
  return direction == CONV_FORWARD ? ROLE_TOP : direction == CONV_GRAD_INPUTS ? ROLE_IMAGE : ROLE_FILTERS;
}

// How an array and its image in a workspace, which is dense in another format, or has more channels, or both,
// are copied one to the other.
struct MoveWork {
  const char *kernel = "transpose";
  std::string options;
  int64_t blocks;
  TransposeParams params = {};
};

// As many as shared memory holds, but fewer where that would leave multiprocessors without work.
int32_t slab_rows(int64_t wide, int64_t narrow, int64_t matrices) {
  int64_t rows = 64;
  while (2 * rows * (narrow | 1) <= SLAB && matrices * tiles(wide, 2 * rows) >= MIN_BLOCKS) rows *= 2;
  return static_cast<int32_t>(rows);
}

// From `array`, which is dense in `format`, to `inner`, dense in `inner_format`; or back.
MoveWork move_work(const Tensor &array, int64_t format, const Tensor &inner, int64_t inner_format, int64_t dtype,
                   bool back) {
  MoveWork work;
  TransposeParams &params = work.params;
  const int64_t channels = array.shape[1], width = item_size(dtype), tile = width == 8 ? 32 : 64;
  const int64_t positions = element_count(array.shape + 2, array.ndim - 2);
  const Tensor &source = back ? inner : array, &target = back ? array : inner;
  const int64_t source_format = back ? inner_format : format, target_format = back ? format : inner_format;
  params.src_stride = source.strides[0];
  params.dst_stride = target.strides[0];
  const bool rows_are_channels = source_format == FORMAT_CONTIGUOUS;
  params.rows = rows_are_channels ? channels : positions;
  params.columns = rows_are_channels ? positions : channels;
  params.src_pitch = source_format == FORMAT_CHANNELS_LAST ? source.shape[1] : positions;
  params.dst_pitch = params.dst_width = target_format == FORMAT_CHANNELS_LAST ? target.shape[1] : positions;
  bool few_rows = false;
  work.blocks = array.shape[0];
  if (source_format == target_format) {
    work.kernel = "change_pitch";
    params.row_tiles = static_cast<int32_t>(tiles(params.rows, tile));
  } else if (params.columns <= NARROW || params.rows <= NARROW) {
    work.kernel = "transpose_narrow";
    few_rows = params.columns > NARROW;
    const int64_t wide = few_rows ? params.columns : params.dst_width;
    params.slab_rows = slab_rows(wide, few_rows ? params.rows : params.columns, work.blocks);
    params.row_tiles = static_cast<int32_t>(tiles(wide, params.slab_rows));
  } else {
    params.row_tiles = static_cast<int32_t>(tiles(params.dst_width, tile));
    params.column_tiles = static_cast<int32_t>(tiles(params.columns, tile));
    work.blocks *= params.column_tiles;
  }
  work.blocks *= params.row_tiles;
  // A block counts the elements of a tile's rows in 32 bits.
  const bool too_wide = source_format == target_format && params.dst_width > INT32_MAX / tile;
  if (work.blocks > INT32_MAX || too_wide) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
  const auto vector = [width](int64_t size, int64_t pitch, int64_t stride, int64_t alignment) {
    return size % 2 == 0 && pitch % 2 == 0 && stride % 2 == 0 && alignment >= 2 * width ? "2" : "1";
  };
  work.options = "-DWIDTH=" + std::to_string(width) + " -DBACK=" + (few_rows ? "1" : "0") + " -DLOAD=" +
                 vector(params.columns, params.src_pitch, params.src_stride, source.alignment) + " -DSTORE=" +
                 vector(params.dst_width, params.dst_pitch, params.dst_stride, target.alignment);
  return work;
}

class Move {
 public:
  Move() = default;
  Move(const Handle &handle, const MoveWork &work)
      : kernel_(load_kernel(handle, "transpose", work.kernel, work.options)),
        params_(work.params),
        blocks_(static_cast<unsigned>(work.blocks)) {}

  void run(const void *source, void *target, void *stream) {
    void *arguments[] = {&source, &target, &params_};
    launch_kernel(kernel_, blocks_, THREADS, 0, stream, arguments);
  }

 private:
  KernelFunction kernel_ = nullptr;
  TransposeParams params_ = {};
  unsigned blocks_ = 0;
};

int64_t format_of(const Tensor &array, int64_t preferred) {
  const int64_t formats = dense_formats(array);
  return formats & preferred ? preferred : formats;
}

class RelayoutPlan : public Plan {
 public:
  RelayoutPlan(const ConvCase &conv, const Relayout &relayout, const Handle &handle, std::shared_ptr<Plan> inner)
      : inner_(std::move(inner)), result_(result_role(conv.direction)) {
    spec = inner_->spec;
    spec.format = relayout.format;
    name = plan_name(spec, conv.direction);
    math = inner_->math;
    notes = inner_->notes;
    deterministic = inner_->deterministic;
    workspace = aligned(inner_->workspace);
    for (int role = 0; role < 3; ++role) {
      moves_[role] = relayout.moves[role];
      if (!moves_[role]) continue;
      const Tensor &array = conv.tensors[role], &inside = relayout.inner.tensors[role];
      copies_[role] = Move(handle, move_work(array, format_of(array, relayout.format), inside, relayout.format,
                                             conv.dtype, role == result_));
      offsets_[role] = workspace;
      workspace += aligned(elements(inside) * item_size(conv.dtype));
    }
  }

  void execute(const Launch &launch, PointerPack &pack) override {
    Launch inner = launch;
    char *const base = static_cast<char *>(launch.workspace);
    for (int role = 0; role < 3; ++role) {
      if (!moves_[role]) continue;
      inner.pointers[role] = base + offsets_[role];
      if (role != result_)
        copies_[role].run(launch.pointers[role], inner.pointers[role], launch.handle->stream);
    }
    inner.workspace = inner_->workspace ? base : nullptr;
    inner_->execute(inner, pack);
    if (moves_[result_])
      copies_[result_].run(inner.pointers[result_], launch.pointers[result_], launch.handle->stream);
  }

 private:
  std::shared_ptr<Plan> inner_;
  Role result_;
  bool moves_[3];
  Move copies_[3];
  int64_t offsets_[3] = {};
};

// Tensor cores want channels in fours or eights: where the image has a few less, zeros are added.
int64_t padded_channels(const ConvCase &conv) {
  const int64_t channels = conv.tensors[ROLE_IMAGE].shape[1];
  const bool is_half = conv.dtype == DNNOPS_FLOAT16 || conv.dtype == DNNOPS_BFLOAT16;
  if (conv.groups != 1 || !(is_half || (conv.dtype == DNNOPS_FLOAT32 && conv.allow_tf32))) return channels;
  const int64_t unit = is_half && channels > 4 ? 8 : 4;
  const int64_t padded = (channels + unit - 1) / unit * unit;
  return 2 * padded <= 3 * channels ? padded : channels;
}

void set_dense_strides(Tensor &tensor, int64_t format) {
  int64_t step = 1;
  const auto next = [&](int64_t axis) {
    tensor.strides[axis] = step;
    step *= tensor.shape[axis];
  };
  if (format == FORMAT_CHANNELS_LAST) next(1);
  for (int64_t axis = tensor.ndim - 1; axis > 1; --axis) next(axis);
  if (format == FORMAT_CONTIGUOUS) next(1);
  next(0);
}

}  // namespace

Relayout make_relayout(const ConvCase &conv) {
  if (!conv.fixed_scalars) fail(DNNOPS_NOT_SUPPORTED, "not offered, as alpha or beta differ from call to call");
  if (conv.beta != 0) fail(DNNOPS_NOT_SUPPORTED, "a result that is added to is not transposed");
  Relayout relayout;
  relayout.inner = conv;
  int64_t common = FORMAT_CONTIGUOUS | FORMAT_CHANNELS_LAST, formats[3];
  for (int role = 0; role < 3; ++role) common &= formats[role] = dense_formats(conv.tensors[role]);
  if (common == (FORMAT_CONTIGUOUS | FORMAT_CHANNELS_LAST))
    fail(DNNOPS_NOT_SUPPORTED, "the arrays lie in both memory formats already");
  const int64_t channels = padded_channels(conv);
  const bool is_padded = channels != conv.tensors[ROLE_IMAGE].shape[1];
  relayout.format = common == FORMAT_CHANNELS_LAST && !is_padded ? FORMAT_CONTIGUOUS : FORMAT_CHANNELS_LAST;
  for (int role = 0; role < 3; ++role) {
    Tensor &array = relayout.inner.tensors[role];
    const bool widens = is_padded && relayout.format == FORMAT_CHANNELS_LAST && role != ROLE_TOP;
    relayout.moves[role] = widens || !(formats[role] & relayout.format);
    if (relayout.moves[role]) {
      if (!formats[role]) fail(DNNOPS_NOT_SUPPORTED, "the arrays are not dense");
      if (widens) array.shape[1] = channels;
      set_dense_strides(array, relayout.format);
      array.alignment = 16;
    } else {
      canonicalize(array, relayout.format);
    }
  }
  return relayout;
}

std::shared_ptr<Plan> make_relayout_plan(const ConvCase &conv, const Relayout &relayout, const Handle &handle,
                                         std::shared_ptr<Plan> inner) {
  return std::make_shared<RelayoutPlan>(conv, relayout, handle, std::move(inner));
}

}  // namespace dnnops

namespace {

// What a test gets of a copy, to run its kernel elsewhere.
struct MoveRow {
  char kernel[32], options[128];
  int64_t blocks, threads;
  dnnops::TransposeParams params;
};

}  // namespace

// Describes, without a GPU, the copy of an array to its image in a format, with this number of channels; or back.
DNNOPS_EXPORT int dnnops_cudnn_move_row(const dnnops_tensor *operand, int64_t format, int64_t channels, int64_t back,
                                        MoveRow *row) {
  using namespace dnnops;
  return guarded("move", operand, 1, [&] {
    const Tensor array = read_tensor(*operand);
    if (!dense_formats(array)) fail(DNNOPS_NOT_SUPPORTED, "the array is not dense");
    Tensor inner = array;
    inner.shape[1] = channels;
    set_dense_strides(inner, format);
    inner.alignment = 16;
    const MoveWork work = move_work(array, format_of(array, format), inner, format, operand->dtype, back);
    std::snprintf(row->kernel, sizeof row->kernel, "%s", work.kernel);
    std::snprintf(row->options, sizeof row->options, "%s", work.options.c_str());
    row->blocks = work.blocks;
    row->threads = THREADS;
    row->params = work.params;
  });
}
