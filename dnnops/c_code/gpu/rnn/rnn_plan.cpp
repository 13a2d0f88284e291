// Descriptors of recurrent networks, and the calls that use them.
#include <algorithm>
#include <climits>
#include <iterator>
#include <tuple>

#include "../../common/lru_cache.hpp"

#include "rnn.hpp"

namespace dnnops::rnn {

const char *const algorithm_names[ALGO_AUTO] = {"standard", "persist_static", "persist_dynamic",
                                                "persist_static_small_h"};

namespace {

// The number of networks, with their shapes, whose descriptors are kept, over all threads.
constexpr size_t KEPT_PLANS = 128;

cudnnDataType_t math_precision(int64_t dtype) { return dtype == DNNOPS_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT; }

// float32 math, unless TF32 is allowed, which is then cuDNN's default.
cudnnMathType_t math_type(const Key &key) {
  if (key.dtype == DNNOPS_FLOAT16 || key.dtype == DNNOPS_BFLOAT16) return CUDNN_TENSOR_OP_MATH;
  return key.dtype == DNNOPS_FLOAT32 && !key.allow_tf32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

cudnnTensorDescriptor_t tensor(const TensorDescriptor &descriptor) {
  return static_cast<cudnnTensorDescriptor_t>(static_cast<legacy::Descriptor>(descriptor));
}

Tensor state_shape(const Key &key, int64_t size) {
  return {3, {key.layers * key.directions, key.batch, size, 0, 0}, {key.batch * size, size, 1, 0, 0}, 16};
}

// A recording replays launches only, so it can include neither a new seed nor new lengths. A kernel that was
// compiled for a network is freed with its descriptor.
bool replayable(const Key &key, Pass pass) {
  return (key.replays >> pass & 1) && !key.padded && !key.dropout && key.algo != CUDNN_RNN_ALGO_PERSIST_DYNAMIC;
}

// Unused entries are null.
Addresses addresses_of(const Plan::Arrays &a, const Plan::Gradients &g) {
  const void *const all[] = {a.w, a.x, a.hx, a.cx, a.y, a.hy, a.cy, a.reserve, a.workspace, a.generators,
                             g.gy, g.ghy, g.gcy, g.dw, g.dx, g.dhx, g.dcx};
  Addresses found{};
  static_assert(sizeof all / sizeof *all <= std::tuple_size<Addresses>::value, "a place for each");
  std::transform(std::begin(all), std::end(all), found.begin(), [](const void *p) { return (int64_t)p; });
  return found;
}

// Adds to a failure's message that another algorithm would work.
template <class Body>
void with_algorithm(int64_t algo, Body &&body) {
  if (algo == CUDNN_RNN_ALGO_STANDARD) return body();
  try {
    body();
  } catch (const Error &error) {
    if (error.status != DNNOPS_NOT_SUPPORTED && error.status != DNNOPS_LIBRARY_ERROR) throw;
    throw Error(error.status, std::string("cuDNN ") + std::to_string(cudnnGetVersion()) +
                                  " does not run this network with algo='" + algorithm_names[algo] +
                                  "'; 'standard' supports every network, and 'auto' selects the fastest algorithm: " +
                                  error.message);
  }
}

}  // namespace

const char *refusal(const Key &key) {
  if (key.algo == CUDNN_RNN_ALGO_STANDARD) return nullptr;
  if (key.padded) return "the sequences' lengths differ, or are less than the number of steps";
  if (key.projected) return "the network has a projection";
  if (key.dtype == DNNOPS_FLOAT64) return "its operands are float64";
  const bool is_static = key.algo == CUDNN_RNN_ALGO_PERSIST_STATIC || key.algo == CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H;
  // Seen on an H200 with cuDNN 9.19 in float16, hidden size 64, batch 8; the standard algorithm's results
  // were correct.
  if (key.algo == CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H && (key.mode == RELU || key.mode == TANH) &&
      key.directions == 2)
    return "with it, the gradient with respect to the parameters of a bidirectional rnn_relu or rnn_tanh is wrong, in "
           "cuDNN 9.19 by 0.3 to 0.5 of its norm";
  // Also seen there, with hidden sizes of 1, 64 and 256: 1 - h^2 is computed from an h whose own error is
  // within the bound.
  if (is_static && key.mode == TANH && key.dtype == DNNOPS_FLOAT32 && !key.allow_tf32 && key.training)
    return "with it, the gradients of an rnn_tanh are less accurate than float32 requires, in cuDNN 9.19 off by up to"
           " 2.1e-5 of their norm instead of 1e-5";
  return nullptr;
}

Key make_key(const Problem &p, const Settings &settings, int64_t device, int64_t dtype,
             const std::vector<int64_t> &lengths, bool training) {
  // cuDNN counts in int, and its internal arrays hold the gates of all steps.
  const int64_t widest = std::max({p.input, p.width(), p.rows()});
  if (p.steps > INT_MAX || p.batch > INT_MAX || p.input > INT_MAX || p.positions() > INT_MAX ||
      (p.positions() && widest > INT_MAX / p.positions()))
    fail(DNNOPS_NOT_SUPPORTED,
         "cuDNN takes networks in which steps x batch x the largest of input, output and all gates is less than 2**31,"
         " got %lld x %lld x %lld",
         (long long)p.steps, (long long)p.batch, (long long)widest);
  if (p.input < 1)
    fail(DNNOPS_NOT_SUPPORTED, "cuDNN requires an input size of at least 1, got %lld", (long long)p.input);
  Key key;
  std::memset(&key, 0, sizeof key);
  key.device = device;
  key.dtype = dtype;
  key.mode = p.mode;
  key.hidden = p.hidden;
  key.layers = p.layers;
  key.directions = p.directions;
  key.skip = p.skip;
  key.projected = p.projected;
  key.input = p.input;
  key.steps = p.steps;
  key.batch = p.batch;
  key.allow_tf32 = settings.allow_tf32;
  key.dropout = p.dropout;
  key.padded = std::any_of(lengths.begin(), lengths.end(), [&](int64_t length) { return length != p.steps; });
  key.training = training;
  return key;
}

Plan::Plan(const Key &key, const Handle &handle, const std::vector<int64_t> &lengths)
    : key_(key),
      replays_{{replayable(key, FORWARD), PassLength::LONG},
               {replayable(key, DATA), PassLength::LONG},
               {replayable(key, WEIGHTS), PassLength::LONG}} {
  with_algorithm(key.algo, [&] {
    if (const char *reason = refusal(key)) fail(DNNOPS_NOT_SUPPORTED, "%s", reason);
    set_descriptor(hidden_, state_shape(key, key.projected ? key.projected : key.hidden), key.dtype);
    if (key.mode == LSTM) set_descriptor(cell_, state_shape(key, key.hidden), key.dtype);
    if (key.dropout > 0) DNNOPS_CHECK(cudnnDropoutGetStatesSize(handle.cudnn, &generators_));
    // The generators get their memory and seed in each call.
    DNNOPS_CHECK(
        cudnnSetDropoutDescriptor(dropout_, handle.cudnn, static_cast<float>(key.dropout), nullptr, 0, 0));
    set_network();
    DNNOPS_CHECK(cudnnGetRNNWeightSpaceSize(handle.cudnn, network_, &parameters_));
    if (key.algo == CUDNN_RNN_ALGO_PERSIST_DYNAMIC) {
      if (is_capturing(handle.stream))
        fail(DNNOPS_NOT_SUPPORTED, "its kernel is not compiled, and cannot be while a CUDA graph is captured");
      DNNOPS_CHECK(cudnnBuildRNNDynamic(handle.cudnn, network_, static_cast<int>(key.batch)));
    }
    set_lengths(handle, lengths);
  });
}

void Plan::set_network() const {
  const int hidden = static_cast<int>(key_.hidden);
  DNNOPS_CHECK(cudnnSetRNNDescriptor_v8(
      network_, static_cast<cudnnRNNAlgo_t>(key_.algo), static_cast<cudnnRNNMode_t>(key_.mode), CUDNN_RNN_DOUBLE_BIAS,
      key_.directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
      key_.skip ? CUDNN_SKIP_INPUT : CUDNN_LINEAR_INPUT, cudnn_dtype(key_.dtype), math_precision(key_.dtype),
      math_type(key_), static_cast<int>(key_.input), hidden, key_.projected ? static_cast<int>(key_.projected) : hidden,
      static_cast<int>(key_.layers), dropout_,
      key_.padded ? CUDNN_RNN_PADDED_IO_ENABLED : CUDNN_RNN_PADDED_IO_DISABLED));
}

void Plan::set_lengths(const Handle &handle, const std::vector<int64_t> &lengths) {
  const bool same = lengths_.size() == lengths.size() && std::equal(lengths.begin(), lengths.end(), lengths_.begin());
  if (same) return;
  lengths_.clear();  // if this fails, the next call sets them again
  std::vector<int> given(lengths.begin(), lengths.end());
  lengths_.swap(given);
  try {
    set_data(handle);
  } catch (...) {
    lengths_.clear();
    throw;
  }
}

void Plan::set_data(const Handle &handle) {
  // Sequences of equal length are already packed, so nothing has to be copied.
  const auto layout =
      key_.padded ? CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED : CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
  const int64_t outputs = (key_.projected ? key_.projected : key_.hidden) * key_.directions;
  // The value of results after the ends; +0 has the same bits in all dtypes.
  double padding = 0;
  const auto set = [&](const DataDescriptor &descriptor, int64_t size) {
    DNNOPS_CHECK(cudnnSetRNNDataDescriptor(descriptor, cudnn_dtype(key_.dtype), layout, static_cast<int>(key_.steps),
                                           static_cast<int>(key_.batch), static_cast<int>(size), lengths_.data(),
                                           &padding));
  };
  set(x_, key_.input);
  set(y_, outputs);
  DNNOPS_CHECK(cudnnGetRNNTempSpaceSizes(handle.cudnn, network_,
                                         key_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, x_,
                                         &workspace_, &reserve_));
  if (!key_.training) reserve_ = 0;
}

void Plan::forward(const Handle &handle, const Arrays &a) {
  replays_[FORWARD].run(handle, addresses_of(a, {}), [&](const Handle &on) { launch_forward(on, a); });
}

void Plan::backward(const Handle &handle, const Arrays &a, const Gradients &g) {
  const Addresses addresses = addresses_of(a, g);
  replays_[DATA].run(handle, addresses, [&](const Handle &on) { launch_data(on, a, g); });
  replays_[WEIGHTS].run(handle, addresses, [&](const Handle &on) { launch_weights(on, a, g); });
}

void Plan::launch_forward(const Handle &handle, const Arrays &a) const {
  with_algorithm(key_.algo, [&] {
    if (generators_)
      DNNOPS_CHECK(cudnnSetDropoutDescriptor(dropout_, handle.cudnn, static_cast<float>(key_.dropout), a.generators,
                                             generators_, a.seed));
    // cuDNN 9 reads the lengths from the descriptors and needs none in device memory.
    DNNOPS_CHECK(cudnnRNNForward(handle.cudnn, network_,
                                 key_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, nullptr, x_, a.x,
                                 y_, a.y, tensor(hidden_), a.hx, a.hy, key_.mode == LSTM ? tensor(cell_) : nullptr,
                                 a.cx, a.cy, parameters_, a.w, workspace_, a.workspace, reserve_, a.reserve));
  });
}

void Plan::launch_data(const Handle &handle, const Arrays &a, const Gradients &g) const {
  const cudnnTensorDescriptor_t cell = key_.mode == LSTM ? tensor(cell_) : nullptr;
  with_algorithm(key_.algo, [&] {
    restore_generators(handle, a);
    // cuDNN does not define the gradient after the ends.
    if (key_.padded)
      DNNOPS_CHECK(cudaMemsetAsync(g.dx, 0, key_.steps * key_.batch * key_.input * item_size(key_.dtype),
                                   static_cast<cudaStream_t>(handle.stream)));
    DNNOPS_CHECK(cudnnRNNBackwardData_v8(handle.cudnn, network_, nullptr, y_, a.y, g.gy, x_, g.dx, tensor(hidden_),
                                         a.hx, g.ghy, g.dhx, cell, a.cx, g.gcy, g.dcx, parameters_, a.w, workspace_,
                                         a.workspace, reserve_, a.reserve));
  });
}

void Plan::launch_weights(const Handle &handle, const Arrays &a, const Gradients &g) const {
  with_algorithm(key_.algo, [&] {
    restore_generators(handle, a);
    // cuDNN can only add to this gradient.
    DNNOPS_CHECK(cudaMemsetAsync(g.dw, 0, parameters_, static_cast<cudaStream_t>(handle.stream)));
    DNNOPS_CHECK(cudnnRNNBackwardWeights_v8(handle.cudnn, network_, CUDNN_WGRAD_MODE_ADD, nullptr, x_, a.x,
                                            tensor(hidden_), a.hx, y_, a.y, parameters_, g.dw, workspace_, a.workspace,
                                            reserve_, a.reserve));
  });
}

// For a gradient. The reserve records what was dropped, but cuDNN rejects the descriptor without memory for
// the generators.
void Plan::restore_generators(const Handle &handle, const Arrays &a) const {
  if (generators_)
    DNNOPS_CHECK(cudnnRestoreDropoutDescriptor(dropout_, handle.cudnn, static_cast<float>(key_.dropout), a.generators,
                                               generators_, a.seed));
}

std::shared_ptr<Plan> plan_for(const Key &key, const Handle &handle, const std::vector<int64_t> &lengths) {
  // Not destroyed with static objects, because the driver may be gone by then.
  static auto *plans = new LruCache<Key, Plan, WordHash<Key>>(KEPT_PLANS);
  return plans->get(key, [&] { return std::make_shared<Plan>(key, handle, lengths); });
}

}  // namespace dnnops::rnn
