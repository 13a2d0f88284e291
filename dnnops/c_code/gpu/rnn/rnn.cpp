// The functions of the recurrent network Ops, forward and gradient.
#include "../../common/op.hpp"
#include "rnn.hpp"

namespace dnnops::rnn {
namespace {

// The algorithm of this thread's last call, for tests and benchmarks.
thread_local int last_algorithm = -1;

struct RnnState : State {
  Key key{};
  std::shared_ptr<Plan> plan;
};

template <bool kForward>
struct Params {
  Words network;
  Settings settings;
  static const char *op() { return kForward ? "GpuDnnRNNForward" : "GpuDnnRNNBackward"; }
  int input_count() const { return network.operand_count(kForward); }
};

// A call of either Op.
struct Call {
  const dnnops_context &context;
  const Settings &settings;
  const Problem problem;
  const dnnops_tensor *inputs;
  dnnops_tensor *outputs;
  bool is_forward;

  template <bool kForward>
  explicit Call(const OpCall<Params<kForward>> &call)
      : context(call.context),
        settings(call.params.settings),
        problem(call.params.network, call.inputs),
        inputs(call.inputs),
        outputs(call.outputs),
        is_forward(kForward) {}

  bool keeps_reserve() const { return is_forward && problem.flag; }
  bool by_x() const { return !is_forward && problem.flag; }
  // With dropout, a network without a reserve still runs as in training, because cuDNN drops nothing in inference.
  bool training() const { return !is_forward || problem.flag || problem.dropout > 0; }
  bool empty() const { return !problem.positions(); }
  int64_t dtype() const { return inputs[1].dtype; }
  int64_t reserve_dtype() const { return dtype() == DNNOPS_FLOAT64 ? DNNOPS_FLOAT64 : DNNOPS_FLOAT32; }
  int64_t reserve_elements(const Plan &plan) const {
    const int64_t item = item_size(reserve_dtype());
    return (plan.reserve() + item - 1) / item;
  }
  const dnnops_tensor *further() const { return inputs + problem.forward_operands(); }
  void *cell(const dnnops_tensor *of, int at) const { return problem.has_cell() ? of[at].data : nullptr; }
};

void check_call(const Call &call) {
  cudnn_dtype(call.dtype());
  check_operands(call.problem, call.inputs);
}

// The node's plan for these operands. Both functions of a call request it, and only the first may have to make it.
std::shared_ptr<Plan> find_plan(const Call &call, const Handle &handle) {
  const std::vector<int64_t> lengths = lengths_of(call.problem, call.inputs);
  Key key = make_key(call.problem, call.settings, call.context.device, call.dtype(), lengths, call.training());
  HeldState<RnnState> held(call.context);
  RnnState &state = *held;
  key.handle = handle.number;
  key.algo = state.key.algo;
  key.replays = state.key.replays;
  if (!state.plan || !(key == state.key)) {
    key.handle = key.algo = key.replays = 0;
    const Choice choice = choose(key, call.settings, call.problem, handle, call.inputs, call.is_forward);
    key.handle = handle.number;
    key.algo = choice.algo;
    key.replays = choice.replays;
    state.plan.reset();
    state.plan = plan_for(key, handle, lengths);
    state.key = key;
    const int64_t expected = call.problem.parameters() * item_size(call.dtype());
    if (state.plan->parameters() != expected)
      fail(DNNOPS_LIBRARY_ERROR, "cuDNN %zu has %lld bytes of parameters for this network, not %lld", cudnnGetVersion(),
           (long long)state.plan->parameters(), (long long)expected);
  }
  state.plan->set_lengths(handle, lengths);
  last_algorithm = state.plan->algo();
  return state.plan;
}

void forward_shape(const Call &call) {
  check_call(call);
  set_forward_shapes(call.problem, call.inputs, call.outputs);
  if (!call.keeps_reserve()) return;
  dnnops_tensor &reserve = call.outputs[2 + call.problem.has_cell()];
  if (call.empty()) return set_output(reserve, call.reserve_dtype(), {0});
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  set_output(reserve, call.reserve_dtype(), {call.reserve_elements(*find_plan(call, handle))});
}

void backward_shape(const Call &call) {
  check_call(call);
  const dnnops_tensor &reserve = call.further()[1];
  if (reserve.ndim != 1 || reserve.dtype != call.reserve_dtype())
    fail(DNNOPS_TYPE_ERROR, "the reserve has to be a vector of %s", dtype_name(call.reserve_dtype()));
  set_backward_shapes(call.problem, call.inputs, call.outputs);
}

void copy(const Handle &handle, const dnnops_tensor &from, const dnnops_tensor &to) {
  const int64_t bytes = element_count(to.shape, to.ndim) * item_size(to.dtype);
  if (bytes)
    DNNOPS_CHECK(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice,
                                 static_cast<cudaStream_t>(handle.stream)));
}

void forward(const Call &call) {
  const Problem &p = call.problem;
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  if (call.empty()) {  // without steps, the states are unchanged
    copy(handle, call.inputs[2], call.outputs[1]);
    if (p.has_cell()) copy(handle, call.inputs[p.cx_at()], call.outputs[2]);
    return;
  }
  const std::shared_ptr<Plan> plan = find_plan(call, handle);
  Pieces pieces;
  const int64_t workspace = pieces.add(plan->workspace()), generators = pieces.add(plan->generators());
  const int64_t scratch = pieces.add(call.keeps_reserve() ? 0 : plan->reserve());
  const Workspace block(*handle.arena, pieces.total());
  void *reserve = nullptr;
  if (call.keeps_reserve())
    reserve = call.outputs[2 + p.has_cell()].data;
  else if (plan->reserve())
    reserve = Pieces::at(block, scratch);
  plan->forward(handle, {call.inputs[0].data, call.inputs[1].data, call.inputs[2].data,
                         call.cell(call.inputs, p.cx_at()), call.outputs[0].data, call.outputs[1].data,
                         call.cell(call.outputs, 2), reserve, Pieces::at(block, workspace),
                         Pieces::at(block, generators), static_cast<uint64_t>(seed_of(p, call.inputs))});
}

void backward(const Call &call) {
  const Problem &p = call.problem;
  const dnnops_tensor *more = call.further(), &y = more[0], &reserve = more[1];
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  if (call.empty()) {
    const int64_t bytes = p.parameters() * item_size(call.dtype());
    DNNOPS_CHECK(cudaMemsetAsync(call.outputs[0].data, 0, bytes, static_cast<cudaStream_t>(handle.stream)));
    copy(handle, more[3], call.outputs[1]);
    if (p.has_cell()) copy(handle, more[4], call.outputs[2]);
    return;
  }
  const std::shared_ptr<Plan> plan = find_plan(call, handle);
  if (reserve.shape[0] != call.reserve_elements(*plan))
    fail(DNNOPS_VALUE_ERROR,
         "the reserve has %lld elements, expected %lld: it has to come from GpuDnnRNNForward with the same operands",
         (long long)reserve.shape[0], (long long)call.reserve_elements(*plan));
  Pieces pieces;
  const int64_t workspace = pieces.add(plan->workspace()), generators = pieces.add(plan->generators());
  const int64_t copied = pieces.add(call.settings.inplace ? 0 : plan->reserve());
  const int64_t dx = pieces.add(call.by_x() ? 0 : p.positions() * p.input * item_size(call.dtype()));
  const Workspace block(*handle.arena, pieces.total());
  void *used = reserve.data;
  if (!call.settings.inplace) {
    used = Pieces::at(block, copied);
    DNNOPS_CHECK(cudaMemcpyAsync(used, reserve.data, plan->reserve(), cudaMemcpyDeviceToDevice,
                                 static_cast<cudaStream_t>(handle.stream)));
  }
  Plan::Arrays arrays = {call.inputs[0].data, call.inputs[1].data, call.inputs[2].data,
                         call.cell(call.inputs, p.cx_at()), y.data, nullptr, nullptr, used,
                         Pieces::at(block, workspace), Pieces::at(block, generators),
                         static_cast<uint64_t>(seed_of(p, call.inputs))};
  plan->backward(handle, arrays,
                 {more[2].data, more[3].data, call.cell(more, 4), call.outputs[0].data,
                  call.by_x() ? call.outputs[2 + p.has_cell()].data : Pieces::at(block, dx), call.outputs[1].data,
                  call.cell(call.outputs, 2)});
}

template <bool kForward>
void shape(const OpCall<Params<kForward>> &call) {
  (kForward ? forward_shape : backward_shape)(Call(call));
}

template <bool kForward>
void run(const OpCall<Params<kForward>> &call) {
  (kForward ? forward : backward)(Call(call));
}

// Writes the position of a matrix and a bias in cuDNN's parameters: for each the offset in elements, the
// dimensions and the number of elements.
void describe_parameters(const Call &call, const Plan &plan, const Handle &handle, int64_t *found) {
  // Nothing is read from this address; only differences matter.
  const Workspace block(*handle.arena, plan.parameters());
  const char *begin = static_cast<const char *>(block.pointer());
  const int64_t item = item_size(call.dtype()), linear = 2 * call.problem.gates + (call.problem.projected > 0);
  for (int64_t layer = 0; layer < call.problem.states(); ++layer)
    for (int64_t id = 0; id < linear; ++id) {
      TensorDescriptor descriptors[2];
      cudnnTensorDescriptor_t made[2];
      for (int i = 0; i < 2; ++i)
        made[i] = static_cast<cudnnTensorDescriptor_t>(static_cast<legacy::Descriptor>(descriptors[i]));
      void *addresses[2] = {nullptr, nullptr};
      DNNOPS_CHECK(cudnnGetRNNWeightParams(handle.cudnn, plan.network(), static_cast<int>(layer), plan.parameters(),
                                           begin, static_cast<int>(id), made[0], &addresses[0], made[1],
                                           &addresses[1]));
      for (int i = 0; i < 2; ++i) {
        *found++ = addresses[i] ? (static_cast<char *>(addresses[i]) - begin) / item : -1;
        int shape[3] = {0, 0, 0}, strides[3], ndim = 0;
        cudnnDataType_t dtype;
        if (addresses[i])
          DNNOPS_CHECK(cudnnGetTensorNdDescriptor(made[i], 3, &dtype, &ndim, shape, strides));
        *found++ = shape[1];
        *found++ = shape[2];
      }
    }
}

}  // namespace

DNNOPS_OP(cudnn_rnn_forward, Params<true>, shape, run)
DNNOPS_OP(cudnn_rnn_backward, Params<false>, shape, run)

DNNOPS_EXPORT const char *dnnops_cudnn_rnn_last_algorithm(void) {
  return last_algorithm < 0 ? "" : algorithm_names[last_algorithm];
}

DNNOPS_EXPORT int dnnops_cudnn_rnn_parameters(const dnnops_context *context, const int64_t *words,
                                              const dnnops_tensor *inputs, int64_t *found) {
  return call_op<Params<true>>(context, words, inputs, nullptr, [&](const auto &given) {
    const Call call(given);
    check_call(call);
    const DeviceGuard device(call.context.device);
    const Handle &handle = handle_for(call.context.device, call.context.stream);
    describe_parameters(call, *find_plan(call, handle), handle, found);
  });
}

}  // namespace dnnops::rnn
