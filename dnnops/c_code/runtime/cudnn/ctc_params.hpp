// What the kernels of the CTC loss get: c_code/cudnn/ctc.cuh is compiled with this, too.
#ifndef DNNOPS_CUDNN_CTC_PARAMS_HPP
#define DNNOPS_CUDNN_CTC_PARAMS_HPP

// The places of a label are its symbols with blanks before, between and after them.  Rows of places have room
// for those of the longest label.
struct CtcParams {
  const void *activations;  // (all_steps, batch, classes)
  void *costs;              // (batch)
  void *gradients;          // as activations, or null
  const int *lengths;       // (batch): the steps that count
  const int *begins;        // (batch + 1): where each label begins in symbols
  const int *symbols;       // of all labels, one after the other
  // For each symbol twice the distance to the next equal one of its label, 0 if there is none, and 1 more if there
  // is an equal one before it.
  const int *links;
  double *normalizers;  // (batch, steps): logarithms of the sums of exponentials
  double *middles;      // (batch, 2, places): where each of the two passes was after its first half
  double *passes;       // (batch, steps, places), or null; see ctc.cuh
  double *rows;         // (batch, 2, 2, places), or null: they are in shared memory
  double *totals;       // (batch): the costs
  long long all_steps, batch, classes, steps, places;
  long long lanes;  // threads for each row of activations
};

#endif
