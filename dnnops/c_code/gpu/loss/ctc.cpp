// The CTC loss of a batch and its gradient with respect to the activations, with cuDNN or with the dnnops
// kernels in c_code/gpu/loss/ctc.cuh.
#include "../../common/ctc_problem.hpp"
#include "../../common/op.hpp"

#include <climits>

#include "ctc_params.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/deferred.hpp"
#include "../base/tensor.hpp"

namespace dnnops {

namespace {

enum Implementation { DETERMINISTIC = 0, NON_DETERMINISTIC = 1, KERNELS = 2 };  // the first two: cudnnCTCLossAlgo_t

// Labels and lengths are in host memory, or on the device for the dnnops kernels.
struct Params : CtcWords {
  int64_t implementation, labels_on_device;
  const char *op() const { return implementation == KERNELS ? "GpuCTC" : "GpuDnnCTC"; }
};

constexpr int NORMALIZATION_SOFTMAX = 1, ZERO_OUT_OF_BOUNDS = 0, DO_NOT_PROPAGATE_NAN = 0;
constexpr int64_t CUDNN_LONGEST_LABEL = 255;

// Scratch memory on the device, divided into parts.
class Parts {
 public:
  int64_t add(int64_t bytes) {
    const int64_t begin = size_;
    size_ += (bytes + 255) / 256 * 256;
    return begin;
  }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
};

// The arrays that the host computes from the labels, in one vector.
class Integers {
 public:
  // Adds an array. Returns where it begins.
  template <class Range>
  int64_t add(const Range &range) {
    const int64_t begin = static_cast<int64_t>(values_.size());
    values_.insert(values_.end(), range.begin(), range.end());
    return begin;
  }
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof(int)); }
  // The copy reads pageable memory before it returns, so the vector need not outlive it.
  void copy_to(void *device, void *stream) const {
    DNNOPS_CHECK(cudaMemcpyAsync(device, values_.data(), bytes(), cudaMemcpyHostToDevice,
                                 static_cast<cudaStream_t>(stream)));
  }

 private:
  std::vector<int> values_;
};

// Computes CtcParams::links.
std::vector<int> links_of(const CtcBatch &batch, int64_t classes) {
  std::vector<int> links(batch.symbols.size(), 0);
  std::vector<int64_t> last(classes, -1);
  for (size_t n = 0; n + 1 < batch.begins.size(); ++n) {
    for (int64_t i = batch.begins[n]; i < batch.begins[n + 1]; ++i) {
      int64_t &before = last[batch.symbols[i]];
      if (before >= batch.begins[n]) {
        links[before] += 2 * static_cast<int>(i - before);
        links[i] = 1;
      }
      before = i;
    }
  }
  return links;
}

unsigned power_of_two(int64_t least, unsigned from, unsigned to) {
  unsigned power = from;
  while (power < to && power < least) power *= 2;
  return power;
}

unsigned grid_of(int64_t blocks) {
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "there are too many sequences and steps for one call");
  return static_cast<unsigned>(blocks);
}

std::string dtype_option(int64_t dtype) { return "-DDTYPE=" + std::to_string(dtype); }

// Rows of up to this many places are kept in shared memory.
constexpr int64_t SHARED_PLACES = 2048;
constexpr unsigned ROW_THREADS = 128, MOST_THREADS = 1024;

CtcIntegers integers_of(const dnnops_tensor &tensor) { return {tensor.data, tensor.dtype == DNNOPS_INT64}; }

// What ctc_labels reads, and how it reports errors.
void set_operands(CtcParams &params, const dnnops_tensor *inputs, bool has_label_lengths) {
  params.labels = integers_of(inputs[1]);
  params.input_lengths = integers_of(inputs[2]);
  if (has_label_lengths) params.label_lengths = integers_of(inputs[3]);
  params.columns = inputs[1].shape[1];
  const char *const wrong[CTC_ERRORS] = {
      "an entry of input_lengths is not in 0 to the number of steps that activations have",
      "an entry of label_lengths is not in 0 to the number of columns that labels have",
      "a label has a symbol outside the alphabet, which the classes of activations but 0, the blank, are",
      "a label has more symbols, with a step between equal ones, than its entry of input_lengths has steps"};
  for (int i = 0; i < CTC_ERRORS; ++i) {
    const ErrorFlag flag = error_flag(std::string("CTC: ") + wrong[i]);
    params.flag = static_cast<int *>(flag.address);
    params.errors[i] = static_cast<int>(flag.number);
  }
}

// `batch` is null if labels and lengths are on the device.
void run_kernels(const Handle &handle, const CtcBatch *batch, const dnnops_tensor *inputs, bool has_label_lengths,
                 void *costs, void *gradients) {
  const dnnops_tensor &activations = inputs[0];
  CtcParams params = {};
  params.activations = activations.data;
  params.costs = costs;
  params.gradients = gradients;
  params.all_steps = activations.shape[0];
  params.batch = activations.shape[1];
  params.classes = activations.shape[2];
  // On the device, only the host's bounds of both are known.
  params.steps = batch ? batch->most_steps : params.all_steps;
  params.places = 2 * (batch ? batch->longest_label : inputs[1].shape[1]) + 1;

  Integers integers;
  int64_t lengths = 0, begins = 0, ends = 0, symbols = 0, links = 0, integer_bytes = 0;
  if (batch) {
    lengths = integers.add(batch->steps), begins = integers.add(batch->begins), ends = begins + 1;
    symbols = integers.add(batch->symbols), links = integers.add(links_of(*batch, params.classes));
    integer_bytes = integers.bytes();
  } else {
    const int64_t padded = params.batch * inputs[1].shape[1];
    if (padded > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "labels must have less than 2**31 entries");
    begins = params.batch, ends = 2 * params.batch, symbols = 3 * params.batch, links = symbols + padded;
    integer_bytes = (links + padded) * sizeof(int);
    set_operands(params, inputs, has_label_lengths);
  }
  const int64_t item = sizeof(double), rows_of_steps = params.batch * params.steps;
  const bool shared_rows = params.places <= SHARED_PLACES;
  Parts parts;
  const int64_t at_integers = parts.add(integer_bytes), at_normalizers = parts.add(rows_of_steps * item),
                at_middles = parts.add(2 * params.batch * params.places * item),
                at_passes = parts.add(gradients ? rows_of_steps * params.places * item : 0),
                at_rows = parts.add(shared_rows ? 0 : 4 * params.batch * params.places * item),
                at_totals = parts.add(params.batch * item);
  const Workspace workspace(*handle.arena, parts.size());
  char *const memory = static_cast<char *>(workspace.pointer());
  int *const given = reinterpret_cast<int *>(memory + at_integers);
  const auto doubles = [&](int64_t at) { return reinterpret_cast<double *>(memory + at); };
  params.lengths = given + lengths;
  params.begins = given + begins;
  params.ends = given + ends;
  params.symbols = given + symbols;
  params.links = given + links;
  params.normalizers = doubles(at_normalizers);
  params.middles = doubles(at_middles);
  params.passes = gradients ? doubles(at_passes) : nullptr;
  params.rows = shared_rows ? nullptr : doubles(at_rows);
  params.totals = doubles(at_totals);
  params.lanes = power_of_two(params.classes / 4, 8, ROW_THREADS);

  const std::string options = dtype_option(activations.dtype);
  const auto load = [&](const char *name) { return load_kernel(handle, "ctc", name, options); };
  const Kernel first = load("ctc_first_half"), second = load("ctc_second_half"), normalizers = load("ctc_normalizers"),
               by_activations = load("ctc_gradients");
  void *arguments[] = {&params};
  const auto launch = [&](const Kernel &kernel, int64_t blocks, unsigned threads, int64_t shared) {
    if (blocks) launch_kernel(kernel, grid_of(blocks), threads, static_cast<unsigned>(shared), handle.stream, arguments);
  };
  const unsigned threads = power_of_two(params.places, 32, MOST_THREADS);
  const int64_t rows_bytes = shared_rows ? 2 * params.places * item : 0, all_rows = params.all_steps * params.batch;
  if (batch)
    integers.copy_to(memory + at_integers, handle.stream);
  else
    launch(load("ctc_labels"), params.batch, ROW_THREADS, ROW_THREADS * item);
  launch(normalizers, (params.steps * params.batch * params.lanes + ROW_THREADS - 1) / ROW_THREADS, ROW_THREADS,
         ROW_THREADS * item);
  launch(first, 2 * params.batch, threads, rows_bytes);
  launch(second, 2 * params.batch, threads, threads * item + rows_bytes);
  if (gradients) launch(by_activations, all_rows, ROW_THREADS, ROW_THREADS * item);
}

// Rejects what cuDNN rejects without a message, and empty labels, for which its costs are 0, or infinite if
// there are no steps.
void check_for_cudnn(const CtcBatch &batch) {
  if (batch.longest_label > CUDNN_LONGEST_LABEL)
    fail(DNNOPS_NOT_SUPPORTED, "cuDNN supports labels of at most %lld symbols, got %lld; use dnnops.nnet.ctc",
         (long long)CUDNN_LONGEST_LABEL, (long long)batch.longest_label);
  for (size_t n = 0; n + 1 < batch.begins.size(); ++n)
    if (batch.begins[n] == batch.begins[n + 1])
      fail(DNNOPS_NOT_SUPPORTED,
           "the label of batch entry %lld is empty, for which cuDNN's cost is wrong; use dnnops.nnet.ctc",
           (long long)n);
}

void run_cudnn(const Handle &handle, int algo, const CtcBatch &batch, const dnnops_tensor &activations, void *costs,
               void *gradients) {
  CTCLossDescriptor loss;
  const int longest = static_cast<int>(batch.longest_label);
  if (legacy::cudnnSetCTCLossDescriptor_v9)
    DNNOPS_LEGACY(cudnnSetCTCLossDescriptor_v9, loss, CUDNN_DATA_FLOAT, NORMALIZATION_SOFTMAX, ZERO_OUT_OF_BOUNDS,
                  longest);
  else
    DNNOPS_LEGACY(cudnnSetCTCLossDescriptor_v8, loss, CUDNN_DATA_FLOAT, NORMALIZATION_SOFTMAX, DO_NOT_PROPAGATE_NAN,
                  longest);
  const int64_t batch_size = activations.shape[1], classes = activations.shape[2];
  const Tensor tensor = {3, {activations.shape[0], batch_size, classes, 0, 0}, {batch_size * classes, classes, 1, 0, 0}, 16};
  const TensorDescriptor array = tensor_descriptor(tensor, activations.dtype);
  const legacy::Descriptor gradient_array = gradients ? static_cast<legacy::Descriptor>(array) : nullptr;

  Integers integers;
  std::vector<int64_t> label_lengths;
  for (int64_t n = 0; n < batch_size; ++n) label_lengths.push_back(batch.begins[n + 1] - batch.begins[n]);
  const int64_t at_labels = integers.add(batch.symbols), at_label_lengths = integers.add(label_lengths),
                at_lengths = integers.add(batch.steps);
  size_t scratch = 0;
  DNNOPS_LEGACY(cudnnGetCTCLossWorkspaceSize_v8, handle.cudnn, algo, loss, array, gradient_array, &scratch);
  Parts parts;
  const int64_t at_scratch = parts.add(scratch), at_integers = parts.add(integers.bytes());
  const Workspace workspace(*handle.arena, parts.size());
  char *const memory = static_cast<char *>(workspace.pointer());
  const int *const given = reinterpret_cast<int *>(memory + at_integers);
  integers.copy_to(memory + at_integers, handle.stream);
  // cuDNN does not document the gradients of steps after the end of a sequence.
  if (gradients)
    DNNOPS_CHECK(cudaMemsetAsync(gradients, 0, elements(tensor) * sizeof(float),
                                 static_cast<cudaStream_t>(handle.stream)));
  DNNOPS_LEGACY(cudnnCTCLoss_v8, handle.cudnn, algo, loss, array, activations.data, given + at_labels,
                given + at_label_lengths, given + at_lengths, costs, gradient_array, gradients, scratch,
                memory + at_scratch);
  if (!gradients) return;
  CtcParams params = {};
  params.costs = costs, params.gradients = gradients;
  params.batch = batch_size, params.classes = classes;
  void *arguments[] = {&params};
  launch_kernel(load_kernel(handle, "ctc", "ctc_certain", dtype_option(activations.dtype)),
                grid_of(activations.shape[0] * batch_size), ROW_THREADS, 0, handle.stream, arguments);
}

void run(const OpCall<Params> &call) {
  const Params &params = call.params;
  const dnnops_tensor &activations = call.inputs[0], *outputs = call.outputs;
  const int64_t count = activations.shape[1];
  void *const costs = outputs[0].data, *const gradients = params.has_gradients ? outputs[1].data : nullptr;
  if (params.labels_on_device) {
    if (count == 0) return;
    const DeviceGuard device(call.context.device);
    const Handle &handle = handle_for(call.context.device, call.context.stream);
    run_kernels(handle, nullptr, call.inputs, params.has_label_lengths, costs, gradients);
    return;
  }
  const CtcBatch batch(params, call.inputs);
  if (count == 0) return;
  const bool has_steps = activations.shape[0] > 0, by_cudnn = params.implementation != KERNELS;
  if (by_cudnn && has_steps) check_for_cudnn(batch);
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  // A replay would copy from the address of this call's labels.
  if (is_capturing(handle.stream))
    fail(DNNOPS_NOT_SUPPORTED, "labels and lengths are in host memory, which a CUDA graph cannot copy them from");
  if (!by_cudnn) {
    run_kernels(handle, &batch, call.inputs, params.has_label_lengths, costs, gradients);
  } else if (!has_steps) {
    DNNOPS_CHECK(cudaMemsetAsync(costs, 0, count * sizeof(float), static_cast<cudaStream_t>(handle.stream)));
  } else {
    run_cudnn(handle, static_cast<int>(params.implementation), batch, activations, costs, gradients);
  }
}

void shape(const OpCall<Params> &call) {
  const Params &params = call.params;
  check_ctc_operands(params, call.inputs);
  const dnnops_tensor &activations = call.inputs[0];
  cudnn_dtype(activations.dtype);
  if (params.implementation != KERNELS && activations.dtype != DNNOPS_FLOAT32)
    fail(DNNOPS_TYPE_ERROR, "cuDNN's CTC loss takes float32, got %s", dtype_name(activations.dtype));
  for (int64_t i = 0; i < 3; ++i)
    if (activations.shape[i] > INT_MAX)
      fail(DNNOPS_NOT_SUPPORTED, "the sizes of activations must be at most 2**31 - 1, got %s",
           describe(activations).c_str());
  set_output(call.outputs[0], activations.dtype == DNNOPS_FLOAT64 ? DNNOPS_FLOAT64 : DNNOPS_FLOAT32,
             {activations.shape[1]});
  if (params.has_gradients) set_output(call.outputs[1], activations);
}

}  // namespace

DNNOPS_OP(cudnn_ctc, Params, shape, run)

}  // namespace dnnops
