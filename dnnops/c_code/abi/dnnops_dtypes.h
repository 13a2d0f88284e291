/* The dtypes of arrays, in one table; dnnops/dtypes.py is the same table for Python. */
#ifndef DNNOPS_DTYPES_H
#define DNNOPS_DTYPES_H

/* Calls X(NAME, name, bytes, npy) for each dtype, in the order of their codes. NPY_##npy is NumPy's
 * number of the dtype. */
#define DNNOPS_DTYPES(X)             \
  X(FLOAT32, float32, 4, FLOAT32)    \
  X(FLOAT64, float64, 8, FLOAT64)    \
  X(FLOAT16, float16, 2, FLOAT16)    \
  X(BFLOAT16, bfloat16, 2, NOTYPE)   \
  X(INT8, int8, 1, INT8)             \
  X(UINT8, uint8, 1, UINT8)          \
  X(INT32, int32, 4, INT32)          \
  X(INT64, int64, 8, INT64)          \
  X(BOOL, bool, 1, BOOL)

/* DNNOPS_FLOAT32, ... */
#define DNNOPS_DTYPE_CODE(NAME, name, bytes, npy) DNNOPS_##NAME,
typedef enum dnnops_dtype { DNNOPS_DTYPES(DNNOPS_DTYPE_CODE) DNNOPS_DTYPE_COUNT } dnnops_dtype;
#undef DNNOPS_DTYPE_CODE

#define DNNOPS_DTYPE_BYTES(NAME, name, bytes, npy) bytes,
static const int dnnops_itemsizes[DNNOPS_DTYPE_COUNT] = {DNNOPS_DTYPES(DNNOPS_DTYPE_BYTES)};
#undef DNNOPS_DTYPE_BYTES

#define DNNOPS_DTYPE_NAME(NAME, name, bytes, npy) #name,
static const char *const dnnops_dtype_names[DNNOPS_DTYPE_COUNT] = {DNNOPS_DTYPES(DNNOPS_DTYPE_NAME)};
#undef DNNOPS_DTYPE_NAME

#endif
