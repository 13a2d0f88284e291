// Plans that computed wrong results with cuDNN 9.19 on an H200, found by tests/plans/test_gpu.py. They are
// rejected with all versions, until one is shown to be correct.
#include "conv_plan.hpp"

namespace dnnops {

namespace {

// Tensor-core engines without knob values can only be requested by their number or come from cuDNN's fallback
// heuristic; other heuristics propose few of them.
const char *const knobless =
    "known to be wrong: engines of tensor cores without values for their knobs gave relative errors of 0.3 to 12 (71 and"
    " 72 forward, 77 and 78 backward data, 69 backward filter) or wrote nothing (70 backward filter; all with cuDNN"
    " 9.19), so only those that cuDNN's other heuristics propose are used";

bool is_wrong_without_knobs(int64_t direction, int64_t engine) {
  switch (direction) {
    case CONV_FORWARD: return engine == 71 || engine == 72;
    case CONV_GRAD_INPUTS: return engine == 77 || engine == 78;
    default: return engine == 69 || engine == 70;
  }
}

// Winograd's algorithm with tiles of 13x13.
struct WrongPlan {
  int64_t api, direction, id;
  const char *error;
};
const WrongPlan wrong_float32_5x5[] = {
    {API_GRAPH, CONV_FORWARD, 6, "7e-4"},
    {API_GRAPH, CONV_GRAD_INPUTS, 7, "6e-4"},
    {API_GRAPH, CONV_GRAD_WEIGHTS, 17, "1e-3"},
    {API_LEGACY, CONV_FORWARD, 7, "7e-4"},
    {API_LEGACY, CONV_GRAD_INPUTS, 5, "1e-3"},
    {API_LEGACY, CONV_GRAD_WEIGHTS, 5, "6e-4"},
};

}  // namespace

void refuse_knobless() { fail(DNNOPS_NOT_SUPPORTED, "%s", knobless); }

void refuse_known_wrong(const ConvCase &conv, const PlanSpec &spec) {
  if (has_epilogue(conv)) {  // engines of other graphs have other numbers
    if (item_size(conv.dtype) == 2 && has_part(conv.epilogue, EPILOGUE_SCALE))
      fail(DNNOPS_NOT_SUPPORTED,
           "known to be wrong: with a scale, a bias and relu, relative error 1 for channels-last image (4, 32, 14, 14),"
           " filters (64, 32, 3, 3), 16 bits (cuDNN 9.19)");
    return;
  }
  const Tensor &filters = conv.tensors[ROLE_FILTERS];
  if (spec.api == API_GRAPH && !spec.knob_count && is_wrong_without_knobs(conv.direction, spec.id)) refuse_knobless();
  if (spec.api == API_GRAPH && spec.id == 70 && conv.direction == CONV_GRAD_WEIGHTS && conv.groups > 1)
    fail(DNNOPS_NOT_SUPPORTED,
         "known to be wrong: it left 512 of 1536 results unwritten for image (1, 16, 7, 11), filters (32, 8, 3, 2), 2"
         " groups, strides of 2, bfloat16 (cuDNN 9.19)");
  if (conv.dtype != DNNOPS_FLOAT32 || conv.spatial_ndim != 2 || filters.shape[2] != 5 || filters.shape[3] != 5) return;
  for (const WrongPlan &wrong : wrong_float32_5x5)
    if (spec.api == wrong.api && spec.id == wrong.id && conv.direction == wrong.direction)
      fail(DNNOPS_NOT_SUPPORTED,
           "known to be wrong: relative error %s for image (8, 32, 30, 30), filters (16, 32, 5, 5), float32 (cuDNN 9.19)",
           wrong.error);
}

}  // namespace dnnops
