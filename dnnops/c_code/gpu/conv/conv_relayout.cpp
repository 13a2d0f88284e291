#include "conv_relayout.hpp"

#include <algorithm>

#include "../copy/copies.hpp"

namespace dnnops {

namespace {

constexpr int64_t ALIGNMENT = 256;

int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

Copy copy_of(const ConvCase &conv, const Relayout &relayout, int role) {
  const Tensor &array = conv.tensors[role], &inside = relayout.inner.tensors[relayout.inner_role[role]];
  const int64_t format = dense_format(array, relayout.copy_format);
  if (role == ROLE_FILTERS && relayout.format == FORMAT_AS_FORWARD)
    return make_exchange(array, format, conv.groups, !conv.flip, conv.dtype);
  if (role == ROLE_TOP && relayout.is_spread) return make_spread(array, format, inside, conv.stride, conv.dtype);
  return make_copy(array, format, inside, relayout.copy_format, conv.dtype, role == result_role(conv.direction));
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
    std::vector<Copy> before, after;
    for (int role = 0; role < 3; ++role) {
      inner_role_[role] = relayout.inner_role[role];
      is_copied_[role] = relayout.copied[role];
      if (!is_copied_[role]) continue;
      const Copy copy = copy_of(conv, relayout, role);
      (role == result_ ? after : before).push_back(copy);
      offsets_[role] = workspace;
      const int64_t bytes = elements(relayout.inner.tensors[inner_role_[role]]) * item_size(conv.dtype);
      workspace += aligned(bytes);
      if (role == ROLE_TOP && relayout.is_spread && !copy.fills_gaps) spread_bytes_ = bytes;
    }
    // One launch copies both operands: with two, the second would wait for the first.
    before_ = Copies(handle, before, conv.dtype);
    after_ = Copies(handle, after, conv.dtype);
  }

  void execute(const Launch &launch, PointerPack &pack) override {
    Launch inner = launch;
    char *const base = static_cast<char *>(launch.workspace);
    const void *sources[2] = {};
    void *targets[2] = {};
    int count = 0;
    for (int role = 0; role < 3; ++role) {
      void *&pointer = inner.pointers[inner_role_[role]];
      pointer = is_copied_[role] ? base + offsets_[role] : launch.pointers[role];
      if (!is_copied_[role] || role == result_) continue;
      sources[count] = launch.pointers[role];
      targets[count++] = pointer;
    }
    if (spread_bytes_)
      DNNOPS_CHECK(cudaMemsetAsync(inner.pointers[inner_role_[ROLE_TOP]], 0, spread_bytes_,
                                   static_cast<cudaStream_t>(launch.handle->stream)));
    before_.run(sources, targets, launch.handle->stream);
    inner.workspace = inner_->workspace ? base : nullptr;
    inner_->execute(inner, pack);
    const void *const results[2] = {inner.pointers[inner_role_[result_]]};
    void *const result[2] = {launch.pointers[result_]};
    after_.run(results, result, launch.handle->stream);
  }

 private:
  std::shared_ptr<Plan> inner_;
  Role result_;
  Role inner_role_[3];
  bool is_copied_[3];
  int64_t offsets_[3] = {};
  int64_t spread_bytes_ = 0;  // of the copy with zeros between its elements
  Copies before_, after_;
};

// Tensor cores need a multiple of four or eight channels; if the image has slightly fewer, zeros are added.
int64_t padded_channels(const ConvCase &conv) {
  const int64_t channels = conv.tensors[ROLE_IMAGE].shape[1];
  const bool is_half = conv.dtype == DNNOPS_FLOAT16 || conv.dtype == DNNOPS_BFLOAT16;
  if (conv.groups != 1 || !(is_half || (conv.dtype == DNNOPS_FLOAT32 && conv.allow_tf32))) return channels;
  const int64_t unit = is_half && channels > 4 ? 8 : 4;
  const int64_t padded = (channels + unit - 1) / unit * unit;
  return 2 * padded <= 3 * channels ? padded : channels;
}

void require_fixed_scalars(const ConvCase &conv) {
  if (!conv.fixed_scalars) fail(DNNOPS_NOT_SUPPORTED, "not offered because alpha or beta change between calls");
}

// A copied result would have to be copied before the call, too, if the call adds to it.
void require_own_result(const ConvCase &conv, const Relayout &relayout) {
  if (!relayout.copied[result_role(conv.direction)]) return;
  if (conv.beta != 0) fail(DNNOPS_NOT_SUPPORTED, "not offered if beta is not 0 and the result is copied");
  if (has_part(conv.epilogue, EPILOGUE_ADDEND))
    fail(DNNOPS_NOT_SUPPORTED, "not offered if there is an addend and the result is copied");
}

// The array in the inner case: itself, or its copy of this shape.
Tensor inner_tensor(const Tensor &array, bool is_copied, const int64_t *shape, int64_t format) {
  Tensor inner = array;
  if (!is_copied) {
    canonicalize(inner, format);
    return inner;
  }
  if (!dense_formats(array)) fail(DNNOPS_NOT_SUPPORTED, "the arrays are not dense");
  std::copy(shape, shape + array.ndim, inner.shape);
  set_dense_strides(inner, format);
  inner.alignment = 16;
  return inner;
}

}  // namespace

Relayout make_relayout(const ConvCase &conv) {
  require_fixed_scalars(conv);
  Relayout relayout;
  relayout.inner = conv;
  int64_t common = FORMAT_CONTIGUOUS | FORMAT_CHANNELS_LAST, formats[3];
  for (int role = 0; role < 3; ++role) common &= formats[role] = dense_formats(conv.tensors[role]);
  if (common == (FORMAT_CONTIGUOUS | FORMAT_CHANNELS_LAST))
    fail(DNNOPS_NOT_SUPPORTED, "the arrays already match both memory formats");
  const int64_t channels = padded_channels(conv);
  const bool is_padded = channels != conv.tensors[ROLE_IMAGE].shape[1];
  relayout.format = common == FORMAT_CHANNELS_LAST && !is_padded ? FORMAT_CONTIGUOUS : FORMAT_CHANNELS_LAST;
  relayout.copy_format = relayout.format;
  for (int role = 0; role < 3; ++role) {
    const bool widens = is_padded && relayout.format == FORMAT_CHANNELS_LAST && role != ROLE_TOP;
    const Tensor &array = conv.tensors[role];
    relayout.inner_role[role] = static_cast<Role>(role);
    relayout.copied[role] = widens || !(formats[role] & relayout.format);
    Tensor wanted = array;
    if (widens) wanted.shape[1] = channels;
    relayout.inner.tensors[role] = inner_tensor(array, relayout.copied[role], wanted.shape, relayout.copy_format);
  }
  require_own_result(conv, relayout);
  return relayout;
}

Relayout make_forward_relayout(const ConvCase &conv) {
  if (conv.direction != CONV_GRAD_INPUTS)
    fail(DNNOPS_NOT_SUPPORTED, "only the gradient with respect to the inputs can be computed as a forward convolution");
  require_fixed_scalars(conv);
  const Tensor &filters = conv.tensors[ROLE_FILTERS];
  if (conv.groups > 1 && filters.shape[1] == 1) fail(DNNOPS_NOT_SUPPORTED, "not offered for depthwise convolutions");
  Relayout relayout;
  relayout.format = FORMAT_AS_FORWARD;
  relayout.copy_format = FORMAT_CHANNELS_LAST;
  ConvCase &inner = relayout.inner = conv;
  inner.direction = CONV_FORWARD;
  inner.flip = 0;
  for (int64_t i = 0; i < conv.spatial_ndim; ++i) {
    relayout.is_spread = relayout.is_spread || conv.stride[i] != 1;
    inner.stride[i] = 1;
    inner.pad[i] = (filters.shape[2 + i] - 1) * conv.dilation[i] - conv.pad[i];
    if (inner.pad[i] < 0) fail(DNNOPS_NOT_SUPPORTED, "the padding is larger than the filters");
  }
  // The zeros in between are multiplied, too, so this only pays off with groups, where cuDNN's own way is slow.
  if (relayout.is_spread && conv.groups == 1)
    fail(DNNOPS_NOT_SUPPORTED, "not offered for strides without groups");
  const Role roles[3] = {ROLE_TOP, ROLE_FILTERS, ROLE_IMAGE};
  for (int role = 0; role < 3; ++role) {
    const Tensor &array = conv.tensors[role];
    relayout.inner_role[role] = roles[role];
    relayout.copied[role] = role == ROLE_FILTERS || (role == ROLE_TOP && relayout.is_spread) ||
                            !(dense_formats(array) & FORMAT_CHANNELS_LAST);
    Tensor wanted = array;
    if (role == ROLE_FILTERS) {
      wanted.shape[0] = conv.tensors[ROLE_IMAGE].shape[1];
      wanted.shape[1] = array.shape[0] / conv.groups;
    }
    // As large as the forward convolution needs it: positions that strides cut off at the end are zero, too.
    for (int64_t i = 0; role == ROLE_TOP && i < conv.spatial_ndim; ++i)
      wanted.shape[2 + i] =
          conv.tensors[ROLE_IMAGE].shape[2 + i] + 2 * conv.pad[i] - (filters.shape[2 + i] - 1) * conv.dilation[i];
    inner.tensors[roles[role]] = inner_tensor(array, relayout.copied[role], wanted.shape, FORMAT_CHANNELS_LAST);
  }
  require_own_result(conv, relayout);
  return relayout;
}

std::shared_ptr<Plan> make_relayout_plan(const ConvCase &conv, const Relayout &relayout, const Handle &handle,
                                         std::shared_ptr<Plan> inner) {
  return std::make_shared<RelayoutPlan>(conv, relayout, handle, std::move(inner));
}

}  // namespace dnnops
