// Copies in bulk, of any multiple of 16 bytes, from compute capability 9.0 on.  For tests on the host
// tests/cudnn/host_cuda.hpp has the same names.
#ifdef __CUDACC__
// Where, in shared memory, those who wait learn that copies have arrived: what one thread expects, and then the next
// time.  The first one is number 0.  Or that so many threads have arrived, with what they have written.
struct Arrivals {
  unsigned long long barrier;
};
// By one thread, ahead of a barrier of all who use it.
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
// `number`, modulo 2, must be that of the last expectation that has been met, or of the next one.
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
