// The rest of a block: what attention returned joins the stream, and the feed-forward network.
//
//     between = x + W_out attended + b,   y = between + down gelu(up x̂ + b) + b
//                                         x̂ = between, standardised; gain and shift within up and b
//
// A warpgroup takes 64 tokens through everything in its registers. The weights of the feed-forward
// network are too many for shared memory: they are copied there 64 hidden units at a time, into a
// ring of STAGES that the warpgroups read at their own pace. What the last of them has left is
// filled anew.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), V (width of what attention returns),
// HIDDEN (units of the hidden layer), STAGES, WARPGROUPS.

constexpr int THREADS = WARPGROUPS * WARPGROUP;
constexpr int CHUNK = 64;
constexpr int CHUNKS = HIDDEN / CHUNK;

struct Arguments {
    const Scalar *x, *attended;  // [P, N, E], [P, N, V]
    const char *weights;         // [P, weights_stride]
    Scalar *between, *y;         // [P, N, E]
    long long weights_stride;
    int out_at, chunks_at, bias_at;  // bytes: W_out; [up, down] of each chunk; biases out, down, up
    Line line;
    float eps;
};

struct Chunk {
    char up[TILE_BYTES<CHUNK, EMBED>], down[TILE_BYTES<EMBED, CHUNK>];
};

struct Memory {
    char out[TILE_BYTES<EMBED, V>];
    Chunk ring[STAGES];
    Barrier out_full, full[STAGES], empty[STAGES];
};

// A stage of the ring, and the parity of how often it has been used before.
struct Turn {
    int stage = 0, phase = 0;

    DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

DEVICE void fill(Memory &memory, int stage, const char *chunks, int number) {
    arrive_expecting(memory.full[stage], sizeof(Chunk));
    copy_to_shared(&memory.ring[stage], chunks + number % CHUNKS * sizeof(Chunk), sizeof(Chunk),
                   memory.full[stage]);
}

DEVICE void leave(Memory &memory, const Turn &turn) {
    if (my_lane() == 0) arrive(memory.empty[turn.stage]);
}

// Once every warp has left it, the first one sees to it.
DEVICE void refill(Memory &memory, const Turn &turn, const char *chunks, int number, int count) {
    if (my_thread() >= WARP || number >= count) return;
    wait(memory.empty[turn.stage], turn.phase);
    if (my_lane() == 0) fill(memory, turn.stage, chunks, number);
}

DEVICE void activate_all(float (&h)[CHUNK / 2]) {
#pragma unroll
    for (int k = 0; k < CHUNK / 2; ++k) h[k] = activate(h[k]).value;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_finish_forward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) {
        set_up(memory.out_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            set_up(memory.full[stage], 1);
            set_up(memory.empty[stage], WARPGROUPS * WARPGROUP / WARP);
        }
    }
    publish_to_async();
    Turn turn, left;
    int phase = 0;
    for (Share share(a.line, blockIdx.x); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const Tiling tiling(piece, WARPGROUPS);
        const char *weights = a.weights + piece.member * a.weights_stride;
        const float *out_bias = reinterpret_cast<const float *>(weights + a.bias_at);
        const float *down_bias = out_bias + EMBED, *up_bias = down_bias + EMBED;
        const long long start = static_cast<long long>(piece.member) * a.line.tokens;
        const char *chunks = weights + a.chunks_at;
        const int all_chunks = tiling.passes * CHUNKS;
        __syncthreads();  // the barriers are set up; nobody needs the weights of an earlier piece
        if (my_thread() == 0) {
            arrive_expecting(memory.out_full, sizeof memory.out);
            copy_to_shared(memory.out, weights + a.out_at, sizeof memory.out, memory.out_full);
            for (int k = 0; k < smaller(STAGES, all_chunks); ++k) {
                fill(memory, (turn.stage + k) % STAGES, chunks, k);
            }
        }
        wait(memory.out_full, phase);
        for (int pass = 0; pass < tiling.passes; ++pass) {
            const int first = tiling.first(piece, pass, WARPGROUPS);
            const int rows = smaller(tiling.rows, piece.last - first);
            const long long at = start + first;
            float y[EMBED / 2];
            unsigned standardised[EMBED / STEP][4];
            {
                Four attended[V / 8], loaded[EMBED / 8];
                unsigned operand[V / STEP][4];
                load_rows<V>(attended, a.attended + at * V, rows);
                load_rows<EMBED>(loaded, a.x + at * EMBED, rows);
#pragma unroll
                for (int k = 0; k < V / 8; ++k) attended[k] = rounded(attended[k]);
                as_operand(attended, operand);
                unpack_rows(loaded, y);
                add_to_rows<EMBED>(y, out_bias);
                settle(operand);
                settle(y);
                begin_products();
                multiply_rows<EMBED, V, EMBED>(y, operand, memory.out, true);
                commit_products();
                const int then = tiling.first(piece, pass + 1, WARPGROUPS);
                fetch_rows<EMBED>(a.x + (start + then) * EMBED, piece.last - then);
                fetch_rows<V>(a.attended + (start + then) * V, piece.last - then);
                wait_for_products<0>();
                settle(y);
            }
            store_rows<EMBED>(a.between + at * EMBED, y, rows);
            {
                float x[EMBED / 2];
#pragma unroll
                for (int k = 0; k < EMBED / 2; ++k) x[k] = y[k] = as_stored(y[k]);
                standardise(x, a.eps);
                as_operand(x, standardised);
                settle(standardised);
            }
            add_to_rows<EMBED>(y, down_bias);
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                float h[CHUNK / 2];
                unsigned activated[CHUNK / STEP][4];
                const Chunk &weights_of = memory.ring[turn.stage];
                wait(memory.full[turn.stage], turn.phase);
                begin_products();
                multiply_rows<CHUNK, EMBED, CHUNK>(h, standardised, weights_of.up, false);
                commit_products();
                wait_for_products<0>();
                settle(h);
                settle(y);
                if (chunk > 0) leave(memory, left);
                add_to_rows<CHUNK>(h, up_bias + chunk * CHUNK);
                activate_all(h);
                as_operand(h, activated);
                settle(activated);
                begin_products();
                multiply_rows<EMBED, CHUNK, EMBED>(y, activated, weights_of.down, true);
                commit_products();
                const int refilled = pass * CHUNKS + chunk - 1 + STAGES;
                if (chunk > 0) refill(memory, left, chunks, refilled, all_chunks);
                left = turn;
                turn.advance();
            }
            wait_for_products<0>();
            settle(y);
            leave(memory, left);
            refill(memory, left, chunks, (pass + 1) * CHUNKS - 1 + STAGES, all_chunks);
            store_rows<EMBED>(a.y + at * EMBED, y, rows);
        }
    }
}
