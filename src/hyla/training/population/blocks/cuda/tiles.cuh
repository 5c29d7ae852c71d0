// Tiles in shared memory: products of them, and how tokens get there.

// ---------------------------------------------------------------- products

template <int N, class Left>
DEVICE void multiply_columns(float *d, const Left &a, Descriptor b, bool add) {
    constexpr int FIRST = N >= 64 ? 64 : N >= 32 ? 32 : 16;
    multiply<FIRST>(d, a, b, add);
    if constexpr (N > FIRST) {
        multiply_columns<N - FIRST>(d + FIRST / 2, a, moved(b, FIRST * ROW_BYTES), add);
    }
}

// Bytes from the start of a tile of so many rows to a step.
DEVICE constexpr int step_at(int step, int rows) {
    return step / 4 * rows * ROW_BYTES + step % 4 * STEP_BYTES;
}

// d [64 × N] = a b ᵀ, or that added to it: 64 rows of a tile of A_ROWS from `a` on, and N rows of a
// tile of B_ROWS from `b` on, TERMS of each.
template <int N, int TERMS, int A_ROWS, int B_ROWS>
DEVICE void multiply_tiles(float (&d)[N / 2], const char *a, const char *b, bool add) {
    const Descriptor left = describe(a), right = describe(b);
#pragma unroll
    for (int step = 0; step < TERMS / STEP; ++step) {
        multiply_columns<N>(d, moved(left, step_at(step, A_ROWS)),
                            moved(right, step_at(step, B_ROWS)), add || step > 0);
    }
}

// The same with the left operand in registers.
template <int N, int TERMS, int B_ROWS>
DEVICE void multiply_rows(float (&d)[N / 2], const unsigned (&a)[TERMS / STEP][4], const char *b,
                          bool add) {
    const Descriptor right = describe(b);
#pragma unroll
    for (int step = 0; step < TERMS / STEP; ++step) {
        multiply_columns<N>(d, a[step], moved(right, step_at(step, B_ROWS)), add || step > 0);
    }
}

// ---------------------------------------------------------------- tokens on their way into tiles

// A warp has eight tokens; a lane has four neighbours of every 16 columns of token l / 4. Tokens of
// odd rows take columns in another order, in which the pieces of a warp's rows lie in all banks.
// Addresses are written as a constant and one of few numbers of the thread: 32 would not fit.
template <int WIDTH>
DEVICE int my_flip() {
    return KIND == 2 && WIDTH >= 32 ? my_lane() / 4 % 2 : 0;
}

template <int WIDTH>
DEVICE int column_of(int j) {
    return 16 * (j ^ my_flip<WIDTH>()) + 4 * (my_lane() % 4);
}

template <int WIDTH>
DEVICE void load_token(Four (&x)[WIDTH / 16], const Scalar *token, bool live) {
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) x[j] = load_four(token + column_of<WIDTH>(j), live);
}

// Store as row `token` of a tile [ROWS × columns], from column START on.
template <int ROWS, int WIDTH, int START>
DEVICE void store_straight(char *tile, int token, const Four (&x)[WIDTH / 16]) {
    constexpr int BYTES = 16 * static_cast<int>(sizeof(Scalar));  // of 16 columns
    constexpr int PER_ROW = ROW_BYTES / BYTES;
    const int mine = my_flip<WIDTH>() * BYTES + my_lane() % 4 * static_cast<int>(sizeof(Four));
    int at[PER_ROW];
#pragma unroll
    for (int k = 0; k < PER_ROW; ++k) at[k] = exchanged(token, mine ^ (k * BYTES));
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) {
        const int k = START / 16 + j;
        char *panel = tile + k / PER_ROW * ROWS * ROW_BYTES;
        *reinterpret_cast<Four *>(panel + at[k % PER_ROW]) = x[j];
    }
}

// Columns are rows of a transposed tile in the order in which registers hold the columns of a
// product: of 16, column 4 t + i is row 8 (i / 2) + 2 t + i % 2. Tokens are terms in the order in
// which such registers are an operand: of eight, tf32 token 2 t + i is term t + 4 i.
DEVICE constexpr int row_of_column(int c) {
    return c / 16 * 16 + c % 4 / 2 * 8 + c % 16 / 4 * 2 + c % 2;
}
DEVICE constexpr int column_of_row(int r) {
    return r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2;
}
DEVICE constexpr int term_of_token(int token) {
    return KIND == 2 ? token / 8 * 8 + token % 8 / 2 + token % 2 * 4 : token;
}

template <int ROWS>
DEVICE int transposed_at(int row, int token) {
    const int byte = term_of_token(token) * static_cast<int>(sizeof(Scalar));
    return byte / ROW_BYTES * ROWS * ROW_BYTES + exchanged(row, byte % ROW_BYTES);
}

// Store as column `token` of a tile [ROWS × tokens], from row START on.
template <int ROWS, int WIDTH, int START>
DEVICE void store_transposed(char *tile, int token, const Four (&x)[WIDTH / 16]) {
#if KIND == 2
    int at[2][2];  // of odd j and of odd i
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            at[j][i] = transposed_at<ROWS>(row_of_column(column_of<WIDTH>(j) + i), token);
        }
    }
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) {
        const unsigned some[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int rows = START + j / 2 * 32 + i / 2 * 8;
            *reinterpret_cast<unsigned *>(tile + rows * ROW_BYTES + at[j % 2][i % 2]) = some[i];
        }
    }
#else
    // Matrices of eight tokens × eight columns; lanes 8 m … 8 m + 7 address the columns of the m-th.
    constexpr int COUNT = WIDTH / 16;
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        const int second = j + 1 < COUNT ? j + 1 : j;  // where there is none, the first again
        const int matrix = my_lane() / 8, of = matrix < 2 ? j : second;
        const int row = START + 16 * of + 8 * (matrix % 2) + my_lane() % 8;
        const Pair some[4] = {x[j].x, x[j].y, x[second].x, x[second].y};
        store_columns(tile + transposed_at<ROWS>(row, token - my_lane() / 4), some);
    }
#endif
}

// The sum over all tokens of a row of a transposed tile.
template <int ROWS, int TOKENS>
DEVICE float sum_of_row(const char *tile, int row) {
    constexpr int PIECES = TOKENS * static_cast<int>(sizeof(Scalar)) / 16;
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const char *panel = tile + 16 * p / ROW_BYTES * ROWS * ROW_BYTES;
        const uint4 piece =
            *reinterpret_cast<const uint4 *>(panel + exchanged(row, 16 * p % ROW_BYTES));
        const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#if KIND == 2
            sum += __uint_as_float(words[i]);
#else
            sum += first_of(words[i]) + second_of(words[i]);
#endif
        }
    }
    return sum;
}

// Layer norm of a token that four lanes share: x becomes its standardised columns, as an operand;
// returns one over the deviation.
DEVICE float standardise_token(Four (&x)[EMBED / 16], float eps) {
    float values[EMBED / 4], sum = 0.f, squares = 0.f;
#pragma unroll
    for (int j = 0; j < EMBED / 16; ++j) {
        float some[4];
        unpack(x[j], some);
#pragma unroll
        for (int i = 0; i < 4; ++i) values[4 * j + i] = some[i], sum += some[i];
    }
    const float mean = quad_sum(sum) * (1.f / EMBED);
#pragma unroll
    for (int k = 0; k < EMBED / 4; ++k) values[k] -= mean, squares += values[k] * values[k];
    const float inverse = inverse_root_of(quad_sum(squares) * (1.f / EMBED) + eps);
#pragma unroll
    for (int j = 0; j < EMBED / 16; ++j) {
        x[j] = packed(values[4 * j] * inverse, values[4 * j + 1] * inverse,
                      values[4 * j + 2] * inverse, values[4 * j + 3] * inverse);
    }
    return inverse;
}
