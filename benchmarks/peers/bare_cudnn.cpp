// The bare call: what a program pays that calls cuDNN on prepared descriptors and nothing else.
//
// A chain is a number of equal convolutions, each on the result of the one before: float32, stride
// 1, no groups, and padded so that the size stays.  Everything but the calls themselves is made
// beforehand, so the time of a chain, taken without synchronization, is that of the calls.
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <cudnn.h>

namespace {

std::string last_error;

void check(cudnnStatus_t status, const char *call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char words[1024] = "";
  cudnnGetLastErrorString(words, sizeof words);
  throw std::runtime_error(std::string(call) + ": " + cudnnGetErrorString(status) + " " + words);
}
#define CHECK(call) check(call, #call)

// Descriptors are left to the end of the process.
cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor;
  CHECK(cudnnBackendCreateDescriptor(type, &descriptor));
  return descriptor;
}

void set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t count, const void *values) {
  CHECK(cudnnBackendSetAttribute(descriptor, name, type, count, values));
}

void set_one(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
  set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

struct Sizes {
  int64_t batch, channels, size, kernel;
  int64_t pad() const { return kernel / 2; }
};

class Chain {
 public:
  Chain() { CHECK(cudnnCreate(&handle_)); }
  virtual ~Chain() { cudnnDestroy(handle_); }

  size_t workspace_size = 0;

  // arrays[i] is what call i reads, arrays[i + 1] what it writes.
  virtual void bind(void *const *arrays, int64_t calls, void *filters, void *workspace) {
    arrays_.assign(arrays, arrays + calls + 1);
    filters_ = filters;
    workspace_ = workspace;
  }

  // Host seconds of the first `calls` calls, from an idle device.
  double time(int64_t calls) {
    if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("cudaDeviceSynchronize failed");
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) check(call(i), "the convolution");
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("a convolution failed on the device");
    return passed.count();
  }

 protected:
  virtual cudnnStatus_t call(int64_t i) = 0;

  cudnnHandle_t handle_;
  std::vector<void *> arrays_;
  void *filters_ = nullptr, *workspace_ = nullptr;
};

class LegacyChain : public Chain {
 public:
  LegacyChain(const Sizes &s, int algorithm) : algorithm_(static_cast<cudnnConvolutionFwdAlgo_t>(algorithm)) {
    const int n = static_cast<int>(s.batch), c = static_cast<int>(s.channels), size = static_cast<int>(s.size);
    const int k = static_cast<int>(s.kernel), pad = static_cast<int>(s.pad());
    CHECK(cudnnCreateTensorDescriptor(&array_));
    CHECK(cudnnSetTensor4dDescriptor(array_, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, size, size));
    CHECK(cudnnCreateFilterDescriptor(&filter_));
    CHECK(cudnnSetFilter4dDescriptor(filter_, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, c, c, k, k));
    CHECK(cudnnCreateConvolutionDescriptor(&conv_));
    CHECK(cudnnSetConvolution2dDescriptor(conv_, pad, pad, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    // Not TF32.
    CHECK(cudnnSetConvolutionMathType(conv_, CUDNN_FMA_MATH));
    CHECK(cudnnGetConvolutionForwardWorkspaceSize(handle_, array_, filter_, conv_, array_, algorithm_,
                                                  &workspace_size));
  }

 protected:
  cudnnStatus_t call(int64_t i) override {
    return cudnnConvolutionForward(handle_, &one_, array_, arrays_[i], filter_, filters_, conv_, algorithm_, workspace_,
                                   workspace_size, &zero_, array_, arrays_[i + 1]);
  }

 private:
  cudnnConvolutionFwdAlgo_t algorithm_;
  cudnnTensorDescriptor_t array_;
  cudnnFilterDescriptor_t filter_;
  cudnnConvolutionDescriptor_t conv_;
  const float one_ = 1, zero_ = 0;
};

class GraphChain : public Chain {
 public:
  GraphChain(const Sizes &s, int64_t engine, int64_t knob_count, const int64_t *knobs)
      : plan_(make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)) {
    const cudnnBackendDescriptor_t config = configuration(operation_graph(s), engine, knob_count, knobs);
    set(plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    set_one(plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    CHECK(cudnnBackendFinalize(plan_));
    int64_t count = 0, size = 0;
    CHECK(cudnnBackendGetAttribute(plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &size));
    workspace_size = static_cast<size_t>(size);
  }

  void bind(void *const *arrays, int64_t calls, void *filters, void *workspace) override {
    Chain::bind(arrays, calls, filters, workspace);
    for (int64_t i = 0; i < calls; ++i) {
      const cudnnBackendDescriptor_t pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
      const int64_t ids[] = {X, W, Y};
      void *pointers[] = {arrays[i], filters, arrays[i + 1]};
      set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
      set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
      set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace_);
      CHECK(cudnnBackendFinalize(pack));
      packs_.push_back(pack);
    }
  }

 protected:
  cudnnStatus_t call(int64_t i) override { return cudnnBackendExecute(handle_, plan_, packs_[i]); }

 private:
  enum Id : int64_t { X = 1, W = 2, Y = 3 };

  static cudnnBackendDescriptor_t tensor(int64_t id, int64_t n, int64_t c, int64_t size) {
    const cudnnBackendDescriptor_t descriptor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t shape[] = {n, c, size, size}, strides[] = {c * size * size, size * size, size, 1}, alignment = 16;
    set(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape);
    set(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    CHECK(cudnnBackendFinalize(descriptor));
    return descriptor;
  }

  static cudnnBackendDescriptor_t convolution(int64_t padding) {
    const cudnnBackendDescriptor_t conv = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t two = 2, ones[] = {1, 1}, pads[] = {padding, padding};
    set(conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    set(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    set(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    set(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    CHECK(cudnnBackendFinalize(conv));
    return conv;
  }

  cudnnBackendDescriptor_t operation_graph(const Sizes &s) {
    const cudnnBackendDescriptor_t operation = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    const float one = 1, zero = 0;
    set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
    set_one(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution(s.pad()));
    set_one(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tensor(X, s.batch, s.channels, s.size));
    set_one(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tensor(W, s.channels, s.channels, s.kernel));
    set_one(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, tensor(Y, s.batch, s.channels, s.size));
    CHECK(cudnnBackendFinalize(operation));
    const cudnnBackendDescriptor_t graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    set_one(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    CHECK(cudnnBackendFinalize(graph));
    return graph;
  }

  static cudnnBackendDescriptor_t configuration(cudnnBackendDescriptor_t graph, int64_t number, int64_t knob_count,
                                                const int64_t *knobs) {
    const cudnnBackendDescriptor_t engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    set_one(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    set(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
    CHECK(cudnnBackendFinalize(engine));
    std::vector<cudnnBackendDescriptor_t> choices;
    for (int64_t i = 0; i < knob_count; ++i) {
      const cudnnBackendDescriptor_t choice = make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
      const cudnnBackendKnobType_t type = static_cast<cudnnBackendKnobType_t>(knobs[2 * i]);
      set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
      set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &knobs[2 * i + 1]);
      CHECK(cudnnBackendFinalize(choice));
      choices.push_back(choice);
    }
    const cudnnBackendDescriptor_t config = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set_one(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (knob_count > 0)
      set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, knob_count, choices.data());
    CHECK(cudnnBackendFinalize(config));
    return config;
  }

  cudnnBackendDescriptor_t plan_;
  std::vector<cudnnBackendDescriptor_t> packs_;
};

template <class Body>
auto guarded(Body body, decltype(body()) failure) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception &error) {
    last_error = error.what();
    return failure;
  }
}

}  // namespace

extern "C" {

const char *bare_error() { return last_error.c_str(); }

size_t bare_version() { return cudnnGetVersion(); }

// `knobs` null: the legacy algorithm of this number; else the graph API's engine.
void *bare_chain(const int64_t *sizes, int64_t number, int64_t knob_count, const int64_t *knobs) {
  return guarded(
      [&]() -> void * {
        const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3]};
        if (!knobs) return static_cast<Chain *>(new LegacyChain(s, static_cast<int>(number)));
        return static_cast<Chain *>(new GraphChain(s, number, knob_count, knobs));
      },
      nullptr);
}

int64_t bare_workspace_size(void *chain) { return static_cast<int64_t>(static_cast<Chain *>(chain)->workspace_size); }

int bare_bind(void *chain, void *const *arrays, int64_t calls, void *filters, void *workspace) {
  return guarded(
      [&] {
        static_cast<Chain *>(chain)->bind(arrays, calls, filters, workspace);
        return 0;
      },
      1);
}

// Negative: it failed.
double bare_time(void *chain, int64_t calls) {
  return guarded([&] { return static_cast<Chain *>(chain)->time(calls); }, -1.0);
}

void bare_free(void *chain) { delete static_cast<Chain *>(chain); }

}  // extern "C"
