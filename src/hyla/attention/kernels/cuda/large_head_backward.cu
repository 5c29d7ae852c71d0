// Backward by recomputation:
//
//     dz = Σ_h a[h] G[q,h]          one product per query        dp = dz · φ'(p)
//     da[h] = G[q,h]·z + dp·V[k,h]  per query, and per key
//     ds = r (da − a · mean_h(da a))                             (RMSHead; softmax: a da; else da)
//     dV[k,h] += Σ_q a dp (per key),   dK[k,h] += Σ_q (scale ds) Q,   dQ[q,h] += Σ_k (scale ds) K
//
// The key pass makes dK and dV and, if ADDS_QUERY_GRADIENT, adds its share of dQ to global memory
// atomically. For sums in a fixed order it leaves dQ to the query pass, which computes everything
// up to ds again. The gradient of the bias is ds itself.
//
// Of a softmax's ds = a (da − Σ_k a da) only the first part is known before the last key is. What
// dK and dQ lack is linear in the row sums Σ_k a da; those are written too, and `softmax_rows.py`
// makes the rest of them. A row sum is one more entry of dQ, with a key that is 1 there, so that it
// adds up the very ds, rounded, which dQ does.
//
// A block owns KEYS keys (key pass) or QUERIES queries (query pass) and walks over the others, in
// tiles of 8 queries × KEYS keys. Step by step, with a barrier after each:
//
//     scores   each warp some heads; partial sums of squares go to shared memory
//     code     as in the forward
//     hidden   each warp 16 of d and 8 keys: p, z, dz, dp, dV; z and dp go to shared memory,
//              because what follows contracts d, over which they were split
//     codes'   each warp some queries (G·z) and some keys (dp·V)
//     ds       a thread per pair
//     rest     each warp some heads: dK or dQ

#define PASS_QUERY 1
#define PASS_KEY 2

constexpr bool KEY_PASS = PASS == PASS_KEY;
constexpr int OWN_QUERIES = KEY_PASS ? 8 : QUERIES;
constexpr int TASKS = SLICES * (KEYS / 8);
constexpr int TASKS_PER_WARP = (TASKS + WARPS - 1) / WARPS;
constexpr int HEADS_PER_WARP = (HEADS + WARPS - 1) / WARPS;
constexpr int KEY_UNITS = KEYS / 16;
static_assert(KEYS % 16 == 0 && QUERIES % 8 == 0, "tile");
static_assert(!SOFTMAX || BIAS_GRADIENT == BIAS_GRADIENT_NONE, "its ds is not all of the gradient");

constexpr int HIDDEN_ROW = KEYS * HEAD_PITCH + 8;          // [query][key][d]
constexpr int PAIR_PITCH = ALL_HEADS + 4;                  // floats: [query][key][head]
constexpr int PAIR_ROW = KEYS * PAIR_PITCH + 4;
constexpr int SCORE_PITCH = KEYS + 8;                      // [head][query][key]

struct Memory {
    Half k[KEYS * TOKEN_PITCH], v[KEYS * TOKEN_PITCH];
    Half q[OWN_QUERIES * TOKEN_PITCH], g[OWN_QUERIES * TOKEN_PITCH];
    Half code[8 * CODE_ROW];
    float inverse[8 * KEYS];  // r, and 0 for a masked pair
    union {
        float4 squares[WARPS][KEY_UNITS][WARP];
        float from_z[8 * PAIR_ROW];  // G·z
    };
    float from_p[8 * PAIR_ROW];  // dp·V
    union {
        Half z[8 * HIDDEN_ROW];
        Half ds[HEADS * 8 * SCORE_PITCH];
    };
    Half dp[8 * HIDDEN_ROW];
};

// ---------------------------------------------------------------- the steps of a tile

typedef float Scores[HEADS_PER_WARP][KEY_UNITS][4];
typedef bool Seen[KEY_UNITS][4];

DEVICE void scores(Scores &score, Seen &all_seen, Memory &memory, const Half *queries, const Arguments &a,
                   const Sequence &s, int first_query, int first_key) {
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        bool(&seen)[4] = all_seen[unit];
        float sum[4] = {};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            seen[e] = visible(a, s, first_query + query_of(e), first_key + unit * 16 + key_of(e));
        }
#pragma unroll
        for (int i = 0; i < HEADS_PER_WARP; ++i) {
            const int head = my_warp() + i * WARPS;
            if (head >= HEADS) break;
            float(&c)[4] = score[i][unit];
            head_scores(c, memory.k + unit * 16 * TOKEN_PITCH, queries, head);
            add_bias(c, a, s, head, first_query, first_key + unit * 16, seen);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += c[e] * c[e];
        }
        if constexpr (!SOFTMAX) {
            memory.squares[my_warp()][unit][my_lane()] =
                make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
    }
}

typedef float Exponents[HEADS_PER_WARP][2];  // [query of the lane]

DEVICE void load_exponents(Exponents &exponent, const Arguments &a, const Sequence &s,
                           int first_query) {
#pragma unroll
    for (int query = 0; query < 2; ++query) {
        const float *from = log_sums_of(a, s, first_query + query_of(query));
#pragma unroll
        for (int i = 0; i < HEADS_PER_WARP; ++i) {
            const int head = my_warp() + i * WARPS;
            if (head >= HEADS) break;
            exponent[i][query] = __ldg(from + head) * -LOG2_E;
        }
    }
}

DEVICE void write_softmax_code(const Scores &score, const Seen &seen, const Exponents &exponent,
                               Memory &memory, const Arguments &a) {
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = unit * 16 + key_of(e), query = query_of(e);
#pragma unroll
            for (int i = 0; i < HEADS_PER_WARP; ++i) {
                const int head = my_warp() + i * WARPS;
                if (head >= HEADS) break;
                const float x = softmax_code(score[i][unit][e], exponent_scale(a),
                                             exponent[i][e % 2], seen[unit][e]);
                memory.code[query * CODE_ROW + key * CODE_PITCH + head] =
                    static_cast<Half>(pack(x, 0.f));
            }
        }
    }
}

DEVICE void code(const Scores &score, const Seen &seen, Memory &memory, const Arguments &a) {
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        float sum[4] = {};
        if constexpr (NORMALISED) {
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) {
                const float4 part = memory.squares[warp][unit][my_lane()];
                sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
            }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = unit * 16 + key_of(e), query = query_of(e);
            const float r = inverse_root(a, sum[e], seen[unit][e]);
            if (my_warp() == 0) memory.inverse[query * KEYS + key] = r;
            const float factor = remaining_scale(a) * r;
#pragma unroll
            for (int i = 0; i < HEADS_PER_WARP; ++i) {
                const int head = my_warp() + i * WARPS;
                if (head >= HEADS) break;
                memory.code[query * CODE_ROW + key * CODE_PITCH + head] =
                    static_cast<Half>(pack(score[i][unit][e] * factor, 0.f));
            }
        }
    }
}

typedef float ValueGradient[TASKS_PER_WARP][8][GROUPS][4];  // [key][eight of heads]

DEVICE void hidden(ValueGradient &dv, Memory &memory, const Half *upstream) {
    const int lane = my_lane();
#pragma unroll
    for (int task = 0; task < TASKS_PER_WARP; ++task) {
        const int number = my_warp() + task * WARPS;
        if (number >= TASKS) break;
        const int d = number % SLICES * 16, key = number / SLICES * 8;
        const Half *code = memory.code + key * CODE_PITCH;

        Pair p[2][2][4];  // [query of its pair][upper rows][pair], a pair of keys each
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            Pair left[2][GROUPS][2], right[2][GROUPS];
            load_heads_of_two(left, memory.v + (key + 2 * r) * TOKEN_PITCH + d);
            load_code_of_two(right, code + permuted(lane % 8, r) * CODE_ROW +
                                        (2 * r + lane / 8 % 2) * CODE_PITCH);
            float c[2][4];
            contract_heads(c[0], left[0], right[0]);
            contract_heads(c[1], left[1], right[1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) p[i % 2][i / 2][r] = pack(c[0][i], c[1][i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) exchange_registers(p[i % 2][i / 2]);

        Pair dp[2][2][4];  // [key of its pair][upper rows][pair], a pair of queries each
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            Pair left[2][GROUPS][2], right[2][GROUPS];
            load_heads_of_two(left, upstream + 2 * m * TOKEN_PITCH + d);
            load_code_of_two(right, code + (2 * m + lane / 8 % 2) * CODE_ROW +
                                        permuted(lane % 8, m) * CODE_PITCH);
            float dz[2][4];
            contract_heads(dz[0], left[0], right[0]);
            contract_heads(dz[1], left[1], right[1]);
            Pair z[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // query i / 2, rows i % 2
                const Activation x = activate(first_of(p[i / 2][i % 2][m]));
                const Activation y = activate(second_of(p[i / 2][i % 2][m]));
                z[i] = pack(x.value, y.value);
                dz[i / 2][i % 2 * 2] *= x.slope;
                dz[i / 2][i % 2 * 2 + 1] *= y.slope;
            }
            store_matrices_transposed(memory.z + (2 * m + lane / 16) * HIDDEN_ROW +
                                          (key + permuted(lane % 8, m)) * HEAD_PITCH + d +
                                          lane / 8 % 2 * 8, z);
#pragma unroll
            for (int i = 0; i < 4; ++i) dp[i % 2][i / 2][m] = pack(dz[0][i], dz[1][i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) exchange_registers(dp[i % 2][i / 2]);

#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const Pair x[4] = {dp[0][0][r], dp[0][1][r], dp[1][0][r], dp[1][1][r]};
            store_matrices_transposed(memory.dp + permuted(lane % 8, r) * HIDDEN_ROW +
                                          (key + 2 * r + lane / 16) * HEAD_PITCH + d +
                                          lane / 8 % 2 * 8, x);
            if constexpr (KEY_PASS) {
#pragma unroll
                for (int g = 0; g < GROUPS; g += 2) {
                    const int next = g + 1 < GROUPS ? lane / 16 : 0;
                    Pair b[4];
                    load_matrices_transposed(b, code + permuted(lane % 8, r) * CODE_ROW +
                                                    (2 * r + lane / 8 % 2) * CODE_PITCH +
                                                    (g + next) * 8);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float(&even)[4] = dv[task][2 * r + i][g];
                        multiply_add(even, even, dp[i][0][r], dp[i][1][r], b[i]);
                        if (g + 1 < GROUPS) {
                            float(&odd)[4] = dv[task][2 * r + i][g + 1];
                            multiply_add(odd, odd, dp[i][0][r], dp[i][1][r], b[2 + i]);
                        }
                    }
                }
            }
        }
    }
}

// G·z for all keys of one query.
DEVICE void code_gradient_from_z(Memory &memory, const Half *upstream, int query) {
    const int lane = my_lane();
#pragma unroll
    for (int unit = 0; unit < KEYS; unit += 16) {
        const Half *z = memory.z + query * HIDDEN_ROW + unit * HEAD_PITCH;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float c[4];
            contract_width(c, z, HEAD_PITCH, upstream + query * TOKEN_PITCH + g * 8 * HEAD_PITCH,
                           HEAD_PITCH);
            float *to = memory.from_z + query * PAIR_ROW + (unit + lane / 4) * PAIR_PITCH + g * 8 +
                        lane % 4 * 2;
            to[0] = c[0], to[1] = c[1];
            to[8 * PAIR_PITCH] = c[2], to[8 * PAIR_PITCH + 1] = c[3];
        }
    }
}

// dp·V for all queries of one key.
DEVICE void code_gradient_from_p(Memory &memory, int key) {
    const int lane = my_lane();
#pragma unroll
    for (int g = 0; g < GROUPS; g += 2) {  // rows 8-15 may be no heads: they are not stored then
        float c[4];
        contract_width(c, memory.v + key * TOKEN_PITCH + g * 8 * HEAD_PITCH, HEAD_PITCH,
                       memory.dp + key * HEAD_PITCH, HIDDEN_ROW);
        float *to = memory.from_p + lane % 4 * 2 * PAIR_ROW + key * PAIR_PITCH + g * 8 + lane / 4;
        to[0] = c[0], to[PAIR_ROW] = c[1];
        if (g + 1 < GROUPS) to[8] = c[2], to[PAIR_ROW + 8] = c[3];
    }
}

DEVICE void code_gradient(Memory &memory, const Half *upstream) {
#pragma unroll
    for (int query = 0; query < 8; query += WARPS) {
        if (query + my_warp() < 8) code_gradient_from_z(memory, upstream, query + my_warp());
    }
#pragma unroll
    for (int key = 0; key < KEYS; key += WARPS) {
        if (key + my_warp() < KEYS) code_gradient_from_p(memory, key + my_warp());
    }
}

DEVICE float in_range(float x) {  // bf16 has the range of float32
    return KIND == 1 && x == x ? fminf(fmaxf(x, -65504.f), 65504.f) : x;
}

DEVICE void score_gradient(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                           int first_key) {
    for (int pair = threadIdx.x; pair < 8 * KEYS; pair += THREADS) {
        const int query = pair / KEYS, key = pair % KEYS;
        const float *from_z = memory.from_z + query * PAIR_ROW + key * PAIR_PITCH;
        const float *from_p = memory.from_p + query * PAIR_ROW + key * PAIR_PITCH;
        const Half *code = memory.code + query * CODE_ROW + key * CODE_PITCH;
        float da[HEADS], mean = 0.f;
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            da[h] = from_z[h] + from_p[h];
            if constexpr (NORMALISED) mean += da[h] * first_of(code[h]) * (1.f / HEADS);
        }
        const float r = SOFTMAX ? 0.f : memory.inverse[pair];
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float a_h = first_of(code[h]);
            float raw = SOFTMAX ? a_h * da[h] : r * (da[h] - a_h * mean);
            if (r != 0.f && masked_by_bias(a, s, h, first_query + query, first_key + key, a_h)) {
                raw = 0.f;
            }
            const float ds = with_gain(a.output, raw);
            // Scaled here, where it keeps fp16 in its range, and nowhere later.
            memory.ds[(h * 8 + query) * SCORE_PITCH + key] =
                static_cast<Half>(pack(in_range(ds * a.scale), 0.f));
            if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
                if (r == 0.f) continue;
                add_bias_gradient(a, s, h, first_query + query, first_key + key, ds);
            }
        }
    }
}

typedef float KeyGradient[HEADS_PER_WARP][KEY_UNITS][WIDTH / 8][4];  // [16 keys × 8 of d]

DEVICE void key_gradient(KeyGradient &dk, const Memory &memory) {
    const int lane = my_lane();
    constexpr int COLUMNS = WIDTH / 8;
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        const int head = my_warp() + i * WARPS;
        if (head >= HEADS) break;
#pragma unroll
        for (int unit = 0; unit < KEY_UNITS; ++unit) {
            Pair a[4];  // two matrices, loaded twice
            load_matrices_transposed(a, memory.ds + (head * 8 + lane % 8) * SCORE_PITCH +
                                            unit * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int n = 0; n < COLUMNS; n += 4) {
                const int column = smaller(n + lane / 8, COLUMNS - 1);
                Pair b[4];
                load_matrices_transposed(b, memory.q + lane % 8 * TOKEN_PITCH + head * HEAD_PITCH +
                                                column * 8);
#pragma unroll
                for (int j = 0; j < 4 && n + j < COLUMNS; ++j) {
                    multiply_add(dk[i][unit][n + j], dk[i][unit][n + j], a[0], a[1], b[j]);
                }
            }
        }
    }
}

// [16 of d × 8 queries]; for a softmax a last slice, whose rows are the row sums all of them.
constexpr int ROW_SUMS = SOFTMAX ? SLICES : 0;
typedef float HeadGradient[SLICES + SOFTMAX][4];
typedef HeadGradient QueryGradient[HEADS_PER_WARP][OWN_QUERIES / 8];

// c [slice] += Σ_k K ds, for the eight queries of the tile.
DEVICE void query_gradient_of_head(HeadGradient &c, const Memory &memory, int head) {
    const int lane = my_lane();
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        Pair b[4];  // two matrices, loaded twice
        load_matrices(b, memory.ds + (head * 8 + lane % 8) * SCORE_PITCH + unit * 16 +
                             lane / 8 % 2 * 8);
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            Pair x[4];
            load_matrices_transposed(
                x, memory.k + (unit * 16 + lane % 8 + lane / 16 * 8) * TOKEN_PITCH +
                       head * HEAD_PITCH + slice * 16 + lane / 8 % 2 * 8);
            multiply_add(c[slice], c[slice], x[0], x[1], x[2], x[3], b[0], b[1]);
        }
        if constexpr (SOFTMAX) {
            const Pair ones = pair_of_ones();
            multiply_add(c[ROW_SUMS], c[ROW_SUMS], ones, ones, ones, ones, b[0], b[1]);
        }
    }
}

DEVICE void query_gradient(QueryGradient &dq, const Memory &memory, int group) {
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        const int head = my_warp() + i * WARPS;
        if (head >= HEADS) break;
#pragma unroll
        for (int g = 0; g < OWN_QUERIES / 8; ++g) {  // registers have no number at run time
            if (g == group) query_gradient_of_head(dq[i][g], memory, head);
        }
    }
}

DEVICE float *row_sum(const Arguments &a, long long row, int head) {
    return a.row_sums + row * HEADS + head;
}

DEVICE void add_query_gradient(const Arguments &a, const Sequence &s, const Memory &memory,
                               int first_query) {
    const long long start = output_row(a, s.index, s.first_query, s.queries) + first_query;
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        const int head = my_warp() + i * WARPS;
        if (head >= HEADS) break;
        HeadGradient c = {};
        query_gradient_of_head(c, memory, head);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (first_query + query_of(e) >= s.queries) continue;
            float *to = a.query_gradient + ((start + query_of(e)) * HEADS + head) * WIDTH +
                        my_lane() / 4 + e / 2 * 8;
#pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) atomicAdd(to + slice * 16, c[slice][e]);
            if constexpr (SOFTMAX) {
                const bool adds = my_lane() < 4 && e < 2;
                if (adds) atomicAdd(row_sum(a, start + query_of(e), head), c[ROW_SUMS][e]);
            }
        }
    }
}

// ---------------------------------------------------------------- the two passes

DEVICE void store_half(Half *to, float x) { *to = static_cast<Half>(pack(x, 0.f)); }

DEVICE void clear(Memory &memory) {
    clear_missing_heads<KEYS>(memory.k);
    clear_missing_heads<KEYS>(memory.v);
    clear_missing_heads<OWN_QUERIES>(memory.q);
    clear_missing_heads<OWN_QUERIES>(memory.g);
    for (int i = threadIdx.x; i < 8 * CODE_ROW; i += THREADS) memory.code[i] = 0;
}

// Everything up to ds, for queries that lie in shared memory at `own_query`.
DEVICE void gradients_of_tile(ValueGradient &dv, Memory &memory, const Arguments &a,
                              const Sequence &s, int own_query, int first_query, int first_key) {
    const Half *upstream = memory.g + own_query * TOKEN_PITCH;
    Scores score;
    Seen seen;
    const Half *queries = memory.q + own_query * TOKEN_PITCH;
    if constexpr (SOFTMAX) {
        Exponents exponent;
        load_exponents(exponent, a, s, first_query);  // while the scores are computed
        scores(score, seen, memory, queries, a, s, first_query, first_key);
        write_softmax_code(score, seen, exponent, memory, a);
    } else {
        scores(score, seen, memory, queries, a, s, first_query, first_key);
        __syncthreads();
        code(score, seen, memory, a);
    }
    __syncthreads();
    hidden(dv, memory, upstream);
    __syncthreads();
    code_gradient(memory, upstream);
    __syncthreads();
    score_gradient(memory, a, s, first_query, first_key);
    __syncthreads();
}

#if PASS == PASS_KEY

DEVICE void store_gradients(const Arguments &a, const Sequence &s, int first_key,
                            const KeyGradient &dk, const ValueGradient &dv) {
    const int lane = my_lane();
    const long long start = output_row(a, s.index, s.first_key, s.keys);
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        const int head = my_warp() + i * WARPS;
        if (head >= HEADS) break;
#pragma unroll
        for (int unit = 0; unit < KEY_UNITS; ++unit) {
#pragma unroll
            for (int n = 0; n < WIDTH / 8; ++n) {
#pragma unroll
                for (int upper = 0; upper < 2; ++upper) {
                    const int key = first_key + unit * 16 + lane / 4 + upper * 8;
                    if (key >= s.keys) continue;
                    const float(&c)[4] = dk[i][unit][n];
                    Half *to = a.first + ((start + key) * HEADS + head) * WIDTH + n * 8 +
                               lane % 4 * 2;
                    *reinterpret_cast<Pair *>(to) = pack(c[2 * upper], c[2 * upper + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int task = 0; task < TASKS_PER_WARP; ++task) {
        const int number = my_warp() + task * WARPS;
        if (number >= TASKS) break;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int key = first_key + number / SLICES * 8 + i;
            if (key >= s.keys) break;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int head = g * 8 + lane % 4 * 2 + e % 2;
                    const int d = number % SLICES * 16 + lane / 4 + e / 2 * 8;
                    if (head >= HEADS) continue;
                    store_half(a.second + ((start + key) * HEADS + head) * WIDTH + d,
                               with_gain(a.output, dv[task][i][g][e]));
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_key = static_cast<int>(blockIdx.x / a.batch) * KEYS;
    if (first_key >= s.keys) return;
    const Half *q = tokens_of(a, a.q, s.index, s.first_query);
    const Half *upstream = tokens_of(a, a.upstream, s.index, s.first_query);
    const int unseen = first_key - s.reach;  // queries that see none of the keys
    const int begin = unseen > 0 ? unseen / 8 * 8 : 0;

    clear(memory);
    copy_tokens<KEYS>(memory.k, tokens_of(a, a.k, s.index, s.first_key), a.k, first_key, s.keys);
    copy_tokens<KEYS>(memory.v, tokens_of(a, a.v, s.index, s.first_key), a.v, first_key, s.keys);
    copy_tokens<8>(memory.g, upstream, a.upstream, begin, s.queries);
    KeyGradient dk = {};
    ValueGradient dv = {};
#pragma unroll 1
    for (int query = begin; query < s.queries; query += 8) {
        copy_tokens<8>(memory.q, q, a.q, query, s.queries);
        copies_done();
        __syncthreads();
        gradients_of_tile(dv, memory, a, s, 0, query, first_key);
        copy_tokens<8>(memory.g, upstream, a.upstream, query + 8, s.queries);
        key_gradient(dk, memory);
        if constexpr (ADDS_QUERY_GRADIENT) add_query_gradient(a, s, memory, query);
        __syncthreads();
    }
    copies_done();
    store_gradients(a, s, first_key, dk, dv);
}

#else

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x / a.batch)) * QUERIES;
    if (first_query >= s.queries) return;
    const int end = smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const Half *v = tokens_of(a, a.v, s.index, s.first_key);

    clear(memory);
    copy_tokens<QUERIES>(memory.q, tokens_of(a, a.q, s.index, s.first_query), a.q, first_query,
                         s.queries);
    copy_tokens<QUERIES>(memory.g, tokens_of(a, a.upstream, s.index, s.first_query), a.upstream,
                         first_query, s.queries);
    copy_tokens<KEYS>(memory.v, v, a.v, 0, end);
    QueryGradient dq = {};
    ValueGradient unused;
#pragma unroll 1
    for (int key = 0; key < end; key += KEYS) {
        copy_tokens<KEYS>(memory.k, k, a.k, key, end);
        copies_done();
        __syncthreads();
#pragma unroll 1
        for (int group = 0; group < QUERIES / 8; ++group) {
            gradients_of_tile(unused, memory, a, s, group * 8, first_query + group * 8, key);
            if (group + 1 == QUERIES / 8) copy_tokens<KEYS>(memory.v, v, a.v, key + KEYS, end);
            query_gradient(dq, memory, group);
            __syncthreads();
        }
    }
    copies_done();

    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        const int head = my_warp() + i * WARPS;
        if (head >= HEADS) break;
#pragma unroll
        for (int group = 0; group < QUERIES / 8; ++group) {
#pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int query = first_query + group * 8 + query_of(e);
                    const int d = slice * 16 + my_lane() / 4 + e / 2 * 8;
                    if (query >= s.queries) continue;
                    store_half(a.first + ((start + query) * HEADS + head) * WIDTH + d,
                               dq[i][group][slice][e]);
                }
            }
            if constexpr (SOFTMAX) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int query = first_query + group * 8 + query_of(e);
                    const bool stores = my_lane() < 4 && query < s.queries;
                    if (stores) *row_sum(a, start + query, head) = dq[i][group][ROW_SUMS][e];
                }
            }
        }
    }
}

#endif
