// The parameters of the CTC loss kernels. c_code/gpu/loss/ctc.cuh is compiled with this file, too.
#ifndef DNNOPS_CUDNN_CTC_PARAMS_HPP
#define DNNOPS_CUDNN_CTC_PARAMS_HPP

struct CtcIntegers {
  const void *data;
  int is_wide;  // int64 instead of int32
};

enum CtcError { CTC_STEPS, CTC_LABEL_LENGTH, CTC_SYMBOL, CTC_TOO_FEW_STEPS, CTC_ERRORS };

// The places of a label are its symbols with blanks before, between and after them. Rows of places have room
// for the places of the longest label.
struct CtcParams {
  const void *activations;  // (all_steps, batch, classes)
  void *costs;              // (batch)
  void *gradients;          // same shape as activations, or null
  int *lengths;             // (batch): the number of valid steps; -1 if the label is refused
  int *begins, *ends;       // (batch): where each label begins in symbols, and where it ends
  int *symbols;             // the symbols of all labels
  // For each symbol: twice the distance to the next equal symbol of its label (0 if there is none), plus 1 if
  // there is an equal symbol before it.
  int *links;
  double *normalizers;  // (batch, steps): logarithms of the sums of exponentials
  double *middles;      // (batch, 2, places): the state of each of the two passes after its first half
  double *passes;       // (batch, steps, places), or null; see ctc.cuh
  double *rows;         // (batch, 2, 2, places), or null if they are in shared memory
  double *totals;       // (batch): the costs
  long long all_steps, batch, classes, steps, places;
  long long lanes;  // threads per row of activations
  // For ctc_labels, which computes the integers above from operands on the device.
  CtcIntegers labels, input_lengths, label_lengths;  // (batch, columns), (batch), (batch) or null
  long long columns;
  int *flag;             // where errors are reported
  int errors[CTC_ERRORS];  // what is written there, by CtcError
};

#endif
