#include "conv_relayout.hpp"

#include "kernel_loader.hpp"

namespace dnnops {

namespace {

// In transpose.cuh.
constexpr int64_t NARROW = 32;
constexpr unsigned THREADS = 256;
constexpr int64_t ALIGNMENT = 256;

struct TransposeParams {
  int64_t rows, columns, src_stride, dst_stride;
  int32_t row_tiles, column_tiles;
};

int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

Role result_role(int64_t direction) {
  return direction == CONV_FORWARD ? ROLE_TOP : direction == CONV_GRAD_INPUTS ? ROLE_IMAGE : ROLE_FILTERS;
}

// Between an array and its image in a workspace that is dense in the other format.
class Transposition {
 public:
  Transposition() = default;
  // From `array`, which is dense in the other format than `format`, to that one; or back.
  Transposition(const Handle &handle, const Tensor &array, int64_t dtype, int64_t format, bool back) {
    const int64_t channels = array.shape[1], positions = element_count(array.shape + 2, array.ndim - 2);
    const bool rows_are_channels = (format == FORMAT_CHANNELS_LAST) != back;
    params_.rows = rows_are_channels ? channels : positions;
    params_.columns = rows_are_channels ? positions : channels;
    const int64_t outer = array.strides[0], inner = channels * positions;
    params_.src_stride = back ? inner : outer;
    params_.dst_stride = back ? outer : inner;
    const int64_t width = item_size(dtype), tile = width == 8 ? 32 : 64, batch = array.shape[0];
    const bool narrow = params_.columns <= NARROW, narrow_back = !narrow && params_.rows <= NARROW;
    const auto vector = [&](int64_t size, int64_t stride, int64_t alignment) {
      return size % 2 == 0 && stride % 2 == 0 && alignment >= 2 * width ? 2 : 1;
    };
    // The side in the workspace is aligned; the array may not be.
    const int64_t alignment = array.alignment;
    const int load = vector(params_.columns, params_.src_stride, back ? 16 : alignment);
    const int store = vector(params_.rows, params_.dst_stride, back ? alignment : 16);
    const std::string options = "-DWIDTH=" + std::to_string(width) + " -DLOAD=" + std::to_string(load) +
                                " -DSTORE=" + std::to_string(store) + " -DBACK=" + (narrow_back ? "1" : "0");
    kernel_ = load_kernel(handle, "transpose", narrow || narrow_back ? "transpose_narrow" : "transpose", options);
    int64_t blocks = batch;
    if (narrow || narrow_back) {
      params_.row_tiles = static_cast<int32_t>(tiles(narrow ? params_.rows : params_.columns, tile));
      blocks *= params_.row_tiles;
    } else {
      params_.row_tiles = static_cast<int32_t>(tiles(params_.rows, tile));
      params_.column_tiles = static_cast<int32_t>(tiles(params_.columns, tile));
      blocks *= int64_t(params_.row_tiles) * params_.column_tiles;
    }
    if (blocks > INT32_MAX) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
    blocks_ = static_cast<unsigned>(blocks);
  }

  void run(const void *source, void *target, void *stream) {
    void *arguments[] = {&source, &target, &params_};
    launch_kernel(kernel_, blocks_, THREADS, 0, stream, arguments);
  }

 private:
  KernelFunction kernel_ = nullptr;
  TransposeParams params_ = {};
  unsigned blocks_ = 0;
};

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
      const Tensor &array = conv.tensors[role];
      transpositions_[role] = Transposition(handle, array, conv.dtype, relayout.format, role == result_);
      offsets_[role] = workspace;
      workspace += aligned(elements(array) * item_size(conv.dtype));
    }
  }

  void execute(const Launch &launch, PointerPack &pack) override {
    Launch inner = launch;
    char *const base = static_cast<char *>(launch.workspace);
    for (int role = 0; role < 3; ++role) {
      if (!moves_[role]) continue;
      inner.pointers[role] = base + offsets_[role];
      if (role != result_)
        transpositions_[role].run(launch.pointers[role], inner.pointers[role], launch.handle->stream);
    }
    inner.workspace = inner_->workspace ? base : nullptr;
    inner_->execute(inner, pack);
    if (moves_[result_])
      transpositions_[result_].run(inner.pointers[result_], launch.pointers[result_], launch.handle->stream);
  }

 private:
  std::shared_ptr<Plan> inner_;
  Role result_;
  bool moves_[3];
  Transposition transpositions_[3];
  int64_t offsets_[3] = {};
};

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
  relayout.format = common == FORMAT_CHANNELS_LAST ? FORMAT_CONTIGUOUS : FORMAT_CHANNELS_LAST;
  for (int role = 0; role < 3; ++role) {
    Tensor &array = relayout.inner.tensors[role];
    relayout.moves[role] = !(formats[role] & relayout.format);
    if (relayout.moves[role]) {
      if (!formats[role]) fail(DNNOPS_NOT_SUPPORTED, "the arrays are not dense");
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
