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
// Of x̂ and dy there are two tiles each, by token and by channel; those by channel are double, as
// the next ones are written while the last two products run.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), HIDDEN (units of the whole layer).

constexpr int THREADS = 2 * WARPGROUP;
constexpr int TOKENS = 32;
constexpr int SLICE = 128;
constexpr int SLICES = HIDDEN / SLICE;

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
};

// Warpgroup 0 has the stream, warpgroup 1 the upstream gradient; a warp has eight tokens.
struct Loader {
    const Scalar *from;
    Four x[EMBED / 16];

    DEVICE Loader(const Arguments &a, int member)
        : from((my_warpgroup() == 0 ? a.stream : a.upstream) +
               static_cast<long long>(member) * a.line.tokens * EMBED) {}
    DEVICE static int token() { return 8 * my_warp_of_four() + my_lane() / 4; }
    DEVICE void load(int first, int last) {
        const int at = first + token();
        load_token<EMBED>(x, from + at * EMBED, at < last);
    }
    // A line of 128 bytes for each thread, or less.
    DEVICE void fetch(int first, int last) const {
        constexpr int LINE = 128 / sizeof(Scalar), LINES = EMBED / LINE;
        const int at = first + my_thread() % WARPGROUP / LINES;
        if (my_thread() % WARPGROUP < TOKENS * LINES && at < last) {
            fetch_ahead(from + at * EMBED + my_thread() % LINES * LINE);
        }
    }
    DEVICE void prepare(float eps) {
        if (my_warpgroup() == 0) {
            standardise_token(x, eps);
        } else {
#pragma unroll
            for (int j = 0; j < EMBED / 16; ++j) x[j] = rounded(x[j]);
        }
    }
    DEVICE void store(Memory &memory, int stage) const {
        const bool first = my_warpgroup() == 0;
        store_straight<TOKENS, EMBED, 0>(first ? memory.stream : memory.upstream, token(), x);
        store_transposed<EMBED, EMBED, 0>(
            (first ? memory.stream_columns : memory.upstream_columns)[stage], token(), x);
        publish_to_async();
    }
};

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

DEVICE void store_sums(const Arguments &a, const Piece &piece, const float (&along)[EMBED / 2],
                       const float (&down)[EMBED / 2], const float (&bias)[2], float total) {
    const int row = blockIdx.x / SLICES + piece.member;
    float *to = a.sums + (static_cast<long long>(row) * SLICES + my_slice()) * SUMS;
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
    if (my_thread() < EMBED) to[TOTAL + column_of_row(my_thread())] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_hidden_backward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) set_up(memory.weights, 1);
    publish_to_async();
    float along[EMBED / 2], down[EMBED / 2];
    const int slice = my_slice(), rows = 64 * my_warpgroup() * ROW_BYTES;
    int phase = 0;
    for (Share share(a.line, blockIdx.x / SLICES); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const char *weights = a.weights + piece.member * a.weights_stride;
        __syncthreads();  // the barrier is set up; nobody needs the tiles of an earlier piece
        if (my_thread() == 0) {
            constexpr int BYTES = 2 * TILE_BYTES<SLICE, EMBED>;
            arrive_expecting(memory.weights, BYTES);
            copy_to_shared(memory.up, weights + a.slices_at + slice * a.slice_stride, BYTES,
                           memory.weights);
        }
        const float *biases = reinterpret_cast<const float *>(weights + a.bias_at) + slice * SLICE;
        const float bias[2] = {__ldg(biases + my_unit(0)), __ldg(biases + my_unit(1))};
        float bias_sums[2] = {}, total = 0.f;
        Loader loader(a, piece.member);
        loader.load(piece.first, piece.last);
        loader.prepare(a.eps);
        loader.store(memory, 0);
        wait(memory.weights, phase);
        __syncthreads();
        int stage = 0;
        for (int first = piece.first; first < piece.last; first += TOKENS, stage ^= 1) {
            float h[TOKENS / 2], g[TOKENS / 2];
            loader.fetch(first + 2 * TOKENS, piece.last);
            begin_products();
            multiply_tiles<TOKENS, EMBED, SLICE, TOKENS>(h, memory.up + rows, memory.stream, false);
            commit_products();
            multiply_tiles<TOKENS, EMBED, SLICE, TOKENS>(g, memory.down + rows, memory.upstream,
                                                         false);
            commit_products();
            wait_for_products<1>();  // also for the sums of the tokens before
            settle(h);
            loader.load(first + TOKENS, piece.last);
            float slope[TOKENS / 2];
#pragma unroll
            for (int k = 0; k < TOKENS / 2; ++k) {
                const Activation activation = activate(h[k] + bias[k / 2 % 2]);
                h[k] = activation.value, slope[k] = activation.slope;
            }
            unsigned activated[TOKENS / STEP][4], dh[TOKENS / STEP][4];
            as_operand(h, activated);
            settle(activated);
            begin_products();
            multiply_rows<EMBED, TOKENS, EMBED>(down, activated, memory.upstream_columns[stage],
                                                first > piece.first);
            commit_products();
            wait_for_products<1>();
            settle(g);
#pragma unroll
            for (int k = 0; k < TOKENS / 2; ++k) {
                g[k] *= slope[k];
                bias_sums[k / 2 % 2] += g[k];
            }
            as_operand(g, dh);
            settle(dh);
            begin_products();
            multiply_rows<EMBED, TOKENS, EMBED>(along, dh, memory.stream_columns[stage],
                                                first > piece.first);
            commit_products();
            store_hidden(a, piece, first, dh);
            if (slice == 0 && my_thread() < EMBED) {
                total += sum_of_row<EMBED, TOKENS>(memory.upstream_columns[stage], my_thread());
            }
            if (first + TOKENS >= piece.last) break;
            loader.prepare(a.eps);
            __syncthreads();  // both warpgroups are done with the tiles by token
            loader.store(memory, stage ^ 1);
            __syncthreads();
        }
        wait_for_products<0>();
        settle(along);
        settle(down);
        store_sums(a, piece, along, down, bias_sums, total);
    }
}
