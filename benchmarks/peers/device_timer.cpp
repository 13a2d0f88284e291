// Device time between two points of a stream, for every library by the same code: events of its stream,
// behind a gate that stays shut until all that is to be timed has been launched. So what launching costs
// the host isn't in the time.
//
// JAX doesn't give its stream away, but to custom calls. So start and stop are custom calls too, with
// the arrays passing through them that the work in between is to wait for.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
using Stream = cudaStream_t;
#else
using Stream = void *;
#endif
#ifdef WITH_JAX
#include "xla/ffi/api/ffi.h"
#endif

namespace {

using Clock = std::chrono::steady_clock;

// Should a launch wait for what is behind the gate, it opens by itself.
constexpr auto LONGEST_WAIT = std::chrono::milliseconds(50);

char error_text[256] = "";
bool enabled = true;
bool was_queued = false;
std::atomic<long> gates_opened{0};
long gates_shut = 0;

#ifdef WITH_CUDA
cudaEvent_t started = nullptr, stopped = nullptr;

bool check(cudaError_t status, const char *call) {
  if (status == cudaSuccess) return true;
  std::snprintf(error_text, sizeof error_text, "%s: %s", call, cudaGetErrorString(status));
  return false;
}
#define TRY(call) \
  if (!check(call, #call)) return 1

void CUDART_CB wait_at_gate(void *number) {
  const long mine = reinterpret_cast<long>(number);
  const auto until = Clock::now() + LONGEST_WAIT;
  while (gates_opened.load(std::memory_order_acquire) < mine && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(5));
}

int start(Stream stream) {
  if (!enabled) return 0;
  if (!started) {
    TRY(cudaEventCreate(&started));
    TRY(cudaEventCreate(&stopped));
  }
  TRY(cudaLaunchHostFunc(stream, wait_at_gate, reinterpret_cast<void *>(++gates_shut)));
  TRY(cudaEventRecord(started, stream));
  return 0;
}

int stop(Stream stream) {
  if (!enabled) return 0;
  const cudaError_t recorded = cudaEventRecord(stopped, stream);
  was_queued = cudaEventQuery(started) == cudaErrorNotReady;
  gates_opened.store(gates_shut, std::memory_order_release);
  TRY(recorded);
  return 0;
}

int milliseconds(double *result) {
  float elapsed = 0;
  TRY(cudaEventSynchronize(stopped));
  TRY(cudaEventElapsedTime(&elapsed, started, stopped));
  *result = elapsed;
  return 0;
}
#else
Clock::time_point started, stopped;

int start(Stream) {
  if (enabled) started = Clock::now();
  return 0;
}

int stop(Stream) {
  if (enabled) stopped = Clock::now();
  was_queued = true;
  return 0;
}

int milliseconds(double *result) {
  *result = std::chrono::duration<double, std::milli>(stopped - started).count();
  return 0;
}
#endif

}  // namespace

#define EXPORT extern "C"

EXPORT int timer_start(void *stream) { return start(static_cast<Stream>(stream)); }
EXPORT int timer_stop(void *stream) { return stop(static_cast<Stream>(stream)); }
// Waits for the end.
EXPORT int timer_milliseconds(double *result) { return milliseconds(result); }
// Whether the last measurement's work was all launched before any of it ran.
EXPORT int timer_queued() { return was_queued; }
EXPORT void timer_enable(int on) { enabled = on; }
EXPORT const char *timer_error() { return error_text; }

#ifdef WITH_JAX
namespace {

namespace ffi = xla::ffi;

ffi::Error answer(int failed) { return failed ? ffi::Error::Internal(error_text) : ffi::Error::Success(); }

#ifdef WITH_CUDA
#define BIND() ffi::Ffi::Bind().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets()
#define PARAMETERS Stream stream, ffi::RemainingArgs, ffi::RemainingRets
#else
#define BIND() ffi::Ffi::Bind().RemainingArgs().RemainingRets()
#define PARAMETERS ffi::RemainingArgs, ffi::RemainingRets
constexpr Stream stream = nullptr;
#endif

ffi::Error start_call(PARAMETERS) { return answer(start(stream)); }
ffi::Error stop_call(PARAMETERS) { return answer(stop(stream)); }
// Only makes what comes after it wait for what it is given.
ffi::Error fence_call(PARAMETERS) {
  (void)stream;
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(timer_start_call, start_call, BIND());
XLA_FFI_DEFINE_HANDLER_SYMBOL(timer_stop_call, stop_call, BIND());
XLA_FFI_DEFINE_HANDLER_SYMBOL(timer_fence_call, fence_call, BIND());
#endif
