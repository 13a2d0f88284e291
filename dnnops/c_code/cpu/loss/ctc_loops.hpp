// The CTC loss of one sequence and its gradient: Graves et al., Connectionist Temporal Classification (2006).
//
// The probabilities of a whole sequence are far below the range of floating-point numbers. With float32
// logarithms, the gradient would keep three correct digits, and each addition would cost an exponential.
// Therefore numbers are stored as a mantissa from 1 to 2 and an exponent of 2, both doubles: additions only
// need shifts, and nothing leaves the range.
#ifndef DNNOPS_ONEDNN_CTC_LOOPS_HPP
#define DNNOPS_ONEDNN_CTC_LOOPS_HPP

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "../base/elementary.hpp"

namespace dnnops {
namespace ctc {

// The exponent of zero: so far below the others that its sum with any of them still counts as zero.
constexpr double kNone = -1e300;
constexpr double kLn2 = 0.693147180559945309417;

inline double larger(double a, double b) { return a > b ? a : b; }

// 2^exponent for an integer exponent up to 1023; 2^-1022 for anything below.
inline double power_of_2(double exponent) {
  return bits_as<double>(bits_as<uint64_t>(larger(exponent, -1022) + (1023 + Format<double>::kRounder)) << 52);
}

// Splits value * 2^exponent into mantissa and exponent; value must be positive.
inline void split(double value, double exponent, double &mantissa, double &new_exponent) {
  const uint64_t bits = bits_as<uint64_t>(value);
  mantissa = bits_as<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  new_exponent = exponent + (bits_as<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023));
}

// e^x for x from -log(2) / 2 to log(2) / 2, accurate to 1e-16 or, for float32 data, to 3e-13.
template <class T>
inline double exponential_of_rest(double x) {
  return (double_tail<sizeof(T) < sizeof(double)>(x) * x + 1) * x + 1;
}

// A row of numbers, each as mantissa and exponent.
struct Numbers {
  double *mantissa, *exponent;
  void set(int64_t i, double m, double e) const { mantissa[i] = m, exponent[i] = e; }
};

// The probabilities of each position in the label at one step: symbol[k] for paths at the label's symbol k, blank[k]
// for paths at the blank before it. Both have k from -1 to length + 1, with zero where there is no such position.
struct Places {
  Numbers symbol, blank;
};

// One sequence, with the strides of its activations and gradients in bytes.
template <class T>
struct Sequence {
  const char *activations;
  int64_t step_stride, class_stride, steps, classes;
  const int64_t *label;
  int64_t length;
  T *gradient;  // rows of classes; null if it is not requested
  int64_t gradient_stride, all_steps;
};

// The memory that one thread needs for sequences up to given numbers of steps, classes and symbols.
class Scratch {
 public:
  Scratch(int64_t steps, int64_t classes, int64_t length, bool gradients)
      : classes_((classes + 7) / 8 * 8), width_((length + 3 + 7) / 8 * 8), rows_(gradients ? steps : 2) {}
  size_t bytes() const { return sizeof(double) * (size_t)(4 * classes_ + 10 * width_ + rows_ * (6 * width_ + 8)); }
  void place(char *memory) { next_ = reinterpret_cast<double *>(memory); lay_out(); }

  double *row, *posterior, *skip, *symbol_posterior;
  Numbers exponentials;
  Numbers symbol_probability(int64_t t) const { return numbers(symbol_probabilities_, t); }
  double *blank_probability(int64_t t) const { return blank_probabilities_ + t % rows_ * 8; }  // mantissa, exponent
  // Forward values: kept for all steps if there is a gradient to compute, otherwise for the last two.
  Places forward(int64_t t) const { return places(forward_, t % rows_); }
  // Backward values: kept for the last two steps.
  Places backward(int64_t t) const { return places(backward_, t % 2); }

 private:
  double *take(int64_t count) {
    double *taken = next_;
    next_ += count;
    return taken;
  }
  void lay_out() {
    row = take(classes_);
    exponentials.mantissa = take(classes_);
    exponentials.exponent = take(classes_);
    posterior = take(classes_);
    skip = take(width_);
    symbol_posterior = take(width_);
    backward_ = take(8 * width_);
    blank_probabilities_ = take(rows_ * 8);
    symbol_probabilities_ = take(rows_ * 2 * width_);
    forward_ = take(rows_ * 4 * width_);
  }
  Numbers numbers(double *from, int64_t t) const {
    double *data = from + t % rows_ * 2 * width_;
    return {data, data + width_};
  }
  Places places(double *from, int64_t row) const {
    double *data = from + row * 4 * width_ + 1;
    return {{data, data + width_}, {data + 2 * width_, data + 3 * width_}};
  }
  int64_t classes_, width_, rows_;
  double *next_ = nullptr, *symbol_probabilities_ = nullptr, *blank_probabilities_ = nullptr, *forward_ = nullptr,
         *backward_ = nullptr;
};

// exponentials = exp(row - max(row)). Returns their sum, or NaN if there is a NaN or no finite maximum.
template <class T>
double exponentiate(const double *__restrict row, int64_t classes, const Numbers &exponentials) {
  double *__restrict mantissa = exponentials.mantissa, *__restrict exponent = exponentials.exponent;
  double top = -std::numeric_limits<double>::infinity();
  int nans = 0;
#pragma omp simd reduction(max : top) reduction(| : nans)
  for (int64_t c = 0; c < classes; ++c) {
    nans |= row[c] != row[c];
    top = larger(row[c], top);
  }
  if (nans || !std::isfinite(top)) return NAN;
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < classes; ++c) {
    using F = Format<double>;
    const double distance = row[c] - top, low = difference_error(row[c], top, distance);
    const double whole = std::nearbyint(larger(distance * (1 / kLn2), kNone));
    // The remainder keeps all digits as long as products of `whole` with the first part of log(2) are exact.
    const double rest = (distance - whole * F::kLog2High) + (low - whole * F::kLog2Low);
    mantissa[c] = exponential_of_rest<T>(distance > -5e5 ? rest : 0);
    exponent[c] = whole;
    sum += mantissa[c] * power_of_2(whole);
  }
  return sum;
}

// Softmax at step t: stores the probabilities of the label's symbols and of the blank, and all of
// them in the gradient.
template <class T>
bool take_probabilities(const Sequence<T> &of, const Scratch &scratch, int64_t t) {
  const char *source = of.activations + t * of.step_stride;
  double *row = scratch.row;
  if (of.class_stride == sizeof(T)) {
    const T *values = reinterpret_cast<const T *>(source);
#pragma omp simd
    for (int64_t c = 0; c < of.classes; ++c) row[c] = (double)values[c];
  } else {
    for (int64_t c = 0; c < of.classes; ++c)
      row[c] = (double)*reinterpret_cast<const T *>(source + c * of.class_stride);
  }
  const Numbers &exponentials = scratch.exponentials;
  const double sum = exponentiate<T>(row, of.classes, exponentials);
  if (sum != sum) return false;
  const double inverse = 1 / sum;
  if (of.gradient) {
    T *gradient = of.gradient + t * of.gradient_stride;
    const double *mantissa = exponentials.mantissa, *exponent = exponentials.exponent;
#pragma omp simd
    for (int64_t c = 0; c < of.classes; ++c)
      gradient[c] = (T)(exponent[c] < -1022 ? 0 : mantissa[c] * inverse * power_of_2(exponent[c]));
  }
  double *blank = scratch.blank_probability(t);
  blank[0] = exponentials.mantissa[0] * inverse;
  blank[1] = exponentials.exponent[0];
  const Numbers symbols = scratch.symbol_probability(t);
  for (int64_t k = 0; k < of.length; ++k)
    symbols.set(k, exponentials.mantissa[of.label[k]] * inverse, exponentials.exponent[of.label[k]]);
  for (int64_t k = of.length; k < of.length + 2; ++k) symbols.set(k, 1, kNone);
  return true;
}

inline void clear(const Places &places, int64_t length) {
  for (const Numbers &numbers : {places.symbol, places.blank})
    for (int64_t k = -1; k <= length + 1; ++k) numbers.set(k, 1, kNone);
}

inline void close_ends(const Places &places, int64_t length) {
  for (const Numbers &numbers : {places.symbol, places.blank})
    for (int64_t k : {(int64_t)-1, length + 1}) numbers.set(k, 1, kNone);
}

// One forward step: from the values at a step to those at the next.
inline void step_forward(const Scratch &scratch, int64_t t, int64_t length) {
  const Places from = scratch.forward(t - 1), to = scratch.forward(t);
  const Numbers probability = scratch.symbol_probability(t);
  const double blank_m = scratch.blank_probability(t)[0], blank_e = scratch.blank_probability(t)[1];
  const double *__restrict sm = from.symbol.mantissa, *__restrict se = from.symbol.exponent;
  const double *__restrict bm = from.blank.mantissa, *__restrict be = from.blank.exponent;
  const double *__restrict pm = probability.mantissa, *__restrict pe = probability.exponent;
  const double *__restrict skip = scratch.skip;
  double *__restrict to_sm = to.symbol.mantissa, *__restrict to_se = to.symbol.exponent;
  double *__restrict to_bm = to.blank.mantissa, *__restrict to_be = to.blank.exponent;
#pragma omp simd
  for (int64_t k = 0; k <= length; ++k) {
    // A blank is reached from itself and from the symbol before it.
    const double blank_top = larger(larger(be[k], se[k - 1]), kNone);
    const double blank = bm[k] * power_of_2(be[k] - blank_top) + sm[k - 1] * power_of_2(se[k - 1] - blank_top);
    split(blank * blank_m, blank_top + blank_e, to_bm[k], to_be[k]);
    // A symbol is reached from itself, from the blank before it and, if it differs, from the symbol before it.
    const double skipped_e = se[k - 1] + skip[k];
    const double top = larger(larger(larger(se[k], be[k]), skipped_e), kNone);
    const double symbol = sm[k] * power_of_2(se[k] - top) + bm[k] * power_of_2(be[k] - top) +
                          sm[k - 1] * power_of_2(skipped_e - top);
    split(symbol * pm[k], top + pe[k], to_sm[k], to_se[k]);
  }
  close_ends(to, length);
}

// One backward step. `from`, at step t + 1, includes the probabilities of that step; `to` receives those of
// step t. Combined with the forward values, it gives the posterior probability of each position. Returns the
// posterior of the blanks; those of the symbols go to symbol_posterior.
inline double step_backward(const Scratch &scratch, int64_t t, int64_t length, double total_m, double total_e) {
  const Places from = scratch.backward(t + 1), to = scratch.backward(t), forward = scratch.forward(t);
  const Numbers probability = scratch.symbol_probability(t);
  const double blank_m = scratch.blank_probability(t)[0], blank_e = scratch.blank_probability(t)[1];
  const double *__restrict sm = from.symbol.mantissa, *__restrict se = from.symbol.exponent;
  const double *__restrict bm = from.blank.mantissa, *__restrict be = from.blank.exponent;
  const double *__restrict pm = probability.mantissa, *__restrict pe = probability.exponent;
  const double *__restrict forward_sm = forward.symbol.mantissa, *__restrict forward_se = forward.symbol.exponent;
  const double *__restrict forward_bm = forward.blank.mantissa, *__restrict forward_be = forward.blank.exponent;
  const double *__restrict skip = scratch.skip;
  double *__restrict to_sm = to.symbol.mantissa, *__restrict to_se = to.symbol.exponent;
  double *__restrict to_bm = to.blank.mantissa, *__restrict to_be = to.blank.exponent;
  double *__restrict posterior = scratch.symbol_posterior;
  const double inverse = 1 / total_m;
  double blanks = 0;
#pragma omp simd reduction(+ : blanks)
  for (int64_t k = 0; k <= length; ++k) {
    const double blank_top = larger(larger(be[k], se[k]), kNone);
    const double blank = bm[k] * power_of_2(be[k] - blank_top) + sm[k] * power_of_2(se[k] - blank_top);
    blanks += blank * forward_bm[k] * inverse * power_of_2(blank_top + forward_be[k] - total_e);
    split(blank * blank_m, blank_top + blank_e, to_bm[k], to_be[k]);
    const double skipped_e = se[k + 1] + skip[k + 1];
    const double top = larger(larger(larger(se[k], be[k + 1]), skipped_e), kNone);
    const double symbol = sm[k] * power_of_2(se[k] - top) + bm[k + 1] * power_of_2(be[k + 1] - top) +
                          sm[k + 1] * power_of_2(skipped_e - top);
    posterior[k] = symbol * forward_sm[k] * inverse * power_of_2(top + forward_se[k] - total_e);
    split(symbol * pm[k], top + pe[k], to_sm[k], to_se[k]);
  }
  close_ends(to, length);
  return blanks;
}

// gradient = softmax - posterior, for the classes in the label; for the others, the posterior is 0.
template <class T>
void subtract_posterior(const Sequence<T> &of, const Scratch &scratch, int64_t t, double blanks) {
  T *gradient = of.gradient + t * of.gradient_stride;
  const double *blank = scratch.blank_probability(t);
  const Numbers symbols = scratch.symbol_probability(t);
  double *posterior = scratch.posterior;
  gradient[0] = (T)(blank[0] * power_of_2(blank[1]) - blanks);
  for (int64_t k = 0; k < of.length; ++k) posterior[of.label[k]] = 0;
  for (int64_t k = 0; k < of.length; ++k) posterior[of.label[k]] += scratch.symbol_posterior[k];
  for (int64_t k = 0; k < of.length; ++k)
    gradient[of.label[k]] =
        (T)(symbols.mantissa[k] * power_of_2(symbols.exponent[k]) - posterior[of.label[k]]);
}

template <class T>
void fill(const Sequence<T> &of, int64_t begin, int64_t end, T value) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < of.classes; ++c) of.gradient[t * of.gradient_stride + c] = value;
}

// Returns the cost. If the cost is infinite or NaN, the gradient is NaN.
template <class T>
double sequence_cost(const Sequence<T> &of, const Scratch &scratch) {
  const int64_t length = of.length;
  if (of.gradient) fill(of, of.steps, of.all_steps, T(0));
  if (of.steps == 0) return 0;
  for (int64_t k = 0; k <= length + 1; ++k)
    scratch.skip[k] = k > 0 && k < length && of.label[k] != of.label[k - 1] ? 0 : kNone;
  bool is_number = take_probabilities(of, scratch, 0);
  if (is_number) {
    // A path begins at the first symbol or at the blank before it.
    const Places first = scratch.forward(0);
    const double *blank = scratch.blank_probability(0);
    const Numbers symbols = scratch.symbol_probability(0);
    clear(first, length);
    split(blank[0], blank[1], first.blank.mantissa[0], first.blank.exponent[0]);
    if (length) split(symbols.mantissa[0], symbols.exponent[0], first.symbol.mantissa[0], first.symbol.exponent[0]);
  }
  for (int64_t t = 1; is_number && t < of.steps; ++t) {
    is_number = take_probabilities(of, scratch, t);
    if (is_number) step_forward(scratch, t, length);
  }
  double cost = NAN, total_m = 1, total_e = kNone;
  if (is_number) {
    // A path ends at the last symbol or at the blank after it.
    const Places last = scratch.forward(of.steps - 1);
    const double symbol_e = last.symbol.exponent[length - 1], blank_e = last.blank.exponent[length];
    const double top = larger(larger(symbol_e, blank_e), kNone);
    split(last.symbol.mantissa[length - 1] * power_of_2(symbol_e - top) +
              last.blank.mantissa[length] * power_of_2(blank_e - top),
          top, total_m, total_e);
    const bool is_zero = total_e < kNone / 2;
    cost = is_zero ? std::numeric_limits<double>::infinity() : 0 - (std::log(total_m) + total_e * kLn2);
  }
  if (!of.gradient) return cost;
  if (!std::isfinite(cost)) {
    fill(of, 0, of.steps, T(NAN));
    return cost;
  }
  // Start after the last step, as if one more blank followed at no cost.
  const Places after = scratch.backward(of.steps);
  clear(after, length);
  after.blank.set(length, 1, 0);
  for (int64_t t = of.steps - 1; t >= 0; --t)
    subtract_posterior(of, scratch, t, step_backward(scratch, t, length, total_m, total_e));
  return cost;
}

}  // namespace ctc
}  // namespace dnnops
#endif
