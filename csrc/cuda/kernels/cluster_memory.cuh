// Thread-block clusters (sm_90 and newer): who we are, barriers in shared memory, and stores to another block's.
#pragma once

namespace fmlp {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// All threads of all blocks of the cluster meet, in two halves; what they wrote before is visible after.
__device__ __forceinline__ void arrive_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The address, in block `rank`, of what lies at shared address `address` in this block.
__device__ __forceinline__ unsigned remote_address(unsigned address, unsigned rank) {
  unsigned remote = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
  return remote;
}

// Stores into another block's shared memory (or one's own, by its remote address); the bytes count toward a barrier
// in the same block, so that no fence and no arrival has to follow.
template <int count>
__device__ __forceinline__ void send_words(unsigned remote, const unsigned* words, unsigned remote_barrier) {
  static_assert(count == 2 || count == 4);
#if __CUDA_ARCH__ >= 900
  if constexpr (count == 4) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(remote_barrier)
        : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(remote),
                 "r"(words[0]), "r"(words[1]), "r"(remote_barrier)
                 : "memory");
  }
#endif
}

// Arrives at a barrier of this block and lets its phase last until `bytes` have been sent to it.
__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void initialize_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// What this thread, and those it has synchronized with, wrote becomes visible to whoever waits on the barrier.
__device__ __forceinline__ void arrive_remote(unsigned remote_barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
#endif
}

__device__ __forceinline__ void wait_cluster_barrier(unsigned barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done;\n"
      "retry%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry%=; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace fmlp
