// rnn_times.hpp on the host. Fails if a check fails.
#include "gpu/rnn/rnn_times.hpp"

#include "host_require.hpp"

using namespace dnnops::rnn;

// Half of the time is the forward pass, and a quarter is each gradient.
Times of(double launched, double recorded, int64_t space) {
  Times times;
  times.launched = {launched / 2, launched / 4, launched / 4};
  times.recorded = {recorded / 2, recorded / 4, recorded / 4};
  times.space = space;
  return times;
}

bool near(double a, double b) { return std::abs(a - b) < 1e-9; }

int chosen(const Times &standard, const Times &second, const Times &third = Times(), int64_t layers = 1) {
  const Times all[] = {standard, second, third};
  return fastest_of(all, 3, layers);
}

int main() {
  const Times standard = of(3, 2, 100);
  REQUIRE(standard.replays() == 7 && near(standard.best(), 2));
  // By chance a recording seems slower, when the device has no time to wait.
  REQUIRE(of(11, 11.02, 1).replays() == 7 && near(of(11, 11.02, 1).best(), 11.02));
  REQUIRE(of(11, 11.05, 1).replays() == 0 && near(of(11, 11.05, 1).best(), 11));
  // Each pass uses the faster way.
  Times mixed = of(12, 8, 1);
  mixed.recorded[WEIGHTS] = 4;
  REQUIRE(mixed.replays() == (1 << FORWARD | 1 << DATA) && near(mixed.best(), 4 + 2 + 3));
  mixed.recorded[FORWARD] = 7, mixed.recorded[WEIGHTS] = 2;
  REQUIRE(mixed.replays() == (1 << DATA | 1 << WEIGHTS) && near(mixed.best(), 6 + 2 + 2));
  // Without a gradient, there is one pass.
  mixed.launched = {6, 0, 0}, mixed.recorded = {7, 0, 0};
  REQUIRE(!mixed.replays(FORWARD) && near(mixed.best(), 6));
  // Passes that cannot be recorded, and that do not run.
  REQUIRE(!of(11, HUGE_VAL, 1).replays() && !Times().replays() && !Times().runs());

  REQUIRE(chosen(standard, Times()) == 0);
  REQUIRE(chosen(Times(), of(5, 4, 100)) == 1);
  REQUIRE(chosen(Times(), Times()) == 0);
  // With as much memory, it has to be faster by more than chance.
  REQUIRE(chosen(standard, of(3, 1.98, 100)) == 0);
  REQUIRE(chosen(standard, of(3, 1.9, 104)) == 1);
  // More memory has to be worth it.
  REQUIRE(chosen(standard, of(3, 1.9, 120)) == 0);
  REQUIRE(chosen(standard, of(3, 1.6, 200)) == 1);
  REQUIRE(chosen(standard, of(3, 1.6, 100), of(3, 1.5, 100)) == 2);
  REQUIRE(chosen(standard, of(3, 1.5, 100), of(3, 1.6, 100)) == 1);
  // With several layers, it is never worth it.
  REQUIRE(chosen(standard, of(3, 1.6, 200), Times(), 2) == 0);
  REQUIRE(chosen(standard, of(3, 1.6, 104), Times(), 2) == 1);
  REQUIRE(chosen(Times(), of(3, 1.6, 200), Times(), 2) == 1);
  // The fastest one uses too much memory for the time that it saves, and another one does not.
  REQUIRE(chosen(standard, of(3, 1.8, 200), of(3, 1.9, 100)) == 2);
}
