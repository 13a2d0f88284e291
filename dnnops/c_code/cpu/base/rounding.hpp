// Division and multiples, rounded up.
#ifndef DNNOPS_ONEDNN_ROUNDING_HPP
#define DNNOPS_ONEDNN_ROUNDING_HPP

#include <cstdint>

namespace dnnops {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace dnnops
#endif
