// cuDNN's recurrent networks: descriptors that are kept between calls, launches, and the selection of an algorithm.
#ifndef DNNOPS_CUDNN_RNN_HPP
#define DNNOPS_CUDNN_RNN_HPP

#include <memory>

#include "../../common/rnn_problem.hpp"
#include "../base/handle.hpp"
#include "../base/node_state.hpp"
#include "../kernels/replay.hpp"
#include "rnn_times.hpp"

namespace dnnops::rnn {

struct Settings {
  int64_t algo;  // a cudnnRNNAlgo_t, or ALGO_AUTO
  int64_t allow_tf32, deterministic;
  int64_t inplace;  // whether the gradient may overwrite the reserve
  int64_t verbose;
};
constexpr int64_t ALGO_AUTO = 4;
extern const char *const algorithm_names[ALGO_AUTO];

// Everything that descriptors depend on, except the lengths. Only 8-byte fields and no padding.
struct Key {
  int64_t device, dtype, mode, hidden, layers, directions, skip, projected, input, steps, batch, allow_tf32;
  double dropout;
  int64_t padded;    // whether sequences have their own lengths and are stored with padding
  int64_t training;  // whether there is a reserve
  int64_t handle, algo;
  int64_t replays;  // a bit for each Pass: whether it is replayed as a CUDA graph when it recurs

  bool operator==(const Key &other) const { return !std::memcmp(this, &other, sizeof *this); }
};

// The key without handle and algorithm, which are selected for it.
Key make_key(const Problem &problem, const Settings &settings, int64_t device, int64_t dtype,
             const std::vector<int64_t> &lengths, bool training);

// Owners of cuDNN's descriptors. The descriptor of a network may hold a kernel that was compiled for it, so
// it is not destroyed when the process is exiting.
template <class Descriptor, cudnnStatus_t (*create)(Descriptor *), cudnnStatus_t (*destroy)(Descriptor)>
class Owned {
 public:
  explicit Owned(const char *call) { dnnops::check(create(&descriptor_), call); }
  ~Owned() {
    if (!process_is_ending) destroy(descriptor_);
  }
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  operator Descriptor() const { return descriptor_; }

 private:
  Descriptor descriptor_ = nullptr;
};
using NetworkDescriptor = Owned<cudnnRNNDescriptor_t, cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor>;
using DataDescriptor = Owned<cudnnRNNDataDescriptor_t, cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor>;
using DropoutDescriptor =
    Owned<cudnnDropoutDescriptor_t, cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor>;

// Why an algorithm does not support a network, if cuDNN itself would not report it; null if there is no known reason.
const char *refusal(const Key &key);

// Everything a network needs to run with one algorithm on one handle.
class Plan {
 public:
  Plan(const Key &key, const Handle &handle, const std::vector<int64_t> &lengths);
  Plan(const Plan &) = delete;
  Plan &operator=(const Plan &) = delete;

  // The lengths may differ from those of the previous call.
  void set_lengths(const Handle &handle, const std::vector<int64_t> &lengths);
  int algo() const { return static_cast<int>(key_.algo); }
  int64_t workspace() const { return static_cast<int64_t>(workspace_); }
  int64_t reserve() const { return static_cast<int64_t>(reserve_); }
  int64_t parameters() const { return static_cast<int64_t>(parameters_); }
  // The memory of the random generators, in bytes; 0 without dropout.
  int64_t generators() const { return static_cast<int64_t>(generators_); }
  cudnnRNNDescriptor_t network() const { return network_; }

  struct Arrays {
    const void *w, *x, *hx, *cx;
    void *y, *hy, *cy, *reserve, *workspace, *generators;
    uint64_t seed;
  };
  struct Gradients {
    const void *gy, *ghy, *gcy;
    void *dw, *dx, *dhx, *dcx;
  };
  void forward(const Handle &handle, const Arrays &arrays);
  // Overwrites the reserve.
  void backward(const Handle &handle, const Arrays &arrays, const Gradients &gradients);
  // The same functions, never replayed from a recording.
  void launch_forward(const Handle &handle, const Arrays &arrays) const;
  void launch_data(const Handle &handle, const Arrays &arrays, const Gradients &gradients) const;
  void launch_weights(const Handle &handle, const Arrays &arrays, const Gradients &gradients) const;

 private:
  void restore_generators(const Handle &handle, const Arrays &arrays) const;
  void set_network() const;
  void set_data(const Handle &handle);

  Key key_;
  std::vector<int> lengths_;
  NetworkDescriptor network_{"cudnnCreateRNNDescriptor"};
  DataDescriptor x_{"cudnnCreateRNNDataDescriptor"}, y_{"cudnnCreateRNNDataDescriptor"};
  DropoutDescriptor dropout_{"cudnnCreateDropoutDescriptor"};
  TensorDescriptor hidden_, cell_;
  Replays replays_[PASSES];
  size_t workspace_ = 0, reserve_ = 0, parameters_ = 0, generators_ = 0;
};

// A plan for this thread's handle, kept for the next call with the same key.
std::shared_ptr<Plan> plan_for(const Key &key, const Handle &handle, const std::vector<int64_t> &lengths);

// Pieces of one block of scratch memory.
class Pieces {
 public:
  // Adds a piece of this size and returns its offset.
  int64_t add(int64_t bytes) {
    const int64_t place = total_;
    total_ += (bytes + 255) / 256 * 256;
    return place;
  }
  int64_t total() const { return total_; }
  static void *at(const Workspace &block, int64_t place) { return static_cast<char *>(block.pointer()) + place; }

 private:
  int64_t total_ = 0;
};

// How a network is run.
struct Choice {
  int64_t algo, replays;
};

// Selects how to run a key: with the algorithm in the settings; otherwise with the one selected earlier, or
// found by timing on these operands. A gradient that comes first uses the standard algorithm, since the
// reserves of the algorithms differ.
Choice choose(const Key &key, const Settings &settings, const Problem &problem, const Handle &handle,
              const dnnops_tensor *inputs, bool is_forward);

}  // namespace dnnops::rnn
#endif
