// 64 tokens in the registers of a warpgroup, as the sums of a product lie there.
//
// A thread holds two tokens, l / 4 and l / 4 + 8 of its warp's 16, and of every 16 columns the four
// neighbours 4 (l % 4) … + 3: x[8 j + 4 (i / 2) + 2 h + i % 2] is column 16 j + 4 (l % 4) + i of
// token h. That is an order of the columns of a product, and of its terms where such registers are
// its left operand; weights are laid out for it (weights.cu). So tokens are read and written in
// pieces of 16 or 8 bytes, and go from one product into the next without leaving their thread.

// ---------------------------------------------------------------- loads and stores

DEVICE int my_row(int h) { return 16 * my_warp_of_four() + my_lane() / 4 + 8 * h; }
DEVICE int my_column(int j) { return 16 * j + 4 * (my_lane() % 4); }
DEVICE constexpr int place(int j, int h, int i) { return 8 * j + 4 * (i / 2) + 2 * h + i % 2; }

// x[2 j + h], of tokens whose WIDTH numbers come every STRIDE; zeros beyond the last row.
template <int WIDTH, int STRIDE = WIDTH>
DEVICE void load_rows(Four (&x)[WIDTH / 8], const Scalar *from, int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const Scalar *row = from + my_row(h) * STRIDE;
#pragma unroll
        for (int j = 0; j < WIDTH / 16; ++j) {
            x[2 * j + h] = load_four(row + my_column(j), my_row(h) < rows);
        }
    }
}

// Begin to fetch up to 64 rows that are read soon; a warpgroup takes part.
template <int WIDTH>
DEVICE void fetch_rows(const Scalar *from, int rows) {
    constexpr int LINE = 128 / sizeof(Scalar);
#pragma unroll
    for (int k = 0; k < (64 * WIDTH + LINE * WARPGROUP - 1) / (LINE * WARPGROUP); ++k) {
        const int at = (k * WARPGROUP + my_thread() % WARPGROUP) * LINE;
        if (at < smaller(rows, 64) * WIDTH) fetch_ahead(from + at);
    }
}

// The same of WIDTH numbers in every STRIDE.
template <int WIDTH, int STRIDE>
DEVICE void fetch_part(const Scalar *from, int rows) {
    constexpr int LINE = 128 / sizeof(Scalar), LINES = WIDTH / LINE;
    static_assert(64 * LINES <= WARPGROUP, "a line for each thread");
    const int row = my_thread() % WARPGROUP / LINES;
    if (row < smaller(rows, 64)) fetch_ahead(from + row * STRIDE + my_thread() % LINES * LINE);
}

template <int COUNT>
DEVICE void unpack_rows(const Four (&x)[COUNT], float (&y)[4 * COUNT]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        float some[4];
        unpack(x[k], some);
#pragma unroll
        for (int i = 0; i < 4; ++i) y[place(k / 2, k % 2, i)] = some[i];
    }
}

template <int WIDTH, int J = 0>
DEVICE void store_row(Scalar *to, const float (&x)[WIDTH / 2], int h, bool live) {
    store_global<16 * J * sizeof(Scalar)>(
        to, unrounded(x[place(J, h, 0)], x[place(J, h, 1)], x[place(J, h, 2)], x[place(J, h, 3)]),
        live);
    if constexpr (J + 1 < WIDTH / 16) store_row<WIDTH, J + 1>(to, x, h, live);
}

template <int WIDTH, int STRIDE = WIDTH>
DEVICE void store_rows(Scalar *to, const float (&x)[WIDTH / 2], int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        store_row<WIDTH>(to + my_row(h) * STRIDE + my_column(0), x, h, my_row(h) < rows);
    }
}

// In float32, whatever KIND is.
template <int SUMS>
DEVICE void store_sums_of_four(float *to, const float (&x)[SUMS], int j, int h) {
    store_global(to, make_uint4(__float_as_uint(x[place(j, h, 0)]),
                                __float_as_uint(x[place(j, h, 1)]),
                                __float_as_uint(x[place(j, h, 2)]),
                                __float_as_uint(x[place(j, h, 3)])));
}

template <int WIDTH>
DEVICE void add_rows(float (&x)[WIDTH / 2], const Scalar *from, int rows) {
#pragma unroll
    for (int k = 0; k < WIDTH / 8; ++k) {
        const int j = k / 2, h = k % 2;
        float some[4];
        unpack(load_four(from + my_row(h) * WIDTH + my_column(j), my_row(h) < rows), some);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[place(j, h, i)] += some[i];
    }
}

template <int WIDTH>
DEVICE void add_to_rows(float (&x)[WIDTH / 2], const float *bias) {
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) {
        const float4 b = __ldg(reinterpret_cast<const float4 *>(bias + my_column(j)));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            x[place(j, h, 0)] += b.x, x[place(j, h, 1)] += b.y;
            x[place(j, h, 2)] += b.z, x[place(j, h, 3)] += b.w;
        }
    }
}

// ---------------------------------------------------------------- as the left operand of a product

// Registers of a product [64 × TERMS], a step after the other.
template <int COUNT>
DEVICE void as_operand(const Four (&x)[COUNT], unsigned (&a)[COUNT * 8 / STEP][4]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const int j = k / 2, h = k % 2;
#if KIND == 2
        a[2 * j][h] = x[k].x, a[2 * j][h + 2] = x[k].y;
        a[2 * j + 1][h] = x[k].z, a[2 * j + 1][h + 2] = x[k].w;
#else
        a[j][h] = x[k].x, a[j][h + 2] = x[k].y;
#endif
    }
}

template <int SUMS>
DEVICE void as_operand(const float (&x)[SUMS], unsigned (&a)[2 * SUMS / STEP][4]) {
    Four fours[SUMS / 4];
#pragma unroll
    for (int k = 0; k < SUMS / 4; ++k) {
        const int j = k / 2, h = k % 2;
        fours[k] = packed(x[place(j, h, 0)], x[place(j, h, 1)], x[place(j, h, 2)],
                          x[place(j, h, 3)]);
    }
    as_operand(fours, a);
}

// ---------------------------------------------------------------- layer norm

// Subtract the mean of each row and divide by its deviation; returns one over that.
DEVICE float2 standardise(float (&x)[EMBED / 2], float eps) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = 0.f, squares = 0.f;
#pragma unroll
        for (int k = 0; k < EMBED / 4; ++k) sum += x[place(k / 4, h, k % 4)];
        const float mean = quad_sum(sum) * (1.f / EMBED);
#pragma unroll
        for (int k = 0; k < EMBED / 4; ++k) {
            float &each = x[place(k / 4, h, k % 4)];
            each -= mean, squares += each * each;
        }
        inverse[h] = inverse_root_of(quad_sum(squares) * (1.f / EMBED) + eps);
#pragma unroll
        for (int k = 0; k < EMBED / 4; ++k) x[place(k / 4, h, k % 4)] *= inverse[h];
    }
    return make_float2(inverse[0], inverse[1]);
}
