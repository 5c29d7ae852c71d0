// Forward: a block (or a cluster) owns QUERIES queries and walks over the keys, KEYS at a time. For
// each tile all warps first share out the scores, write the code to shared memory, and then each warp
// takes its 16 of d and its queries through p, φ and O. With WARPGROUPS, scores are products of four
// warps.

constexpr int Q_GROUPS = QUERIES / 8 * SLICES / WARPS;  // eights of queries that a warp owns
constexpr int CHUNK = GROUPS == 1 && Q_GROUPS <= 2 && KEYS % 32 == 0 ? 2 : 1;  // eights of keys
constexpr int HALF_TILE = KEYS / 2;
static_assert(WARPS * Q_GROUPS == QUERIES / 8 * SLICES, "every warp owns as much as the others");
static_assert(HALF_TILE % (8 * CHUNK) == 0, "tile");

struct Memory {
    Half q[QUERIES * TOKEN], k[KEYS * TOKEN], v[KEYS * TOKEN];
    Half code[GROUPS * QUERIES * KEYS * 8];
#if SPLIT > 1
    Squares squares;
#endif
};

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
            load_heads_of_two(v, values + (chunk * 8 + 2 * r) * ALL_HEADS * ByToken::ROW);
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

// A warp holds 16 of d of its queries: squares are summed over its lanes, and over d in `sums`, of
// which every block of the cluster has its own.
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
            if (my_lane() != query) continue;
            float *own = sums + (my_rank() * SLICES + slice) * QUERIES + own_row + query;
#pragma unroll
            for (int i = 0; i < SPLIT; ++i) *in_cluster(own, i) = squares;
        }
        meet();
    }
    const long long given = factor_row(a, s);
    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int query = 0; query < Q_GROUPS * 8; ++query) {
        const int row = first_query + own_row + query;
        float squares = 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
            for (int i = 0; i < SPLIT * SLICES; ++i) {
                squares += sums[i * QUERIES + own_row + query];
            }
        }
        const float factor = row < s.queries ? output_factor(a.output, given + row, squares) : 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
            const bool first = my_rank() == 0 && slice == 0;
            const bool writes = first && my_lane() == query && row < s.queries;
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
            const Shared at = ByToken::place(ByToken::row(own_row + query, head), 2 * slice + upper);
            *reinterpret_cast<Half *>(bytes + at + lane / 4 * 2) =
                static_cast<Half>(pack(out[query / 8][query % 8][i / 4][i % 4], 0.f));
        }
    }
    __syncthreads();
    constexpr int ROW_PIECES = ByToken::ROW_PIECES;
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    for (int i = threadIdx.x; i < QUERIES * HEADS * ROW_PIECES; i += THREADS) {
        const int piece = i % ROW_PIECES, head = i / ROW_PIECES % HEADS;
        const int query = i / (ROW_PIECES * HEADS);
        if (first_query + query >= s.queries) break;
        Half *to = a.first + ((start + first_query + query) * HEADS + head) * WIDTH + my_first_d() +
                   piece * 8;
        const char *from = bytes + ByToken::place(ByToken::row(query, head), piece);
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    }
}

// The warp's queries and 16 of d, over half of the tile's keys, of which so many are left.
DEVICE void attend(float (&out)[Q_GROUPS][8][GROUPS][4], Shared values, Shared code, int left) {
#pragma unroll 1
    for (int key = 0; key < smaller(HALF_TILE, left); key += 8 * CHUNK) {
        Hidden z;
        hidden_layer(z, values + key * ALL_HEADS * ByToken::ROW, code + key * CODE_PIECE);
        output_layer(out, z, code + key * CODE_PIECE);
    }
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, my_task() % a.batch);
    // The last queries see the most keys under causality: they start first.
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - my_task() / a.batch) * QUERIES;
    if (first_query >= s.queries) return;
    const int end = smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
    const Half *q = tokens_of(a, a.q, s.index, s.first_query);
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const Half *v = tokens_of(a, a.v, s.index, s.first_key);
    const Shared keys = shared_address(memory.k);
    const Shared values = shared_address(memory.v);
    const Shared later_values = values + HALF_TILE * ALL_HEADS * ByToken::ROW;

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
    if constexpr (SPLIT > 1) meet();  // all have begun
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        // At each of three barriers the group of copies that is needed next is there, the one after
        // it is on its way, and what was last read makes room for one more.
        wait_for_copies<1>();
#if WARPGROUPS
        publish_to_async();
#endif
        __syncthreads();
        copy_tokens<HALF_TILE, ByToken, SHARED_BY>(later_values, v, a.v, first_key + HALF_TILE, end);
        close_copies();
#if SPLIT == 1
        write_code(memory, a, s, first_query, first_key, end);
#else
        write_code(memory, a, s, keys, shared_address(memory.q), first_query, first_key,
                   [](int, int, float) {}, [](int, int, int, float) {});
#endif
        wait_for_copies<1>();
        meet();
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
    meet();
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) {  // the code is no longer needed
        scale_output(reinterpret_cast<float *>(memory.code), a, s, first_query, own_row, slice, out);
    }
    store_output(memory.q, a, s, first_query, own_row, slice, out);
}
