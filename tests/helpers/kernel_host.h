// Enough of CUDA to run a kernel on the CPU, one block at a time, or one cluster of blocks.
//
// The threads of a block are fibres that take turns. A lane that exchanges values leaves its own
// in a slot and lets the others run; when its turn comes again, all lanes of its warp have left
// theirs. Two sets of slots are enough, because no lane can be two exchanges ahead of another.
// C's headers as they are: what C++ adds to them takes half the time of a build.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "hazards.h"

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(...)

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
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
#define __expf(x) expf(x)  // glibc declares a function of this name
static float __fdividef(float x, float y) { return x / y; }
OF_THE_MACHINE static void atomicAdd(float *to, float x) {
    hazards_add(to, sizeof x);
    *to += x;
}

#ifndef SPLIT
#define SPLIT 1  // blocks of a cluster
#endif

constexpr size_t SHARED_BYTES = 227 * 1024;
alignas(1024) uint4 dynamic[SPLIT * SHARED_BYTES / 16];  // the shared memory of each block

namespace block {
constexpr int WARP_SIZE = 32, MOST_THREADS = 1024, WORDS = 8;
constexpr size_t STACK = 1 << 17;
struct Fibre {
    ucontext_t start;
    jmp_buf resume;
    bool started, finished, waits_for_cluster;
    unsigned exchanges, barriers, group_barriers, cluster_barriers, slot[2][WORDS];
    char stack[STACK];
};
static Fibre *fibre = new Fibre[MOST_THREADS];
static ucontext_t home;
static jmp_buf scheduler;
static int current, threads;  // of a block; the fibres of a cluster lie one block after the other

static void yield() {  // setjmp and not swapcontext: that one calls the kernel each time
    if (_setjmp(fibre[current].resume) == 0) _longjmp(scheduler, 1);
}

[[noreturn]] static void fail(const char *what) {  // a GPU would hang, or worse
    fprintf(stderr, "thread %d: %s\n", current, what);
    abort();
}

// Leave `count` words and return where lane 0 of the warp left its own; lane l is l fibres on.
static unsigned exchange(const void *words, int count) {
    Fibre &mine = fibre[current];
    const unsigned set = mine.exchanges++ % 2;
    if (count > 0) memcpy(mine.slot[set], words, 4 * count);
    yield();
    for (int i = 0; i < WARP_SIZE; ++i) {
        const Fibre &other = fibre[current / WARP_SIZE * WARP_SIZE + i];
        if (other.exchanges < mine.exchanges) fail("exchanges with a lane that does not");
    }
    return set;
}

static const unsigned *left_by(int lane, unsigned set) {
    return fibre[current / WARP_SIZE * WARP_SIZE + lane].slot[set];
}
}  // namespace block

namespace block {
// Wait for `count` fibres from `first` on to have counted as far.
static void wait_for(unsigned Fibre::*counter, Meeting meeting, int first, int count) {
    const unsigned mine = ++(fibre[current].*counter);
    hazards_come(meeting, first, mine);
    for (bool waiting = true; waiting;) {
        yield();
        waiting = false;
        for (int i = first; i < first + count; ++i) {
            const Fibre &other = fibre[i];
            if (other.*counter >= mine) continue;
            if (other.finished) fail("waits for a thread that has ended");
            waiting = true;
        }
    }
    hazards_go(meeting, first, mine);
}
}  // namespace block

static void __syncthreads() {
    const int first = block::current / block::threads * block::threads;
    block::wait_for(&block::Fibre::barriers, OF_BLOCK, first, block::threads);
}

static void __syncwarp() {
    const int first = block::current / block::WARP_SIZE * block::WARP_SIZE;
    const unsigned turn = block::fibre[block::current].exchanges;
    hazards_come(OF_WARP, first, turn);
    block::exchange(nullptr, 0);
    hazards_go(OF_WARP, first, turn);
}

template <typename T>
static T __shfl_sync(unsigned, T x, int lane) {
    static_assert(sizeof(T) == 4, "a lane exchanges 32 bits");
    const unsigned set = block::exchange(&x, 1);
    T other;
    memcpy(&other, block::left_by(lane, set), 4);
    return other;
}

template <typename T>
static T __shfl_xor_sync(unsigned of, T x, int mask) {
    return __shfl_sync(of, x, (block::current % block::WARP_SIZE) ^ mask);
}

#include KERNEL_SOURCE

// Where this library lies.
extern __attribute__((visibility("hidden"))) char __ehdr_start, _end;
extern "C" const char *first_byte() { return &__ehdr_start; }

static const Arguments *arguments;
static unsigned first_block;  // of the cluster

// 0: as `launch` says; else another order of blocks, threads and warps for every number, in which
// some warps fall behind.
extern "C" {
unsigned order = 0;
}

static unsigned random_below(unsigned end) {
    static unsigned state = 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return (state * (2 * order + 1) >> 16) % end;
}

static void shuffle(int *numbers, int count) {
    for (int i = 0; i < count; ++i) {
        const int j = static_cast<int>(random_below(i + 1));
        numbers[i] = numbers[j], numbers[j] = i;
    }
}

static void run_thread() {
    ENTRY(*arguments);
    block::fibre[block::current].finished = true;
    _longjmp(block::scheduler, 1);
}

static void resume(int thread) {
    block::Fibre &fibre = block::fibre[thread];
    block::current = thread;
    threadIdx.x = thread % block::threads;
    blockIdx.x = first_block + thread / block::threads;
    if (_setjmp(block::scheduler) != 0) return hazards_run(-1);
    hazards_run(thread);
    if (fibre.started) _longjmp(fibre.resume, 1);
    fibre.started = true;
    setcontext(&fibre.start);
}

static int shuffled[block::MOST_THREADS];  // the same for all turns: or a lane might overtake one that
                                           // exchanges with it
static bool late[block::MOST_THREADS / block::WARP_SIZE];

// Run each thread of a block to its next stop, but not those of warps that are late; whether any did
// more than wait for its cluster.
static bool run_most_once(int first, bool ascending) {
    bool went_on = false;
    for (int turn = 0; turn < block::threads; ++turn) {
        const int ordered = ascending ? turn : block::threads - 1 - turn;
        const int own = order == 0 ? ordered : shuffled[turn];
        const block::Fibre &fibre = block::fibre[first + own];
        if (fibre.finished || late[own / block::WARP_SIZE]) continue;
        const unsigned barriers = fibre.cluster_barriers;
        resume(first + own);
        went_on = went_on || !fibre.waits_for_cluster || fibre.cluster_barriers != barriers;
    }
    return went_on;
}

static bool run_once(int first, bool ascending) {
    if (order != 0) {
        for (bool &warp : late) warp = random_below(2) == 0;
        if (run_most_once(first, ascending)) return true;
        for (bool &warp : late) warp = false;
    }
    return run_most_once(first, ascending);
}

#ifdef SHARED_STRUCT
extern "C" size_t shared_bytes() { return sizeof(SHARED_STRUCT); }
#endif

extern "C" void launch(int blocks, int threads, const Arguments *given, size_t shared_bytes) {
    arguments = given;
    block::threads = threads;
    if (blocks % SPLIT != 0 || SPLIT * threads > block::MOST_THREADS) block::fail("a part of a cluster");
    const Launch of_all = {reinterpret_cast<char *>(dynamic), SHARED_BYTES, shared_bytes,
                           {{reinterpret_cast<char *>(block::fibre),
                             reinterpret_cast<char *>(block::fibre + block::MOST_THREADS)},
                            {&__ehdr_start, &_end},
                            {reinterpret_cast<const char *>(given),
                             reinterpret_cast<const char *>(given + 1)}},
                           SPLIT, threads};
    hazards_begin_launch(&of_all);
    int *clusters = static_cast<int *>(malloc(sizeof(int) * (blocks / SPLIT)));
    for (int i = 0; i < blocks / SPLIT; ++i) clusters[i] = i;
    if (order != 0) shuffle(clusters, blocks / SPLIT);
    for (int turn_of_all = 0; turn_of_all < blocks / SPLIT; ++turn_of_all) {
        const int cluster = clusters[turn_of_all];
        first_block = cluster * SPLIT;
        shuffle(shuffled, threads);
        hazards_begin_cluster();
        memset(dynamic, 0xff, sizeof dynamic);  // NaNs: what is read must have been written
        for (int thread = 0; thread < SPLIT * threads; ++thread) {
            block::Fibre &fibre = block::fibre[thread];
            fibre.started = fibre.finished = fibre.waits_for_cluster = false;
            fibre.exchanges = fibre.barriers = fibre.group_barriers = fibre.cluster_barriers = 0;
            getcontext(&fibre.start);
            fibre.start.uc_stack.ss_sp = fibre.stack;
            fibre.start.uc_stack.ss_size = block::STACK;
            fibre.start.uc_link = nullptr;
            makecontext(&fibre.start, run_thread, 0);
        }
        // A missing barrier shows only if the reader comes before the writer, so every other block
        // (or cluster) starts with the last thread, and a block runs as far as it can alone.
        const bool ascending = cluster % 2 == 0;
        for (bool running = true; running;) {
            running = false;
            for (int turn = 0; turn < SPLIT; ++turn) {
                const int first = (ascending ? turn : SPLIT - 1 - turn) * threads;
                while (run_once(first, ascending)) running = true;
            }
        }
        for (int thread = 0; thread < SPLIT * threads; ++thread) {
            if (!block::fibre[thread].finished) block::fail("waits for a cluster that does not come");
        }
        hazards_end_cluster();
        const unsigned char *memory = reinterpret_cast<unsigned char *>(dynamic);
        for (size_t i = 0; i < sizeof dynamic; ++i) {
            if (i % SHARED_BYTES < shared_bytes || memory[i] == 0xff) continue;
            block::fail("wrote behind the shared memory it asked for");
        }
    }
    free(clusters);
}
