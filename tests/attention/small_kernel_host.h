// Enough of CUDA to run a kernel on the CPU, one warp at a time.
//
// The 32 lanes of a warp are fibres that take turns. A lane that exchanges a value leaves it in a
// slot and lets the others run; when its turn comes again, all of them have left theirs. Two sets
// of slots are enough, because no lane can be two exchanges ahead of another.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename T>
static T __ldg(const T *from) {
    if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) {  // a GPU would fault
        fprintf(stderr, "misaligned load of %zu bytes\n", sizeof(T));
        abort();
    }
    return *from;
}

static float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float rsqrtf(float x) { return 1.f / std::sqrt(x); }
#define __expf(x) std::exp(x)  // glibc declares a function of this name
static float __fdividef(float x, float y) { return x / y; }
static void atomicAdd(float *to, float x) { *to += x; }

namespace warp {
constexpr int SIZE = 32;
constexpr size_t STACK = 1 << 17;
static ucontext_t home, fibre[SIZE];
static bool finished[SIZE];
static char stack[SIZE][STACK];
static int current;
static unsigned turn[SIZE], slot[2][SIZE];

static void yield() {
    const int lane = current;
    swapcontext(&fibre[lane], &home);
}

template <typename T>
static T exchange(T x, int mask) {
    static_assert(sizeof(T) == 4, "a lane exchanges 32 bits");
    const int lane = current;
    const unsigned set = turn[lane]++ % 2;
    memcpy(&slot[set][lane], &x, 4);
    yield();
    if (turn[lane ^ mask] < turn[lane]) {  // a GPU would hang, or worse
        fprintf(stderr, "lane %d exchanges with lane %d, which did not\n", lane, lane ^ mask);
        abort();
    }
    T other;
    memcpy(&other, &slot[set][lane ^ mask], 4);
    return other;
}
}  // namespace warp

template <typename T>
static T __shfl_xor_sync(unsigned, T x, int mask) {
    return warp::exchange(x, mask);
}

#include KERNEL_SOURCE

static const Arguments *arguments;

static void run_lane() {
    small_head(*arguments);
    warp::finished[warp::current] = true;
    warp::yield();
}

extern "C" void launch(int blocks, int threads, const Arguments *given) {
    arguments = given;
    for (int block = 0; block < blocks; ++block) {
        for (int first = 0; first < threads; first += warp::SIZE) {
            blockIdx.x = block;
            for (int lane = 0; lane < warp::SIZE; ++lane) {
                warp::finished[lane] = false;
                warp::turn[lane] = 0;
                getcontext(&warp::fibre[lane]);
                warp::fibre[lane].uc_stack.ss_sp = warp::stack[lane];
                warp::fibre[lane].uc_stack.ss_size = warp::STACK;
                warp::fibre[lane].uc_link = nullptr;
                makecontext(&warp::fibre[lane], run_lane, 0);
            }
            for (bool running = true; running;) {
                running = false;
                for (int lane = 0; lane < warp::SIZE; ++lane) {
                    if (warp::finished[lane]) continue;
                    warp::current = lane;
                    threadIdx.x = first + lane;
                    swapcontext(&warp::home, &warp::fibre[lane]);
                    running = true;
                }
            }
        }
    }
}
