// Queries, keys and values of normalised tokens.
//
// A warpgroup takes 64 tokens through everything in its registers. Gain and shift of the norm lie in
// weights and biases, which a block keeps in shared memory.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), QK and V (widths), WARPGROUPS.

constexpr int THREADS = WARPGROUPS * WARPGROUP;
constexpr int ALL = 2 * QK + V;

struct Arguments {
    const Scalar *x;      // [P, N, E]
    const char *weights;  // [P, weights_stride]
    Scalar *q, *k, *v;    // [P, N, …]
    long long weights_stride;
    int tiles_at, bias_at;  // bytes: the three weights, the three biases
    Line line;
    float eps;
};

struct Memory {
    char weights[TILE_BYTES<ALL, EMBED>];  // three tiles
    Barrier full;
};

template <int WIDTH>
DEVICE void finish(float (&y)[WIDTH / 2], const float *bias, Scalar *to, int rows) {
    settle(y);
    add_to_rows<WIDTH>(y, bias);
    store_rows<WIDTH>(to, y, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_project_forward(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    if (my_thread() == 0) set_up(memory.full, 1);
    publish_to_async();
    int phase = 0;
    for (Share share(a.line, blockIdx.x); share.is_left(); phase ^= 1) {
        const Piece piece = share.next();
        const Tiling tiling(piece, WARPGROUPS);
        const char *weights = a.weights + piece.member * a.weights_stride;
        const float *bias = reinterpret_cast<const float *>(weights + a.bias_at);
        const long long start = static_cast<long long>(piece.member) * a.line.tokens;
        __syncthreads();  // the barrier is set up; nobody needs the weights of an earlier piece
        if (my_thread() == 0) {
            arrive_expecting(memory.full, sizeof memory.weights);
            copy_to_shared(memory.weights, weights + a.tiles_at, sizeof memory.weights,
                           memory.full);
        }
        const char *q_weights = memory.weights, *k_weights = q_weights + TILE_BYTES<QK, EMBED>;
        const char *v_weights = k_weights + TILE_BYTES<QK, EMBED>;
        Four next[EMBED / 8];
        int first = tiling.first(piece, 0, WARPGROUPS);
        int rows = smaller(tiling.rows, piece.last - first);
        load_rows<EMBED>(next, a.x + (start + first) * EMBED, rows);
        wait(memory.full, phase);
        for (int pass = 0; pass < tiling.passes; ++pass) {
            float x[EMBED / 2], q[QK / 2], k[QK / 2], v[V / 2];
            unsigned operand[EMBED / STEP][4];
            unpack_rows(next, x);
            standardise(x, a.eps);
            as_operand(x, operand);
            settle(operand);
            begin_products();
            multiply_rows<QK, EMBED, QK>(q, operand, q_weights, false);
            commit_products();
            multiply_rows<QK, EMBED, QK>(k, operand, k_weights, false);
            commit_products();
            multiply_rows<V, EMBED, V>(v, operand, v_weights, false);
            commit_products();
            const long long at = start + first;
            const int live = rows;
            if (pass + 1 < tiling.passes) {
                first = tiling.first(piece, pass + 1, WARPGROUPS);
                rows = smaller(tiling.rows, piece.last - first);
                load_rows<EMBED>(next, a.x + (start + first) * EMBED, rows);
            }
            wait_for_products<2>();
            finish<QK>(q, bias, a.q + at * QK, live);
            wait_for_products<1>();
            finish<QK>(k, bias + QK, a.k + at * QK, live);
            wait_for_products<0>();
            finish<V>(v, bias + 2 * QK, a.v + at * V, live);
        }
    }
}
