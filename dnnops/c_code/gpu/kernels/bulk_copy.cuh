// Bulk copies of any multiple of 16 bytes, from compute capability 9.0 on. tests/emulation/host_cuda.hpp has the
// same names for tests on the host.
#ifdef __CUDACC__
// A barrier in shared memory that tells waiting threads that copies have arrived. One thread states what it
// expects, then again for the next time; the first expectation is number 0. Alternatively, it tells that a
// number of threads have arrived, with what they have written.
struct Arrivals {
  unsigned long long barrier;
};
// To be called by one thread, before a barrier for all threads that use it.
DEVICE void begin_arrivals(Arrivals &of, int count = 1) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(&of);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void expect_bytes(Arrivals &of, int bytes) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(&of);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}
DEVICE void arrive(Arrivals &of) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(&of);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
DEVICE void copy_in_bulk(void *to, const void *from, int bytes, Arrivals &of) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to), barrier = (unsigned)__cvta_generic_to_shared(&of);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// `number`, modulo 2, must be that of the last expectation that was met, or of the next one.
DEVICE void wait_for_arrivals(Arrivals &of, unsigned number) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(&of), parity = number & 1;
  unsigned done;
  do {
    asm volatile(
        "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (!done);
}
#endif
