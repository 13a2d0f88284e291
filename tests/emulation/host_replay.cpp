// CUDA's and cuDNN's functions that replay.cpp uses, on the host, and a program that runs passes with it. Arguments are
// 'long' or 'short', and passes: a number that stands for the addresses, 'x' for a pass that cannot be recorded, 'c'
// for one on a stream that is being recorded elsewhere. Prints the outcome of each pass, and at the end what is left
// after the plan is destroyed: owners are the recordings that still hold the plan's resources.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/conv/conv_plan.hpp"
#include "gpu/kernels/replay.hpp"

namespace {
int graphs = 0, executables = 0, streams = 0, launched = 0, replayed = 0;
bool recording = false, foreign = false;
void *handle_stream = nullptr;
}  // namespace

extern "C" {
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *stream = (cudaStream_t)(size_t)(1000 + ++streams);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return --streams, cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (recording || !stream || stream != handle_stream) return cudaErrorInvalidValue;
  recording = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
  if (!recording) return cudaErrorInvalidValue;
  recording = false;
  *graph = (cudaGraph_t)(size_t)++graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t, unsigned long long) {
  *executable = (cudaGraphExec_t)(size_t)++executables;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return --graphs, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return --executables, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable || stream) return cudaErrorInvalidValue;
  return ++replayed, cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t stream) {
  return handle_stream = stream, CUDNN_STATUS_SUCCESS;
}
}

namespace dnnops {
bool process_is_ending = false;
bool is_capturing(void *) { return foreign; }
void fail_cudnn(cudnnStatus_t, const char *call) { fail(DNNOPS_LIBRARY_ERROR, "%s", call); }
void fail_cuda(cudaError_t, const char *call) { fail(DNNOPS_LIBRARY_ERROR, "%s", call); }
}  // namespace dnnops

int main(int count, char **words) {
  using namespace dnnops;
  Handle handle;
  const PassLength length = std::strcmp(words[1], "short") ? PassLength::LONG : PassLength::SHORT;
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> held = owner;
  auto replays = std::make_unique<Replays>(true, length, std::move(owner));
  Replays others(false, length);
  for (int i = 2; i < count; ++i) {
    const bool fails = !std::strcmp(words[i], "x");
    foreign = !std::strcmp(words[i], "c");
    Addresses addresses{};
    addresses[3] = fails || foreign ? 7 : std::atoi(words[i]);
    launched = replayed = 0;
    int recorded = 0;
    replays->run(handle, addresses, [&](const Handle &on) {
      if (on.stream != handle_stream) std::abort();
      if (recording && fails) fail(DNNOPS_LIBRARY_ERROR, "not while recording");
      ++(recording ? recorded : launched);
    });
    if (handle_stream || recording) std::abort();
    std::printf("%d%d%d ", recorded, launched, replayed);
  }
  others.run(handle, Addresses{}, [](const Handle &) {});
  others.run(handle, Addresses{}, [](const Handle &) {});
  replays.reset();
  std::printf("graphs %d executables %d streams %d replays %d owners %d\n", graphs, executables, streams,
              (int)replay_count(), (int)held.use_count());
}
