// Convolution with cuDNN's legacy API: numbered algorithms.
#include <algorithm>

#include "conv_plan.hpp"

namespace dnnops {

namespace {

const char *const forward_names[] = {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM",     "DIRECT",
                                     "FFT",           "FFT_TILING",            "WINOGRAD", "WINOGRAD_NONFUSED"};
const char *const grad_inputs_names[] = {"ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"};
const char *const grad_weights_names[] = {"ALGO_0",   "ALGO_1",            "FFT",       "ALGO_3",
                                          "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"};

struct NameTable {
  const char *const *names;
  int count;
};
const NameTable tables[] = {{forward_names, 8}, {grad_inputs_names, 6}, {grad_weights_names, 7}};

// In the order of cudnnMathType_t.
enum Math { MATH_DEFAULT = 0, MATH_TENSOR_OP = 1, MATH_ALLOW_CONVERSION = 2, MATH_FMA = 3 };
const char *const math_names[] = {"DEFAULT_MATH", "TENSOR_OP_MATH", "TENSOR_OP_MATH_ALLOW_CONVERSION", "FMA_MATH"};

int usual_math_type(const ConvCase &conv) {
  if (conv.dtype == DNNOPS_FLOAT32) return conv.allow_tf32 ? MATH_DEFAULT : MATH_FMA;  // default math may use TF32
  return conv.dtype == DNNOPS_FLOAT64 ? MATH_DEFAULT : MATH_TENSOR_OP;
}

// The descriptors of a case. The constructor throws if the legacy API cannot express it.
struct LegacyCase {
  TensorDescriptor image, top;
  FilterDescriptor filters;
  ConvolutionDescriptor conv;

  LegacyCase(const ConvCase &conv_case, int64_t math) {
    set_convolution(conv_case, math);
    set_filters(conv_case);
    set_descriptor(image, conv_case.tensors[ROLE_IMAGE], conv_case.dtype);
    set_descriptor(top, conv_case.tensors[ROLE_TOP], conv_case.dtype);
  }

 private:
  void set_convolution(const ConvCase &of, int64_t math) {
    const int spatial = static_cast<int>(of.spatial_ndim);
    int pad[3], stride[3], dilation[3];
    to_int(of.pad, spatial, pad);
    to_int(of.stride, spatial, stride);
    to_int(of.dilation, spatial, dilation);
    DNNOPS_LEGACY(cudnnSetConvolutionNdDescriptor, conv, spatial, pad, stride, dilation,
                  of.flip ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION, cudnn_dtype(of.compute));
    DNNOPS_LEGACY(cudnnSetConvolutionGroupCount, conv, static_cast<int>(of.groups));
    DNNOPS_LEGACY(cudnnSetConvolutionMathType, conv, static_cast<int>(math));
  }

  // Filters have a format instead of strides.
  void set_filters(const ConvCase &of) {
    const Tensor &array = of.tensors[ROLE_FILTERS];
    require_32_bit(array);
    if (!is_packed(array)) fail(DNNOPS_NOT_SUPPORTED, "the legacy API only supports dense filters");
    const int64_t wanted = dense_formats(of.tensors[ROLE_IMAGE]);
    int64_t formats = dense_formats(array);
    if (formats & wanted) formats &= wanted;
    int shape[MAX_RANK];
    to_int(array.shape, static_cast<int>(array.ndim), shape);
    DNNOPS_LEGACY(cudnnSetFilterNdDescriptor, filters, cudnn_dtype(of.dtype),
                  formats & FORMAT_CONTIGUOUS ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC,
                  static_cast<int>(array.ndim), shape);
  }
};

class LegacyPlan : public Plan {
 public:
  LegacyPlan(const ConvCase &conv, const Handle &handle, int64_t id, int64_t math_type)
      : direction_(conv.direction), dtype_(conv.dtype), algorithm_(static_cast<int>(id)), case_(conv, math_type) {
    takes_scalars = true;
    deterministic = legacy_is_deterministic(conv.direction, id);
    math = math_type;
    size_t size = 0;
    if (direction_ == CONV_FORWARD)
      DNNOPS_LEGACY(cudnnGetConvolutionForwardWorkspaceSize, handle.cudnn, case_.image, case_.filters, case_.conv,
                    case_.top, algorithm_, &size);
    else if (direction_ == CONV_GRAD_INPUTS)
      DNNOPS_LEGACY(cudnnGetConvolutionBackwardDataWorkspaceSize, handle.cudnn, case_.filters, case_.top, case_.conv,
                    case_.image, algorithm_, &size);
    else
      DNNOPS_LEGACY(cudnnGetConvolutionBackwardFilterWorkspaceSize, handle.cudnn, case_.image, case_.top, case_.conv,
                    case_.filters, algorithm_, &size);
    workspace = static_cast<int64_t>(size);
  }

  void execute(const Launch &launch, PointerPack &) override {
    const Scalar alpha(launch.alpha, dtype_), beta(launch.beta, dtype_);
    void *image = launch.pointers[ROLE_IMAGE], *filters = launch.pointers[ROLE_FILTERS];
    void *top = launch.pointers[ROLE_TOP], *space = launch.workspace;
    const cudnnHandle_t handle = launch.handle->cudnn;
    const size_t size = static_cast<size_t>(workspace);
    if (direction_ == CONV_FORWARD)
      DNNOPS_LEGACY(cudnnConvolutionForward, handle, alpha.pointer(), case_.image, image, case_.filters, filters,
                    case_.conv, algorithm_, space, size, beta.pointer(), case_.top, top);
    else if (direction_ == CONV_GRAD_INPUTS)
      DNNOPS_LEGACY(cudnnConvolutionBackwardData, handle, alpha.pointer(), case_.filters, filters, case_.top, top,
                    case_.conv, algorithm_, space, size, beta.pointer(), case_.image, image);
    else
      DNNOPS_LEGACY(cudnnConvolutionBackwardFilter, handle, alpha.pointer(), case_.image, image, case_.top, top,
                    case_.conv, algorithm_, space, size, beta.pointer(), case_.filters, filters);
  }

 private:
  int64_t direction_, dtype_;
  int algorithm_;
  LegacyCase case_;
};

}  // namespace

int legacy_algorithm_count(int64_t direction) { return tables[direction].count; }

const char *legacy_algorithm_name(int64_t direction, int64_t id) {
  const NameTable &table = tables[direction];
  return id >= 0 && id < table.count ? table.names[id] : nullptr;
}

void legacy_output_shape(const ConvCase &conv, int64_t *shape) {
  const LegacyCase described(conv, usual_math_type(conv));
  const int ndim = static_cast<int>(conv.tensors[ROLE_TOP].ndim);
  int sizes[MAX_RANK];
  DNNOPS_LEGACY(cudnnGetConvolutionNdForwardOutputDim, described.conv, described.image, described.filters, ndim,
                sizes);
  std::copy(sizes, sizes + ndim, shape);
}

// The other algorithms sum with atomic additions.
bool legacy_is_deterministic(int64_t direction, int64_t id) {
  if (direction == CONV_GRAD_INPUTS) return id != 0;
  if (direction == CONV_GRAD_WEIGHTS) return id != 0 && id != 3;
  return true;
}

PlanSpec legacy_spec(int64_t id, int64_t math) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_LEGACY;
  spec.id = id;
  spec.math = math;
  return spec;
}

const char *legacy_math_name(int64_t math) { return math >= 0 && math < 4 ? math_names[math] : nullptr; }

std::vector<int64_t> other_math_types(const ConvCase &conv) {
  std::vector<int64_t> others;
  for (int64_t math : {MATH_DEFAULT, MATH_TENSOR_OP, MATH_FMA})
    if (math != usual_math_type(conv)) others.push_back(math);
  return others;
}

std::shared_ptr<Plan> make_legacy_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec) {
  const char *name = legacy_algorithm_name(conv.direction, spec.id);
  if (!name)
    fail(DNNOPS_VALUE_ERROR, "cuDNN's algorithms for this direction are numbered 0 to %d, not %lld",
         legacy_algorithm_count(conv.direction) - 1, (long long)spec.id);
  if (conv.deterministic && !legacy_is_deterministic(conv.direction, spec.id))
    fail(DNNOPS_NOT_SUPPORTED, "not deterministic (flag dnn.deterministic)");
  const int64_t math = spec.math == USUAL_MATH ? usual_math_type(conv) : spec.math;
  if (conv.dtype == DNNOPS_FLOAT32 && !conv.allow_tf32 && math != MATH_FMA)
    fail(DNNOPS_NOT_SUPPORTED, "it may compute in TF32, and dnn.allow_tf32 is False");
  if (math == MATH_ALLOW_CONVERSION) fail(DNNOPS_NOT_SUPPORTED, "it may round its inputs to a narrower type");
  auto plan = std::make_shared<LegacyPlan>(conv, handle, spec.id, math);
  plan->spec = spec;
  plan->name = plan_name(spec, conv.direction);
  return plan;
}

}  // namespace dnnops
