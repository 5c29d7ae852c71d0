// The feed-forward network backwards, as far as its hidden layer: gradients of what enters the GELU,
// and sums over tokens for both weights.
//
//     h = up x̂ + b,   dh = (downᵀ dy) gelu'(h)        x̂ standardised, gain and shift within up and b
//     Σ dh x̂ᵀ,  Σ dh,  Σ dy gelu(h)ᵀ,  Σ dy
//
// A block keeps a slice of the hidden layer, 128 of its units, with both weights in shared memory
// and both sums in registers, and walks over tokens, 32 at a time; blocks beside it have the other
// slices of the same tokens, which they then find in the cache. Products have hidden units as
// their rows: what comes out of the first two is then the left operand of the last two as it is.
//
// Two warpgroups compute, 64 units each, and a third one brings tokens: it loads, standardises and
// rounds the next ones, and lays them into tiles as soon as these are left. Of x̂ and dy there are
// two tiles each, by token and by channel; those by channel are double, as the next ones are written
// while the last two products run. Nobody waits for all: the two that compute drift apart, and one
// has products while the other is at the GELU.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), HIDDEN (units of the whole layer).

constexpr int COMPUTING = 2;  // warpgroups
constexpr int THREADS = (COMPUTING + 1) * WARPGROUP;
constexpr int TOKENS = 32;
constexpr int SLICE = 128;
constexpr int SLICES = HIDDEN / SLICE;
// Registers of a thread, 168 to begin with: those that bring tokens leave some to the others.
constexpr int COMPUTING_REGISTERS = 208, BRINGING_REGISTERS = 88;
static_assert(COMPUTING * COMPUTING_REGISTERS + BRINGING_REGISTERS <= (COMPUTING + 1) * 168,
              "a block has no more than it was started with");

struct Arguments {
    const Scalar *stream, *upstream;  // [P, N, E]: what the layer norm takes, the gradient of y
    const char *weights;              // [P, weights_stride]
    Scalar *hidden;                   // [P, N, HIDDEN]: dh, of 16 units first 0, 8, then 1, 9, …
    float *sums;                      // [rows, SLICES, SUMS]
    long long weights_stride;
    int slices_at, slice_stride, bias_at;  // bytes: [up, downᵀ] of each slice; b of all of them
    Line line;  // whose blocks are as many of ours as there are slices
    float eps;
};

constexpr int ALONG = 0, DOWN = SLICE * EMBED, BIAS = 2 * SLICE * EMBED, TOTAL = BIAS + SLICE;
constexpr int SUMS = TOTAL + EMBED;

struct Memory {
    char up[TILE_BYTES<SLICE, EMBED>], down[TILE_BYTES<SLICE, EMBED>];
    char stream[TILE_BYTES<TOKENS, EMBED>], upstream[TILE_BYTES<TOKENS, EMBED>];
    char stream_columns[2][TILE_BYTES<EMBED, TOKENS>];
    char upstream_columns[2][TILE_BYTES<EMBED, TOKENS>];
    Barrier weights;
    Barrier full, empty;  // the tiles: brought, and left by the first two products
};

// A warp that brings tokens has eight of them.
DEVICE int my_token() { return 8 * my_warp_of_four() + my_lane() / 4; }

template <int WIDTH, int START>
DEVICE void load(Four (&x)[WIDTH / 16], const Scalar *tokens, int first, int last) {
    const int at = first + my_token();
    load_token<WIDTH>(x, tokens + at * EMBED + START, at < last);
}

template <int WIDTH, int START>
DEVICE void store(char *by_token, char *by_channel, const Four (&x)[WIDTH / 16]) {
    store_straight<TOKENS, WIDTH, START>(by_token, my_token(), x);
    store_transposed<EMBED, WIDTH, START>(by_channel, my_token(), x);
}

template <int WIDTH, int START>
DEVICE void store_rounded(char *by_token, char *by_channel, Four (&x)[WIDTH / 16]) {
#pragma unroll
    for (int j = 0; j < WIDTH / 16; ++j) x[j] = rounded(x[j]);
    store<WIDTH, START>(by_token, by_channel, x);
}

DEVICE int my_slice() { return blockIdx.x % SLICES; }
DEVICE int my_unit(int h) { return 64 * my_warpgroup() + my_row(h); }

DEVICE void store_hidden(const Arguments &a, const Piece &piece, int first,
                         const unsigned (&dh)[TOKENS / STEP][4]) {
    const int unit = my_slice() * SLICE + 64 * my_warpgroup() + 16 * my_warp_of_four();
    Scalar *to = a.hidden + static_cast<long long>(piece.member) * a.line.tokens * HIDDEN + unit +
                 2 * (my_lane() / 4);
#pragma unroll
    for (int step = 0; step < TOKENS / STEP; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#if KIND == 2
            const int token = first + 8 * step + 2 * (my_lane() % 4) + i;
            store_global(to + static_cast<long long>(token) * HIDDEN,
                         make_uint2(dh[step][2 * i], dh[step][2 * i + 1]), token < piece.last);
#else
            const int token = first + 16 * step + 8 * i + 2 * (my_lane() % 4);
            const Pair lower = dh[step][2 * i], upper = dh[step][2 * i + 1];  // two tokens each
            Pair *at = reinterpret_cast<Pair *>(to + static_cast<long long>(token) * HIDDEN);
            if (token < piece.last) at[0] = (lower & 0xffffu) | upper << 16;
            if (token + 1 < piece.last) at[HIDDEN / 2] = lower >> 16 | (upper & 0xffff0000u);
#endif
        }
    }
}

DEVICE float *my_sums(const Arguments &a, const Piece &piece) {
    const int row = blockIdx.x / SLICES + piece.member;
    return a.sums + (static_cast<long long>(row) * SLICES + my_slice()) * SUMS;
}

DEVICE void store_sums(const Arguments &a, const Piece &piece, const float (&along)[EMBED / 2],
                       const float (&down)[EMBED / 2], const float (&bias)[2]) {
    float *to = my_sums(a, piece);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int unit = my_unit(h);
#pragma unroll
        for (int j = 0; j < EMBED / 16; ++j) {
            store_sums_of_four(to + ALONG + unit * EMBED + my_column(j), along, j, h);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[DOWN + (my_column(j) + i) * SLICE + unit] = down[place(j, h, i)];
            }
        }
        const float sum = quad_sum(bias[h]);
        if (my_lane() % 4 == 0) to[BIAS + unit] = sum;
    }
}

// Begin to fetch up to `count` tokens that will be loaded.
DEVICE void fetch(const Scalar *tokens, int first, int count, int last) {
    const int rows = smaller(count, last - first);
    if (rows > 0) fetch_ahead(tokens + first * EMBED, rows * EMBED * sizeof(Scalar));
}

DEVICE void copy_weights(const Arguments &a, Memory &memory, int member) {
    constexpr int BYTES = 2 * TILE_BYTES<SLICE, EMBED>;
    const char *from = a.weights + member * a.weights_stride + a.slices_at;
    arrive_expecting(memory.weights, BYTES);
    copy_to_shared(memory.up, from + my_slice() * a.slice_stride, BYTES, memory.weights);
}

// Weights of every piece, and its tokens.
DEVICE void bring(const Arguments &a, Memory &memory) {
    constexpr int HALF = EMBED / 2;
    const int channel = my_thread() % WARPGROUP;
    const bool leads = channel == 0;
    int tile = 0;  // of all pieces
    for (Share share(a.line, blockIdx.x / SLICES); share.is_left();) {
        const Piece piece = share.next();
        const long long start = static_cast<long long>(piece.member) * a.line.tokens * EMBED;
        const Scalar *stream = a.stream + start, *upstream = a.upstream + start;
        float total = 0.f;  // of dy in the channel that this thread adds up
        Four x[EMBED / 16], left[HALF / 16], right[HALF / 16];
        load<EMBED, 0>(x, stream, piece.first, piece.last);
        load<HALF, 0>(left, upstream, piece.first, piece.last);
        for (int first = piece.first; first < piece.last; first += TOKENS, ++tile) {
            const int stage = tile % 2, then = first + TOKENS;
            if (leads) {
                fetch(stream, then, 2 * TOKENS, piece.last);
                fetch(upstream, then, 2 * TOKENS, piece.last);
            }
            standardise_token(x, a.eps);
            if (tile > 0) wait(memory.empty, stage ^ 1);
            if (leads && first == piece.first) copy_weights(a, memory, piece.member);
            store<EMBED, 0>(memory.stream, memory.stream_columns[stage], x);
            load<HALF, HALF>(right, upstream, first, piece.last);
            char *columns = memory.upstream_columns[stage];
            store_rounded<HALF, 0>(memory.upstream, columns, left);
            store_rounded<HALF, HALF>(memory.upstream, columns, right);
            publish_tiles();
            __syncwarp();
            if (my_lane() == 0) arrive(memory.full);
            if (my_slice() == 0) {  // the others' would be the same
                wait(memory.full, stage);
                total += sum_of_row<EMBED, TOKENS>(memory.upstream_columns[stage], channel);
            }
            load<EMBED, 0>(x, stream, then, piece.last);
            load<HALF, 0>(left, upstream, then, piece.last);
        }
        my_sums(a, piece)[TOTAL + column_of_row(channel)] = total;
    }
}

DEVICE void compute(const Arguments &a, Memory &memory) {
    float along[EMBED / 2], down[EMBED / 2];
    const int slice = my_slice(), rows = 64 * my_warpgroup() * ROW_BYTES;
    int phase = 0, tile = 0;
    for (Share share(a.line, blockIdx.x / SLICES); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const char *weights = a.weights + piece.member * a.weights_stride;
        const float *biases = reinterpret_cast<const float *>(weights + a.bias_at) + slice * SLICE;
        const float bias[2] = {__ldg(biases + my_unit(0)), __ldg(biases + my_unit(1))};
        float bias_sums[2] = {};
        wait(memory.weights, phase);
        for (int first = piece.first; first < piece.last; first += TOKENS, ++tile) {
            const int stage = tile % 2;
            float h[TOKENS / 2], g[TOKENS / 2];
            wait(memory.full, stage);
            begin_products();
            multiply_tiles<TOKENS, EMBED, SLICE, TOKENS>(h, memory.up + rows, memory.stream, false);
            multiply_tiles<TOKENS, EMBED, SLICE, TOKENS>(g, memory.down + rows, memory.upstream,
                                                         false);
            commit_products();
            wait_for_products<0>();
            settle(h);
            settle(g);
            // The tiles by token are left, and those by channel of the tokens before.
            if (my_lane() == 0) arrive(memory.empty);
#pragma unroll
            for (int k = 0; k < TOKENS / 2; ++k) {
                const Activation activation = activate(h[k] + bias[k / 2 % 2]);
                h[k] = activation.value, g[k] *= activation.slope;
                bias_sums[k / 2 % 2] += g[k];
            }
            unsigned activated[TOKENS / STEP][4], dh[TOKENS / STEP][4];
            as_operand(h, activated);
            as_operand(g, dh);
            settle(activated);
            settle(dh);
            begin_products();
            multiply_rows<EMBED, TOKENS, EMBED>(down, activated, memory.upstream_columns[stage],
                                                first > piece.first);
            multiply_rows<EMBED, TOKENS, EMBED>(along, dh, memory.stream_columns[stage],
                                                first > piece.first);
            commit_products();
            store_hidden(a, piece, first, dh);
            wait_for_products<0>();
        }
        settle(along);
        settle(down);
        store_sums(a, piece, along, down, bias_sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_hidden_backward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) {
        set_up(memory.weights, 1);
        set_up(memory.full, WARPGROUP / WARP);
        set_up(memory.empty, COMPUTING * WARPGROUP / WARP);
    }
    publish_tiles();
    wait_for_earlier_kernels();
    __syncthreads();
    if (my_warpgroup() == COMPUTING) {
        leave_registers<BRINGING_REGISTERS>();
        bring(a, memory);
    } else {
        take_registers<COMPUTING_REGISTERS>();
        compute(a, memory);
    }
}
