// Decoding: one query per sequence against a cache of keys and values. Memory is what it costs:
// each key and value is read once.
//
// A block owns some consecutive keys of one sequence and takes them in rounds of ROUND. In a round
//
//     scores   a thread per (key, head)
//     code     a thread per key: the root mean square over the heads
//     values   a warp per key in turn: a lane owns pairs of d, sums p over the heads, applies φ,
//              and adds to its share of the output [head][d], which stays in registers
//
// The warps' outputs are added up at the end, the blocks' by the caller.
//
// Set by the compiler's command line: KIND (0 bf16, 1 fp16, 2 float32), HEADS, WIDTH (a multiple
// of 8), WARPS, NORMALISED, PHI, BIASED (0 none, 1 float32, 2 the dtype of q) and PADDED.

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;
constexpr int ROUND = 64;
constexpr int PAIRS = (WIDTH / 2 + WARP - 1) / WARP;  // of d, per lane
constexpr int QUERY_PITCH = WIDTH + 4;                // floats: heads in different banks

struct Tensor4 {  // [batch, token, head, d] with d contiguous; strides in elements
    const Scalar *at;
    long long batch, token, head;
};

struct Arguments {
    Tensor4 q, k, v;
    const void *bias;  // [biases, head, key]
    long long bias_batch, bias_head, bias_key;
    const unsigned char *padding;  // [batch, key], 0 = masked
    float *output;                 // [split, batch, head, d]
    int batch, keys, keys_per_block, batch_per_bias;
    float scale, eps;
};

struct Memory {
    float query[HEADS * QUERY_PITCH];
    float code[ROUND][HEADS];
    float output[HEADS][WIDTH];
};

DEVICE void scores(Memory &memory, const Arguments &a, int sequence, int first, int end) {
    for (int i = threadIdx.x; i < ROUND * HEADS; i += THREADS) {
        const int key = first + i / HEADS, head = i % HEADS;
        bool seen = key < end;
        if constexpr (PADDED) {
            seen = seen && a.padding[static_cast<long long>(sequence) * a.keys + key] != 0;
        }
        float s = 0.f, bias = 0.f;
        if (seen) {
            const Scalar *k = a.k.at + sequence * a.k.batch + key * a.k.token + head * a.k.head;
            const float *q = memory.query + head * QUERY_PITCH;
#pragma unroll
            for (int d = 0; d < WIDTH; d += 8) {
                float x[8];
                read(k + d, x);
#pragma unroll
                for (int j = 0; j < 8; ++j) s += x[j] * q[d + j];
            }
            if constexpr (BIASED != 0) {
                const long long at = sequence / a.batch_per_bias * a.bias_batch +
                                     head * a.bias_head + key * a.bias_key;
                bias = BIASED == 1 ? static_cast<const float *>(a.bias)[at]
                                   : to_float(static_cast<const Scalar *>(a.bias)[at]);
            }
        }
        memory.code[i / HEADS][head] = masks_pair(bias) ? 0.f : s + bias;
    }
}

DEVICE void normalise(Memory &memory, const Arguments &a) {
    for (int key = threadIdx.x; key < ROUND; key += THREADS) {
        float squares = 0.f;
#pragma unroll
        for (int h = 0; h < HEADS; ++h) squares += memory.code[key][h] * memory.code[key][h];
        const float r = inverse_root_of(squares * (1.f / HEADS) + a.eps);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) memory.code[key][h] *= r;
    }
}

DEVICE int first_of_pair(int pair) {
    return 2 * (static_cast<int>(threadIdx.x) % WARP + pair * WARP);
}

DEVICE void add_values(float (&out)[HEADS][PAIRS][2], const Memory &memory, const Arguments &a,
                       int sequence, int first, int end) {
    const int last = end - first < ROUND ? end - first : ROUND;
#pragma unroll 1
    for (int i = threadIdx.x / WARP; i < last; i += WARPS) {
        const Scalar *v = a.v.at + sequence * a.v.batch + (first + i) * a.v.token;
        bool seen = true;
        if constexpr (PADDED) {
            seen = a.padding[static_cast<long long>(sequence) * a.keys + first + i] != 0;
        }
        if (!seen) continue;  // its code is 0, but its value may be NaN
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int d = first_of_pair(pair);
            if (d >= WIDTH) break;
            float p[2] = {};
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                float x[2];
                read(v + h * a.v.head + d, x);
                p[0] += memory.code[i][h] * x[0], p[1] += memory.code[i][h] * x[1];
            }
            const float z[2] = {activate(p[0]).value, activate(p[1]).value};
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                out[h][pair][0] += memory.code[i][h] * z[0];
                out[h][pair][1] += memory.code[i][h] * z[1];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) decode(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const int sequence = static_cast<int>(blockIdx.x) % a.batch;
    const int begin = static_cast<int>(blockIdx.x) / a.batch * a.keys_per_block;
    const int end = begin + a.keys_per_block < a.keys ? begin + a.keys_per_block : a.keys;
    for (int i = threadIdx.x; i < HEADS * WIDTH; i += THREADS) {
        const int head = i / WIDTH, d = i % WIDTH;
        memory.query[head * QUERY_PITCH + d] =
            to_float(a.q.at[sequence * a.q.batch + head * a.q.head + d]) * a.scale;
    }
    float out[HEADS][PAIRS][2] = {};
    __syncthreads();
#pragma unroll 1
    for (int first = begin; first < end; first += ROUND) {
        scores(memory, a, sequence, first, end);
        __syncthreads();
        if constexpr (NORMALISED) {
            normalise(memory, a);
            __syncthreads();
        }
        add_values(out, memory, a, sequence, first, end);
        __syncthreads();
    }
    for (int warp = 0; warp < WARPS; ++warp) {  // in turn: sums in a fixed order
        if (static_cast<int>(threadIdx.x) / WARP == warp) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair) {
                    const int d = first_of_pair(pair);
                    if (d >= WIDTH) break;
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        float &sum = memory.output[h][d + j];
                        sum = (warp == 0 ? 0.f : sum) + out[h][pair][j];
                    }
                }
            }
        }
        __syncthreads();
    }
    float *output = a.output + static_cast<long long>(blockIdx.x) * (HEADS * WIDTH);
    for (int i = threadIdx.x; i < HEADS * WIDTH; i += THREADS) {
        output[i] = memory.output[i / WIDTH][i % WIDTH];
    }
}
