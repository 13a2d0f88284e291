#include "conv_epilogue.hpp"

#include <algorithm>

namespace dnnops {

namespace {

constexpr unsigned THREADS = 256;
constexpr int64_t MAX_BLOCKS = 132 * 16;

// As in epilogue.cuh.
struct EpilogueLaunch {
  void *y;
  const void *scale, *bias, *addend;
  unsigned long long units, channels, step;
  double coef;
};

class UnfusedPlan : public Plan {
 public:
  UnfusedPlan(const ConvCase &conv, const Handle &handle, std::shared_ptr<Plan> inner)
      : inner_(std::move(inner)), kernel_(conv, handle) {
    spec = inner_->spec;
    spec.format |= FORMAT_UNFUSED;
    name = plan_name(spec, conv.direction);
    workspace = inner_->workspace;
    math = inner_->math;
    notes = inner_->notes;
    deterministic = inner_->deterministic;
    takes_scalars = inner_->takes_scalars;
  }

  void execute(const Launch &launch, PointerPack &pack) override {
    inner_->execute(launch, pack);
    kernel_.run(launch);
  }

 private:
  std::shared_ptr<Plan> inner_;
  EpilogueKernel kernel_;
};

}  // namespace

EpilogueWork epilogue_work(const ConvCase &conv) {
  const Tensor &y = conv.tensors[ROLE_TOP];
  const Epilogue &epilogue = conv.epilogue;
  const int64_t format = dense_format(y, FORMAT_CONTIGUOUS);
  if (!format || !is_packed(y)) fail(DNNOPS_NOT_SUPPORTED, "the result is not dense");
  const bool last = !(format & FORMAT_CONTIGUOUS);
  const int64_t count = elements(y), channels = y.shape[1];
  const int64_t positions = element_count(y.shape + 2, y.ndim - 2);
  int64_t alignment = y.alignment;
  if (has_part(epilogue, EPILOGUE_ADDEND)) alignment = std::min(alignment, epilogue.alignments[2]);
  int64_t unit = std::max<int64_t>(alignment / item_size(conv.dtype), 1);
  while ((last ? channels : positions) % unit) unit /= 2;
  EpilogueWork work;
  work.units = count / unit;
  work.channels = last ? channels / unit : channels;
  work.step = last ? 1 : positions / unit;
  work.threads = THREADS;
  work.blocks = static_cast<unsigned>(std::min<int64_t>((work.units + THREADS - 1) / THREADS, MAX_BLOCKS));
  const bool has_vectors = has_part(epilogue, EPILOGUE_SCALE) || has_part(epilogue, EPILOGUE_BIAS);
  work.options = "-DDTYPE=" + std::to_string(conv.dtype) +
                 " -DVECTOR_DTYPE=" + std::to_string(has_vectors ? epilogue.vector_dtype : conv.dtype) +
                 " -DPARTS=" + std::to_string(epilogue.parts) + " -DACTIVATION=" + std::to_string(epilogue.activation) +
                 " -DUNIT=" + std::to_string(unit) + " -DCHANNELS_LAST=" + std::to_string(last) +
                 " -DINDEX=" + (count <= INT_MAX ? "unsigned" : "size_t");
  return work;
}

EpilogueKernel::EpilogueKernel(const ConvCase &conv, const Handle &handle)
    : work_(epilogue_work(conv)),
      coef_(conv.epilogue.coef),
      kernel_(load_kernel(handle, "conv_epilogue", "conv_epilogue", work_.options)) {}

void EpilogueKernel::run(const Launch &launch) const {
  EpilogueLaunch given = {launch.pointers[ROLE_TOP],
                          launch.pointers[EPILOGUE_SCALE],
                          launch.pointers[EPILOGUE_BIAS],
                          launch.pointers[EPILOGUE_ADDEND],
                          static_cast<unsigned long long>(work_.units),
                          static_cast<unsigned long long>(work_.channels),
                          static_cast<unsigned long long>(work_.step),
                          coef_};
  void *arguments[] = {&given};
  launch_kernel(kernel_, work_.blocks, work_.threads, 0, launch.handle->stream, arguments);
}

std::shared_ptr<Plan> make_unfused_plan(const ConvCase &conv, const Handle &handle, std::shared_ptr<Plan> inner) {
  return std::make_shared<UnfusedPlan>(conv, handle, std::move(inner));
}

}  // namespace dnnops
