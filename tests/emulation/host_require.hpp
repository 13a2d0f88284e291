// Ends programs that test a header on the host if a check fails.
#ifndef DNNOPS_TESTS_HOST_REQUIRE_HPP
#define DNNOPS_TESTS_HOST_REQUIRE_HPP

#include <cstdio>
#include <cstdlib>

inline void require(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::exit(1);
}
#define REQUIRE(expression) require((expression), #expression)

#endif
