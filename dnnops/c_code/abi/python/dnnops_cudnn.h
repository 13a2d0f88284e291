/* The functions of the GPU's runtime library that Python calls, other than those of Ops, and the
 * functions of Python that it calls. */
#ifndef DNNOPS_CUDNN_H
#define DNNOPS_CUDNN_H

#include <stdint.h>

#include "../dnnops_runtime.h"

#define DNNOPS_MAX_RANK 5
#define DNNOPS_MAX_KNOBS 16
#define DNNOPS_MAX_PLAN_NAME 256

/* An array as cuDNN sees it. Only 8-byte fields and no padding, because the struct is part of cache
 * keys. */
typedef struct dnnops_cudnn_array {
  int64_t ndim;
  int64_t shape[DNNOPS_MAX_RANK];
  int64_t strides[DNNOPS_MAX_RANK]; /* in elements */
  int64_t alignment;                /* of the address, in bytes, at most 16 */
} dnnops_cudnn_array;

/* What happens to a convolution's result before it is stored:
 * activation(scale * result + addend + bias). The scale and the bias have one element per channel, and the
 * addend has the layout of the result. Only 8-byte fields and no padding; all zero if there is nothing. */
typedef struct dnnops_conv_epilogue {
  int64_t parts;         /* bit 0: there is a scale; bit 1: a bias; bit 2: an addend */
  int64_t activation;    /* an index into ACTIVATIONS of dnnops/gpu/fused/conv_activation.py */
  double coef;           /* of the activation */
  int64_t vector_dtype;  /* of scale and bias */
  int64_t alignments[3]; /* of the addresses of scale, bias and addend, in bytes, at most 16 */
} dnnops_conv_epilogue;

/* Everything that determines how a convolution can be run. Only 8-byte fields and no padding. */
typedef struct dnnops_conv_case {
  int64_t direction, spatial_ndim, dtype, compute, groups, flip;
  int64_t stride[3], dilation[3], pad[3]; /* the padding is the same on both sides */
  dnnops_cudnn_array tensors[3];          /* image, filters and top */
  int64_t allow_tf32, deterministic, workspace_limit;
  /* Graph API plans have their scaling factors built in. If the factors keep changing, fixed_scalars
   * is 0, both factors are 0 here, and only the legacy API is offered, which takes them with each
   * call. */
  int64_t fixed_scalars;
  double alpha, beta;
  int64_t time_limit; /* for timing, in microseconds, if plans are timed; otherwise 0 */
  int64_t handle;     /* the number of the handle with which plans are made */
  dnnops_conv_epilogue epilogue;
} dnnops_conv_case;

/* Identifies a plan in every process: enough to build it again. */
typedef struct dnnops_plan_spec {
  int64_t api;        /* an Api */
  int64_t id;         /* the number of the legacy algorithm, engine, kernel or cuBLASLt algorithm */
  int64_t format;     /* a Format that arrays are transposed to first, or FORMAT_AS_FORWARD; 0: used in place. With
                     * FORMAT_UNFUSED added, a kernel of its own computes the epilogue */
  int64_t math;       /* for legacy algorithms: a cudnnMathType_t, or the one that goes with dtype and flags */
  int64_t knob_count; /* for all but legacy algorithms */
  int64_t knobs[2 * DNNOPS_MAX_KNOBS]; /* type, value, type, value, ... */
} dnnops_plan_spec;

/* One of the fastest plans of a case, as it is stored. */
typedef struct dnnops_stored_plan {
  dnnops_plan_spec spec;
  double milliseconds;
  int64_t workspace;
  char name[DNNOPS_MAX_PLAN_NAME];
} dnnops_stored_plan;

/* One plan of a convolution. The texts are valid until the list changes. */
typedef struct dnnops_plan_row {
  const char *name;
  const char *reason; /* why it cannot be run; empty if it can */
  int64_t api, number, workspace, deterministic, math, notes;
  double milliseconds; /* NaN if not timed */
} dnnops_plan_row;

/* All plans of one convolution. */
typedef struct dnnops_plan_list dnnops_plan_list;

/* Functions of Python. The first two return an address, or null. */
typedef void *(*dnnops_allocate)(int64_t size, int64_t device, void *stream);
/* Returns a CUfunction, or null and a text in `reason`, which has room for `capacity` bytes. */
typedef void *(*dnnops_get_kernel)(const char *program, const char *name, const char *options, int64_t device,
                                   void *reason, int64_t capacity);
typedef void (*dnnops_free)(void *pointer);
/* Returns the address of an error's flag and the number that a kernel writes there, or null. */
typedef void *(*dnnops_get_error_flag)(const char *message, int64_t *number);
/* Stored selections: `find` fills in at most `capacity` plans and returns how many there are; `store` with no plans
 * drops the stored ones. */
typedef int64_t (*dnnops_find_choice)(const dnnops_conv_case *conv, int64_t device, dnnops_stored_plan *plans,
                                      int64_t capacity);
typedef void (*dnnops_store_choice)(const dnnops_conv_case *conv, int64_t device, const dnnops_stored_plan *plans,
                                    int64_t count);

#ifdef __cplusplus
extern "C" {
#endif

/* With null pointers, cudaMalloc and cudaFree are used. */
void dnnops_cudnn_set_allocator(dnnops_allocate allocate, dnnops_free free);
void dnnops_cudnn_set_kernel_compiler(dnnops_get_kernel function);
void dnnops_cudnn_set_error_flag(dnnops_get_error_flag function);
/* With null pointers, selections are only kept in this process. */
void dnnops_cudnn_set_choice_storage(dnnops_find_choice find, dnnops_store_choice store);
/* Must be called when the process exits, before the interpreter does. */
void dnnops_cudnn_shutdown(void);

int64_t dnnops_cudnn_version(void);
int64_t dnnops_cudnn_header_version(void);
int64_t dnnops_cudnn_cudart_version(void);
int64_t dnnops_cudnn_cublaslt_version(void);
int dnnops_cudnn_probe(int64_t device);

void dnnops_cudnn_free_workspaces(void);
int64_t dnnops_cudnn_workspace_bytes(int64_t device);
int64_t dnnops_cudnn_replays(void);
const char *dnnops_cudnn_replay_failure(void);

/* How a matrix product is computed. */
typedef enum dnnops_product_setting {
  DNNOPS_PRODUCT_TF32 = 1,   /* float32 numbers may be rounded to TF32 */
  DNNOPS_PRODUCT_TIMED = 2,  /* the first call times several algorithms of cuBLASLt */
  DNNOPS_PRODUCT_VERBOSE = 4 /* and prints which it selects */
} dnnops_product_setting;

/* output = alpha * inputs[0] inputs[1] + beta * output. The axes are batch, row and column; a batch may have the
 * stride 0. The rows or the columns of each input must be contiguous, and the rows of the output. `settings` is a sum of
 * `dnnops_product_setting`. */
int dnnops_cudnn_product(const dnnops_context *context, int64_t settings, double alpha, double beta,
                         const dnnops_tensor *inputs, dnnops_tensor *output);

/* Record the work of a stream as a CUDA graph; the stream must not be the default one. If `graph` is null, what was
 * recorded is discarded. Kernels take the place of fills of memory; `nodes` receives the number of kernels and copies after
 * that, and `fills` that of fills that are left. */
int dnnops_cudnn_capture_begin(void *stream);
int dnnops_cudnn_capture_end(void *stream, void **graph, int64_t *nodes, int64_t *fills);

/* A copy between blocks of memory, of which one may be page-locked memory of the host. */
typedef struct dnnops_copy {
  void *to;
  const void *from;
  int64_t bytes;
} dnnops_copy;

/* What a graph copies, before its nodes and after them, between addresses that differ from launch to launch. Its kernels
 * read the addresses from page-locked memory, which has a header and slots that launches use in turn. */
typedef struct dnnops_table_header {
  int read;     /* the number of launches that have read their slots; it wraps around, as the next one does */
  int launched; /* the number of all launches */
  int unused[14];
} dnnops_table_header;
typedef struct dnnops_launch_table {
  void *memory;
  int64_t slot_bytes, slots; /* the number of slots is a power of two */
  void *counters;            /* two numbers of 32 bits on the device, which are 0 */
  int64_t before, bytes_before, after, bytes_after; /* numbers of copies, and their bytes in all */
} dnnops_launch_table;

/* Make a graph that can be launched. `table` is null if the graph copies nothing of the kind. */
int dnnops_cudnn_graph_instantiate(void *graph, const dnnops_launch_table *table, void *stream, void **executable);

/* What a launch needs, in a struct that stays the same. `copies` are stored in the launch's slot, and `uploads` are made
 * before the launch. */
typedef struct dnnops_replay {
  void *executable;
  void *table; /* the memory of the launch table, or null */
  const dnnops_copy *copies;
  int64_t copy_count;
  const dnnops_copy *uploads;
  int64_t upload_count;
} dnnops_replay;

/* Launch a graph on a stream. The event `uploaded` is recorded after the uploads, unless it is null. `slot` is null if
 * there is no table. */
int dnnops_cudnn_graph_replay(const dnnops_replay *replay, void *slot, void *uploaded, void *stream);
void dnnops_cudnn_graph_destroy(void *graph, void *executable);

/* Recordings of a plan that `dnnops.graph` executes, as CUDA graphs. */
void *dnnops_cudnn_graph_replays_new(void);
void dnnops_cudnn_graph_replays_delete(void *replays);

/* The operands must stay in place as long as the list is used. The output is overwritten. */
int dnnops_cudnn_plan_list_open(const dnnops_context *context, const int64_t *words, const dnnops_tensor *inputs,
                                dnnops_tensor *outputs, dnnops_plan_list **list);
void dnnops_cudnn_plan_list_close(dnnops_plan_list *list);
int64_t dnnops_cudnn_plan_list_size(const dnnops_plan_list *list);
void dnnops_cudnn_plan_list_row(const dnnops_plan_list *list, int64_t index, dnnops_plan_row *row);
int dnnops_cudnn_plan_list_time(dnnops_plan_list *list, int64_t index);
int dnnops_cudnn_plan_list_run(dnnops_plan_list *list, int64_t index, int64_t repeats);
int dnnops_cudnn_plan_list_search(dnnops_plan_list *list, double seconds);
/* The name of the plan for a policy. If the policy means the fastest, the times measured so far decide. */
int dnnops_cudnn_plan_list_choose(dnnops_plan_list *list, int64_t policy, const dnnops_plan_spec *spec,
                                  const char **name);

const char *dnnops_cudnn_last_plan(void);
const char *dnnops_cudnn_conv_algorithm(int64_t direction, int64_t id);
/* Statistics are size, capacity, hits, misses and evictions. */
void dnnops_cudnn_plan_cache(int64_t *statistics);
void dnnops_cudnn_choice_cache(int64_t *statistics);
void dnnops_cudnn_clear_plan_cache(void);
void dnnops_cudnn_resize_plan_cache(int64_t capacity);
void dnnops_cudnn_resize_choice_cache(int64_t capacity);

/* The name of the algorithm of this thread's last call; empty if there was none. */
const char *dnnops_cudnn_rnn_last_algorithm(void);
/* The layout of the parameters in cuDNN for the network of a forward Op: for each pseudo-layer and linear layer, and
 * for matrix and bias, the offset in elements (-1 if there is none) and two dimensions. */
int dnnops_cudnn_rnn_parameters(const dnnops_context *context, const int64_t *words, const dnnops_tensor *inputs,
                                int64_t *found);

#ifdef __cplusplus
}
#endif
#endif
