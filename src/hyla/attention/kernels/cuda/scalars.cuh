// Elements of q, k and v, and their conversion to and from float32.
//
// KIND: 0 bf16, 1 fp16, 2 float32; for the halves, on top of tensor_core.cuh.

#if KIND == 2
typedef float Scalar;
#else
typedef unsigned short Scalar;
#endif

DEVICE float to_float(Scalar x) {
#if KIND == 2
    return x;
#else
    return first_of(x);
#endif
}

// N consecutive elements, in loads of up to 16 bytes.
template <int N>
DEVICE void read(const Scalar *from, float (&x)[N]) {
    constexpr int BYTES = N * sizeof(Scalar), WORDS = (BYTES + 3) / 4;
    unsigned words[WORDS];
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            const uint4 w = __ldg(reinterpret_cast<const uint4 *>(from) + i / 4);
            words[i] = w.x, words[i + 1] = w.y, words[i + 2] = w.z, words[i + 3] = w.w;
        }
    } else if constexpr (BYTES == 8) {
        const uint2 w = __ldg(reinterpret_cast<const uint2 *>(from));
        words[0] = w.x, words[1] = w.y;
    } else if constexpr (BYTES == 4) {
        words[0] = __ldg(reinterpret_cast<const unsigned *>(from));
    } else {
        static_assert(N == 1, "elements per load");
        words[0] = __ldg(from);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
#if KIND == 2
        x[i] = __uint_as_float(words[i]);
#else
        x[i] = i % 2 == 0 ? first_of(words[i / 2]) : second_of(words[i / 2]);
#endif
    }
}

template <int N>
DEVICE void write(Scalar *to, const float *x) {
#if KIND == 2
    if constexpr (N == 4) {
        *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else if constexpr (N == 2) {
        *reinterpret_cast<float2 *>(to) = make_float2(x[0], x[1]);
    } else {
        *to = x[0];
    }
#else
    if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
    } else if constexpr (N == 2) {
        *reinterpret_cast<unsigned *>(to) = pack(x[0], x[1]);
    } else {
        *to = static_cast<Scalar>(pack(x[0], 0.f));
    }
#endif
}
