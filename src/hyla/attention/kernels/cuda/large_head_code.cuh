// The code of a tile where several warps share a unit of 16 keys × 8 queries: each has some heads.
// So it is in the backward and for sums, whose tiles are small, and where a cluster shares the heads.
//
// `memory` has room for the code and for the squares; `memory.squares` must not be in use, in any
// block of the cluster, when `write_code` is called.

constexpr int EIGHTS = QUERIES / 8;
constexpr int KEY_UNITS = KEYS / 16;
constexpr int UNITS = EIGHTS * KEY_UNITS;
constexpr int PARTS = WARPS / UNITS;  // warps of a block that share a unit of scores
constexpr int PART_HEADS = OWN_HEADS / PARTS;
static_assert(WARPS % UNITS == 0 && OWN_HEADS % PARTS == 0, "scores");

typedef ByHead<QUERIES> QueryOrder;
typedef ByHead<KEYS> KeyOrder;
typedef float Scores[PART_HEADS][1][4];
typedef float4 Squares[SPLIT][WARPS][WARP];

// Of the lane's four pairs, all heads.
template <typename Memory>
DEVICE void sum_squares(float (&sum)[4], Memory &memory, const Scores &score) {
#pragma unroll
    for (int i = 0; i < PART_HEADS; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += score[i][0][e] * score[i][0][e];
    }
    if constexpr (SPLIT * PARTS == 1) return;
    float4 *own = &memory.squares[my_rank()][my_warp()][my_lane()];
#pragma unroll
    for (int i = 0; i < SPLIT; ++i) {
        *in_cluster(own, i) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    // Those who share a unit; but all, where n is written next over a ds that others may still read.
    if constexpr (SPLIT == 1 && !RMS_FIRST) group_barrier<PARTS * WARP>();
    else meet();
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
    for (int i = 0; i < SPLIT * PARTS; ++i) {
        const int warp = my_warp() / PARTS * PARTS + i % PARTS;
        const float4 x = memory.squares[i / PARTS][warp][my_lane()];
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
}

// Of the lane's four pairs: r, and 0 for a masked pair.
template <typename Memory>
DEVICE void inverse_roots(float (&r)[4], Memory &memory, const Scores &score, const Arguments &a,
                          const Sequence &s, int first_query, int first_key) {
    float sum[4] = {};
    if constexpr (HAS_RMS) sum_squares(sum, memory, score);
    const bool all = all_visible(s, first_query, 8, first_key);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        r[e] = inverse_root(a, sum[e]);
        if (!all && !visible(a, s, first_query + query_of(e), first_key + key_of(e))) r[e] = 0.f;
    }
}

// COUNT neighbouring heads of a pair.
template <int COUNT>
DEVICE void store_heads(char *to, const float (&x)[COUNT]) {
    if constexpr (COUNT == 1) {
        *reinterpret_cast<Half *>(to) = static_cast<Half>(pack(x[0], 0.f));
    } else {
        constexpr int WORDS = COUNT < 4 ? 1 : COUNT < 8 ? 2 : 4;  // up to one group
#pragma unroll
        for (int i = 0; i < COUNT; i += 2 * WORDS, to += CODE_GROUP) {
            Pair w[WORDS];
#pragma unroll
            for (int j = 0; j < WORDS; ++j) w[j] = pack(x[i + 2 * j], x[i + 2 * j + 1]);
            if constexpr (WORDS == 1) *reinterpret_cast<Pair *>(to) = w[0];
            else if constexpr (WORDS == 2) *reinterpret_cast<uint2 *>(to) = make_uint2(w[0], w[1]);
            else *reinterpret_cast<uint4 *>(to) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// Which of a tile's units of scores a warp has, and which heads of it.
DEVICE int first_row() { return my_warp() / PARTS % EIGHTS * 8; }
DEVICE int first_column() { return my_warp() / PARTS / EIGHTS * 16; }
DEVICE int first_head() { return my_warp() % PARTS * PART_HEADS; }

// Its scores, for the tile at `keys` and `queries`.
DEVICE void unit_scores(Scores &score, const Arguments &a, const Sequence &s, Shared keys,
                        Shared queries, int first_query, int first_key) {
    const int head = first_head();
    head_scores<PART_HEADS, 1>(score,
                               keys + HeadRows::left_rows(KeyOrder::row(first_column(), 0)) +
                                   KeyOrder::row(0, head) * HeadRows::ROW,
                               queries + HeadRows::right_rows<1>(QueryOrder::row(first_row(), 0)) +
                                   QueryOrder::row(0, head) * HeadRows::ROW);
#pragma unroll
    for (int i = 0; i < PART_HEADS; ++i) {
        if (!exists(head + i)) break;
        add_bias(score[i][0], a, s, my_first_head() + head + i, first_query, first_key);
    }
}

// The code of the tile at `keys` and `queries`, in every block of the cluster. `keep(query, key, r)` is
// told r of each pair, except of a softmax of raw scores; and `keep_normal(head, query, key, n)`
// what RMSHead makes of the scores of the block's own heads, where a softmax follows.
template <typename Memory, typename Keep, typename KeepNormal>
DEVICE void write_code(Memory &memory, const Arguments &a, const Sequence &s, Shared keys,
                       Shared queries, int tile_query, int tile_key, const Keep &keep,
                       const KeepNormal &keep_normal) {
    const int head = first_head(), row = first_row(), column = first_column();
    const int first_query = tile_query + row, first_key = tile_key + column;
    float exponent[PART_HEADS][2];
    if constexpr (SOFTMAX) {  // while the scores are computed
#pragma unroll
        for (int i = 0; i < PART_HEADS * 2; ++i) {
            const int one = smaller(my_first_head() + head + i / 2, HEADS - 1);
            exponent[i / 2][i % 2] =
                __ldg(log_sums_of(a, s, first_query + query_of(i % 2)) + one) * -LOG2_E;
        }
    }
    Scores score;
    unit_scores(score, a, s, keys, queries, first_query, first_key);
    const auto soften = [&](const float(&r)[4]) {
#pragma unroll
        for (int i = 0; i < PART_HEADS * 4; ++i) {
            const int e = i % 4;
            float &x = score[i / 4][0][e];
            x = softmax_code(a, x, exists(head + i / 4) ? r[e] : 0.f, exponent[i / 4][e % 2]);
        }
    };
    if constexpr (SOFTMAX && !RMS_FIRST) {
        float seen[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            seen[e] = visible(a, s, first_query + query_of(e), first_key + key_of(e)) ? 1.f : 0.f;
        }
        soften(seen);
    }
    float r[4] = {1.f, 1.f, 1.f, 1.f};
    if constexpr (!SOFTMAX || HAS_RMS) {
        inverse_roots(r, memory, score, a, s, first_query, first_key);
    }
    if constexpr (RMS_FIRST) {
#pragma unroll
        for (int i = 0; i < PART_HEADS * 4; ++i) {
            const int e = i % 4;
            keep_normal(head + i / 4, row + query_of(e), column + key_of(e),
                        score[i / 4][0][e] * (remaining_scale(a) * r[e]));
        }
        soften(r);
    }
    // Others may still be reading the last code; where squares were exchanged, they are not.
    if constexpr (SPLIT > 1 && !HAS_RMS) meet();
    const int group = (my_first_head() + head) / 8;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int query = row + query_of(e), key = column + key_of(e);
        float code[PART_HEADS];
#pragma unroll
        for (int i = 0; i < PART_HEADS; ++i) {
            code[i] = RMS_FIRST ? score[i][0][e] : score[i][0][e] * (scale_of_code(a) * r[e]);
        }
        char *to = reinterpret_cast<char *>(memory.code) + code_place(group, query, key) +
                   head % 8 * 2;
#pragma unroll
        for (int i = 0; i < SPLIT; ++i) store_heads(in_cluster(to, i), code);
        if ((!SOFTMAX || RMS_FIRST) && head == 0) keep(query, key, r[e]);
    }
}
