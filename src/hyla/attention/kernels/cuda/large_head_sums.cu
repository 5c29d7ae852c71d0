// The logarithms of a softmax's sums where RMSHead comes before it: log_sum = log Σ_k exp(r s).
//
// A block owns QUERIES queries and walks over the keys, KEYS at a time, all heads and all of d.
// RMSHead bounds what it makes of a score by √H, so that no exponential is larger than e^5.7 at 32
// heads: they are added up as they are, and no largest score need be known.

struct Memory {
    Half q[QUERIES * TOKEN], k[STAGES][KEYS * TOKEN];
    Squares squares;
};
static_assert(SPLIT == 1 && KEY_UNITS == 1 && RMS_FIRST, "a warp has its queries to itself");

typedef float Sums[PART_HEADS][2];  // of two queries

DEVICE void add_exponentials(Sums &sum, const Scores &score, const Arguments &a,
                             const float (&r)[4]) {
#pragma unroll
    for (int i = 0; i < PART_HEADS * 4; ++i) {
        const int e = i % 4;
        sum[i / 4][e % 2] += softmax_code(a, score[i / 4][0][e], r[e], 0.f);
    }
}

DEVICE void store_logarithms(const Sums &sum, const Arguments &a, const Sequence &s,
                             int first_query) {
    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int i = 0; i < PART_HEADS * 2; ++i) {
        float x = sum[i / 2][i % 2];
#pragma unroll
        for (int mask = 4; mask < WARP; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
        const int query = first_query + query_of(i % 2), head = first_head() + i / 2;
        if (my_lane() >= 4 || query >= s.queries || head >= HEADS) continue;
        a.log_sum[(start + query) * HEADS + head] = x == 0.f ? LARGEST : logf(x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, my_task() % a.batch);
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - my_task() / a.batch) * QUERIES;
    if (first_query >= s.queries) return;
    const int end = smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const auto copy_k = [&](int stage, int first) {
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(shared_address(memory.k[stage]), k, a.k, first, end);
        close_copies();
    };

    clear_missing_heads<QUERIES, QueryOrder>(memory.q);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        clear_missing_heads<KEYS, KeyOrder>(memory.k[stage]);
    }
    copy_tokens<QUERIES, QueryOrder>(shared_address(memory.q),
                                     tokens_of(a, a.q, s.index, s.first_query), a.q, first_query,
                                     s.queries);
    copy_k(0, 0);
    Sums sum = {};
    const int row = first_query + first_row();
    int stage = 0;
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        wait_for_copies<0>();
        __syncthreads();
        if constexpr (STAGES == 2) copy_k(1 - stage, first_key + KEYS);
        Scores score;
        float r[4];
        unit_scores(score, a, s, shared_address(memory.k[stage]), shared_address(memory.q), row,
                    first_key);
        inverse_roots(r, memory, score, a, s, row, first_key);
        add_exponentials(sum, score, a, r);
        if constexpr (STAGES == 2) {
            stage = 1 - stage;
        } else {
            __syncthreads();
            copy_k(0, first_key + KEYS);
        }
    }
    wait_for_copies<0>();
    store_logarithms(sum, a, s, row);
}
