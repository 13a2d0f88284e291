// Owners of cuDNN's descriptors.
#ifndef DNNOPS_CUDNN_DESCRIPTOR_HPP
#define DNNOPS_CUDNN_DESCRIPTOR_HPP

#include <utility>

#include "legacy.hpp"

namespace dnnops {

// Once set, nothing that may belong to the driver is destroyed: the process is exiting, and the driver may
// already be gone.
extern bool process_is_ending;

// A legacy descriptor. Kind provides its two functions.
template <class Kind>
class LegacyDescriptor {
 public:
  LegacyDescriptor() { check(legacy::require(Kind::create(), Kind::name())(&descriptor_), Kind::name()); }
  ~LegacyDescriptor() {
    if (descriptor_) Kind::destroy()(descriptor_);
  }
  LegacyDescriptor(LegacyDescriptor &&other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  LegacyDescriptor &operator=(LegacyDescriptor &&other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  operator legacy::Descriptor() const { return descriptor_; }

 private:
  legacy::Descriptor descriptor_ = nullptr;
};

#define DNNOPS_DESCRIPTOR_KIND(kind)                                                          \
  struct kind##Kind {                                                                         \
    static auto create() { return legacy::cudnnCreate##kind##Descriptor; }                    \
    static auto destroy() { return legacy::cudnnDestroy##kind##Descriptor; }                  \
    static const char *name() { return "cudnnCreate" #kind "Descriptor"; }                    \
  };                                                                                          \
  using kind##Descriptor = LegacyDescriptor<kind##Kind>;
DNNOPS_DESCRIPTOR_KIND(Tensor)
DNNOPS_DESCRIPTOR_KIND(Filter)
DNNOPS_DESCRIPTOR_KIND(Convolution)
DNNOPS_DESCRIPTOR_KIND(Pooling)
DNNOPS_DESCRIPTOR_KIND(CTCLoss)
DNNOPS_DESCRIPTOR_KIND(SpatialTransformer)
DNNOPS_DESCRIPTOR_KIND(LRN)
DNNOPS_DESCRIPTOR_KIND(ReduceTensor)
DNNOPS_DESCRIPTOR_KIND(Activation)
#undef DNNOPS_DESCRIPTOR_KIND

// A graph API descriptor: created, given attributes, finalized.
class BackendDescriptor {
 public:
  BackendDescriptor() = default;
  explicit BackendDescriptor(cudnnBackendDescriptorType_t type) {
    DNNOPS_CHECK(cudnnBackendCreateDescriptor(type, &descriptor_));
  }
  ~BackendDescriptor() {
    if (descriptor_ && !process_is_ending) cudnnBackendDestroyDescriptor(descriptor_);
  }
  BackendDescriptor(BackendDescriptor &&other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  BackendDescriptor &operator=(BackendDescriptor &&other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    check(cudnnBackendSetAttribute(descriptor_, name, type, count, values), "cudnnBackendSetAttribute");
  }
  void set(cudnnBackendAttributeName_t name, const BackendDescriptor &value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
  }
  void set_int64(cudnnBackendAttributeName_t name, int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void finalize(const char *what) {
    check(cudnnBackendFinalize(descriptor_), what);
  }

  // Reads at most `count` values and returns how many there were.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, void *values) const {
    int64_t found = 0;
    check(cudnnBackendGetAttribute(descriptor_, name, type, count, &found, values), "cudnnBackendGetAttribute");
    return found < count ? found : count;
  }
  int64_t get_int64(cudnnBackendAttributeName_t name) const {
    int64_t value = 0;
    get(name, CUDNN_TYPE_INT64, 1, &value);
    return value;
  }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace dnnops
#endif
