// The plans that the nodes of compiled functions currently use, for Python to read (dnnops/plans/used.py). A node
// reports a plan when it selects one, not each time it runs.
#ifndef DNNOPS_CHOSEN_HPP
#define DNNOPS_CHOSEN_HPP

#include <string>

#include "../abi/python/dnnops_chosen.h"
#include "error.hpp"

namespace dnnops {

using Chosen = dnnops_chosen_row;

// Workspace and time are unknown until they are set.
Chosen make_chosen(int64_t direction, const dnnops_tensor &image, const dnnops_tensor &filters,
                   const dnnops_tensor &top, const std::string &plan, const char *source);

// Prints a line such as
// "dnnops: OneDnnConv 2x16x28x28 * 16x16x3x3 float32: winograd, 1.2 MiB workspace, 0.0402 ms (timed)"
// to standard error.
void print_chosen(const char *op_name, const Chosen &chosen) noexcept;
// Like print_chosen(), but prints each line only once: for calls without a node's state, which cannot tell
// whether a selection is new.
void print_chosen_once(const char *op_name, const Chosen &chosen) noexcept;

// Stores a node's row in the table.
void store_chosen(int64_t node, const Chosen &chosen) noexcept;
void erase_chosen(int64_t node) noexcept;
// Calls that belong to no node have number 0 and record nothing.
inline void remember_chosen(int64_t node, const Chosen &chosen) noexcept {
  if (node) store_chosen(node, chosen);
}
inline void forget_chosen(int64_t node) noexcept {
  if (node) erase_chosen(node);
}

// A member of a node's state that removes the node's row when the state is freed. It must not be part of the
// temporary state of a call whose node another thread is using: that would remove the node's row too early.
class ChosenRow {
 public:
  ChosenRow() = default;
  ChosenRow(const ChosenRow &) = delete;
  ChosenRow &operator=(const ChosenRow &) = delete;
  ~ChosenRow() { forget_chosen(node_); }
  void remember(int64_t node, const Chosen &chosen) noexcept {
    node_ = node;
    remember_chosen(node, chosen);
  }

 private:
  int64_t node_ = 0;
};

}  // namespace dnnops
#endif
