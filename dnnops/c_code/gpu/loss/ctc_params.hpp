// The parameters of the CTC loss kernels. c_code/gpu/loss/ctc.cuh is compiled with this file, too.
#ifndef DNNOPS_CUDNN_CTC_PARAMS_HPP
#define DNNOPS_CUDNN_CTC_PARAMS_HPP

// The places of a label are its symbols with blanks before, between and after them. Rows of places have room
// for the places of the longest label.
struct CtcParams {
  const void *activations;  // (all_steps, batch, classes)
  void *costs;              // (batch)
  void *gradients;          // same shape as activations, or null
  const int *lengths;       // (batch): the number of valid steps
  const int *begins;        // (batch + 1): where each label begins in symbols
  const int *symbols;       // the symbols of all labels, one label after the other
  // For each symbol: twice the distance to the next equal symbol of its label (0 if there is none), plus 1 if
  // there is an equal symbol before it.
  const int *links;
  double *normalizers;  // (batch, steps): logarithms of the sums of exponentials
  double *middles;      // (batch, 2, places): the state of each of the two passes after its first half
  double *passes;       // (batch, steps, places), or null; see ctc.cuh
  double *rows;         // (batch, 2, 2, places), or null if they are in shared memory
  double *totals;       // (batch): the costs
  long long all_steps, batch, classes, steps, places;
  long long lanes;  // threads per row of activations
};

#endif
