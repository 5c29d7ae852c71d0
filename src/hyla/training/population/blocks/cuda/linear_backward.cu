// Linear layers backwards: the gradient of their input, and sums over tokens for their weights.
//
//     NORMED 1    queries, keys and values of a normalised stream x: upstream u = dq, dk, dv beside
//                 each other, dx̂ = Wᵀ u, through the layer norm, and the residual path's gradient
//                 added;  Σ u x̂ᵀ,  Σ u                 gain and shift within W
//     NORMED 0    what attention adds to the stream: u is the gradient of the stream, of 128
//                 channels, x what attention returns;  dx = Wᵀ u,  Σ u xᵀ,  Σ u
//
// A block keeps the weights in shared memory and the sums in registers, [128 × the narrower side],
// 64 rows in each of two warpgroups, and walks over 64 tokens at a time. Of u there are two tiles,
// by token and by channel, of x one, by channel. The warpgroups share out the channels of dx, and for
// the norm they exchange their sums over a token.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), NORMED, QK (if NORMED), V (widths).

constexpr int THREADS = 2 * WARPGROUP;
constexpr int TOKENS = 64;
#if NORMED
constexpr int UP = 2 * QK + V, IN = EMBED, NARROW = UP;
#else
constexpr int UP = EMBED, IN = V, NARROW = IN;
#endif
constexpr bool SHARED_OUT = IN > 16;  // else both warpgroups compute all of dx
constexpr int COLUMNS = SHARED_OUT ? IN / 2 : IN;  // of dx, that a warpgroup computes

struct Arguments {
    const Scalar *upstream[3];  // [P, N, …]: dq, dk, dv, or one
    const Scalar *input;        // [P, N, IN]
    const Scalar *residual;     // [P, N, IN], if NORMED
    const char *weights;        // [P, weights_stride]
    Scalar *result;             // [P, N, IN]
    float *sums;                // [rows, SUMS]
    long long weights_stride;
    int tile_at;  // bytes
    Line line;
    float eps;
};

constexpr int BIAS = UP * IN, SUMS = BIAS + UP;

struct Memory {
    char weights[TILE_BYTES<IN, UP>];
    char upstream[TILE_BYTES<TOKENS, UP>];
    char upstream_columns[TILE_BYTES<UP, TOKENS>], input_columns[TILE_BYTES<IN, TOKENS>];
    float2 parts[2][TOKENS];  // of each warpgroup: sum of dx̂ over channels, and of dx̂ x̂
    float inverse[TOKENS];    // one over the deviation
    Barrier full;
};

// A warp has eight tokens.
struct Loader {
#if NORMED
    Four q[QK / 16], k[QK / 16], v[V / 16];
#else
    Four u[UP / 16];
#endif
    Four x[IN / 16];

    DEVICE static int token() { return my_thread() / 4; }
    // Tokens from `at` on, so many rows of them.
    DEVICE void load_upstream(const Arguments &a, long long at, int rows) {
        at += token();
        const bool live = token() < rows;
#if NORMED
        load_token<QK>(q, a.upstream[0] + at * QK, live);
        load_token<QK>(k, a.upstream[1] + at * QK, live);
        load_token<V>(v, a.upstream[2] + at * V, live);
#else
        load_token<UP>(u, a.upstream[0] + at * UP, live);
#endif
    }
    DEVICE void load_input(const Arguments &a, long long at, int rows) {
        load_token<IN>(x, a.input + (at + token()) * IN, token() < rows);
    }
    template <int WIDTH, int START>
    DEVICE static void store_upstream(Memory &memory, Four (&x)[WIDTH / 16]) {
#pragma unroll
        for (int j = 0; j < WIDTH / 16; ++j) x[j] = rounded(x[j]);
        store_straight<TOKENS, WIDTH, START>(memory.upstream, token(), x);
        store_transposed<UP, WIDTH, START>(memory.upstream_columns, token(), x);
    }
    DEVICE void store(Memory &memory, float eps) {
#if NORMED
        const float inverse = standardise_token(x, eps);
        if (my_lane() % 4 == 0) memory.inverse[token()] = inverse;
        store_upstream<QK, 0>(memory, q);
        store_upstream<QK, QK>(memory, k);
        store_upstream<V, 2 * QK>(memory, v);
#else
#pragma unroll
        for (int j = 0; j < IN / 16; ++j) x[j] = rounded(x[j]);
        store_upstream<UP, 0>(memory, u);
#endif
        store_transposed<IN, IN, 0>(memory.input_columns, token(), x);
        publish_to_async();
    }
};

DEVICE int first_column() { return SHARED_OUT ? COLUMNS * my_warpgroup() : 0; }

#if NORMED

// Standardised inputs as this thread holds dx: of channels 4 t + i, odd i lie elsewhere.
struct Standardised {
    const char *at[2][2];

    DEVICE explicit Standardised(const Memory &memory) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = first_column() + row_of_column(my_column(0) + i);
                at[h][i] = memory.input_columns + transposed_at<IN>(row, my_row(h));
            }
        }
    }
    DEVICE float operator()(int j, int h, int i) const {
        const int rows = 16 * j + i / 2 * 8;
        return to_float(*reinterpret_cast<const Scalar *>(at[h][i % 2] + rows * ROW_BYTES));
    }
};

// Sums over the channels of this warpgroup; the other one's are read after a barrier.
DEVICE void add_up_rows(Memory &memory, const float (&d)[COLUMNS / 2]) {
    const Standardised x(memory);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = 0.f, along = 0.f;
#pragma unroll
        for (int k = 0; k < COLUMNS / 4; ++k) {
            const float each = d[place(k / 4, h, k % 4)];
            sum += each, along += each * x(k / 4, h, k % 4);
        }
        sum = quad_sum(sum), along = quad_sum(along);
        if (my_lane() % 4 == 0) memory.parts[my_warpgroup()][my_row(h)] = make_float2(sum, along);
    }
}

DEVICE void store_result(const Arguments &a, const Memory &memory, float (&d)[COLUMNS / 2],
                         long long at, int rows) {
    const Standardised x(memory);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = my_row(h);
        const float inverse = memory.inverse[row];
        const float2 one = memory.parts[0][row], other = memory.parts[1][row];
        const float mean = (one.x + other.x) * (1.f / IN), along = (one.y + other.y) * (1.f / IN);
        const bool live = row < rows;
        const long long start = (at + row) * IN + first_column() + my_column(0);
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; ++j) {
            float y[4];
            unpack(load_four(a.residual + start + 16 * j, live), y);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float &each = d[place(j, h, i)];
                each = y[i] + (each - mean - x(j, h, i) * along) * inverse;
            }
        }
        store_row<COLUMNS>(a.result + start, d, h, live);
    }
}

#endif

DEVICE void store_sums(const Arguments &a, const Piece &piece, const float (&sums)[NARROW / 2],
                       float total) {
    float *to = a.sums + static_cast<long long>(blockIdx.x + piece.member) * SUMS;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        // A row of the wider side, in the order of a transposed tile.
        const int wide = column_of_row(64 * my_warpgroup() + my_row(h));
#pragma unroll
        for (int j = 0; j < NARROW / 16; ++j) {
#if NORMED
#pragma unroll
            for (int i = 0; i < 4; ++i) to[(my_column(j) + i) * IN + wide] = sums[place(j, h, i)];
#else
            store_sums_of_four(to + wide * IN + my_column(j), sums, j, h);
#endif
        }
    }
    if (my_thread() < UP) to[BIAS + column_of_row(my_thread())] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_linear_backward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) set_up(memory.full, 1);
    publish_to_async();
    const int half = 64 * my_warpgroup() * ROW_BYTES;  // 64 rows of 128
    float sums[NARROW / 2];
    int phase = 0;
    for (Share share(a.line, blockIdx.x); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const char *weights = a.weights + piece.member * a.weights_stride;
        const long long start = static_cast<long long>(piece.member) * a.line.tokens;
        __syncthreads();  // the barrier is set up; nobody needs the tiles of an earlier piece
        if (my_thread() == 0) {
            arrive_expecting(memory.full, sizeof memory.weights);
            copy_to_shared(memory.weights, weights + a.tile_at, sizeof memory.weights, memory.full);
        }
        float total = 0.f;
        Loader loader;
        loader.load_upstream(a, start + piece.first, piece.last - piece.first);
        loader.load_input(a, start + piece.first, piece.last - piece.first);
        loader.store(memory, a.eps);
        wait(memory.full, phase);
        for (int first = piece.first, tile = 0; first < piece.last; first += TOKENS, ++tile) {
            const long long at = start + first;
            const int rows = piece.last - first;
            __syncthreads();
            float d[COLUMNS / 2];
            begin_products();
            multiply_tiles<COLUMNS, UP, TOKENS, IN>(
                d, memory.upstream, memory.weights + first_column() * ROW_BYTES, false);
            commit_products();
            multiply_tiles<NARROW, TOKENS, EMBED, NARROW>(
                sums, (NORMED ? memory.input_columns : memory.upstream_columns) + half,
                NORMED ? memory.upstream_columns : memory.input_columns, tile > 0);
            commit_products();
            if (my_warpgroup() == 0) {
                fetch_rows<IN>(a.input + (at + TOKENS) * IN, rows - TOKENS);
            } else if (NORMED) {
                fetch_rows<IN>(a.residual + at * IN, rows);
            }
            loader.load_upstream(a, at + TOKENS, rows - TOKENS);
            if (my_thread() < UP) {
                total += sum_of_row<UP, TOKENS>(memory.upstream_columns, my_thread());
            }
            wait_for_products<1>();
            settle(d);
#if NORMED
            add_up_rows(memory, d);
            __syncthreads();
            store_result(a, memory, d, at, rows);
#else
            store_rows<COLUMNS, IN>(a.result + at * IN + first_column(), d,
                                    SHARED_OUT || my_warpgroup() == 0 ? rows : 0);
#endif
            loader.load_input(a, at + TOKENS, rows - TOKENS);
            wait_for_products<0>();
            settle(sums);
            __syncthreads();  // nobody needs the tiles any more
            if (first + TOKENS < piece.last) loader.store(memory, a.eps);
        }
        store_sums(a, piece, sums, total);
    }
}
