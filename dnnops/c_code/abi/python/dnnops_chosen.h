/* The plans that compiled convolutions use, as both runtime libraries report them to Python.
 *
 * dnnops/runtime/headers.py reads the headers of this folder with cffi. Emitted C code doesn't
 * include them, so they aren't part of the keys of Op modules.
 */
#ifndef DNNOPS_CHOSEN_H
#define DNNOPS_CHOSEN_H

#include <stdint.h>

/* The selection of one node. */
typedef struct dnnops_chosen_row {
  char plan[256];        /* its name, truncated if too long */
  char source[16];       /* where the selection comes from: "timed", "cache", "guessed" or "given" */
  int64_t workspace;     /* in bytes; -1 if unknown */
  double time_ms;        /* NaN if unknown */
  int64_t direction;     /* a ConvDirection */
  int64_t dtype;         /* a dnnops_dtype */
  int64_t channels_last; /* the sum of 1 (image), 2 (filters) and 4 (top) for each array in this memory format */
  int64_t ndim;
  int64_t image[5], filters[5], top[5]; /* shapes, zero from ndim on */
} dnnops_chosen_row;

#ifdef __cplusplus
extern "C" {
#endif

/* Copies a node's row. Returns 1, or 0 if the node has none. */
int dnnops_chosen(int64_t node, dnnops_chosen_row *row);

#ifdef __cplusplus
}
#endif
#endif
