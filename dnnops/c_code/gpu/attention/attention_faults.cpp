#include "attention_faults.hpp"

#include <limits>

namespace dnnops {

namespace {

// The keys that the engines process at a time.
constexpr int64_t TILE = 128;
constexpr int64_t NEWEST = std::numeric_limits<int64_t>::max();

struct Fault {
  const char *name;
  int64_t first, last;  // versions of cuDNN; NEWEST until a version is shown to be free of it
  bool (*concerns)(const AttentionCase &);
  void (*avoid)(AttentionCase &);
};

void give_lengths(AttentionCase &c) { c.has_lengths = true; }

// Adds a second key, which lengths hide.
void add_key(AttentionCase &c) { c.keys = 2, c.has_lengths = true; }

// Found on an H200 by `python -m dnnops doctor --check-engines`, if nothing else is said. Other architectures are
// treated alike. With dropout, attention is computed in the form of its gradient, so that both drop the same weights.
const Fault faults[] = {
    // cuDNN does not support it.
    {"gradient of one score", 0, NEWEST,
     [](const AttentionCase &c) { return c.gradient && c.queries == 1 && c.keys == 1; }, add_key},
    // 9.19 read all but the first head of a bias that the batch shares from a wrong place.
    {"bias of one score by head", 0, NEWEST,
     [](const AttentionCase &c) { return c.queries == 1 && c.keys == 1 && c.bias_batch == 1 && c.bias_heads > 1; },
     add_key},
    // The last keys did not fill a tile.
    {"gradient of a partial tile", 0, 91500, [](const AttentionCase &c) { return c.gradient && c.keys % TILE != 0; },
     give_lengths},
    // With 9.19, the missing half of the last tile had scores of 0, so that exp(0 - stats) overflowed where all scores
    // of a query were below -11 (float16) or -88 (bfloat16): the gradient with respect to the query was NaN, for 2 to
    // 1000 queries and depths of 8 to 256. Causal and deterministic gradients were right, as were those with lengths.
    {"gradient of half a tile", 0, NEWEST,
     [](const AttentionCase &c) {
       return c.keys % TILE == TILE / 2 && (c.dropout > 0 || (c.gradient && !c.is_causal && !c.deterministic));
     },
     give_lengths},
    // With 9.19, the same overflow made the gradients with respect to 64, 128, 192 and 256 keys and values NaN, also if
    // deterministic. Other numbers of keys were right, as were lengths.
    {"gradient of one query", 0, NEWEST,
     [](const AttentionCase &c) { return c.queries == 1 && (c.gradient || c.dropout > 0); }, give_lengths},
};

}  // namespace

std::string avoid_faults(AttentionCase &attention) {
  const int64_t version = static_cast<int64_t>(cudnnGetVersion());
  std::string names;
  for (const Fault &fault : faults) {
    if (version < fault.first || version > fault.last || !fault.concerns(attention)) continue;
    fault.avoid(attention);
    names += (names.empty() ? "" : ", ") + std::string(fault.name);
  }
  return names;
}

}  // namespace dnnops
