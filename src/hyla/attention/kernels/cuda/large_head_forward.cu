// Forward: a block owns QUERIES queries and walks over the keys, KEYS at a time. For each tile all
// warps first share out the scores (units of 16 keys × 8 queries, all heads), write the code to
// shared memory, and then each warp takes its 16 of d and its queries through p, φ and O.

constexpr int Q_GROUPS = QUERIES / 8 * SLICES / WARPS;  // eights of queries that a warp owns
constexpr int CHUNK = GROUPS == 1 && Q_GROUPS <= 2 ? 2 : 1;  // eights of keys between p and O
constexpr int UNITS = QUERIES / 8 * (KEYS / 16);
static_assert(WARPS * Q_GROUPS == QUERIES / 8 * SLICES, "every warp owns as much as the others");
static_assert(KEYS % (8 * CHUNK) == 0 && KEYS % 16 == 0 && QUERIES % 8 == 0, "tile");

struct Memory {
    Half q[QUERIES * TOKEN_PITCH], k[KEYS * TOKEN_PITCH], v[KEYS * TOKEN_PITCH];
    Half code[QUERIES * CODE_ROW];
};

// Up to this many heads keep their scores in registers until the sum of squares is known; more
// are computed a second time.
constexpr bool KEEPS_SCORES = GROUPS <= 2 || !NORMALISED;

DEVICE void group_scores(float (&score)[8][4], const Arguments &a, const Sequence &s,
                         const Half *keys, const Half *queries, int group, int first_query,
                         int first_key, const bool (&seen)[4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int head = group * 8 + i;
        if (ALL_HEADS == HEADS || head < HEADS) {
            head_scores(score[i], keys, queries, head);
            add_bias(score[i], a, s, head, first_query, first_key, seen);
        } else {
            score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0.f;
        }
    }
}

DEVICE void add_squares(float (&sum)[4], const float (&score)[8][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += score[i][e] * score[i][e];
    }
}

DEVICE void store_code(Half *code, const float (&score)[8][4], const float (&factor)[4], int group) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const float f = factor[e];
        uint4 packed;
        packed.x = pack(score[0][e] * f, score[1][e] * f);
        packed.y = pack(score[2][e] * f, score[3][e] * f);
        packed.z = pack(score[4][e] * f, score[5][e] * f);
        packed.w = pack(score[6][e] * f, score[7][e] * f);
        Half *to = code + query_of(e) * CODE_ROW + key_of(e) * CODE_PITCH + group * 8;
        *reinterpret_cast<uint4 *>(to) = packed;
    }
}

// Both queries of a lane, eight heads each; heads that do not exist get a code of 0.
DEVICE void load_exponents(float (&exponent)[2][8], const Arguments &a, const Sequence &s,
                           int first_query, int group) {
#pragma unroll
    for (int query = 0; query < 2; ++query) {
        const float *from = log_sums_of(a, s, first_query + query_of(query)) + group * 8;
        float(&x)[8] = exponent[query];
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
}

DEVICE void store_softmax_code(Half *code, const Arguments &a, const float (&score)[8][4],
                               const float (&exponent)[2][8], const bool (&seen)[4], int group) {
    const float scale = exponent_scale(a);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        Pair packed[4];
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            packed[i / 2] = pack(softmax_code(score[i][e], scale, exponent[e % 2][i], seen[e]),
                                 softmax_code(score[i + 1][e], scale, exponent[e % 2][i + 1], seen[e]));
        }
        Half *to = code + query_of(e) * CODE_ROW + key_of(e) * CODE_PITCH + group * 8;
        *reinterpret_cast<uint4 *>(to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
}

DEVICE void write_code(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                       int first_key) {
#pragma unroll 1
    for (int unit = my_warp(); unit < UNITS; unit += WARPS) {
        const int row = unit % (QUERIES / 8) * 8, column = unit / (QUERIES / 8) * 16;
        const Half *queries = memory.q + row * TOKEN_PITCH;
        const Half *keys = memory.k + column * TOKEN_PITCH;
        Half *code = memory.code + row * CODE_ROW + column * CODE_PITCH;
        bool seen[4];
        float sum[4] = {}, factor[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            seen[e] = visible(a, s, first_query + row + query_of(e), first_key + column + key_of(e));
        }
        if constexpr (SOFTMAX) {
#pragma unroll 1
            for (int g = 0; g < GROUPS; ++g) {
                float score[8][4], exponent[2][8];
                load_exponents(exponent, a, s, first_query + row, g);  // while scores are computed
                group_scores(score, a, s, keys, queries, g, first_query + row, first_key + column,
                             seen);
                store_softmax_code(code, a, score, exponent, seen, g);
            }
        } else if constexpr (KEEPS_SCORES && NORMALISED) {
            float score[GROUPS][8][4];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                group_scores(score[g], a, s, keys, queries, g, first_query + row,
                             first_key + column, seen);
                add_squares(sum, score[g]);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                factor[e] = remaining_scale(a) * inverse_root(a, sum[e], seen[e]);
            }
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) store_code(code, score[g], factor, g);
        } else {
            float score[8][4];
            if constexpr (NORMALISED) {
#pragma unroll 1
                for (int g = 0; g < GROUPS; ++g) {
                    group_scores(score, a, s, keys, queries, g, first_query + row,
                                 first_key + column, seen);
                    add_squares(sum, score);
                }
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                factor[e] = remaining_scale(a) * inverse_root(a, sum[e], seen[e]);
            }
#pragma unroll 1
            for (int g = 0; g < GROUPS; ++g) {
                group_scores(score, a, s, keys, queries, g, first_query + row, first_key + column,
                             seen);
                store_code(code, score, factor, g);
            }
        }
    }
}

// z of 8 CHUNK keys, 16 of d and the warp's queries: [eight of queries][eight of keys][query of
// its pair][upper rows][pair of queries], each register a pair of keys.
typedef Pair Hidden[Q_GROUPS][CHUNK][2][2][4];

DEVICE void hidden_layer(Hidden &z, const Half *values, const Half *code) {
    const int lane = my_lane();
#pragma unroll
    for (int chunk = 0; chunk < CHUNK; ++chunk) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int key = chunk * 8 + 2 * r;
            Pair v[2][GROUPS][2];
            load_heads_of_two(v, values + key * TOKEN_PITCH);
            const Half *row = code + permuted(lane % 8, r) * CODE_ROW +
                              (key + lane / 8 % 2) * CODE_PITCH;
            Pair b[Q_GROUPS][2][GROUPS];
            if constexpr (GROUPS == 1 && Q_GROUPS % 2 == 0) {  // one load for two groups
#pragma unroll
                for (int group = 0; group < Q_GROUPS; group += 2) {
                    Pair m[4];
                    load_matrices(m, row + (group + lane / 16) * 8 * CODE_ROW);
                    b[group][0][0] = m[0], b[group][1][0] = m[1];
                    b[group + 1][0][0] = m[2], b[group + 1][1][0] = m[3];
                }
            } else {
#pragma unroll
                for (int group = 0; group < Q_GROUPS; ++group) {
                    load_code_of_two(b[group], row + group * 8 * CODE_ROW);
                }
            }
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
            for (int i = 0; i < 4; ++i) exchange_registers(z[group][chunk][i % 2][i / 2]);
        }
    }
}

// out[query][eight of heads] += z · code over those keys.
DEVICE void output_layer(float (&out)[Q_GROUPS][8][GROUPS][4], const Hidden &z, const Half *code) {
    const int lane = my_lane();
    constexpr int MATRICES = 2 * CHUNK * GROUPS;
#pragma unroll
    for (int group = 0; group < Q_GROUPS; ++group) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            Pair b[MATRICES + 3];  // [eight of heads][eight of keys][query of the pair]
#pragma unroll
            for (int i = 0; i < MATRICES; i += 4) {
                const int mine = smaller(i + lane / 8, MATRICES - 1);
                const int query = mine % 2, chunk = mine / 2 % CHUNK, g = mine / (2 * CHUNK);
                Pair four[4];
                load_matrices_transposed(
                    four, code + (group * 8 + 2 * m + query) * CODE_ROW +
                              (chunk * 8 + permuted(lane % 8, m)) * CODE_PITCH + g * 8);
#pragma unroll
                for (int j = 0; j < 4 && i + j < MATRICES; ++j) b[i + j] = four[j];
            }
#pragma unroll
            for (int query = 0; query < 2; ++query) {
#pragma unroll
                for (int g = 0; g < GROUPS; ++g) {
                    float(&c)[4] = out[group][2 * m + query][g];
                    const Pair(&first)[2][4] = z[group][0][query];
                    if constexpr (CHUNK == 2) {
                        const Pair(&second)[2][4] = z[group][CHUNK - 1][query];
                        multiply_add(c, c, first[0][m], first[1][m], second[0][m], second[1][m],
                                     b[4 * g + query], b[4 * g + 2 + query]);
                    } else {
                        multiply_add(c, c, first[0][m], first[1][m], b[2 * g + query]);
                    }
                }
            }
        }
    }
}

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
#pragma unroll
    for (int query = 0; query < Q_GROUPS * 8; ++query) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            Half *to = tile + (own_row + query) * TOKEN_PITCH +
                       (g * 8 + lane % 4 * 2) * HEAD_PITCH + slice * 16 + lane / 4;
            const float(&c)[4] = out[query / 8][query % 8][g];
            const Pair lower = pack(c[0], c[1]), upper = pack(c[2], c[3]);
            to[0] = static_cast<Half>(lower), to[HEAD_PITCH] = static_cast<Half>(lower >> 16);
            to[8] = static_cast<Half>(upper), to[HEAD_PITCH + 8] = static_cast<Half>(upper >> 16);
        }
    }
    __syncthreads();
    constexpr int PIECES = WIDTH / 8;
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    for (int i = threadIdx.x; i < QUERIES * HEADS * PIECES; i += THREADS) {
        const int piece = i % PIECES, head = i / PIECES % HEADS, query = i / (PIECES * HEADS);
        if (first_query + query >= s.queries) break;
        const Half *from = tile + query * TOKEN_PITCH + head * HEAD_PITCH + piece * 8;
        Half *to = a.first + ((start + first_query + query) * HEADS + head) * WIDTH + piece * 8;
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
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

    clear_missing_heads<QUERIES>(memory.q);
    clear_missing_heads<KEYS>(memory.k);
    clear_missing_heads<KEYS>(memory.v);
    copy_tokens<QUERIES>(memory.q, q, a.q, first_query, s.queries);
    copy_tokens<KEYS>(memory.k, k, a.k, 0, end);

    const int slice = my_warp() % SLICES, own_row = my_warp() / SLICES * Q_GROUPS * 8;
    float out[Q_GROUPS][8][GROUPS][4] = {};
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        copies_done();
        __syncthreads();
        copy_tokens<KEYS>(memory.v, v, a.v, first_key, end);  // while the scores are computed
        write_code(memory, a, s, first_query, first_key);
        copies_done();
        __syncthreads();
        copy_tokens<KEYS>(memory.k, k, a.k, first_key + KEYS, end);  // while the rest is
#pragma unroll 1
        for (int key = 0; key < KEYS; key += 8 * CHUNK) {
            Hidden z;
            const Half *code = memory.code + own_row * CODE_ROW + key * CODE_PITCH;
            hidden_layer(z, memory.v + key * TOKEN_PITCH + slice * 16, code);
            output_layer(out, z, code);
        }
    }
    copies_done();
    __syncthreads();
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) {  // the code is no longer needed
        scale_output(reinterpret_cast<float *>(memory.code), a, s, first_query, own_row, slice, out);
    }
    store_output(memory.q, a, s, first_query, own_row, slice, out);
}
