// Convolutions that are matrix products, with cuBLASLt: the filters have one element, or are as large as the image.
#include <algorithm>

#include "conv_plan.hpp"
#include "../base/matrix_product.hpp"

namespace dnnops {

namespace {

constexpr int MAX_PROPOSALS = 16;
// A larger workspace never made a product of these sizes faster.
constexpr uint64_t MAX_WORKSPACE = uint64_t(256) << 20;

// Attributes that distinguish the variants of an algorithm. Their numbers are the knob types of a PlanSpec.
struct Attribute {
  cublasLtMatmulAlgoConfigAttributes_t name;
  size_t size;
};
const Attribute config_attributes[] = {
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},          {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4}, {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},   {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

// result = op(left) op(right) for each of `batches`.
struct Product {
  Matrix left, right, result;
  Role left_role, right_role, result_role;
  bool transpose_left, transpose_right;
  int64_t batches;
};

bool all_equal(const int64_t *values, int64_t count, int64_t to) {
  return std::all_of(values, values + count, [to](int64_t value) { return value == to; });
}

// Throws if the convolution is not a matrix product.
Product product_of(const ConvCase &conv) {
  const Tensor &image = conv.tensors[ROLE_IMAGE], &filters = conv.tensors[ROLE_FILTERS], &top = conv.tensors[ROLE_TOP];
  const int64_t spatial = conv.spatial_ndim;
  const auto refuse = [](const char *reason) { fail(DNNOPS_NOT_SUPPORTED, "it is not a matrix product: %s", reason); };
  if (conv.groups != 1) refuse("the channels are in groups");
  if (!all_equal(conv.pad, spatial, 0)) refuse("the image is padded");
  const bool pointwise = all_equal(filters.shape + 2, spatial, 1);
  if (pointwise && !all_equal(conv.stride, spatial, 1)) refuse("it skips positions");
  if (!pointwise) {
    if (!all_equal(top.shape + 2, spatial, 1) || std::memcmp(image.shape + 2, filters.shape + 2, spatial * sizeof(int64_t)))
      refuse("the filters neither have one element nor are as large as the image");
    if (conv.flip) refuse("the filters are flipped");
  }
  const int64_t formats = dense_formats(image) & dense_formats(top) & dense_formats(filters);
  const int64_t batch = image.shape[0], outputs = filters.shape[0];
  const int64_t positions = element_count(top.shape + 2, spatial);
  const int64_t inputs = elements(filters) / outputs;  // per result
  const bool channels_last = formats & FORMAT_CHANNELS_LAST;
  if (!formats || !is_packed(filters)) refuse("the arrays are not dense in one memory format");
  const Matrix weights{inputs, outputs, inputs, 0};
  if (channels_last || positions == 1) {
    // The channels of a position form a column.
    if (positions > 1 && (!is_packed(image) || !is_packed(top))) refuse("there are gaps in the arrays");
    const int64_t columns = batch * positions;
    const Matrix x{inputs, columns, positions == 1 ? std::max(image.strides[0], inputs) : inputs, 0};
    const Matrix y{outputs, columns, positions == 1 ? std::max(top.strides[0], outputs) : outputs, 0};
    if (conv.direction == CONV_FORWARD) return {weights, x, y, ROLE_FILTERS, ROLE_IMAGE, ROLE_TOP, true, false, 1};
    if (conv.direction == CONV_GRAD_INPUTS) return {weights, y, x, ROLE_FILTERS, ROLE_TOP, ROLE_IMAGE, false, false, 1};
    return {x, y, weights, ROLE_IMAGE, ROLE_TOP, ROLE_FILTERS, false, true, 1};
  }
  // The positions of a channel form a column; each image is a matrix.
  const Matrix x{positions, inputs, positions, image.strides[0]}, y{positions, outputs, positions, top.strides[0]};
  if (conv.direction == CONV_FORWARD) return {x, weights, y, ROLE_IMAGE, ROLE_FILTERS, ROLE_TOP, false, false, batch};
  if (conv.direction == CONV_GRAD_INPUTS) return {y, weights, x, ROLE_TOP, ROLE_FILTERS, ROLE_IMAGE, false, true, batch};
  if (batch > 1) refuse("it is a sum of products over the images");
  return {x, y, weights, ROLE_IMAGE, ROLE_TOP, ROLE_FILTERS, true, false, 1};
}

cublasComputeType_t compute_type(const ConvCase &conv) {
  if (conv.compute == DNNOPS_FLOAT64) return CUBLAS_COMPUTE_64F;
  if (conv.compute != DNNOPS_FLOAT32)
    fail(DNNOPS_NOT_SUPPORTED, "summation in %s is not supported", dtype_name(conv.compute));
  return conv.dtype == DNNOPS_FLOAT32 && conv.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Partial sums are added up in the compute type, not in a narrower type of the result.
uint32_t reduction_schemes(const ConvCase &conv) {
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (conv.dtype == conv.compute) schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
  return schemes;
}

class Preference {
 public:
  Preference(const ConvCase &conv, const Product &product) {
    DNNOPS_CUBLASLT(cublasLtMatmulPreferenceCreate, &preference_);
    uint64_t workspace = MAX_WORKSPACE;
    if (conv.workspace_limit >= 0) workspace = std::min<uint64_t>(workspace, conv.workspace_limit);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes(conv));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(conv, product.left_role));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(conv, product.right_role));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(conv, product.result_role));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(conv, product.result_role));
  }
  ~Preference() { cublaslt::functions().cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference &) = delete;
  Preference &operator=(const Preference &) = delete;
  operator cublasLtMatmulPreference_t() const { return preference_; }

 private:
  static uint32_t alignment(const ConvCase &conv, Role role) {
    return static_cast<uint32_t>(conv.tensors[role].alignment);
  }
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t name, Value value) {
    DNNOPS_CUBLASLT(cublasLtMatmulPreferenceSetAttribute, preference_, name, &value, sizeof value);
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// A convolution as cuBLASLt descriptors.
struct MatrixProduct {
  Product product;
  cudaDataType_t type, scale;
  cublasComputeType_t compute;
  Operation operation;
  MatrixLayout left, right, result;

  explicit MatrixProduct(const ConvCase &conv)
      : product(product_of(conv)),
        type(data_type(conv.dtype)),
        scale(conv.compute == DNNOPS_FLOAT64 ? CUDA_R_64F : CUDA_R_32F),
        compute(compute_type(conv)),
        operation(product.transpose_left, product.transpose_right, compute, scale),
        left(product.left, product.batches, type),
        right(product.right, product.batches, type),
        result(product.result, product.batches, type) {}
};

PlanSpec describe_algorithm(const cublasLtMatmulAlgo_t &algorithm) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_CUBLASLT;
  spec.math = USUAL_MATH;
  int32_t id = 0;
  size_t written = 0;
  DNNOPS_CUBLASLT(cublasLtMatmulAlgoConfigGetAttribute, &algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
  spec.id = id;
  for (const Attribute &attribute : config_attributes) {
    int32_t value = 0;
    DNNOPS_CUBLASLT(cublasLtMatmulAlgoConfigGetAttribute, &algorithm, attribute.name, &value, attribute.size, &written);
    spec.knobs[2 * spec.knob_count] = attribute.name;
    spec.knobs[2 * spec.knob_count + 1] = value;
    ++spec.knob_count;
  }
  return spec;
}

cublasLtMatmulAlgo_t algorithm_of(const PlanSpec &spec, const MatrixProduct &product, cublasLtHandle_t handle) {
  cublasLtMatmulAlgo_t algorithm;
  DNNOPS_CUBLASLT(cublasLtMatmulAlgoInit, handle, product.compute, product.scale, product.type, product.type,
                  product.type, product.type, static_cast<int>(spec.id), &algorithm);
  for (int64_t i = 0; i < spec.knob_count; ++i) {
    const auto attribute = std::find_if(std::begin(config_attributes), std::end(config_attributes),
                                        [&](const Attribute &known) { return known.name == spec.knobs[2 * i]; });
    if (attribute == std::end(config_attributes))
      fail(DNNOPS_NOT_SUPPORTED, "cuBLASLt algorithms have no knob %lld", (long long)spec.knobs[2 * i]);
    const int32_t value = static_cast<int32_t>(spec.knobs[2 * i + 1]);
    DNNOPS_CUBLASLT(cublasLtMatmulAlgoConfigSetAttribute, &algorithm, attribute->name, &value, attribute->size);
  }
  return algorithm;
}

int64_t knob_value(const PlanSpec &spec, int64_t type) {
  for (int64_t i = 0; i < spec.knob_count; ++i)
    if (spec.knobs[2 * i] == type) return spec.knobs[2 * i + 1];
  return 0;
}

class GemmPlan : public Plan {
 public:
  GemmPlan(const ConvCase &conv, const Handle &handle, const PlanSpec &of)
      : cublaslt_(cublaslt::handle_of(handle.device)),
        dtype_(conv.dtype),
        product_(conv),
        algorithm_(algorithm_of(of, product_, cublaslt_)) {
    cublasLtMatmulHeuristicResult_t checked;
    DNNOPS_CUBLASLT(cublasLtMatmulAlgoCheck, cublaslt_, product_.operation, product_.left, product_.right,
                    product_.result, product_.result, &algorithm_, &checked);
    spec = of;
    workspace = static_cast<int64_t>(checked.workspaceSize);
    takes_scalars = true;
    const int64_t scheme = knob_value(of, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    if (scheme & ~int64_t(reduction_schemes(conv)))
      fail(DNNOPS_NOT_SUPPORTED, "it sums in a narrower type than requested (flag dnn.conv.precision)");
    deterministic = scheme != CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (!deterministic) notes |= int64_t(1) << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (conv.deterministic && !deterministic) fail(DNNOPS_NOT_SUPPORTED, "not deterministic (flag dnn.deterministic)");
    const bool wide = conv.dtype == conv.compute && product_.compute != CUBLAS_COMPUTE_32F_FAST_TF32;
    require_alignment(conv, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, product_.product.left_role);
    require_alignment(conv, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, product_.product.right_role);
    require_alignment(conv, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, product_.product.result_role);
    require_alignment(conv, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, product_.product.result_role);
    if (!wide) notes |= int64_t(1) << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  }

  void execute(const Launch &launch, PointerPack &) override {
    const Scalar alpha(launch.alpha, dtype_), beta(launch.beta, dtype_);
    const Product &product = product_.product;
    void *result = launch.pointers[product.result_role];
    DNNOPS_CUBLASLT(cublasLtMatmul, cublaslt_, product_.operation, alpha.pointer(), launch.pointers[product.left_role],
                    product_.left, launch.pointers[product.right_role], product_.right, beta.pointer(), result,
                    product_.result, result, product_.result, &algorithm_, launch.workspace,
                    static_cast<size_t>(workspace), static_cast<cudaStream_t>(launch.handle->stream));
  }

 private:
  void require_alignment(const ConvCase &conv, cublasLtMatmulAlgoCapAttributes_t which, Role role) const {
    uint32_t needed = 0;
    size_t written = 0;
    DNNOPS_CUBLASLT(cublasLtMatmulAlgoCapGetAttribute, &algorithm_, which, &needed, sizeof needed, &written);
    if (conv.tensors[role].alignment < std::min<int64_t>(needed, 16))
      fail(DNNOPS_NOT_SUPPORTED, "it needs arrays aligned to %u bytes", needed);
  }

  cublasLtHandle_t cublaslt_;
  int64_t dtype_;
  MatrixProduct product_;
  cublasLtMatmulAlgo_t algorithm_;
};

}  // namespace

std::vector<PlanSpec> gemm_specs(const ConvCase &conv, const Handle &handle) {
  const MatrixProduct product(conv);
  const Preference preference(conv, product.product);
  cublasLtMatmulHeuristicResult_t proposals[MAX_PROPOSALS];
  int count = 0;
  DNNOPS_CUBLASLT(cublasLtMatmulAlgoGetHeuristic, cublaslt::handle_of(handle.device), product.operation, product.left,
                  product.right, product.result, product.result, preference, MAX_PROPOSALS, proposals, &count);
  std::vector<PlanSpec> specs;
  for (int i = 0; i < count; ++i)
    if (proposals[i].state == CUBLAS_STATUS_SUCCESS) specs.push_back(describe_algorithm(proposals[i].algo));
  return specs;
}

std::shared_ptr<Plan> make_gemm_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec) {
  auto plan = std::make_shared<GemmPlan>(conv, handle, spec);
  plan->name = plan_name(spec, conv.direction);
  return plan;
}

}  // namespace dnnops
