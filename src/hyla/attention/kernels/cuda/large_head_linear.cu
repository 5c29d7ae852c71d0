// The linear value network on tensor cores, forward and backward: O[q,h] = Σ_k a[h] V[k,h].
//
//     da[h] = G[q,h]·V[k,h]            ds = r (da − a · mean_h(da a))      (RMSHead; else da)
//     dV[k,h] = Σ_q a G                dK = Σ_q (scale ds) Q               dQ = Σ_k (scale ds) K
//
// Heads meet in two sums over them alone, of s² and of da·s. All products are of one head, and are of
// two kinds: over d (scores and da), or over tokens (the others). The former leave a lane with the
// same pairs of every head, so both sums, the code and ds are made in registers; these two then go
// to shared memory, by heads, where the latter read them straight or transposed.
//
// A block owns QUERIES queries (forward and query pass) or KEYS keys (key pass) and walks over the
// others. Where a tile has fewer units of 16 keys × 8 queries than the block has warps, some share a
// unit, each with some heads. The key pass makes dK and dV and, if ADDS_QUERY_GRADIENT, adds its
// share of dQ to global memory atomically; for sums in a fixed order the query pass makes dQ.

#define PASS_FORWARD 0
#define PASS_QUERY 1
#define PASS_KEY 2

constexpr bool BACKWARD = PASS != PASS_FORWARD, KEY_PASS = PASS == PASS_KEY;
constexpr int QUERY_STAGES = KEY_PASS ? STAGES : 1;
constexpr int KEY_STAGES = PASS == PASS_QUERY ? STAGES : 1;
constexpr int EIGHTS = QUERIES / 8, KEY_UNITS = KEYS / 16, QUERY_UNITS = QUERIES / 16;
constexpr int UNITS = EIGHTS * KEY_UNITS;
constexpr int PARTS = UNITS < WARPS ? WARPS / UNITS : 1;  // warps that share a unit
constexpr int PART_HEADS = ALL_HEADS / PARTS;
constexpr int UNITS_PER_WARP = UNITS * PARTS / WARPS;
static_assert(!SOFTMAX, "its code is one of the hidden value network");
static_assert(SPLIT == 1, "a block has whole tokens");
static_assert(QUERIES % 16 == 0 && UNITS * PARTS % WARPS == 0 && PART_HEADS % 2 == 0, "tile");

constexpr int PAIR_ROW = KEYS + 8;  // halves; [head][query][key]
constexpr int PAIR_HEAD = QUERIES * PAIR_ROW + 8;

struct Memory {
    Half k[KEY_STAGES][KEYS * TOKEN], v[KEY_STAGES][KEYS * TOKEN];
    Half q[QUERY_STAGES][QUERIES * TOKEN];
#if PASS != PASS_FORWARD
    Half g[QUERY_STAGES][QUERIES * TOKEN];
    Half ds[ALL_HEADS * PAIR_HEAD];
#endif
    Half code[ALL_HEADS * PAIR_HEAD];
    float4 sums[2][WARPS][WARP];
};

// Where the tokens of a tile lie, and which they are.
struct Tile {
    Shared k, v, q, g;
    int first_query, first_key;
};

typedef ByHead<QUERIES> QueryOrder;
typedef ByHead<KEYS> KeyOrder;

// ---------------------------------------------------------------- pairs, in registers

typedef float Pairs[PART_HEADS][1][4];

// Over all heads, of each of the lane's four pairs: the parts of a unit exchange what they have.
DEVICE void sum_over_heads(float (&sum)[4], float4 (&sums)[WARPS][WARP], const Pairs &x,
                           const Pairs &y) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        sum[e] = 0.f;
#pragma unroll
        for (int i = 0; i < PART_HEADS; ++i) sum[e] += x[i][0][e] * y[i][0][e];
    }
    if constexpr (PARTS > 1) {
        sums[my_warp()][my_lane()] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
}

// After a barrier.
DEVICE void add_other_parts(float (&sum)[4], const float4 (&sums)[WARPS][WARP]) {
    if constexpr (PARTS == 1) return;
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const float4 x = sums[my_warp() % UNITS + part * UNITS][my_lane()];
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
}

// [16 keys × 8 queries] of every head to rows of queries.
DEVICE void store_pairs(Half *to, const Pairs &x, int first_head, int row, int column) {
    const int lane = my_lane();
    const Shared at = shared_address(to) +
                      2 * ((first_head + lane / 16) * PAIR_HEAD + (row + lane % 8) * PAIR_ROW +
                           column + lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < PART_HEADS; i += 2) {
        const float(&one)[4] = x[i][0], (&other)[4] = x[i + 1][0];
        store_matrices_transposed(at + i * PAIR_HEAD * 2,
                                  {pack(one[0], one[1]), pack(one[2], one[3]),
                                   pack(other[0], other[1]), pack(other[2], other[3])});
    }
}

// From da to scale · ds, in place; the gradient of the bias is ds.
DEVICE void differentiate(Pairs &da, const Pairs &code, const float (&r)[4], const float (&mean)[4],
                          const Arguments &a, const Sequence &s, int first_head, int first_query,
                          int first_key) {
#pragma unroll
    for (int i = 0; i < PART_HEADS * 4; ++i) {
        const int e = i % 4, head = first_head + i / 4;
        const int query = first_query + query_of(e), key = first_key + key_of(e);
        const float a_h = code[i / 4][0][e];
        float ds = r[e] * (NORMALISED ? da[i / 4][0][e] - a_h * mean[e] : da[i / 4][0][e]);
        const bool seen = r[e] != 0.f && (ALL_HEADS == HEADS || head < HEADS);
        if (seen && masked_by_bias(a, s, head, query, key, a_h)) ds = 0.f;
        ds = with_gain(a.output, ds);
        if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
            if (seen) add_bias_gradient(a, s, head, query, key, ds);
        }
        da[i / 4][0][e] = in_range(ds * a.scale);
    }
}

// The code of a tile and, in the backward, scale · ds. All warps take part.
DEVICE void write_pairs(Memory &memory, const Tile &tile, const Arguments &a, const Sequence &s) {
    const int first_head = PARTS > 1 ? my_warp() / UNITS * PART_HEADS : 0;
#pragma unroll 1
    for (int i = 0; i < UNITS_PER_WARP; ++i) {
        const int unit = PARTS > 1 ? my_warp() % UNITS : my_warp() + i * WARPS;
        const int row = unit % EIGHTS * 8, column = unit / EIGHTS * 16;
        const int first_query = tile.first_query + row, first_key = tile.first_key + column;
        const Shared left = HeadRows::left_rows(KeyOrder::row(column, 0)) +
                            KeyOrder::row(0, first_head) * HeadRows::ROW;
        const Shared right = HeadRows::right_rows<1>(QueryOrder::row(row, 0)) +
                             QueryOrder::row(0, first_head) * HeadRows::ROW;
        Pairs score, da;
        head_scores<PART_HEADS, 1>(score, tile.k + left, tile.q + right);
#pragma unroll
        for (int h = 0; h < PART_HEADS; ++h) {
            if (ALL_HEADS != HEADS && first_head + h >= HEADS) break;
            add_bias(score[h][0], a, s, first_head + h, first_query, first_key);
        }
        float squares[4] = {}, dots[4] = {}, r[4];
        if constexpr (BACKWARD) head_scores<PART_HEADS, 1>(da, tile.v + left, tile.g + right);
        if constexpr (NORMALISED) {
            sum_over_heads(squares, memory.sums[0], score, score);
            if constexpr (BACKWARD) sum_over_heads(dots, memory.sums[1], da, score);
            if constexpr (PARTS > 1) __syncthreads();
            add_other_parts(squares, memory.sums[0]);
            if constexpr (BACKWARD) add_other_parts(dots, memory.sums[1]);
        }
        const bool all = all_visible(s, first_query, 8, first_key);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            r[e] = inverse_root(a, squares[e]);
            if (!all && !visible(a, s, first_query + query_of(e), first_key + key_of(e))) r[e] = 0.f;
            const float factor = remaining_scale(a) * r[e];
            dots[e] *= factor * (1.f / HEADS);  // the mean of da·a
#pragma unroll
            for (int h = 0; h < PART_HEADS; ++h) score[h][0][e] *= factor;
        }
        store_pairs(memory.code, score, first_head, row, column);
#if PASS != PASS_FORWARD
        differentiate(da, score, r, dots, a, s, first_head, first_query, first_key);
        store_pairs(memory.ds, da, first_head, row, column);
#endif
    }
}

// ---------------------------------------------------------------- products over tokens

constexpr int COLUMNS = WIDTH / 8;
typedef float Sums[COLUMNS][4];  // [16 tokens × 8 of d]

// A task is a head and 16 tokens of the block's own side; a warp has several.
constexpr int OWN_UNITS = KEY_PASS ? KEY_UNITS : QUERY_UNITS;
constexpr int TASKS = (HEADS * OWN_UNITS + WARPS - 1) / WARPS;
DEVICE int task(int i) { return my_warp() * TASKS + i; }
DEVICE bool is_task(int i) { return HEADS * OWN_UNITS % WARPS == 0 || task(i) < HEADS * OWN_UNITS; }
DEVICE int task_head(int i) { return task(i) / OWN_UNITS; }
DEVICE int task_unit(int i) { return task(i) % OWN_UNITS; }

// c += x · tokens, given where a lane finds its row of 16 × 16 pairs x, read transposed for sums over
// queries, and its row of 16 tokens.
template <bool OVER_QUERIES>
DEVICE void add_product(Sums &c, Shared pairs, Shared tokens) {
    Pair x[4];
    if constexpr (OVER_QUERIES) load_matrices_transposed(x, pairs);
    else load_matrices(x, pairs);
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 2) {
        Pair y[4];
        load_matrices_transposed(y, HeadRows::pieces_on(tokens, n));
        multiply_add(c[n], c[n], x[0], x[1], x[2], x[3], y[0], y[1]);
        multiply_add(c[n + 1], c[n + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
    }
}

// 16 queries of a head: c += Σ_k x K, of x = ds or the code, and K or V.
DEVICE void add_over_keys(Sums &c, const Half *pairs, Shared keys, int head, int query_unit) {
    const int lane = my_lane();
    const Shared left = shared_address(pairs) +
                        2 * (head * PAIR_HEAD + (query_unit * 16 + lane % 16) * PAIR_ROW +
                             lane / 16 * 8);
    const Shared right = keys + HeadRows::left_rows(0) + KeyOrder::row(0, head) * HeadRows::ROW;
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        add_product<false>(c, left + unit * 32, right + unit * 16 * HeadRows::ROW);
    }
}

// 16 keys of a head: c += Σ_q x Q, of x = ds or the code, and Q or G.
DEVICE void add_over_queries(Sums &c, const Half *pairs, Shared queries, int head, int key_unit) {
    const int lane = my_lane();
    const Shared left = shared_address(pairs) +
                        2 * (head * PAIR_HEAD + (lane % 8 + lane / 16 * 8) * PAIR_ROW +
                             key_unit * 16 + lane / 8 % 2 * 8);
    const Shared right =
        queries + HeadRows::left_rows(0) + QueryOrder::row(0, head) * HeadRows::ROW;
#pragma unroll
    for (int unit = 0; unit < QUERY_UNITS; ++unit) {
        add_product<true>(c, left + unit * 32 * PAIR_ROW, right + unit * 16 * HeadRows::ROW);
    }
}

// The lane's tokens of a unit are lane / 4 and eight on, its columns of eight 2 (lane % 4) and + 1.
DEVICE int token_of(int unit, int upper) { return unit * 16 + my_lane() / 4 + upper * 8; }

// To contiguous tokens, of which `count` exist.
DEVICE void store_sums(Half *to, const Sums &c, float factor, int head, int unit, int count) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        if (token_of(unit, upper) >= count) continue;
        Half *row = to + (token_of(unit, upper) * HEADS + head) * WIDTH + my_lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            *reinterpret_cast<Pair *>(row + n * 8) =
                pack(factor * c[n][2 * upper], factor * c[n][2 * upper + 1]);
        }
    }
}

// ---------------------------------------------------------------- the passes

DEVICE Tile tile_of(Memory &memory, int first_query, int first_key) {
    Tile tile{shared_address(memory.k), shared_address(memory.v), shared_address(memory.q), 0,
              first_query, first_key};
#if PASS != PASS_FORWARD
    tile.g = shared_address(memory.g);
#endif
    return tile;
}

DEVICE void clear_missing(Memory &memory) {
#pragma unroll
    for (int stage = 0; stage < KEY_STAGES; ++stage) {
        clear_missing_heads<KEYS, KeyOrder>(memory.k[stage]);
        clear_missing_heads<KEYS, KeyOrder>(memory.v[stage]);
    }
#pragma unroll
    for (int stage = 0; stage < QUERY_STAGES; ++stage) {
        clear_missing_heads<QUERIES, QueryOrder>(memory.q[stage]);
#if PASS != PASS_FORWARD
        clear_missing_heads<QUERIES, QueryOrder>(memory.g[stage]);
#endif
    }
}

// The last queries see the most keys under causality: they start first.
DEVICE int my_first_query(const Arguments &a) {
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    return (tiles - 1 - static_cast<int>(blockIdx.x / a.batch)) * QUERIES;
}

DEVICE int last_key(const Sequence &s, int first_query) {
    return smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
}

#if PASS == PASS_FORWARD

// What each of the lane's queries is multiplied by; `sums` is [head][query].
DEVICE void output_factors(float (&factor)[TASKS][2], float *sums, const Arguments &a,
                           const Sequence &s, int first_query, const Sums (&out)[TASKS]) {
    const long long given = factor_row(a, s);
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
        for (int i = 0; i < TASKS * 2; ++i) {
            float squares = 0.f;
#pragma unroll
            for (int n = 0; n < COLUMNS * 2; ++n) {
                const float x = out[i / 2][n / 2][i % 2 * 2 + n % 2];
                squares += x * x;
            }
            squares += __shfl_xor_sync(0xffffffffu, squares, 1);
            squares += __shfl_xor_sync(0xffffffffu, squares, 2);
            if (is_task(i / 2) && my_lane() % 4 == 0) {
                sums[task_head(i / 2) * QUERIES + token_of(task_unit(i / 2), i % 2)] = squares;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TASKS * 2; ++i) {
        const int query = token_of(task_unit(i / 2), i % 2), row = first_query + query;
        factor[i / 2][i % 2] = 0.f;
        if (!is_task(i / 2) || row >= s.queries) continue;
        float squares = 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) squares += sums[h * QUERIES + query];
        }
        const float x = output_factor(a.output, given + row, squares);
        factor[i / 2][i % 2] = x;
        if constexpr (OUTPUT == OUTPUT_RMS) {
            if (task_head(i / 2) == 0 && my_lane() % 4 == 0) a.output.total_factor[start + row] = x;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_query = my_first_query(a), end = last_key(s, first_query);
    if (first_query >= s.queries) return;
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const Half *v = tokens_of(a, a.v, s.index, s.first_key);
    Tile tile = tile_of(memory, first_query, 0);
    clear_missing(memory);
    copy_tokens<QUERIES, QueryOrder>(tile.q, tokens_of(a, a.q, s.index, s.first_query), a.q,
                                     first_query, s.queries);
    copy_tokens<KEYS, KeyOrder, SHARED_BY>(tile.k, k, a.k, 0, end);
    close_copies();
    copy_tokens<KEYS, KeyOrder, SHARED_BY>(tile.v, v, a.v, 0, end);
    close_copies();
    Sums out[TASKS] = {};
#pragma unroll 1
    for (; tile.first_key < end; tile.first_key += KEYS) {
        wait_for_copies<1>();  // the keys are there
        __syncthreads();
        write_pairs(memory, tile, a, s);
        wait_for_copies<0>();
        __syncthreads();
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(tile.k, k, a.k, tile.first_key + KEYS, end);
        close_copies();
#pragma unroll
        for (int i = 0; i < TASKS; ++i) {
            if (is_task(i)) add_over_keys(out[i], memory.code, tile.v, task_head(i), task_unit(i));
        }
        __syncthreads();
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(tile.v, v, a.v, tile.first_key + KEYS, end);
        close_copies();
    }
    wait_for_copies<0>();
    __syncthreads();
    float factor[TASKS][2];
    output_factors(factor, reinterpret_cast<float *>(memory.code), a, s, first_query, out);
    const long long start = output_row(a, s.index, s.first_query, s.queries) + first_query;
#pragma unroll
    for (int i = 0; i < TASKS; ++i) {
        if (!is_task(i)) break;
#pragma unroll
        for (int j = 0; j < COLUMNS * 4; ++j) out[i][j / 4][j % 4] *= factor[i][j / 2 % 2];
        store_sums(a.first + start * (HEADS * WIDTH), out[i], 1.f, task_head(i), task_unit(i),
                   s.queries - first_query);
    }
}

#else

// From one stage of what is walked over to the other, where there are two.
constexpr Shared OTHER_STAGE = (STAGES - 1) * (KEY_PASS ? QUERIES : KEYS) * TOKEN * 2;

DEVICE void add_query_gradient(const Arguments &a, const Sequence &s, const Memory &memory,
                               const Tile &tile) {
    const long long start = output_row(a, s.index, s.first_query, s.queries) + tile.first_query;
#pragma unroll 1
    for (int i = my_warp(); i < HEADS * QUERY_UNITS; i += WARPS) {
        const int head = i / QUERY_UNITS, unit = i % QUERY_UNITS;
        Sums c = {};
        add_over_keys(c, memory.ds, tile.k, head, unit);
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int query = token_of(unit, upper);
            if (tile.first_query + query >= s.queries) continue;
            float *to = a.query_gradient + ((start + query) * HEADS + head) * WIDTH +
                        my_lane() % 4 * 2;
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                add_atomically(to + n * 8, c[n][2 * upper], c[n][2 * upper + 1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int own = KEY_PASS ? static_cast<int>(blockIdx.x / a.batch) * KEYS : my_first_query(a);
    const int count = (KEY_PASS ? s.keys : s.queries) - own;
    if (count <= 0) return;
    const int unseen = own - s.reach;  // queries that see none of the keys
    const int begin = KEY_PASS && unseen > 0 ? unseen / QUERIES * QUERIES : 0;
    const int end = KEY_PASS ? s.queries : last_key(s, own);

    Tile tile = KEY_PASS ? tile_of(memory, begin, own) : tile_of(memory, own, begin);
    const auto copy_queries = [&](Shared to_q, Shared to_g, int first) {
        copy_tokens<QUERIES, QueryOrder>(to_q, tokens_of(a, a.q, s.index, s.first_query), a.q, first,
                                         s.queries);
        copy_tokens<QUERIES, QueryOrder>(to_g, tokens_of(a, a.upstream, s.index, s.first_query),
                                         a.upstream, first, s.queries);
        close_copies();
    };
    const auto copy_keys = [&](Shared to_k, Shared to_v, int first) {
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(to_k, tokens_of(a, a.k, s.index, s.first_key), a.k,
                                               first, s.keys);
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(to_v, tokens_of(a, a.v, s.index, s.first_key), a.v,
                                               first, s.keys);
        close_copies();
    };
    const auto copy_next = [&](Shared to, Shared to_other, int first) {
        if constexpr (KEY_PASS) copy_queries(to, to_other, first);
        else copy_keys(to, to_other, first);
    };
    clear_missing(memory);
    copy_queries(tile.q, tile.g, tile.first_query);
    copy_keys(tile.k, tile.v, tile.first_key);
    Shared &walked = KEY_PASS ? tile.q : tile.k, &walked_other = KEY_PASS ? tile.g : tile.v;
    int &first = KEY_PASS ? tile.first_query : tile.first_key;
    constexpr int STEP = KEY_PASS ? QUERIES : KEYS;
    const Shared both = 2 * walked + OTHER_STAGE, both_others = 2 * walked_other + OTHER_STAGE;
    Sums gradient[TASKS] = {}, dv[TASKS] = {};
#pragma unroll 1
    for (; first < end; first += STEP) {
        wait_for_copies<0>();
        __syncthreads();
        const Shared next = both - walked, next_other = both_others - walked_other;
        if constexpr (STAGES == 2) copy_next(next, next_other, first + STEP);
        write_pairs(memory, tile, a, s);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TASKS; ++i) {
            if (!is_task(i)) break;
            const int head = task_head(i), unit = task_unit(i);
            if constexpr (KEY_PASS) {
                add_over_queries(gradient[i], memory.ds, tile.q, head, unit);
                add_over_queries(dv[i], memory.code, tile.g, head, unit);
            } else {
                add_over_keys(gradient[i], memory.ds, tile.k, head, unit);
            }
        }
        if constexpr (KEY_PASS && ADDS_QUERY_GRADIENT) add_query_gradient(a, s, memory, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            copy_next(next, next_other, first + STEP);
        }
        walked = next, walked_other = next_other;
    }
    wait_for_copies<0>();

    const long long row = KEY_PASS ? output_row(a, s.index, s.first_key, s.keys)
                                   : output_row(a, s.index, s.first_query, s.queries);
    const long long start = (row + own) * (HEADS * WIDTH);
#pragma unroll
    for (int i = 0; i < TASKS; ++i) {
        if (!is_task(i)) break;
        store_sums(a.first + start, gradient[i], 1.f, task_head(i), task_unit(i), count);
        if constexpr (KEY_PASS) {
            store_sums(a.second + start, dv[i], with_gain(a.output, 1.f), task_head(i), task_unit(i),
                       count);
        }
    }
}

#endif
