// An array that gradients of max pooling add to their result, such as another gradient of the same image.
//
// Its channels are adjacent, but its pixels may lie farther apart than those of the result: it can be a part of the
// channels of a larger array.
//
// Macro: ADDEND, how it is read. Where a pixel's channels do not begin at a multiple of 16 bytes, that is element by
// element.

// As PoolAddend in pool_cells.hpp.
enum : int { NO_ADDEND = 0, ADDEND_OF_ELEMENTS = 1, ADDEND_OF_VECTORS = 2 };

// Loads 16 bytes for each pixel of a cell that is inside the image, where `place` says.
template <class Place>
DEVICE void load_addend(const PoolCellsParams &p, const Item &item, Place place) {
  if constexpr (ADDEND != NO_ADDEND) {
    each_pixel<STRIDE_0, STRIDE_1, STRIDE_2>(p, item, item.first, [&](unsigned pixel, int i, int j, int k) {
      const Bits *const from = static_cast<const Bits *>(p.addend) + (long long)pixel * p.addend_pitch +
                               (long long)item.vector * WIDTH;
      if constexpr (ADDEND == ADDEND_OF_VECTORS) {
        place(i, j, k) = __ldg(reinterpret_cast<const uint4 *>(from));
      } else {
        Vector vector;
        UNROLL
        for (int c = 0; c < WIDTH; ++c) vector.items[c] = __ldg(from + c);
        place(i, j, k) = vector.words;
      }
    });
  }
}
