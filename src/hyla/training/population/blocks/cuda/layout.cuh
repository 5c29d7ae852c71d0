// Where things lie: threads, tiles of operands, and four neighbours of a token.

constexpr int EMBED = 128;  // channels of a token, which is what everything here is laid out for
constexpr int WARP = 32;
constexpr int WARPGROUP = 128;

DEVICE int my_thread() { return static_cast<int>(threadIdx.x); }
DEVICE int my_lane() { return my_thread() % WARP; }
DEVICE int my_warpgroup() { return my_thread() / WARPGROUP; }
DEVICE int my_warp_of_four() { return my_thread() / WARP % 4; }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }

// ---------------------------------------------------------------- tiles

// The tiles of warpgroup.cuh, with rows of 128 bytes; longer ones go on in further *panels*
// [rows × 128 bytes], each of which starts at a multiple of 1024 bytes. The 16-byte piece p of row r
// lies at p ^ (r % 8), so that neither rows nor columns of pieces collide in banks.
constexpr int ROW_BYTES = 128;
constexpr int STEP_BYTES = 32;
constexpr int PANEL = ROW_BYTES / static_cast<int>(sizeof(Scalar));  // terms
constexpr int STEP = STEP_BYTES / static_cast<int>(sizeof(Scalar));

template <int ROWS, int TERMS>
constexpr int TILE_BYTES = (TERMS + PANEL - 1) / PANEL * ROWS * ROW_BYTES;

// Where a byte of a panel's row lies.
DEVICE int exchanged(int row, int byte) { return row * ROW_BYTES + (byte ^ (row % 8 << 4)); }

DEVICE Descriptor describe(const char *tile) {
    return describe<ROW_BYTES>(shared_offset(tile), 8 * ROW_BYTES);
}

// ---------------------------------------------------------------- neighbours

#if KIND == 2
typedef uint4 Four;  // neighbours of a row
#else
typedef uint2 Four;
#endif

DEVICE Four packed(float a, float b, float c, float d) {
#if KIND == 2
    return make_uint4(rounded(a), rounded(b), rounded(c), rounded(d));
#else
    return make_uint2(pack(a, b), pack(c, d));
#endif
}

DEVICE Four load_four(const Scalar *from, bool live) {
    Four x = {};
    if (live) x = __ldg(reinterpret_cast<const Four *>(from));
    return x;
}

// As they are, or in bf16: for memory, not for a product.
DEVICE Four unrounded(float a, float b, float c, float d) {
#if KIND == 2
    return make_uint4(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c),
                      __float_as_uint(d));
#else
    return packed(a, b, c, d);
#endif
}

// What a number is once it has been written and read again.
DEVICE float as_stored(float x) { return KIND == 2 ? x : first_of(pack(x, 0.f)); }

DEVICE void unpack(const Four &x, float (&y)[4]) {
#if KIND == 2
    y[0] = __uint_as_float(x.x), y[1] = __uint_as_float(x.y);
    y[2] = __uint_as_float(x.z), y[3] = __uint_as_float(x.w);
#else
    y[0] = first_of(x.x), y[1] = second_of(x.x), y[2] = first_of(x.y), y[3] = second_of(x.y);
#endif
}

DEVICE Four rounded(const Four &x) {
#if KIND == 2
    return packed(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                  __uint_as_float(x.w));
#else
    return x;
#endif
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
