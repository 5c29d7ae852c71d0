// Products by warpgroups, which Hopper alone has.
//
// A warpgroup (four warps) sums up 64 rows × N columns. Warp w has rows 16 w … 16 w + 15; lane l
// holds d[4 j + 2 h + i] = column 8 j + 2 (l % 4) + i of row l / 4 + 8 h. The left operand is a tile
// or lies in registers, 16 rows × one step of terms in each warp: for tf32 a[h + 2 i] is term
// l % 4 + 4 i of row l / 4 + 8 h, for halves it is the pair of terms 2 (l % 4) + 8 i, + 1.
//
// A *tile* is an operand [rows × terms] in shared memory whose terms follow each other, in rows of 32,
// 64 or 128 bytes, eight after each other; it starts at a multiple of 1024 bytes, or of eight rows
// from there. Its 16-byte pieces are exchanged within a row: bits 4-6 of an address (of rows of 64
// bytes bits 4-5, of 32 bytes bit 4) are XORed with bits 7-9 (7-8, 7). A product takes 32 bytes of a
// row at a time, a *step*.
//
// KIND: 0 bf16, 1 fp16, 2 float32, whose products are tf32.

typedef unsigned long long Descriptor;

// A tile for a product: where its rows begin, their length, and after how many bytes each next eight
// come.
template <int ROW_BYTES>
DEVICE Descriptor describe(unsigned tile, int eight_rows) {
    static_assert(ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128, "bytes of a row");
    constexpr Descriptor EXCHANGE = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    return (tile & 0x3ffffu) >> 4 | 1ull << 16 | static_cast<Descriptor>(eight_rows >> 4) << 32 |
           EXCHANGE << 62;
}

DEVICE Descriptor moved(Descriptor of, int bytes) { return of + (bytes >> 4); }

#if KIND == 2
#define PRODUCT(N) "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 "
#define BOTH_BY_TERMS ""
#define RIGHT_BY_TERMS ""
#else
#define PRODUCT(N) \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." HALF_NAME "." HALF_NAME " "
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
