#include "copies.hpp"

#include <algorithm>

namespace dnnops {

namespace {

// The same values as in transpose.cuh.
constexpr unsigned THREADS = 256;
constexpr int64_t TILE_ROWS = 64, TILE_COLUMNS = 64, NARROW_COLUMNS = 32, SLAB = 64;
enum CopyKind {
  NO_COPY = -1,
  TILES = 0,
  SLABS_OF_ROWS = 1,
  SLABS_OF_COLUMNS = 2,
  SAME_AXES = 3,
  STRIPS_OF_ROWS = 4,
  STRIPS_OF_COLUMNS = 5,
  LOADS_PAIRS = 8,
  LOADS_QUADS = 16,
  STORES_PAIRS = 32,
  STORES_QUADS = 64,
  NARROW_TILES = 128,
  FILLS_GAPS = 256,
  CROSSES = 512,
  LARGE_SLABS = 1024,
  HALF_VECTORS = 2048,
  VECTORS = 4096,
};
enum CopyOrder {
  IN_ORDER = 0,
  TURNED_CONTIGUOUS = 1,
  TURNED_CHANNELS_LAST = 2,
  EXCHANGED_CHANNELS_LAST = 3,
  SPREAD = 4,
};

// Measured on an H200: matrices with this few rows or columns (or more columns, if odd pitches need no skew)
// are copied by slabs,
constexpr int64_t FEW_COLUMNS = 32, FEW_ODD_COLUMNS = 56, FEW_ROWS = 56;
// The maximum length along which strips and slabs move, counted in 32 bits.
constexpr int64_t MAX_ALONG = INT32_MAX - (1 << 16);
// The minimum number of elements that a thread moves at once.
constexpr int64_t STRIP_ELEMENTS = 16;
// or by strips, if such a row or column has one of these numbers of vectors.
const std::vector<int64_t> STRIP_VECTORS = {1, 2, 3, 4, 6, 8}, STRIP_HALF_VECTORS = {1, 3};
constexpr int64_t MAX_SLAB_BYTES = 24 << 10, MAX_SLAB_SHIFT = 4;
// Slabs are enlarged as long as there are this many blocks; with fewer blocks than these, tiles are made smaller.
constexpr int64_t ENOUGH_SLABS = 384, ENOUGH_TILES = 264;

// The maximum number of bytes that a block copies if axes are not exchanged, and a sufficient number of such blocks.
constexpr int64_t MAX_ROWS_BYTES = 32 << 10, ENOUGH_ROWS = 2112;

int64_t divided(int64_t size, int64_t by) { return (size + by - 1) / by; }

// Whether much of the last block would be idle.
bool is_wasteful(int64_t size, int64_t block) { return size % block && size < 8 * block; }

// The number of elements moved at once along rows of this length: 4, 2 (16-bit only) or 1.
int64_t vector_size(int64_t length, int64_t pitch, int64_t stride, int64_t alignment, int64_t width) {
  const auto fits = [&](int64_t size) {
    return length % size == 0 && pitch % size == 0 && stride % size == 0 && alignment >= size * width;
  };
  return width <= 4 && fits(4) ? 4 : width == 2 && fits(2) ? 2 : 1;
}

// The extent of each of `tiles` tiles; only the last may be smaller. Blocks that run side by side should take
// about the same time. Four elements move at once.
int32_t even_tile(int64_t size, int64_t tiles) { return static_cast<int32_t>(divided(divided(size, tiles), 4) * 4); }

int32_t slab_shift(int64_t along, int64_t across, int64_t matrices, int64_t width) {
  int32_t shift = 0;
  while (shift < MAX_SLAB_SHIFT && (2 * SLAB << shift) * across * width <= MAX_SLAB_BYTES &&
         matrices * divided(along, 2 * SLAB << shift) >= ENOUGH_SLABS && !is_wasteful(along, 2 * SLAB << shift))
    ++shift;
  return shift;
}

// The number of vectors in a row of this length if strips have a kernel for it, as a part of the kind; otherwise 0.
int strip_vectors(int64_t length, int64_t stride, int64_t alignment, int64_t width) {
  if (width > 4 || length > FEW_ROWS) return 0;
  const auto count = [&](int64_t bytes, const std::vector<int64_t> &counts) {
    if (length * width % bytes || stride * width % bytes || alignment < bytes) return int64_t(0);
    const int64_t vectors = length * width / bytes;
    return std::count(counts.begin(), counts.end(), vectors) ? vectors : 0;
  };
  if (const int64_t vectors = count(16, STRIP_VECTORS)) return static_cast<int>(vectors * VECTORS);
  const int64_t halves = count(8, STRIP_HALF_VECTORS);
  return halves ? static_cast<int>(halves * VECTORS | HALF_VECTORS) : 0;
}

// Selects the kind of a copy, the number of blocks and what each of them copies.
Copy plan_copy(CopyParams params, int64_t matrices, bool same_axes, int64_t width, int64_t src_alignment,
               int64_t dst_alignment, bool has_gaps = false) {
  Copy copy = {TILES, params, 0, false};
  CopyParams &p = copy.params;
  // Copies of rows may read past the channels in an array that has more of them.
  const int64_t load = vector_size(same_axes ? p.src_pitch : p.columns, p.src_pitch, p.src_stride, src_alignment, width);
  const int64_t store = vector_size(p.dst_width, p.dst_pitch, p.dst_stride, dst_alignment, width);
  const auto slabs = [&](int kind, int64_t along, int64_t across) {
    copy.kind += kind;
    if (along > INT32_MAX) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
    p.slab_shift = slab_shift(along, across, matrices, width);
    if (p.slab_shift) copy.kind |= LARGE_SLABS;
    p.row_tiles = static_cast<int32_t>(divided(along, SLAB << p.slab_shift));
    const int64_t elements = (SLAB << p.slab_shift) * across;
    copy.shared_bytes = static_cast<unsigned>((elements + elements / 16 + 1) * width);  // the maximum, with skew
  };
  const bool are_short = !same_axes && !p.order && std::max(p.rows, p.columns) <= MAX_ALONG;
  const int row_vectors = are_short && !has_gaps && p.dst_width == p.rows
                              ? strip_vectors(p.src_pitch, p.src_stride, src_alignment, width)
                              : 0;
  const int column_vectors = are_short ? strip_vectors(p.dst_width, p.dst_stride, dst_alignment, width) : 0;
  // Slabs and strips may cross from one matrix to the next if the matrices are adjacent in memory and fill
  // only a few blocks.
  const auto crosses = [&](int64_t along, bool is_dense) {
    return is_dense && is_wasteful(along, row_vectors | column_vectors ? THREADS : SLAB) && matrices * along <= MAX_ALONG;
  };
  const auto cross_rows = [&] {
    if (!crosses(p.rows, p.src_stride == p.rows * p.src_pitch && p.dst_width == p.rows)) return 0;
    p.tile_rows = static_cast<int32_t>(p.rows);
    p.rows = p.dst_width = matrices * p.rows;
    matrices = 1;
    return int(CROSSES);
  };
  const auto cross_columns = [&] {
    if (!crosses(p.columns, p.dst_stride == p.columns * p.dst_width)) return 0;
    p.tile_columns = static_cast<int32_t>(p.columns);
    p.columns = matrices * p.columns;
    matrices = 1;
    return int(CROSSES);
  };
  const auto strips = [&](int kind, int64_t along, int64_t across) {
    copy.kind = kind;
    const int64_t at_once = across < STRIP_ELEMENTS ? STRIP_ELEMENTS / across : 1;
    p.row_tiles = static_cast<int32_t>(divided(along, THREADS * at_once));
    copy.shared_bytes = kind / VECTORS > 1 ? static_cast<unsigned>(THREADS * across * width) : 0;
  };
  p.column_tiles = 1;
  if (same_axes) {
    copy.kind = SAME_AXES | (load == 4 ? LOADS_QUADS : 0) | (store == 4 ? STORES_QUADS : 0);
    copy.fills_gaps = p.order == SPREAD;
    if (copy.fills_gaps) copy.kind |= FILLS_GAPS;
    // Threads count the elements of a row in 32 bits.
    if (p.dst_width > INT32_MAX / 2) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
    const int64_t at_once = copy.kind & (LOADS_QUADS | STORES_QUADS) ? 4 : 1;
    while (p.lane_shift < 5 && p.dst_width > at_once << p.lane_shift) ++p.lane_shift;
    while (p.slab_shift < MAX_SLAB_SHIFT && (2 * SLAB << p.slab_shift) * p.dst_width * width <= MAX_ROWS_BYTES &&
           matrices * divided(p.rows, 2 * SLAB << p.slab_shift) >= ENOUGH_ROWS)
      ++p.slab_shift;
    p.row_tiles = static_cast<int32_t>(divided(p.rows, SLAB << p.slab_shift));
  } else if (const int vectors = row_vectors) {
    const int crossing = cross_rows();
    strips(STRIPS_OF_ROWS | vectors | crossing, p.rows, p.src_pitch);
  } else if (const int vectors = column_vectors) {
    const int crossing = cross_columns();
    strips(STRIPS_OF_COLUMNS | vectors | crossing, p.columns, p.dst_width);
  } else if (!p.order && !has_gaps && p.columns <= (p.src_pitch % 2 ? FEW_ODD_COLUMNS : FEW_COLUMNS) &&
             p.src_pitch <= FEW_ROWS) {
    if (width == 2 && store > 1) copy.kind |= STORES_PAIRS;
    copy.kind |= cross_rows();
    slabs(SLABS_OF_ROWS, p.dst_width, p.src_pitch);
  } else if (!p.order && p.dst_width <= FEW_ROWS) {
    if (width == 2 && load > 1) copy.kind |= LOADS_PAIRS;
    copy.kind |= cross_columns();
    slabs(SLABS_OF_COLUMNS, p.columns, p.dst_width);
  } else {
    const int64_t rows = divided(p.dst_width, TILE_ROWS);
    int64_t columns = TILE_COLUMNS;
    int64_t at_once = load;
    if ((load == 1 || width == 2) && matrices * rows * divided(p.columns, columns) < ENOUGH_TILES) {
      copy.kind |= NARROW_TILES;
      columns = NARROW_COLUMNS;
      at_once = std::min<int64_t>(load, 2);  // so that each thread has something to do
    }
    copy.kind |= at_once == 4 ? LOADS_QUADS : at_once == 2 ? LOADS_PAIRS : 0;
    copy.kind |= store == 4 ? STORES_QUADS : store == 2 ? STORES_PAIRS : 0;
    p.row_tiles = static_cast<int32_t>(rows);
    p.column_tiles = static_cast<int32_t>(divided(p.columns, columns));
    p.tile_rows = even_tile(p.dst_width, p.row_tiles);
    p.tile_columns = even_tile(p.columns, p.column_tiles);
    copy.shared_bytes = static_cast<unsigned>(TILE_ROWS * columns * width);
  }
  const double blocks = double(matrices) * divided(p.dst_width, TILE_ROWS) * divided(p.columns, NARROW_COLUMNS);
  const int64_t exact = blocks > INT64_MAX / 4 ? INT64_MAX : matrices * p.row_tiles * p.column_tiles;
  // A launch may contain two such copies.
  if (exact > INT32_MAX / 2) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
  p.blocks = static_cast<int32_t>(exact);
  return copy;
}

// The sizes, pitches and strides of a copy from an array, or back to it.
CopyParams matrices_of(const Tensor &array, int64_t format, const Tensor &inner, int64_t inner_format, bool back) {
  const int64_t channels = array.shape[1], positions = element_count(array.shape + 2, array.ndim - 2);
  const Tensor &source = back ? inner : array, &target = back ? array : inner;
  const int64_t source_format = back ? inner_format : format, target_format = back ? format : inner_format;
  const bool rows_are_channels = source_format == FORMAT_CONTIGUOUS;
  CopyParams params = {};
  params.src_stride = source.strides[0];
  params.dst_stride = target.strides[0];
  params.rows = rows_are_channels ? channels : positions;
  params.columns = rows_are_channels ? positions : channels;
  params.src_pitch = source_format == FORMAT_CHANNELS_LAST ? source.shape[1] : positions;
  params.dst_pitch = params.dst_width = target_format == FORMAT_CHANNELS_LAST ? target.shape[1] : positions;
  return params;
}

}  // namespace

Copy make_copy(const Tensor &array, int64_t format, const Tensor &inner, int64_t inner_format, int64_t dtype,
               bool back) {
  const Tensor &source = back ? inner : array, &target = back ? array : inner;
  return plan_copy(matrices_of(array, format, inner, inner_format, back), array.shape[0], format == inner_format,
                   item_size(dtype), source.alignment, target.alignment);
}

Copy make_spread(const Tensor &array, int64_t format, const Tensor &inner, const int64_t *strides, int64_t dtype) {
  CopyParams params = matrices_of(array, format, inner, FORMAT_CHANNELS_LAST, false);
  if (elements(inner) / inner.shape[0] > INT32_MAX)
    fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large to be transposed");
  const bool same_axes = format == FORMAT_CHANNELS_LAST;
  params.order = SPREAD;
  params.sizes[0] = params.sizes[1] = 1;
  int64_t step = 1;
  for (int64_t axis = array.ndim - 1, i = 0; axis > 1; --axis, ++i) {
    if (i < 2) params.sizes[i] = static_cast<int32_t>(array.shape[axis]);
    params.steps[i] = static_cast<int32_t>(step * strides[axis - 2]);
    step *= inner.shape[axis];
  }
  if (array.ndim < 5) params.steps[2] = static_cast<int32_t>(step);
  if (same_axes) params.rows = step;
  return plan_copy(params, array.shape[0], same_axes, item_size(dtype), array.alignment, inner.alignment);
}

Copy make_exchange(const Tensor &filters, int64_t format, int64_t groups, bool reversed, int64_t dtype) {
  const int64_t rows = filters.shape[0] / groups, positions = element_count(filters.shape + 2, filters.ndim - 2);
  const bool is_channels_last = format == FORMAT_CHANNELS_LAST;
  CopyParams params = {};
  params.rows = rows;
  params.columns = filters.shape[1] * positions;
  if (params.columns > INT32_MAX) fail(DNNOPS_NOT_SUPPORTED, "the filters are too large to be transposed");
  params.src_pitch = filters.strides[0];
  params.src_stride = rows * filters.strides[0];
  params.dst_pitch = params.dst_width = rows;
  params.dst_stride = rows * params.columns;
  if (is_channels_last)
    params.order = reversed ? TURNED_CHANNELS_LAST : EXCHANGED_CHANNELS_LAST;
  else
    params.order = reversed ? TURNED_CONTIGUOUS : IN_ORDER;
  params.period = static_cast<int32_t>(is_channels_last ? filters.shape[1] : positions);
  // A slab of rows is read including the gaps between them.
  const bool has_gaps = params.src_pitch != params.columns;
  return plan_copy(params, groups, false, item_size(dtype), filters.alignment, 16, has_gaps);
}

Copies::Copies(const Handle &handle, const std::vector<Copy> &copies, int64_t dtype) {
  int kinds[2] = {NO_COPY, NO_COPY};
  for (size_t i = 0; i < copies.size(); ++i) {
    kinds[i] = copies[i].kind;
    arguments_.copies[i] = copies[i].params;
    blocks_ += copies[i].params.blocks;
    shared_bytes_ = std::max(shared_bytes_, copies[i].shared_bytes);
  }
  if (copies.empty()) return;
  kernel_ = load_kernel(handle, "transpose", "copy_arrays",
                        "-DWIDTH=" + std::to_string(item_size(dtype)) + " -DFIRST=" +
                            std::to_string(kinds[0]) + " -DSECOND=" + std::to_string(kinds[1]));
}

void Copies::run(const void *const *sources, void *const *targets, void *stream) {
  if (!blocks_) return;
  std::copy(sources, sources + 2, arguments_.sources);
  std::copy(targets, targets + 2, arguments_.targets);
  void *arguments[] = {&arguments_};
  launch_kernel(kernel_, blocks_, THREADS, shared_bytes_, stream, arguments);
}

}  // namespace dnnops

namespace {

// The description of a copy, for tests that run its kernel elsewhere.
struct CopyRow {
  int64_t kind, threads, shared_bytes;
  dnnops::CopyParams params;
};

}  // namespace

// Describes the copy of an array to a format with this number of channels, or back; needs no GPU. With
// groups, the channels of filters are exchanged, and their positions are optionally reversed. With strides,
// the array is copied to the positions of an array of these sizes that are multiples of them.
DNNOPS_EXPORT int dnnops_cudnn_copy_row(const dnnops_tensor *operand, int64_t format, int64_t channels, int64_t back,
                                        int64_t groups, int64_t reversed, const int64_t *strides, const int64_t *sizes,
                                        CopyRow *row) {
  using namespace dnnops;
  return guarded("copy", operand, 1, [&] {
    const Tensor array = read_tensor(*operand);
    if (!dense_formats(array)) fail(DNNOPS_NOT_SUPPORTED, "the array is not dense");
    Copy copy;
    if (groups) {
      copy = make_exchange(array, dense_format(array, FORMAT_CHANNELS_LAST), groups, reversed, operand->dtype);
    } else {
      Tensor inner = array;
      inner.shape[1] = channels;
      if (sizes) std::copy(sizes, sizes + array.ndim - 2, inner.shape + 2);
      set_dense_strides(inner, format);
      inner.alignment = 16;
      if (strides)
        copy = make_spread(array, dense_format(array, format), inner, strides, operand->dtype);
      else
        copy = make_copy(array, dense_format(array, format), inner, format, operand->dtype, back);
    }
    row->kind = copy.kind;
    row->threads = THREADS;
    row->shared_bytes = copy.shared_bytes;
    row->params = copy.params;
  });
}
