// The largest element of a row and the sum of its exponentials, with explicit vectors: compilers then keep
// the sums in registers, and also generate vector code for AVX2.
#ifndef DNNOPS_ONEDNN_ROW_SUMS_HPP
#define DNNOPS_ONEDNN_ROW_SUMS_HPP

#include <cmath>

#include "elementary.hpp"

namespace dnnops {

#ifdef __AVX512F__
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Vector;
template <>
struct Vector<float> {
  using Values = float __attribute__((vector_size(kVectorBytes)));
  using Integers = int32_t __attribute__((vector_size(kVectorBytes)));
  using Bits = uint32_t __attribute__((vector_size(kVectorBytes)));
  // Times 2^kScaleBits, e^-kReach is a normal number; unscaled, any number of such terms is negligible beside the
  // smallest positive number. For a row maximum of at most kMostTop, maximum - kReach keeps enough digits.
  static constexpr float kReach = 125, kMostTop = 65536;
};
template <>
struct Vector<double> {
  using Values = double __attribute__((vector_size(kVectorBytes)));
  using Integers = int64_t __attribute__((vector_size(kVectorBytes)));
  using Bits = uint64_t __attribute__((vector_size(kVectorBytes)));
  static constexpr double kReach = 770, kMostTop = 1e12;
};
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T>
inline typename Vector<T>::Values load_vector(const T *from) {
  typename Vector<T>::Values values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

// The largest number that is not NaN; minus infinity if there is none.
template <class T>
T largest_of(const T *values, int64_t count) {
  T largest = -std::numeric_limits<T>::infinity();
  if (count < kLanes<T>) {
    for (int64_t i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
    return largest;
  }
  typename Vector<T>::Values first = largest - typename Vector<T>::Values{}, second = first;
  int64_t i = 0;
  for (; i + 2 * kLanes<T> <= count; i += 2 * kLanes<T>) {
    const auto x = load_vector(values + i), y = load_vector(values + i + kLanes<T>);
    first = x > first ? x : first;
    second = y > second ? y : second;
  }
  if (i + kLanes<T> <= count) {
    const auto x = load_vector(values + i);
    first = x > first ? x : first;
  }
  const auto last = load_vector(values + count - kLanes<T>);  // overlaps the previous vector
  second = last > second ? last : second;
  first = first > second ? first : second;
  for (int j = 0; j < kLanes<T>; ++j) largest = first[j] > largest ? first[j] : largest;
  return largest;
}

// 2^kScaleBits e^(x - top) for x <= top; values of x below `floor` are replaced by it.
template <class T>
inline typename Vector<T>::Values exponentials_below(typename Vector<T>::Values x, T floor, T top) {
  using F = Format<T>;
  using Values = typename Vector<T>::Values;
  const Values bounded = x < floor ? floor - Values{} : x, difference = bounded - top, taken = bounded - difference;
  const Values low = (bounded - (difference + taken)) + (taken - top);
  const Values shifted = difference * F::kLog2e + F::kRounder, n = shifted - F::kRounder;
  const Values r = (difference - n * F::kLog2High) + (low - n * F::kLog2Low);
  const Values power = (Values)(((typename Vector<T>::Bits)shifted << F::kShift) +
                                ((typename F::Bits)(F::kBias + F::kScaleBits) << F::kShift));
  return power + power * (r + r * r * exponential_tail(r));
}

// The sum of the scaled exponentials of all elements but the largest ones, which are counted instead.
template <class T>
class RestOfRow {
 public:
  using Values = typename Vector<T>::Values;
  using Integers = typename Vector<T>::Integers;

  void take(Values x, Values terms, T top, Integers skipped = Integers{}) {
    const Integers ties = (x == top) & ~skipped;
    ties_ -= ties;
    sum_ += (Values)((Integers)terms & ~(ties | skipped));
  }
  // Must be called after a few terms. The rounding error of the total is kept.
  void add_up() {
    const Values next = all_ + sum_, added = next - all_;
    lost_ += (all_ - (next - added)) + (sum_ - added);
    all_ = next;
    sum_ = Values{};
  }
  // Of equal largest elements, one is left out.
  T value() const {
    double total = 0;
    int64_t ties = -1;
#pragma omp simd reduction(+ : total)
    for (int j = 0; j < kLanes<T>; ++j) total += (double)all_[j] + lost_[j];
#pragma omp simd reduction(+ : ties)
    for (int j = 0; j < kLanes<T>; ++j) ties += ties_[j];
    return (T)(total / Format<T>::kScale + (double)ties);
  }

 private:
  Values sum_{}, all_{}, lost_{};
  Integers ties_{};
};

template <bool keeps, class T>
T rest_of_vectors(const T *__restrict row, int64_t count, T top, T *__restrict terms) {
  constexpr int64_t kRounds = 8;
  const T floor = top - Vector<T>::kReach;
  RestOfRow<T> rest;
  int64_t i = 0;
  while (i + kLanes<T> <= count) {
    const int64_t end = std::min(count - kLanes<T> + 1, i + kLanes<T> * kRounds);
    for (; i < end; i += kLanes<T>) {
      const auto x = load_vector(row + i), found = exponentials_below(x, floor, top);
      rest.take(x, found, top);
      if (keeps) std::memcpy(terms + i, &found, sizeof found);
    }
    rest.add_up();
  }
  if (i < count) {  // the last vector overlaps the previous one
    typename Vector<T>::Integers lanes;
    for (int j = 0; j < kLanes<T>; ++j) lanes[j] = j;
    const int64_t from = count - kLanes<T>, done = i - from;
    const auto x = load_vector(row + from), found = exponentials_below(x, floor, top);
    rest.take(x, found, top, lanes < (decltype(lanes[0] + 0))done);
    if (keeps) std::memcpy(terms + from, &found, sizeof found);
    rest.add_up();
  }
  return rest.value();
}

// Like rest_of_vectors(), for few elements or a largest element that is not finite or too large for accurate
// differences.
template <bool keeps, class T>
T rest_of_any(const T *row, int64_t count, T top, T *terms) {
  Accumulator<T> rest;
  double ties = -1;
  for (int64_t begin = 0; begin < count; begin += kTerms) {
    const int64_t end = std::min(count, begin + kTerms);
    T sum = 0, equal = 0;
#pragma omp simd reduction(+ : sum, equal)
    for (int64_t i = begin; i < end; ++i) {
      const T term = scaled_exponential(row[i], top);
      sum += row[i] == top ? 0 : term;
      equal += row[i] == top ? 1 : 0;
      if (keeps) terms[i] = term;
    }
    rest.add(sum);
    ties += equal;
  }
  return (T)(rest.value() / Format<T>::kScale + ties);
}

// The sum of e^(x - top) over a row whose largest element is `top`, leaving out the 1 of one such element,
// beside which the others would lose their digits. If `terms` is given, the scaled terms are stored there.
template <class T>
T rest_of_exponentials(const T *row, int64_t count, T top, T *terms) {
  if (count >= kLanes<T> && magnitude(top) <= Vector<T>::kMostTop) return rest_of_vectors<true>(row, count, top, terms);
  return rest_of_any<true>(row, count, top, terms);
}
template <class T>
T rest_of_exponentials(const T *row, int64_t count, T top) {
  T *const nowhere = nullptr;
  if (count >= kLanes<T> && magnitude(top) <= Vector<T>::kMostTop)
    return rest_of_vectors<false>(row, count, top, nowhere);
  return rest_of_any<false>(row, count, top, nowhere);
}

// log(1 + x) for x >= 0, in float faster than the C library's: it corrects for the rounding of 1 + x.
template <class T>
inline T log_of_one_more(T x) {
  const T whole = 1 + x;
  return std::log(whole) + (x - (whole - 1)) / whole;
}

}  // namespace dnnops
#endif
