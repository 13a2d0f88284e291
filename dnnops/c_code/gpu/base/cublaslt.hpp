// The cuBLASLt functions that are called here, looked up on first use.
//
// cuDNN's wheel brings the library, but not its header, which needs more of CUDA than the wheels that cuDNN
// needs. So the parts of its stable interface that are used are declared here.
#ifndef DNNOPS_CUDNN_CUBLASLT_HPP
#define DNNOPS_CUDNN_CUBLASLT_HPP

#include "check.hpp"

namespace dnnops {
namespace cublaslt {

using Status = int;
using Handle = void *;
using Operation = void *;
using Layout = void *;
using Preference = void *;

constexpr Status SUCCESS = 0, ALLOC_FAILED = 3, NOT_SUPPORTED = 15;

enum ComputeType : int { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };
enum DataType : int { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum OperationAttribute : int { TRANSPOSE_A = 3, TRANSPOSE_B = 4 };
enum LayoutAttribute : int { BATCH_COUNT = 5, STRIDED_BATCH_OFFSET = 6 };
enum PreferenceAttribute : int {
  MAX_WORKSPACE_BYTES = 1,
  REDUCTION_SCHEME_MASK = 3,
  MIN_ALIGNMENT_A = 5,
  MIN_ALIGNMENT_B = 6,
  MIN_ALIGNMENT_C = 7,
  MIN_ALIGNMENT_D = 8,
};
// How the partial sums of a split product are added up; a bit mask.
enum ReductionScheme : uint32_t { IN_PLACE = 1, IN_COMPUTE_TYPE = 2 };
enum ConfigAttribute : int {
  ALGORITHM_ID = 0,
  TILE_ID = 1,
  SPLIT_K = 2,
  REDUCTION_SCHEME = 3,
  SWIZZLING = 4,
  CUSTOM_OPTION = 5,
  STAGES_ID = 6,
  INNER_SHAPE_ID = 7,
  CLUSTER_SHAPE_ID = 8,
};

// The minimum alignment of an array's address, in bytes.
enum CapabilityAttribute : int { NEEDED_ALIGNMENT_A = 16, NEEDED_ALIGNMENT_B = 17, NEEDED_ALIGNMENT_C = 18, NEEDED_ALIGNMENT_D = 19 };

struct Algorithm {
  uint64_t data[8];
};
struct Proposal {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status status;
  float waves;
  int reserved[4];
};

// X(name, parameters); all return a status.
#define DNNOPS_CUBLASLT_FUNCTIONS(X)                                                                                 \
  X(cublasLtCreate, (Handle *))                                                                                      \
  X(cublasLtMatmul,                                                                                                  \
    (Handle, Operation, const void *alpha, const void *a, Layout, const void *b, Layout, const void *beta,           \
     const void *c, Layout, void *d, Layout, const Algorithm *, void *workspace, size_t, cudaStream_t))              \
  X(cublasLtMatmulAlgoCapGetAttribute, (const Algorithm *, int name, void *value, size_t, size_t *written))          \
  X(cublasLtMatmulAlgoCheck, (Handle, Operation, Layout, Layout, Layout, Layout, const Algorithm *, Proposal *))     \
  X(cublasLtMatmulAlgoConfigGetAttribute, (const Algorithm *, int name, void *value, size_t, size_t *written))       \
  X(cublasLtMatmulAlgoConfigSetAttribute, (Algorithm *, int name, const void *value, size_t))                        \
  X(cublasLtMatmulAlgoGetHeuristic,                                                                                  \
    (Handle, Operation, Layout, Layout, Layout, Layout, Preference, int wanted, Proposal *, int *found))             \
  X(cublasLtMatmulAlgoInit, (Handle, int compute, int scale, int a, int b, int c, int d, int id, Algorithm *))       \
  X(cublasLtMatmulDescCreate, (Operation *, int compute, int scale))                                                 \
  X(cublasLtMatmulDescDestroy, (Operation))                                                                          \
  X(cublasLtMatmulDescSetAttribute, (Operation, int name, const void *value, size_t))                                \
  X(cublasLtMatmulPreferenceCreate, (Preference *))                                                                  \
  X(cublasLtMatmulPreferenceDestroy, (Preference))                                                                   \
  X(cublasLtMatmulPreferenceSetAttribute, (Preference, int name, const void *value, size_t))                         \
  X(cublasLtMatrixLayoutCreate, (Layout *, int type, uint64_t rows, uint64_t columns, int64_t leading))              \
  X(cublasLtMatrixLayoutDestroy, (Layout))                                                                           \
  X(cublasLtMatrixLayoutSetAttribute, (Layout, int name, const void *value, size_t))

struct Functions {
  size_t (*cublasLtGetVersion)();
#define DNNOPS_MEMBER(name, parameters) Status(*name) parameters;
  DNNOPS_CUBLASLT_FUNCTIONS(DNNOPS_MEMBER)
#undef DNNOPS_MEMBER
};

// Throws with the reason if the library cannot be loaded.
const Functions &functions();
// One handle per device, never destroyed. The device must be current.
Handle handle_of(int device);

[[noreturn]] void fail_status(Status status, const char *call);

}  // namespace cublaslt

#define DNNOPS_CUBLASLT(name, ...)                                                                    \
  do {                                                                                                \
    const ::dnnops::cublaslt::Status status_ = ::dnnops::cublaslt::functions().name(__VA_ARGS__);     \
    if (__builtin_expect(status_ != ::dnnops::cublaslt::SUCCESS, 0)) ::dnnops::cublaslt::fail_status(status_, #name); \
  } while (0)

}  // namespace dnnops
#endif
