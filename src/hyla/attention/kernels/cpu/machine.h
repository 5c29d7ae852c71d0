// What the sources shared with the GPU (phi.cuh, output.cuh) ask for, on a CPU; and vectors, of one
// number for each of LANES consecutive queries.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define __device__ static
#define __forceinline__ inline
#define __ldg(from) (*(from))

static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline float __fdividef(float x, float y) { return x / y; }

// e^x to two units in the last place, and unlike the library's of a kind that compilers vectorise:
// e^x = 2^n e^r with |r| ≤ ln 2 / 2.
static inline float exponential(float x) {
    const float within = x > 89.f ? 89.f : x < -104.f ? -104.f : x;  // NaN stays
    const float n = floorf(within * 1.44269504f + 0.5f);
    const float r = within - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
    float power = 1.f / 5040;
    for (const float factorial : {720.f, 120.f, 24.f, 6.f, 2.f, 1.f, 1.f}) power = power * r + 1.f / factorial;
    // In two steps, as 2^n alone leaves the exponents of floats.
    const int32_t whole = n == n ? static_cast<int32_t>(n) : 0, half = whole / 2;
    const int32_t first = (half + 127) << 23, second = (whole - half + 127) << 23;
    float a, b;
    memcpy(&a, &first, 4), memcpy(&b, &second, 4);
    return power * a * b;
}
#define __expf(x) exponential(x)

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

using Vector = float __attribute__((vector_size(4 * LANES)));
using Which = int32_t __attribute__((vector_size(4 * LANES)));  // -1: yes, 0: no

static inline Vector read(const float *from) {
    Vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void add(float *to, Vector x) {
    x += read(to);
    memcpy(to, &x, sizeof x);
}

// Of x, what is in the lanes that were chosen; elsewhere 0, whatever is there.
static inline Vector only(Which chosen, Vector x) { return chosen ? x : Vector{}; }

template <typename Function>
static inline Vector each(Vector x, Function function) {
    alignas(Vector) float lanes[LANES];
    memcpy(lanes, &x, sizeof x);
    for (float &lane : lanes) lane = function(lane);
    memcpy(&x, lanes, sizeof x);
    return x;
}

// The sums of neighbouring lanes: first those of x, then those of y.
static inline Vector sums_of_pairs(Vector x, Vector y) {
#if defined(__AVX512F__)
#define PAIRS(i) i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14, i + 16, i + 18, i + 20, i + 22, i + 24, i + 26, i + 28, i + 30
#elif defined(__AVX__)
#define PAIRS(i) i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14
#else
#define PAIRS(i) i, i + 2, i + 4, i + 6
#endif
#if defined(__clang__)
    return __builtin_shufflevector(x, y, PAIRS(0)) + __builtin_shufflevector(x, y, PAIRS(1));
#else  // g++ knows the other only since its version 12
    return __builtin_shuffle(x, y, Which{PAIRS(0)}) + __builtin_shuffle(x, y, Which{PAIRS(1)});
#endif
}

// Add to each of `count` numbers the sum over the lanes of a vector.
static inline void add_sums(float *to, const Vector *vectors, int count) {
    for (int done = 0; done < count; done += LANES) {
        const int here = count - done < LANES ? count - done : LANES;
        Vector level[LANES];
        for (int i = 0; i < LANES; ++i) level[i] = i < here ? vectors[done + i] : Vector{};
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) level[i] = sums_of_pairs(level[2 * i], level[2 * i + 1]);
        if (here == LANES) {
            add(to + done, level[0]);
        } else {
            for (int i = 0; i < here; ++i) to[done + i] += level[0][i];
        }
    }
}

// Call function(first, last) on parts of 0 … count, a thread each: those that torch's operations run on.
template <typename Function>
static void share_out(long count, int threads, Function function) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int i = 0; i < threads; ++i) {
        const long first = count * i / threads, last = count * (i + 1) / threads;
        if (first < last) function(first, last);
    }
}
