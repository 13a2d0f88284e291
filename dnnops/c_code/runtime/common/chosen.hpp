// What the nodes of compiled functions use now, for Python to read (dnnops/chosen.py): a node tells
// when it has chosen a plan, not when it runs one.
#ifndef DNNOPS_CHOSEN_HPP
#define DNNOPS_CHOSEN_HPP

#include <string>

#include "error.hpp"

namespace dnnops {

// One node's choice.  The structure in dnnops/chosen.py has the same members.
struct Chosen {
  char plan[256];         // its name, cut off if it is longer
  char source[16];        // who chose it: "timed", "cache", "guessed" or "given"
  int64_t workspace;      // in bytes; -1: unknown
  double time_ms;         // NaN: unknown
  int64_t direction;      // a ConvDirection
  int64_t dtype;          // a dnnops_dtype
  int64_t channels_last;  // 1, 2 and 4, added up: that image, filters and top are in this memory format
  int64_t ndim;
  int64_t image[5], filters[5], top[5];  // shapes, zeros from ndim on
};
static_assert(sizeof(Chosen) == 256 + 16 + 21 * sizeof(int64_t), "the layout of _Row in dnnops/chosen.py");

// Workspace and time are unknown until they are set.
Chosen make_chosen(int64_t direction, const dnnops_tensor &image, const dnnops_tensor &filters,
                   const dnnops_tensor &top, const std::string &plan, const char *source);

// "dnnops: OneDnnConv 2x16x28x28 * 16x16x3x3 float32: winograd, 1.2 MiB workspace, 0.0402 ms (timed)", on
// the standard error stream.
void print_chosen(const char *op_name, const Chosen &chosen) noexcept;
// The same, unless this has printed that line already: for calls without a node's state, which cannot
// tell a choice from its repetition.
void print_chosen_once(const char *op_name, const Chosen &chosen) noexcept;

// The table, by the node's number.
void store_chosen(int64_t node, const Chosen &chosen) noexcept;
void erase_chosen(int64_t node) noexcept;
// A call that no node stands for has the number 0, and leaves nothing.
inline void remember_chosen(int64_t node, const Chosen &chosen) noexcept {
  if (node) store_chosen(node, chosen);
}
inline void forget_chosen(int64_t node) noexcept {
  if (node) erase_chosen(node);
}

// A member of a node's state: the node's row in the table, which goes when the state does.  Not for the
// makeshift state of a call whose node another thread is using: it would take the node's row with it.
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
