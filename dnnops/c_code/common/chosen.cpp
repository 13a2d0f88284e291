#include "chosen.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "lru_cache.hpp"

namespace dnnops {
namespace {

using Table = LruCache<int64_t, Chosen>;

Table &table() {
  // Never destroyed, because functions may still be freed while the process exits.
  static auto *rows = new Table(4096);
  return *rows;
}

template <size_t size>
void copy_text(char (&to)[size], const char *from) {
  std::strncpy(to, from, size - 1);
  to[size - 1] = 0;
}

// Whether the memory order is (batch, spatial..., channel) and not also (batch, channel, spatial...).
bool is_channels_last(const dnnops_tensor &tensor) {
  const int64_t ndim = tensor.ndim;
  int64_t step = item_size(tensor.dtype), plain_step = step;
  bool last = true, plain = true;
  for (int64_t i = 0; i < ndim; ++i) {
    const int64_t axis = i == 0 ? 1 : i == ndim - 1 ? 0 : ndim - i, plain_axis = ndim - 1 - i;
    last = last && (tensor.shape[axis] == 1 || tensor.strides[axis] == step);
    plain = plain && (tensor.shape[plain_axis] == 1 || tensor.strides[plain_axis] == plain_step);
    step *= tensor.shape[axis];
    plain_step *= tensor.shape[plain_axis];
  }
  return last && !plain;
}

std::string shape_text(const int64_t *shape, int64_t ndim) {
  std::string text;
  for (int64_t i = 0; i < ndim; ++i) text += (i ? "x" : "") + std::to_string(shape[i]);
  return text;
}

std::string size_text(int64_t bytes) {
  if (bytes == 0) return "no workspace";
  char text[64];
  static const char *const units[] = {"KiB", "MiB", "GiB"};
  double size = (double)bytes / 1024;
  int unit = 0;
  for (; size >= 999.95 && unit < 2; ++unit) size /= 1024;
  if (bytes < 1024)
    std::snprintf(text, sizeof text, "%lld B workspace", (long long)bytes);
  else
    std::snprintf(text, sizeof text, "%.1f %s workspace", size, units[unit]);
  return text;
}

std::string line_of(const char *op_name, const Chosen &chosen) {
  std::string line = std::string("dnnops: ") + op_name + " " + shape_text(chosen.image, chosen.ndim) + " * " +
                     shape_text(chosen.filters, chosen.ndim) + " " + dtype_name(chosen.dtype) + ": " + chosen.plan;
  if (chosen.workspace >= 0) line += ", " + size_text(chosen.workspace);
  if (!std::isnan(chosen.time_ms)) {
    char time[64];
    std::snprintf(time, sizeof time, chosen.time_ms < 100 ? ", %.3g ms" : ", %.0f ms", chosen.time_ms);
    line += time;
  }
  return line + " (" + chosen.source + ")\n";
}

void print(const std::string &line) { std::fwrite(line.data(), 1, line.size(), stderr); }

}  // namespace

Chosen make_chosen(int64_t direction, const dnnops_tensor &image, const dnnops_tensor &filters,
                   const dnnops_tensor &top, const std::string &plan, const char *source) {
  Chosen chosen;
  std::memset(&chosen, 0, sizeof chosen);
  copy_text(chosen.plan, plan.c_str());
  copy_text(chosen.source, source);
  chosen.workspace = -1;
  chosen.time_ms = std::numeric_limits<double>::quiet_NaN();
  chosen.direction = direction;
  chosen.dtype = image.dtype;
  chosen.ndim = image.ndim < 5 ? image.ndim : 5;
  const dnnops_tensor *const arrays[] = {&image, &filters, &top};
  int64_t *const shapes[] = {chosen.image, chosen.filters, chosen.top};
  for (int role = 0; role < 3; ++role) {
    std::memcpy(shapes[role], arrays[role]->shape, chosen.ndim * sizeof(int64_t));
    if (is_channels_last(*arrays[role])) chosen.channels_last |= (int64_t)1 << role;
  }
  return chosen;
}

// A failure to record a row must not fail a computation that succeeded: the row is left out instead.

void print_chosen(const char *op_name, const Chosen &chosen) noexcept try {
  print(line_of(op_name, chosen));
} catch (const std::exception &) {
}

void print_chosen_once(const char *op_name, const Chosen &chosen) noexcept try {
  static auto *printed = new LruCache<std::string, bool>(1024);
  const std::string line = line_of(op_name, chosen);
  if (printed->find(line)) return;
  printed->put(line, std::make_shared<bool>(true));
  print(line);
} catch (const std::exception &) {
}

void store_chosen(int64_t node, const Chosen &chosen) noexcept try {
  table().put(node, std::make_shared<Chosen>(chosen));
} catch (const std::exception &) {
}

void erase_chosen(int64_t node) noexcept try {
  table().remove(node);
} catch (const std::exception &) {
}

}  // namespace dnnops

DNNOPS_EXPORT int dnnops_chosen(int64_t node, dnnops_chosen_row *row) {
  try {
    const auto found = dnnops::table().find(node);
    if (!found) return 0;
    *row = *found;
    return 1;
  } catch (const std::exception &) {
    return 0;
  }
}
