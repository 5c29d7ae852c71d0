// Forward: a block owns QUERIES queries and walks over the keys, KEYS at a time. For each tile all
// warps first share out the scores (units of 16 keys, all heads), write the code to shared memory,
// and then each warp takes its 16 of d and its queries through p, φ and O.

constexpr int Q_GROUPS = QUERIES / 8 * SLICES / WARPS;  // eights of queries that a warp owns
constexpr int CHUNK = GROUPS == 1 && Q_GROUPS <= 2 && KEYS % 32 == 0 ? 2 : 1;  // eights of keys
// Eights of queries in a unit of scores: two load less, but all scores of a unit are registers.
constexpr int UNIT = GROUPS == 1 && QUERIES * KEYS >= 256 * WARPS ? 2 : 1;
constexpr int UNITS = QUERIES / (8 * UNIT) * (KEYS / 16);
constexpr int HALF_TILE = KEYS / 2;
static_assert(WARPS * Q_GROUPS == QUERIES / 8 * SLICES, "every warp owns as much as the others");
static_assert(QUERIES % (8 * UNIT) == 0 && HALF_TILE % (8 * CHUNK) == 0, "tile");

struct Memory {
    Half q[QUERIES * TOKEN], k[KEYS * TOKEN], v[KEYS * TOKEN];
    Half code[GROUPS * QUERIES * KEYS * 8];
};

typedef ByHead<QUERIES> QueryOrder;
typedef ByHead<KEYS> KeyOrder;

// ---------------------------------------------------------------- the code of a tile

typedef float Scores[8][UNIT][4];  // of eight heads

// Up to this many heads keep their scores in registers until the sum of squares is known; more
// are computed a second time.
constexpr bool KEEPS_SCORES = GROUPS <= 2 || !NORMALISED;

// A query of a lane, eight heads; heads that do not exist get a code of 0.
DEVICE void load_exponents(float (&x)[8], const Arguments &a, const Sequence &s, int query,
                           int group) {
    const float *from = log_sums_of(a, s, query) + group * 8;
#pragma unroll
    for (int i = 0; i < 8; i += HEADS % 4 == 0 ? 4 : 1) {
        if (ALL_HEADS != HEADS && group * 8 + i >= HEADS) break;
        if constexpr (HEADS % 4 == 0) {
            const float4 four = __ldg(reinterpret_cast<const float4 *>(from + i));
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        } else {
            x[i] = __ldg(from + i);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const bool exists = ALL_HEADS == HEADS || group * 8 + i < HEADS;
        x[i] = exists ? x[i] * -LOG2_E : NO_CODE;
    }
}

// In place, from scores to the codes of a softmax; 0 where a pair is masked.
DEVICE void soften(Scores &score, const Arguments &a, const Sequence &s,
                   const float (&exponent)[UNIT][2][8], int first_query, int first_key) {
    const float scale = exponent_scale(a);
#pragma unroll
    for (int u = 0; u < UNIT; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int query = first_query + 8 * u + query_of(e);
            const bool seen = visible(a, s, query, first_key + key_of(e));
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                score[i][u][e] = softmax_code(score[i][u][e], scale, exponent[u][e % 2][i], seen);
            }
        }
    }
}

// Of eight heads, with a softmax their codes.
DEVICE void group_scores(Scores &score, const Arguments &a, const Sequence &s, Shared keys,
                         Shared queries, int group, int first_query, int first_key) {
    float exponent[UNIT][2][8];
    if constexpr (SOFTMAX) {  // while scores are computed
#pragma unroll
        for (int i = 0; i < 2 * UNIT; ++i) {
            const int query = first_query + i / 2 * 8 + query_of(i % 2);
            load_exponents(exponent[i / 2][i % 2], a, s, query, group);
        }
    }
    head_scores<8, UNIT>(score, keys + group * 8 * KEYS * ROW, queries + group * 8 * QUERIES * ROW);
#pragma unroll
    for (int i = 0; i < 8 * UNIT; ++i) {
        const int head = group * 8 + i / UNIT;
        if (ALL_HEADS != HEADS && head >= HEADS) break;
        add_bias(score[i / UNIT][i % UNIT], a, s, head, first_query + i % UNIT * 8, first_key);
    }
    if constexpr (SOFTMAX) soften(score, a, s, exponent, first_query, first_key);
}

typedef float PerPair[UNIT][4];

DEVICE void add_squares(PerPair &sum, const Scores &score) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int u = 0; u < UNIT; ++u) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[u][e] += score[i][u][e] * score[i][u][e];
        }
    }
}

// What the scores of a pair are multiplied by; 0 where it is masked, if a softmax's are not already.
DEVICE void factors_of(PerPair &factor, const Arguments &a, const Sequence &s, const PerPair &sum,
                       int first_query, int first_key) {
    const bool all = SOFTMAX || all_visible(s, first_query, 8 * UNIT, first_key);
#pragma unroll
    for (int u = 0; u < UNIT; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            factor[u][e] = scale_of_code(a) * inverse_root(a, sum[u][e]);
            const int query = first_query + 8 * u + query_of(e);
            if (!all && !visible(a, s, query, first_key + key_of(e))) factor[u][e] = 0.f;
        }
    }
}

DEVICE void store_code(char *code, const Scores &score, const PerPair &factor) {
#pragma unroll
    for (int u = 0; u < UNIT; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float f = factor[u][e];
            Pair x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = pack(score[2 * i][u][e] * f, score[2 * i + 1][u][e] * f);
            }
            *reinterpret_cast<uint4 *>(code + code_place(0, 8 * u + query_of(e), key_of(e))) =
                make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

DEVICE void write_unit(Memory &memory, const Arguments &a, const Sequence &s, int row, int column,
                       int first_query, int first_key) {
    const Shared keys = shared_address(memory.k) + left_rows(column);
    const Shared queries = shared_address(memory.q) + right_rows<UNIT>(row);
    char *code = reinterpret_cast<char *>(memory.code) + row * CODE_ROW + column * CODE_PIECE;
    PerPair sum = {}, factor;
    if constexpr (KEEPS_SCORES && NORMALISED) {
        Scores score[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            group_scores(score[g], a, s, keys, queries, g, first_query, first_key);
            add_squares(sum, score[g]);
        }
        factors_of(factor, a, s, sum, first_query, first_key);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) store_code(code + g * CODE_GROUP, score[g], factor);
    } else {
        Scores score;
        if constexpr (NORMALISED) {
#pragma unroll 1
            for (int g = 0; g < GROUPS; ++g) {
                group_scores(score, a, s, keys, queries, g, first_query, first_key);
                add_squares(sum, score);
            }
        }
        factors_of(factor, a, s, sum, first_query, first_key);
#pragma unroll 1
        for (int g = 0; g < GROUPS; ++g) {
            group_scores(score, a, s, keys, queries, g, first_query, first_key);
            store_code(code + g * CODE_GROUP, score, factor);
        }
    }
}

DEVICE void write_code(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                       int first_key, int end) {
#pragma unroll 1
    for (int unit = my_warp(); unit < UNITS; unit += WARPS) {
        const int row = unit % (QUERIES / (8 * UNIT)) * 8 * UNIT;
        const int column = unit / (QUERIES / (8 * UNIT)) * 16;
        if (first_key + column >= end) continue;  // nobody will read it
        write_unit(memory, a, s, row, column, first_query + row, first_key + column);
    }
}

// ---------------------------------------------------------------- hidden and output layer

// z of 8 CHUNK keys, 16 of d and the warp's queries: [eight of queries][eight of keys][query of
// its pair][upper rows][pair of queries], each register a pair of keys.
typedef Pair Hidden[Q_GROUPS][CHUNK][2][2][4];

DEVICE void hidden_layer(Hidden &z, Shared values, Shared code) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNK; ++chunk) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            Pair v[2][GROUPS][2], b[Q_GROUPS][2][GROUPS];
            load_heads_of_two(v, values + (chunk * 8 + 2 * r) * ALL_HEADS * ROW);
            load_code_of_two<Q_GROUPS>(
                b, code + code_by_query(r, neighbour_of_row()) + chunk * 8 * CODE_PIECE);
#pragma unroll
            for (int group = 0; group < Q_GROUPS; ++group) {
                float p[2][4];
                contract_heads(p[0], v[0], b[group][0]);
                contract_heads(p[1], v[1], b[group][1]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    z[group][chunk][i % 2][i / 2][r] = activate_pair(p[0][i], p[1][i]);
                }
            }
        }
#pragma unroll
        for (int group = 0; group < Q_GROUPS; ++group) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                Pair(&x)[4] = z[group][chunk][i % 2][i / 2];
                exchange_registers(x[0], x[1], x[2], x[3]);
            }
        }
    }
}

// out[query][eight of heads] += z · code over those keys.
DEVICE void output_layer(float (&out)[Q_GROUPS][8][GROUPS][4], const Hidden &z, Shared code) {
    const int lane = my_lane();
    constexpr int MATRICES = 2 * CHUNK * GROUPS;
#pragma unroll
    for (int group = 0; group < Q_GROUPS; ++group) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            Pair b[MATRICES + 3];  // [eight of heads][query of the pair][eight of keys]
#pragma unroll
            for (int i = 0; i < MATRICES; i += 4) {
                const int mine = smaller(i + lane / 8, MATRICES - 1);
                const int chunk = mine % CHUNK, query = mine / CHUNK % 2, g = mine / (2 * CHUNK);
                Pair four[4];
                load_matrices_transposed(four, code + code_by_key(m, query) + g * CODE_GROUP +
                                                   group * 8 * CODE_ROW + chunk * 8 * CODE_PIECE);
#pragma unroll
                for (int j = 0; j < 4 && i + j < MATRICES; ++j) b[i + j] = four[j];
            }
#pragma unroll
            for (int query = 0; query < 2; ++query) {
#pragma unroll
                for (int g = 0; g < GROUPS; ++g) {
                    float(&c)[4] = out[group][2 * m + query][g];
                    const Pair(&first)[2][4] = z[group][0][query];
                    const Pair *own = b + (2 * g + query) * CHUNK;
                    if constexpr (CHUNK == 2) {
                        const Pair(&second)[2][4] = z[group][CHUNK - 1][query];
                        multiply_add(c, c, first[0][m], first[1][m], second[0][m], second[1][m],
                                     own[0], own[1]);
                    } else {
                        multiply_add(c, c, first[0][m], first[1][m], own[0]);
                    }
                }
            }
        }
    }
}

// ---------------------------------------------------------------- the output

// A warp holds 16 of d of its queries: squares are summed over its lanes, and over d in `sums`.
DEVICE void scale_output(float *sums, const Arguments &a, const Sequence &s, int first_query,
                         int own_row, int slice, float (&out)[Q_GROUPS][8][GROUPS][4]) {
    static_assert(Q_GROUPS * 8 <= WARP, "a lane for each query");
    if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
        for (int query = 0; query < Q_GROUPS * 8; ++query) {
            float squares = 0.f;
#pragma unroll
            for (int i = 0; i < GROUPS * 4; ++i) {
                const float x = out[query / 8][query % 8][i / 4][i % 4];
                squares += x * x;
            }
#pragma unroll
            for (int mask = WARP / 2; mask > 0; mask /= 2) {
                squares += __shfl_xor_sync(0xffffffffu, squares, mask);
            }
            if (my_lane() == query) sums[slice * QUERIES + own_row + query] = squares;
        }
        __syncthreads();
    }
    const long long given = factor_row(a, s);
    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int query = 0; query < Q_GROUPS * 8; ++query) {
        const int row = first_query + own_row + query;
        float squares = 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
            for (int i = 0; i < SLICES; ++i) squares += sums[i * QUERIES + own_row + query];
        }
        const float factor = row < s.queries ? output_factor(a.output, given + row, squares) : 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
            const bool writes = slice == 0 && my_lane() == query && row < s.queries;
            if (writes) a.output.total_factor[start + row] = factor;
        }
#pragma unroll
        for (int i = 0; i < GROUPS * 4; ++i) out[query / 8][query % 8][i / 4][i % 4] *= factor;
    }
}

// Through shared memory, so that global memory is written 16 bytes at a time.
DEVICE void store_output(Half *tile, const Arguments &a, const Sequence &s, int first_query,
                         int own_row, int slice, const float (&out)[Q_GROUPS][8][GROUPS][4]) {
    const int lane = my_lane();
    char *bytes = reinterpret_cast<char *>(tile);
#pragma unroll
    for (int query = 0; query < Q_GROUPS * 8; ++query) {
#pragma unroll
        for (int i = 0; i < GROUPS * 4; ++i) {
            const int head = i / 4 * 8 + lane % 4 * 2 + i % 2, upper = i / 2 % 2;
            const Shared at = place(ByToken::row(own_row + query, head), 2 * slice + upper);
            *reinterpret_cast<Half *>(bytes + at + lane / 4 * 2) =
                static_cast<Half>(pack(out[query / 8][query % 8][i / 4][i % 4], 0.f));
        }
    }
    __syncthreads();
    constexpr int ROW_PIECES = WIDTH / 8;
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    for (int i = threadIdx.x; i < QUERIES * HEADS * ROW_PIECES; i += THREADS) {
        const int piece = i % ROW_PIECES, head = i / ROW_PIECES % HEADS;
        const int query = i / (ROW_PIECES * HEADS);
        if (first_query + query >= s.queries) break;
        Half *to = a.first + ((start + first_query + query) * HEADS + head) * WIDTH + piece * 8;
        *reinterpret_cast<uint4 *>(to) =
            *reinterpret_cast<const uint4 *>(bytes + place(ByToken::row(query, head), piece));
    }
}

// The warp's queries and 16 of d, over half of the tile's keys, of which so many are left.
DEVICE void attend(float (&out)[Q_GROUPS][8][GROUPS][4], Shared values, Shared code, int left) {
#pragma unroll 1
    for (int key = 0; key < smaller(HALF_TILE, left); key += 8 * CHUNK) {
        Hidden z;
        hidden_layer(z, values + key * ALL_HEADS * ROW, code + key * CODE_PIECE);
        output_layer(out, z, code + key * CODE_PIECE);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    alignas(1024) extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    // The last queries see the most keys under causality: they start first.
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x / a.batch)) * QUERIES;
    if (first_query >= s.queries) return;
    const int end = smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
    const Half *q = tokens_of(a, a.q, s.index, s.first_query);
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const Half *v = tokens_of(a, a.v, s.index, s.first_key);
    const Shared keys = shared_address(memory.k);
    const Shared values = shared_address(memory.v);
    const Shared later_values = values + HALF_TILE * ALL_HEADS * ROW;

    clear_missing_heads<QUERIES, QueryOrder>(memory.q);
    clear_missing_heads<KEYS, KeyOrder>(memory.k);
    clear_missing_heads<KEYS, ByToken>(memory.v);
    copy_tokens<QUERIES, QueryOrder>(shared_address(memory.q), q, a.q, first_query, s.queries);
    copy_tokens<KEYS, KeyOrder, SHARED_BY>(keys, k, a.k, 0, end);
    close_copies();
    copy_tokens<HALF_TILE, ByToken, SHARED_BY>(values, v, a.v, 0, end);
    close_copies();

    const int slice = my_warp() % SLICES, own_row = my_warp() / SLICES * Q_GROUPS * 8;
    const Shared own_code = shared_address(memory.code) + own_row * CODE_ROW;
    float out[Q_GROUPS][8][GROUPS][4] = {};
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        // At each of three barriers the group of copies that is needed next is there, the one after
        // it is on its way, and what was last read makes room for one more.
        wait_for_copies<1>();
        __syncthreads();
        copy_tokens<HALF_TILE, ByToken, SHARED_BY>(later_values, v, a.v, first_key + HALF_TILE, end);
        close_copies();
        write_code(memory, a, s, first_query, first_key, end);
        wait_for_copies<1>();
        __syncthreads();
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(keys, k, a.k, first_key + KEYS, end);
        close_copies();
        attend(out, values + heads_of_two(slice), own_code, end - first_key);
        wait_for_copies<1>();
        __syncthreads();
        copy_tokens<HALF_TILE, ByToken, SHARED_BY>(values, v, a.v, first_key + KEYS, end);
        close_copies();
        attend(out, later_values + heads_of_two(slice), own_code + HALF_TILE * CODE_PIECE,
               end - first_key - HALF_TILE);
    }
    wait_for_copies<0>();
    __syncthreads();
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) {  // the code is no longer needed
        scale_output(reinterpret_cast<float *>(memory.code), a, s, first_query, own_row, slice, out);
    }
    store_output(memory.q, a, s, first_query, own_row, slice, out);
}
