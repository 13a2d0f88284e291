// The way SHORT of batchnorm.cuh: batch normalization of channels whose elements are few and contiguous, by threads of
// a warp that hold a whole channel in registers.

// Adds up the values of a team's threads. The result is the same in all of them.
template <class T>
DEVICE T sum_of_team(T value) {
  UNROLL
  for (int apart = TEAM / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// A team processes one channel. Teams do not wait for each other.
DEVICE void normalize_short(const BatchNormParams &p) {
  const int channel = (int)(blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM);
  // Threads without a channel stay, since all threads of a warp take part in its exchanges.
  const Place place = {channel, channel < p.channels};
  const long long begin = (long long)channel * p.inner + member() * V;
  const auto counts = [&](int i) { return EVEN || i * TEAM + member() < p.across; };
  Words words[HOLDS > 0 ? HOLDS : 1];
  UNROLL
  for (int i = 0; i < HOLDS; ++i)
    words[i] = place.has_channels && counts(i) ? load<false, true>(p, begin + i * TEAM * V) : Words{};
  Origins from(p, place);
  const Given given(p, place);

  const auto sum_up = [&](Acc (&sums)[COUNT][SUMS]) {
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums[k][0] = 0;
    UNROLL
    for (int i = 0; i < HOLDS; ++i) add(from.masked(words[i]), from.power, from.of, sums, counts(i));
  };
  // Elements of 16 bits converted to 32 bits would take twice as many registers until they are used again.
  const auto forget = [&] {
    if constexpr (sizeof(Pack) == 16)
      UNROLL
      for (int i = 0; i < HOLDS; ++i)
        UNROLL
        for (int k = 0; k < ARRAYS; ++k) forget_uses(reinterpret_cast<uint4 &>(words[i].of[k]));
  };
  Acc sums[COUNT][SUMS];
  if constexpr (KIND == BATCHNORM_TRAIN) {
    // First the mean, so that squares are those of deviations. If all elements are equal, it is exactly their value.
    sum_up(sums);
    from.of[0] += sum_of_team(sums[0][0]) / (Acc)p.inner;
    forget();
  }
  sum_up(sums);
  Sums all;
  UNROLL
  for (int k = 0; k < COUNT; ++k) all.of[k] = sum_of_team(sums[k][0]);
  const bool fit = all.of[1] < MOST_SQUARES && (p.epsilon >= LEAST_EPSILON || all.of[1] >= LEAST_SQUARES);
  if (MAY_OVERFLOW && __ballot_sync(~0u, !fit)) {
    double wide[COUNT][SUMS] = {};
    const Origins first(p, place);
    forget();
    UNROLL
    for (int i = 0; i < HOLDS; ++i) add(first.masked(words[i]), first.power, first.of, wide, counts(i));
    Sums of_team;
    UNROLL
    for (int k = 0; k < COUNT; ++k) of_team.of[k] = sum_of_team(wide[k][0]);
    if (!fit) {
      all = of_team;
      from = first;
    }
  }
  const Acc known = KIND == BATCHNORM_GRADIENT ? given.spread[0] : from.of[0];
  const Ready ready = finish(p, channel, all, known, place.has_channels && member() == 0);
  const Formula formula(p, given, &ready);
  forget();
  Bits *const to = static_cast<Bits *>(p.out) + begin;
  UNROLL
  for (int i = 0; i < HOLDS; ++i)
    if (place.has_channels && counts(i)) store(to + i * TEAM * V, formula.apply(words[i]));
}
