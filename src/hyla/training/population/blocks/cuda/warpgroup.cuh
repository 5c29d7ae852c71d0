// What the fused blocks ask of Hopper: products by warpgroups, and copies that a barrier counts.
// Tiles of operands and their descriptors are those of layout.cuh.
//
// A warpgroup (four warps) sums up 64 rows × N columns. Warp w has rows 16 w … 16 w + 15; lane l
// holds d[4 j + 2 h + i] = column 8 j + 2 (l % 4) + i of row l / 4 + 8 h. The left operand is a tile
// or lies in registers, 16 rows × one step of terms in each warp: for tf32 a[h + 2 i] is term
// l % 4 + 4 i of row l / 4 + 8 h, for bf16 it is the pair of terms 2 (l % 4) + 8 i, + 1.
//
// KIND: 0 bf16, 2 float32, whose products are tf32.

typedef unsigned long long Descriptor;

DEVICE unsigned shared_offset(const void *at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

#if KIND == 2
#define PRODUCT(N) "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 "
#define BOTH_BY_TERMS ""
#define RIGHT_BY_TERMS ""
#else
#define PRODUCT(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "
#define BOTH_BY_TERMS ", 0, 0"
#define RIGHT_BY_TERMS ", 0"
#endif

#define NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)

#define TILE_BY_TILE(N, COUNT, A, B, ADD)                                                       \
    asm volatile("{.reg .pred add; setp.ne.b32 add, %" #ADD ", 0; " PRODUCT(N)                  \
                 "{" NAMES_##COUNT "}, %" #A ", %" #B ", add, 1, 1" BOTH_BY_TERMS ";}"          \
                 : SUMS_##COUNT(0) : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define REGISTERS_BY_TILE(N, COUNT, A, B, C, D, TILE, ADD)                                      \
    asm volatile("{.reg .pred add; setp.ne.b32 add, %" #ADD ", 0; " PRODUCT(N)                  \
                 "{" NAMES_##COUNT "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #TILE              \
                 ", add, 1, 1" RIGHT_BY_TERMS ";}"                                              \
                 : SUMS_##COUNT(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),        \
                   "r"(static_cast<int>(add)))

// d [64 × N] = a [64 × a step] b [N × a step]ᵀ, or that added to it. What a product reads and
// writes must be left alone until it is waited for.
template <int N>
DEVICE void multiply(float *d, Descriptor a, Descriptor b, bool add) {
    static_assert(N == 16 || N == 32 || N == 64, "columns of one product");
    if constexpr (N == 16) TILE_BY_TILE(16, 8, 8, 9, 10);
    else if constexpr (N == 32) TILE_BY_TILE(32, 16, 16, 17, 18);
    else TILE_BY_TILE(64, 32, 32, 33, 34);
}

template <int N>
DEVICE void multiply(float *d, const unsigned (&a)[4], Descriptor b, bool add) {
    static_assert(N == 16 || N == 32 || N == 64, "columns of one product");
    if constexpr (N == 16) REGISTERS_BY_TILE(16, 8, 8, 9, 10, 11, 12, 13);
    else if constexpr (N == 32) REGISTERS_BY_TILE(32, 16, 16, 17, 18, 19, 20, 21);
    else REGISTERS_BY_TILE(64, 32, 32, 33, 34, 35, 36, 37);
}

// The compiler moves no use of these registers across this point.
template <int N>
DEVICE void settle(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}

template <int N>
DEVICE void settle(unsigned (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3]) :: "memory");
    }
}

// Before products, after their registers were written; after products, as one group to wait for.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING groups of products are on their way.
template <int PENDING>
DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// What this thread has stored is seen by products, once a barrier has let them begin.
DEVICE void publish_tiles() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---------------------------------------------------------------- copies and who waits for them

struct Barrier {
    unsigned long long state;
};

DEVICE void set_up(Barrier &barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_offset(&barrier)), "r"(arrivals) : "memory");
}

DEVICE void arrive(Barrier &barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared_offset(&barrier)) : "memory");
}

// Arrive, and let the barrier wait for so many bytes, too.
DEVICE void arrive_expecting(Barrier &barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_offset(&barrier)), "r"(bytes) : "memory");
}

// All arrived and all bytes there, for the first time (phase 0), the second (1), the third (0), …
DEVICE void wait(Barrier &barrier, int phase) {
    unsigned done;
    do {
        asm volatile("{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
                     "selp.u32 %0, 1, 0, done;}"
                     : "=r"(done) : "r"(shared_offset(&barrier)), "r"(phase) : "memory");
    } while (done == 0);
}

// Multiples of 16 bytes.
DEVICE void copy_to_shared(void *to, const void *from, int bytes, Barrier &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(shared_offset(to)), "l"(from), "r"(bytes), "r"(shared_offset(&barrier))
                 : "memory");
}

// ---------------------------------------------------------------- memory and rounding

// One store each, or none: left to itself, the compiler takes some of them apart. OFFSET is in bytes.
template <int OFFSET = 0>
DEVICE void store_global(void *to, uint2 x, bool live = true) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %3, 0; "
                 "@live st.global.v2.b32 [%0+%4], {%1,%2};}"
                 :: "l"(to), "r"(x.x), "r"(x.y), "r"(static_cast<int>(live)), "n"(OFFSET)
                 : "memory");
}

template <int OFFSET = 0>
DEVICE void store_global(void *to, uint4 x, bool live = true) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %5, 0; "
                 "@live st.global.v4.b32 [%0+%6], {%1,%2,%3,%4};}"
                 :: "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(static_cast<int>(live)),
                    "n"(OFFSET)
                 : "memory");
}

// Four matrices of 8 × 8 halves, transposed: lane l holds the pair of columns 2 (l % 4), + 1 of row
// l / 4 of each, and lanes 8 m … 8 m + 7 say where the columns of the m-th go, 16 bytes each.
DEVICE void store_columns(void *column, const Pair (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(shared_offset(column)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// Begin to fetch 128 bytes that will be read soon; an address beyond the end does no harm.
DEVICE void fetch_ahead(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}

DEVICE unsigned rounded(float x) {  // to the nearest tf32
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
