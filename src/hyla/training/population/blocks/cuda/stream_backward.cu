// The feed-forward network backwards, from its hidden layer to the stream: dx̂ = upᵀ dh, through the
// layer norm, and the residual path added.
//
// A warpgroup takes 64 tokens through everything in its registers; a block keeps the weights (with
// the norm's gain in them) in shared memory.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), HIDDEN (units of the hidden layer),
// WARPGROUPS.

constexpr int THREADS = WARPGROUPS * WARPGROUP;
constexpr int CHUNK = 64;  // hidden units that are loaded at a time
constexpr int CHUNKS = HIDDEN / CHUNK;

struct Arguments {
    const Scalar *stream, *upstream;  // [P, N, E]: what the layer norm takes, the gradient of y
    const Scalar *hidden;             // [P, N, HIDDEN]: dh, rounded, as `hidden_backward.cu` says
    const char *weights;              // [P, weights_stride]
    Scalar *result;                   // [P, N, E]: the gradient of `stream`
    long long weights_stride;
    int tile_at;  // bytes
    Line line;
    float eps;
};

struct Memory {
    char weights[TILE_BYTES<EMBED, HIDDEN>];
    Barrier full;
};

// x̂ and d, its gradient: d becomes the gradient of what was standardised.
DEVICE void through_norm(float (&d)[EMBED / 2], const float (&x)[EMBED / 2], float2 inverse) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = 0.f, along = 0.f;
#pragma unroll
        for (int k = 0; k < EMBED / 4; ++k) {
            const int at = place(k / 4, h, k % 4);
            sum += d[at], along += d[at] * x[at];
        }
        const float mean = quad_sum(sum) * (1.f / EMBED);
        along = quad_sum(along) * (1.f / EMBED);
#pragma unroll
        for (int k = 0; k < EMBED / 4; ++k) {
            const int at = place(k / 4, h, k % 4);
            d[at] = (d[at] - mean - x[at] * along) * (h == 0 ? inverse.x : inverse.y);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_stream_backward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) set_up(memory.full, 1);
    publish_to_async();
    int phase = 0;
    for (Share share(a.line, blockIdx.x); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const Tiling tiling(piece, WARPGROUPS);
        const char *weights = a.weights + piece.member * a.weights_stride;
        const long long start = static_cast<long long>(piece.member) * a.line.tokens;
        __syncthreads();  // the barrier is set up; nobody needs the weights of an earlier piece
        if (my_thread() == 0) {
            arrive_expecting(memory.full, sizeof memory.weights);
            copy_to_shared(memory.weights, weights + a.tile_at, sizeof memory.weights, memory.full);
        }
        wait(memory.full, phase);
        for (int pass = 0; pass < tiling.passes; ++pass) {
            const int first = tiling.first(piece, pass, WARPGROUPS);
            const int rows = smaller(tiling.rows, piece.last - first);
            const long long at = start + first;
            const Scalar *hidden = a.hidden + at * HIDDEN;
            float d[EMBED / 2];
            Four next[CHUNK / 8];
            load_rows<CHUNK, HIDDEN>(next, hidden, rows);
            fetch_rows<EMBED>(a.stream + at * EMBED, rows);
            fetch_rows<EMBED>(a.upstream + at * EMBED, rows);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                unsigned operand[CHUNK / STEP][4];
                if (chunk > 0) wait_for_products<0>();
                as_operand(next, operand);
                settle(operand);
                begin_products();
                multiply_rows<EMBED, CHUNK, EMBED>(
                    d, operand, memory.weights + TILE_BYTES<EMBED, CHUNK> * chunk, chunk > 0);
                commit_products();
                // The next units are loaded, those after them fetched; the first ones of the next
                // tokens, too.
                if (chunk + 1 < CHUNKS) {
                    load_rows<CHUNK, HIDDEN>(next, hidden + (chunk + 1) * CHUNK, rows);
                }
                const int then = chunk + 2 < CHUNKS ? 0 : WARPGROUPS * tiling.rows;
                fetch_part<CHUNK, HIDDEN>(hidden + then * HIDDEN + (chunk + 2) % CHUNKS * CHUNK,
                                          smaller(rows, piece.last - first - then));
            }
            float x[EMBED / 2];
            float2 inverse;
            {
                Four loaded[EMBED / 8];
                load_rows<EMBED>(loaded, a.stream + at * EMBED, rows);
                unpack_rows(loaded, x);
                inverse = standardise(x, a.eps);
            }
            wait_for_products<0>();
            settle(d);
            through_norm(d, x, inverse);
            add_rows<EMBED>(d, a.upstream + at * EMBED, rows);
            store_rows<EMBED>(a.result + at * EMBED, d, rows);
        }
    }
}
