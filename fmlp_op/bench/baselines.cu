// The two obvious ways to write Linear → ReLU → Linear → ReLU → Linear as one kernel, kept to measure against, and two
// kernels that do nothing: the floor under every other. fmlp_op/bench/baselines.py compiles this with SCALAR defined.

#define FLOAT32 0
#define FLOAT16 1
#define BFLOAT16 2

#if SCALAR == FLOAT32
using Scalar = float;
__device__ float load(const Scalar* from) { return *from; }
__device__ void store(Scalar* to, float value) { *to = value; }
#else
using Scalar = unsigned short;
#if SCALAR == FLOAT16
__device__ float load(const Scalar* from) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*from));
  return value;
}
__device__ void store(Scalar* to, float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*to) : "f"(value)); }
#else
__device__ float load(const Scalar* from) { return __uint_as_float(static_cast<unsigned>(*from) << 16); }
__device__ void store(Scalar* to, float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*to) : "f"(value)); }
#endif
#endif

__device__ float relu(float value) { return value < 0 ? 0 : value; }

// out[n] = sum over k of in[k] * weight[n][k] + bias[n], through ReLU where asked. `in` and `out` are in shared memory,
// the parameters where they lie.
struct ThreadPerOutput {
  __device__ static void layer(const float* in, int in_features, const Scalar* weight, const Scalar* bias, float* out,
                               int out_features, bool has_relu) {
    for (int n = threadIdx.x; n < out_features; n += blockDim.x) {
      float sum = load(bias + n);
      for (int k = 0; k < in_features; ++k) sum += in[k] * load(weight + static_cast<long long>(n) * in_features + k);
      out[n] = has_relu ? relu(sum) : sum;
    }
  }
};

struct WarpPerOutput {
  __device__ static void layer(const float* in, int in_features, const Scalar* weight, const Scalar* bias, float* out,
                               int out_features, bool has_relu) {
    const int lane = threadIdx.x % 32;
    for (int n = threadIdx.x / 32; n < out_features; n += blockDim.x / 32) {
      float sum = 0;
      for (int k = lane; k < in_features; k += 32)
        sum += in[k] * load(weight + static_cast<long long>(n) * in_features + k);
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
      sum += load(bias + n);
      if (lane == 0) out[n] = has_relu ? relu(sum) : sum;
    }
  }
};

// One block per row. x: [rows, d0], wL: [dL, d(L-1)], bL: [dL], y: [rows, d3]. Dynamic shared memory: two buffers of
// the largest width.
template <class Way>
__device__ void mlp(const Scalar* x, const Scalar* w1, const Scalar* b1, const Scalar* w2, const Scalar* b2,
                    const Scalar* w3, const Scalar* b3, Scalar* y, int d0, int d1, int d2, int d3) {
  extern __shared__ float shared[];
  float* a = shared;
  float* b = shared + max(max(d0, d1), max(d2, d3));
  const long long row = blockIdx.x;
  for (int k = threadIdx.x; k < d0; k += blockDim.x) a[k] = load(x + row * d0 + k);
  __syncthreads();
  Way::layer(a, d0, w1, b1, b, d1, true);
  __syncthreads();
  Way::layer(b, d1, w2, b2, a, d2, true);
  __syncthreads();
  Way::layer(a, d2, w3, b3, b, d3, false);
  __syncthreads();
  for (int n = threadIdx.x; n < d3; n += blockDim.x) store(y + row * d3 + n, b[n]);
}

extern "C" __global__ void thread_per_output(const Scalar* x, const Scalar* w1, const Scalar* b1, const Scalar* w2,
                                             const Scalar* b2, const Scalar* w3, const Scalar* b3, Scalar* y, int d0,
                                             int d1, int d2, int d3) {
  mlp<ThreadPerOutput>(x, w1, b1, w2, b2, w3, b3, y, d0, d1, d2, d3);
}

extern "C" __global__ void warp_per_output(const Scalar* x, const Scalar* w1, const Scalar* b1, const Scalar* w2,
                                           const Scalar* b2, const Scalar* w3, const Scalar* b3, Scalar* y, int d0,
                                           int d1, int d2, int d3) {
  mlp<WarpPerOutput>(x, w1, b1, w2, b2, w3, b3, y, d0, d1, d2, d3);
}

extern "C" __global__ void empty() {}

// Every row's block reads from x and writes y, and computes nothing.
extern "C" __global__ void load_store(const Scalar* x, Scalar* y, int in_features, int out_features) {
  const long long row = blockIdx.x;
  for (int n = threadIdx.x; n < out_features; n += blockDim.x) {
    y[row * out_features + n] = x[row * in_features + n % in_features];
  }
}
