// Half-precision matrix fragments: what the kernel for large heads asks of the hardware.
//
// KIND chooses: 0 bf16, 1 fp16. A Pair is two neighbours of a row, the first in the lower bits.
// A *matrix* is 8 × 8 halves spread over a warp: lane l holds the pair (2 (l % 4), + 1) of row
// l / 4. Products accumulate in float32, where lane l holds such pairs of rows l / 4 and l / 4 + 8.

typedef unsigned short Half;
typedef unsigned Pair;

#if KIND == 1
#define HALF_NAME "f16"
#else
#define HALF_NAME "bf16"
#endif

typedef unsigned Shared;  // an address in shared memory, in bytes

DEVICE Shared shared_address(const void *at) {
    return static_cast<Shared>(__cvta_generic_to_shared(at));
}

// Four matrices; lanes 8 i … 8 i + 7 give the addresses of the rows of the i-th.
DEVICE void load_matrices(Pair (&x)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}

DEVICE void load_matrices_transposed(Pair (&x)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}

DEVICE void store_matrices_transposed(Shared row, const Pair (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(row), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
#else  // without such an instruction: half by half, each to the row that another lane addresses
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const Shared to = __shfl_sync(0xffffffffu, row, i / 2 * 8 + lane % 4 * 2 + i % 2);
        asm volatile("st.shared.b16 [%0], %1;"
                     :: "r"(to + lane / 4 * 2), "h"(static_cast<Half>(x[i / 2] >> i % 2 * 16))
                     : "memory");
    }
#endif
}

// d [16 × 8] = c + a [16 × 8] b [8 × 8]; a: rows 0-7 and 8-15, b: its transpose as a matrix.
DEVICE void multiply_add(float (&d)[4], const float (&c)[4], Pair a0, Pair a1, Pair b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." HALF_NAME "." HALF_NAME ".f32 "
        "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// The same over 16 terms: a2, a3 and b1 are columns (rows) 8-15.
DEVICE void multiply_add(float (&d)[4], const float (&c)[4], Pair a0, Pair a1, Pair a2, Pair a3,
                         Pair b0, Pair b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF_NAME "." HALF_NAME ".f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
          "f"(c[3]));
}

#if KIND == 0 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800  // which have no instruction for it

DEVICE Pair rounded_bits(float x) {  // to nearest even; a NaN stays one
    const unsigned bits = __float_as_uint(x);
    return x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u;
}

DEVICE Pair pack(float first, float second) {
    return rounded_bits(first) | rounded_bits(second) << 16;
}

#else

DEVICE Pair pack(float first, float second) {
    Pair x;
    asm("cvt.rn." HALF_NAME "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}

#endif

DEVICE Pair pack_positive(float first, float second) {  // negative ones become 0
    Pair x;
    asm("cvt.rn.relu." HALF_NAME "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(second), "f"(first));
    return x;
}

DEVICE float first_of(Pair x) {
#if KIND == 1
    float y;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo;}" : "=f"(y) : "r"(x));
    return y;
#else
    return __uint_as_float(x << 16);
#endif
}

DEVICE float second_of(Pair x) {
#if KIND == 1
    return first_of(x >> 16);
#else
    return __uint_as_float(x & 0xffff0000u);
#endif
}

DEVICE float fast_inverse_root(float x) {  // one instruction; below 2^-126 it is infinite
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// All bits of each half that is greater than 0, or no number.
DEVICE Pair positive_halves(Pair x) {
#if KIND == 1 || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    Pair mask;
    asm("set.gtu.u32." HALF_NAME "x2 %0, %1, %2;" : "=r"(mask) : "r"(x), "r"(0));
    return mask;
#else
    return (first_of(x) <= 0.f ? 0u : 0xffffu) | (second_of(x) <= 0.f ? 0u : 0xffff0000u);
#endif
}

DEVICE Pair pair_of_ones() { return KIND == 1 ? 0x3c003c00u : 0x3f803f80u; }

// 16 bytes from global to shared memory, zeros where `live` is false. Copies are waited for in groups:
// all that was copied up to `close_copies` is one.
DEVICE void copy_async(Shared to, const Half *from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}

DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>  // of the last groups, so many may still be on their way
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// A barrier of COUNT neighbouring threads; other such groups of the block have theirs.
template <int COUNT>
DEVICE void group_barrier() {
    asm volatile("barrier.sync %0, %1;" :: "r"(threadIdx.x / COUNT + 1), "n"(COUNT) : "memory");
}

// Without asking the threads for it, `bytes` of floats in shared memory, a multiple of 16 as both
// addresses are, are added to those in global memory. What the block has stored there must have been
// published by those who stored it, and a barrier must have let this one see it.
DEVICE void add_in_bulk(float *to, Shared from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}

// What this thread has stored is seen by bulk copies, and by products of warpgroups, once a barrier has
// let them begin.
DEVICE void publish_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void close_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until shared memory has been read by all that this thread asked for and closed.
DEVICE void wait_for_bulk_reads() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Two neighbours are added to in global memory.
DEVICE void add_atomically(float *to, float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1,%2};"
                 :: "l"(to), "f"(first), "f"(second) : "memory");
#else
    atomicAdd(to, first), atomicAdd(to + 1, second);
#endif
}
