// The code of a tile where a warp has units of 16 keys to itself, all heads of them: the forward's
// tiles, of one block. Who multiplies is said elsewhere: large_head_forward_warps.cuh, or
// large_head_forward_warpgroups.cuh.

// Eights of queries in a unit of scores: two load less, but all scores of a unit are registers.
constexpr int UNIT = GROUPS == 1 && (WARPGROUPS || QUERIES * KEYS >= 256 * WARPS) ? 2 : 1;
static_assert(SPLIT == 1 && QUERIES % (8 * UNIT) == 0, "units");

typedef ByHead<QUERIES> QueryOrder;
typedef ByHead<KEYS> KeyOrder;
typedef float Scores[8][UNIT][4];  // of eight heads

// Up to this many heads keep their scores in registers until the sum of squares is known; more
// are computed a second time.
constexpr bool KEEPS_SCORES = HAS_RMS && GROUPS <= 2;

typedef float PerPair[UNIT][4];
typedef float Exponents[UNIT][2][8];

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
        x[i] = exists(group * 8 + i) ? x[i] * -LOG2_E : NO_CODE;
    }
}

DEVICE void load_exponents(Exponents &x, const Arguments &a, const Sequence &s, int first_query,
                           int group) {
#pragma unroll
    for (int i = 0; i < 2 * UNIT; ++i) {
        load_exponents(x[i / 2][i % 2], a, s, first_query + i / 2 * 8 + query_of(i % 2), group);
    }
}

// In place, from scores to the codes of a softmax; r is 0 where a pair is masked.
DEVICE void soften(Scores &score, const Arguments &a, const PerPair &r, const Exponents &exponent) {
#pragma unroll
    for (int u = 0; u < UNIT; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                score[i][u][e] = softmax_code(a, score[i][u][e], r[u][e], exponent[u][e % 2][i]);
            }
        }
    }
}

// Of eight heads; with a softmax of raw scores their codes. `products(score, group)` makes the
// scores before their bias.
template <typename Products>
DEVICE void group_scores(Scores &score, const Arguments &a, const Sequence &s, int group,
                         int first_query, int first_key, const Products &products) {
    Exponents exponent;
    // While scores are computed.
    if constexpr (SOFTMAX && !RMS_FIRST) load_exponents(exponent, a, s, first_query, group);
    products(score, group);
#pragma unroll
    for (int i = 0; i < 8 * UNIT; ++i) {
        const int head = group * 8 + i / UNIT;
        if (ALL_HEADS != HEADS && head >= HEADS) break;
        add_bias(score[i / UNIT][i % UNIT], a, s, head, first_query + i % UNIT * 8, first_key);
    }
    if constexpr (SOFTMAX && !RMS_FIRST) {
        PerPair seen;
#pragma unroll
        for (int i = 0; i < 4 * UNIT; ++i) {
            const int query = first_query + i / 4 * 8 + query_of(i % 4);
            seen[i / 4][i % 4] = visible(a, s, query, first_key + key_of(i % 4)) ? 1.f : 0.f;
        }
        soften(score, a, seen, exponent);
    }
}

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

// What the scores of a pair are multiplied by, or in a softmax to come r; 0 where it is masked, if
// a softmax's are not already.
DEVICE void factors_of(PerPair &factor, const Arguments &a, const Sequence &s, const PerPair &sum,
                       int first_query, int first_key) {
    const bool all =
        (SOFTMAX && !RMS_FIRST) || all_visible(s, first_query, 8 * UNIT, first_key);
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

template <typename Memory, typename Products>
DEVICE void write_unit(Memory &memory, const Arguments &a, const Sequence &s, int row, int column,
                       int first_query, int first_key, const Products &products) {
    char *code = reinterpret_cast<char *>(memory.code) + row * CODE_ROW + column * CODE_PIECE;
    PerPair sum = {}, factor;
    const auto store_group = [&](Scores &score, int g) {
        if constexpr (RMS_FIRST) {
            Exponents exponent;
            PerPair ones;
#pragma unroll
            for (int i = 0; i < 4 * UNIT; ++i) ones[i / 4][i % 4] = 1.f;
            load_exponents(exponent, a, s, first_query, g);
            soften(score, a, factor, exponent);
            store_code(code + g * CODE_GROUP, score, ones);
        } else {
            store_code(code + g * CODE_GROUP, score, factor);
        }
    };
    if constexpr (KEEPS_SCORES) {
        Scores score[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            group_scores(score[g], a, s, g, first_query, first_key, products);
            add_squares(sum, score[g]);
        }
        factors_of(factor, a, s, sum, first_query, first_key);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) store_group(score[g], g);
    } else {
        Scores score;
        if constexpr (HAS_RMS) {
#pragma unroll 1
            for (int g = 0; g < GROUPS; ++g) {
                group_scores(score, a, s, g, first_query, first_key, products);
                add_squares(sum, score);
            }
        }
        factors_of(factor, a, s, sum, first_query, first_key);
#pragma unroll 1
        for (int g = 0; g < GROUPS; ++g) {
            group_scores(score, a, s, g, first_query, first_key, products);
            store_group(score, g);
        }
    }
}
