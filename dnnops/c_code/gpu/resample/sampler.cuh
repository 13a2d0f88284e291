// Spatial transformers: affine grids, bilinear samples at their points, and the gradients of both.
// dnnops/nnet/resample/bilinear.py defines a sample. Coordinates are computed in double, so that the position of a
// point between two pixels is the same as on the host.

DEVICE long long index_of_thread() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }

// -- the grid ------------------------------------------------------------------------------------

DEVICE double coordinate(long long i, long long size) {
  return size == 1 ? 0 : (2.0 * i - (double)(size - 1)) / (double)(size - 1);
}

KERNEL void make_grid(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  const long long i = index_of_thread(), points = p.top_rows * p.top_columns;
  if (i >= p.batch * points) return;
  const double x = coordinate(i % p.top_columns, p.top_columns), y = coordinate(i / p.top_columns % p.top_rows, p.top_rows);
  const Bits *const theta = static_cast<const Bits *>(p.theta) + i / points * 6;
  Bits *const to = static_cast<Bits *>(p.by_grid) + 2 * i;
  for (int axis = 0; axis < 2; ++axis) {
    const double a = to_acc(theta[3 * axis]), b = to_acc(theta[3 * axis + 1]), c = to_acc(theta[3 * axis + 2]);
    to[axis] = from_acc((Acc)(a * x + (b * y + c)));
  }
}

// One block per transformation, so that the sums of its threads are added in the same order each time.
KERNEL void grid_gradient(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  extern __shared__ uint4 shared[];
  double *const slots = reinterpret_cast<double *>(shared);
  const long long n = blockIdx.x, points = p.top_rows * p.top_columns;
  const Bits *const from = static_cast<const Bits *>(p.grid) + 2 * n * points;
  double sums[6] = {};
  for (long long i = threadIdx.x; i < points; i += blockDim.x) {
    const double x = coordinate(i % p.top_columns, p.top_columns), y = coordinate(i / p.top_columns, p.top_rows);
    for (int axis = 0; axis < 2; ++axis) {
      const double g = to_acc(from[2 * i + axis]);
      sums[3 * axis] += g * x;
      sums[3 * axis + 1] += g * y;
      sums[3 * axis + 2] += g;
    }
  }
  for (int k = 0; k < 6; ++k) slots[k * blockDim.x + threadIdx.x] = sums[k];
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    __syncthreads();
    for (int k = 0; k < 6 && threadIdx.x < step; ++k)
      slots[k * blockDim.x + threadIdx.x] += slots[k * blockDim.x + threadIdx.x + step];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 6; k += blockDim.x)
    static_cast<Bits *>(p.by_theta)[6 * n + k] = from_acc((Acc)slots[k * blockDim.x]);
}

// -- samples -------------------------------------------------------------------------------------

// The two pixels beside a point along one axis, and its distance to them.
struct Beside {
  long long pixel;
  double distance, scale;
  long long size;

  DEVICE Beside(Bits element, long long count) : scale((count - 1) / 2.0), size(count) {
    double position = ((double)to_acc(element) + 1) * scale;
    // Clamp points that are far away, so that they fit an integer.
    if (position < -2) position = -2;
    if (position > size) position = size;
    const double before = floor(position);
    distance = position - before;
    pixel = is_nan(before) ? -2 : (long long)before;
  }
  DEVICE bool inside(int which) const { return pixel + which >= 0 && pixel + which < size; }
  DEVICE double weight(int which) const { return which ? distance : 1 - distance; }
  DEVICE double slope(int which) const { return which ? scale : -scale; }
};

struct Point {
  Beside x, y;
  DEVICE Point(const SamplerParams &p, long long i)
      : x(static_cast<const Bits *>(p.grid)[2 * i], p.columns), y(static_cast<const Bits *>(p.grid)[2 * i + 1], p.rows) {}
  DEVICE bool lost() const { return is_nan(x.distance) || is_nan(y.distance); }
  DEVICE bool inside(int corner) const { return x.inside(corner & 1) && y.inside(corner >> 1); }
  DEVICE double weight(int corner) const { return x.weight(corner & 1) * y.weight(corner >> 1); }
  DEVICE long long place(int corner) const { return (y.pixel + (corner >> 1)) * x.size + x.pixel + (corner & 1); }
};

// Finds thread t's point and first channel. Returns false if there is none.
DEVICE bool find_work(const SamplerParams &p, long long t, long long *point, long long *channel) {
  const long long points = p.batch * p.top_rows * p.top_columns;
  *point = t % points;
  *channel = t / points * p.group;
  return *channel < p.channels;
}

KERNEL void take_samples(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  const long long points = p.top_rows * p.top_columns, pixels = p.rows * p.columns;
  long long i, c;
  if (!find_work(p, index_of_thread(), &i, &c)) return;
  const long long n = i / points, end = c + p.group < p.channels ? c + p.group : p.channels;
  const Point point(p, i);
  Acc weights[4];
  long long places[4];
  for (int k = 0; k < 4; ++k) {
    const double weight = point.weight(k);
    // A pixel of weight 0 does not contribute to the sample, even if it is infinite.
    places[k] = point.inside(k) && weight != 0 ? point.place(k) : -1;
    weights[k] = (Acc)weight;
  }
  const bool lost = point.lost();
  for (; c < end; ++c) {
    const Bits *const image = static_cast<const Bits *>(p.image) + (n * p.channels + c) * pixels;
    Acc sample = lost ? (Acc)NAN : (Acc)0;
    for (int k = 0; k < 4; ++k)
      if (places[k] >= 0) sample += weights[k] * to_acc(image[places[k]]);
    static_cast<Bits *>(p.samples)[(n * p.channels + c) * points + i % points] = from_acc(sample);
  }
}

// The gradient with respect to the image, for one point and channel.
template <class Add>
DEVICE void scatter(const SamplerParams &p, const Point &point, long long i, long long c, Add add) {
  const long long points = p.top_rows * p.top_columns, plane = i / points * p.channels + c;
  const Acc top = to_acc(static_cast<const Bits *>(p.top)[plane * points + i % points]);
  Acc *const sums = static_cast<Acc *>(p.sums) + plane * p.rows * p.columns;
  for (int k = 0; k < 4; ++k) {
    const double weight = point.weight(k);
    if (point.inside(k) && weight != 0) add(sums + point.place(k), (Acc)weight * top);
  }
}

// `sums` must be zero initially. The order in which a pixel's summands are added may vary.
KERNEL void image_gradient(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  long long i, c;
  if (!find_work(p, index_of_thread(), &i, &c)) return;
  const long long end = c + p.group < p.channels ? c + p.group : p.channels;
  const Point point(p, i);
  for (; c < end; ++c) scatter(p, point, i, c, [](Acc *to, Acc value) { atomicAdd(to, value); });
}

// With a fixed order: one thread for each channel of each image.
KERNEL void image_gradient_in_order(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  const long long plane = index_of_thread(), points = p.top_rows * p.top_columns;
  if (plane >= p.batch * p.channels) return;
  const long long n = plane / p.channels, c = plane % p.channels;
  for (long long i = n * points; i < (n + 1) * points; ++i)
    scatter(p, Point(p, i), i, c, [](Acc *to, Acc value) { *to += value; });
}

// Converts `sums` to the type of the arrays.
KERNEL void round_gradient(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  const long long i = index_of_thread();
  if (i >= p.batch * p.channels * p.rows * p.columns) return;
  static_cast<Bits *>(p.by_image)[i] = from_acc(static_cast<const Acc *>(p.sums)[i]);
}

// The gradient with respect to the coordinates of the points.
KERNEL void points_gradient(GRID_CONSTANT const SamplerParams p) {
  wait_for_stream();
  const long long i = index_of_thread(), points = p.top_rows * p.top_columns, pixels = p.rows * p.columns;
  if (i >= p.batch * points) return;
  const long long n = i / points;
  const Point point(p, i);
  Acc by_x[4], by_y[4];
  long long places[4];
  for (int k = 0; k < 4; ++k) {
    by_x[k] = (Acc)(point.x.slope(k & 1) * point.y.weight(k >> 1));
    by_y[k] = (Acc)(point.x.weight(k & 1) * point.y.slope(k >> 1));
    places[k] = point.inside(k) ? point.place(k) : -1;
  }
  Acc sum_x = 0, sum_y = 0;
  for (long long c = 0; c < p.channels; ++c) {
    const long long plane = n * p.channels + c;
    const Bits *const image = static_cast<const Bits *>(p.image) + plane * pixels;
    const Acc top = to_acc(static_cast<const Bits *>(p.top)[plane * points + i % points]);
    Acc slope_x = 0, slope_y = 0;
    for (int k = 0; k < 4; ++k) {
      if (places[k] < 0) continue;
      const Acc pixel = to_acc(image[places[k]]);
      slope_x += by_x[k] * pixel;
      slope_y += by_y[k] * pixel;
    }
    sum_x += top * slope_x;
    sum_y += top * slope_y;
  }
  const bool lost = point.lost();
  Bits *const to = static_cast<Bits *>(p.by_grid) + 2 * i;
  to[0] = from_acc(lost ? (Acc)NAN : sum_x);
  to[1] = from_acc(lost ? (Acc)NAN : sum_y);
}
