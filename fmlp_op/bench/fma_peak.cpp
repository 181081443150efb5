// Multiply-adds on registers alone: what one core can do at best. fmlp_op/bench/peaks.py compiles and times it.

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));

// Twelve independent sums hide the latency of a multiply-add (four cycles on two ports) and leave no vector in memory.
constexpr int kSums = 12;

// Returns the floating-point operations done. `seed` is where the sums start, each from another value, and where their
// total goes: the compiler can neither merge nor drop them.
extern "C" double multiply_add(long iterations, float* seed) {
  Vector sums[kSums] = {};
  for (int s = 0; s < kSums; ++s) sums[s] += *seed + static_cast<float>(s);
  Vector factor = {}, addend = {};
  factor += 0.999f;
  addend += 0.001f;
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sums[s] = sums[s] * factor + addend;
  }
  for (int s = 1; s < kSums; ++s) sums[0] += sums[s];
  *seed = sums[0][0];
  return 2.0 * iterations * kSums * (kVectorBytes / sizeof(float));
}
