#include "winograd_tiles.hpp"

#ifdef __AVX512F__

#include <algorithm>

#include "winograd_transforms.hpp"

namespace dnnops::winograd {
namespace {

// A rectangle of pixels of one image, which may extend beyond the edges.
struct Window {
  int64_t row, rows, column, columns;
};

void zero_pixels(float *pixels, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(pixels + i * kLanes, Vec{});
}

// Copies a run of pixels of a channel block to `pixels`, where lines of `width` pixels are `line_stride` pixels apart.
void read_run(const float *plane, int64_t plane_size, int64_t channels, int64_t count, int64_t width,
              int64_t line_stride, float *pixels) {
  int64_t column = 0;
  for (int64_t done = 0; done < count; done += kLanes) {
    const int64_t part = std::min<int64_t>(count - done, kLanes);
    Vec pixel[kLanes];
    if (part == kLanes && channels == kLanes)
      load_columns(plane + done, plane_size, pixel);
    else
      load_columns(plane + done, plane_size, channels, part, pixel);
    for (int64_t i = 0; i < part; ++i) {
      store(pixels, pixel[i]);
      pixels += kLanes;
      if (++column == width) {
        column = 0;
        pixels += (line_stride - width) * kLanes;
      }
    }
  }
}

// Copies a window of a channel block to pixels[row][column][16], with zeros outside of the image.
void read_window(const Images &images, int64_t image, int64_t block, const Window &window, float *pixels) {
  const int64_t plane_size = images.height * images.width;
  const int64_t channels = std::min<int64_t>(images.channels - block * kLanes, kLanes);
  const float *plane = images.data + (image * images.channels + block * kLanes) * plane_size;
  const int64_t top = std::clamp<int64_t>(-window.row, 0, window.rows);
  const int64_t bottom = std::clamp<int64_t>(images.height - window.row, top, window.rows);
  const int64_t left = std::clamp<int64_t>(-window.column, 0, window.columns);
  const int64_t right = std::clamp<int64_t>(images.width - window.column, left, window.columns);
  zero_pixels(pixels, top * window.columns);
  zero_pixels(pixels + bottom * window.columns * kLanes, (window.rows - bottom) * window.columns);
  for (int64_t y = top; y < bottom; ++y) {
    zero_pixels(pixels + y * window.columns * kLanes, left);
    zero_pixels(pixels + (y * window.columns + right) * kLanes, window.columns - right);
  }
  const int64_t width = right - left, lines = bottom - top;
  if (width == 0) return;
  // Whole lines are contiguous, so they are copied as one run.
  const int64_t runs = width == images.width ? 1 : lines;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t y = top + run;
    read_run(plane + (window.row + y) * images.width + window.column + left, plane_size, channels,
             lines / runs * width, width, window.columns, pixels + (y * window.columns + left) * kLanes);
  }
}

// Copies pixels[row][column][16], lines `line_stride` pixels apart, to a window inside the image.
void write_window(const float *pixels, int64_t line_stride, const Images &images, int64_t image, int64_t block,
                  const Window &window) {
  const int64_t plane_size = images.height * images.width;
  const int64_t channels = std::min<int64_t>(images.channels - block * kLanes, kLanes);
  float *plane = images.data + (image * images.channels + block * kLanes) * plane_size;
  const int64_t runs = line_stride == images.width ? 1 : window.rows;
  const int64_t length = window.rows / runs * window.columns;
  for (int64_t run = 0; run < runs; ++run, pixels += line_stride * kLanes) {
    float *target = plane + (window.row + run) * images.width + window.column;
    for (int64_t done = 0; done < length; done += kLanes) {
      Vec channel[kLanes];
      load_columns(pixels + done * kLanes, kLanes, channel);
      const __mmask16 mask = first_lanes(std::min<int64_t>(length - done, kLanes));
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        if (i < channels) _mm512_mask_storeu_ps(target + i * plane_size + done, mask, channel[i]);
    }
  }
}

template <class Transform>
void transform_strip(const Images &images, const Window &window, const Strip &strip, float *pixels,
                     const Tiles &tiles, int64_t first_tile) {
  for (int64_t block = 0; block < images.blocks(); ++block) {
    read_window(images, strip.image, block, window, pixels);
    float *to = tiles.at(block, first_tile);
    for (int64_t row = 0; row < strip.rows; ++row)
      for (int64_t column = 0; column < strip.columns; ++column, to += kLanes) {
        const float *from = pixels + kTile * (row * window.columns + column) * kLanes;
        transform_2d<Transform>(
            [&](int y, int x) { return load(from + (y * window.columns + x) * kLanes); },
            [&](int y, int x, Vec value) { store(to + (y * kPatch + x) * tiles.position_stride, value); });
      }
  }
}

}  // namespace

int64_t strip_pixels(int64_t rows, int64_t columns) {
  // The larger of the inputs with their halo and the outputs, with room for a last incomplete vector.
  return ((kTile * rows + kTaps) * (kTile * columns + kTaps) + kLanes) * kLanes;
}

void transform_inputs(const Images &images, int64_t pad_top, int64_t pad_left, const Strip &strip,
                      float *pixels, const Tiles &tiles, int64_t first_tile) {
  const Window window{kTile * strip.row - pad_top, kTile * strip.rows + kTaps - 1,
                      kTile * strip.column - pad_left, kTile * strip.columns + kTaps - 1};
  transform_strip<TransformInput>(images, window, strip, pixels, tiles, first_tile);
}

void transform_output_gradients(const Images &images, const Strip &strip, float *pixels, const Tiles &tiles,
                                int64_t first_tile) {
  const Window window{kTile * strip.row, kTile * strip.rows, kTile * strip.column, kTile * strip.columns};
  transform_strip<TransformOutputGradient>(images, window, strip, pixels, tiles, first_tile);
}

void inverse_outputs(const Tiles &tiles, int64_t first_tile, const Strip &strip, float *pixels,
                     const Images &images) {
  Window window{kTile * strip.row, 0, kTile * strip.column, 0};
  window.rows = std::min(kTile * strip.rows, images.height - window.row);
  window.columns = std::min(kTile * strip.columns, images.width - window.column);
  const int64_t line = window.columns;
  for (int64_t block = 0; block < images.blocks(); ++block) {
    // Lines are as long as those of the image, so the excess of the last tile of a row falls on the beginning of the
    // next lines. Tiles are written from right to left and rows downwards, so those lines are overwritten later.
    for (int64_t row = 0; row < strip.rows; ++row)
      for (int64_t column = strip.columns - 1; column >= 0; --column) {
        const float *from = tiles.at(block, first_tile + row * strip.columns + column);
        float *to = pixels + kTile * (row * line + column) * kLanes;
        transform_2d<InverseOutput>(
            [&](int y, int x) { return load(from + (y * kPatch + x) * tiles.position_stride); },
            [&](int y, int x, Vec value) { store(to + (y * line + x) * kLanes, value); });
      }
    write_window(pixels, line, images, strip.image, block, window);
  }
}

}  // namespace dnnops::winograd
#endif
