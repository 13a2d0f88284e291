/* The functions of the CPU's runtime library that Python calls, other than those of Ops. */
#ifndef DNNOPS_ONEDNN_H
#define DNNOPS_ONEDNN_H

#include <stdint.h>

#include "../dnnops_runtime.h"

#define DNNOPS_PLAN_NAME_SIZE 128

/* One plan of a convolution. */
typedef struct dnnops_onednn_listed_plan {
  char name[DNNOPS_PLAN_NAME_SIZE];
  char remark[128];
  char reason[512]; /* why it cannot be run; empty if it can */
  int64_t way;      /* a ConvWay */
  int64_t scratch_bytes;
  int64_t reordered[3]; /* for image, filters and result: whether the array is copied to another layout */
} dnnops_onednn_listed_plan;

/* All plans of one convolution. */
typedef struct dnnops_onednn_conv_list dnnops_onednn_conv_list;

#ifdef __cplusplus
extern "C" {
#endif

/* The operands must stay in place as long as the list is used, and only one thread may use it at a
 * time. The output is overwritten. */
int dnnops_onednn_conv_list_open(const int64_t *words, const dnnops_tensor *inputs, const dnnops_tensor *outputs,
                                 dnnops_onednn_conv_list **list);
int dnnops_onednn_conv_list_close(dnnops_onednn_conv_list *list);
int dnnops_onednn_conv_list_size(const dnnops_onednn_conv_list *list, int64_t *size);
/* Gets the index of the plan that the Op would select with this ConvAlgorithm. */
int dnnops_onednn_conv_list_chosen(const dnnops_onednn_conv_list *list, int64_t algorithm, int64_t *index);
int dnnops_onednn_conv_list_plan(const dnnops_onednn_conv_list *list, int64_t index, dnnops_onednn_listed_plan *plan);
int dnnops_onednn_conv_list_run(dnnops_onednn_conv_list *list, int64_t index, int64_t repeats);
int dnnops_onednn_conv_list_time(dnnops_onednn_conv_list *list, int64_t index, double budget, double *time);

/* Whether the Op computes a convolution with Winograd's algorithm. */
int dnnops_onednn_conv_uses_winograd(const int64_t *words, const dnnops_tensor *inputs);

/* BLAS's dgemm, in Fortran's interface. */
void dnnops_onednn_set_dgemm(void *function);

/* Scratch memory that each thread keeps: its limit, and its size in this thread. */
void dnnops_onednn_set_scratch_limit(int64_t bytes);

/* Lets the C library's malloc keep this much freed memory for the next calls, and not return it to the system.
 * Does nothing if the size is 0, if the environment sets thresholds of malloc, or without glibc. Returns 1 if
 * something was changed. */
int dnnops_onednn_keep_freed_memory(int64_t bytes);
int64_t dnnops_onednn_kept_scratch(void);

/* The name of a primitive cache, or NULL after the last one, and its statistics: size, capacity, hits, misses and
   evictions. */
const char *dnnops_onednn_cache(int64_t index, int64_t *statistics);
void dnnops_onednn_clear_caches(void);

#ifdef __cplusplus
}
#endif
#endif
