// Backward by recomputation:
//
//     dz = Σ_h a[h] G[q,h]          one product per query        dp = dz · φ'(p)
//     da[h] = G[q,h]·z + dp·V[k,h]  per query, and per key
//     ds = r (da − a · mean_h(da a))                             (RMSHead; else da)
//     dV[k,h] += Σ_q a dp (per key),   dK[k,h] += Σ_q (scale ds) Q,   dQ[q,h] += Σ_k (scale ds) K
//
// The key pass makes dK and dV and, if ADDS_QUERY_GRADIENT, adds its share of dQ to global memory
// atomically. For sums in a fixed order it leaves dQ to the query pass, which computes everything
// up to ds again. The gradient of the bias is ds itself.
//
// Of a softmax's ds = a (da − Σ_k a da) only the first part is known before the last key is; with
// RMSHead after it that is a (da − a · mean_h(da a)), because r divides what it multiplies. What dK
// and dQ lack is linear in the row sums of that part; those are written too, and `softmax_rows.py`
// makes the rest of them. A row sum is one more entry of dQ, with a key that is 1 there, so that it
// adds up the very ds, rounded, which dQ does.
//
// A block owns KEYS keys (key pass) or QUERIES queries (query pass) and walks over the others, tile
// by tile, with STAGES = 2 the next one on its way. Step by step, with a barrier after each:
//
//     code     a warp takes the scores of 16 keys × 8 queries, or some heads of them
//     and then, ROUND keys at a time, because shared memory holds no more of z and dp:
//     hidden   each warp 16 of d and 8 keys: p, z, dz, dp, dV; z and dp go to shared memory,
//              because what follows contracts d, over which they were split
//     codes'   each warp some keys (dp·V) and some queries (G·z); ds where the latter is
//     and for the whole tile
//     rest     each warp some heads: dK or dQ

#define PASS_QUERY 1
#define PASS_KEY 2

constexpr bool KEY_PASS = PASS == PASS_KEY;
constexpr int QUERY_STAGES = KEY_PASS ? STAGES : 1, KEY_STAGES = KEY_PASS ? 1 : STAGES;
constexpr int EIGHTS = QUERIES / 8;
constexpr int KEY_UNITS = KEYS / 16;
constexpr int UNITS = EIGHTS * KEY_UNITS;
constexpr int PARTS = WARPS / UNITS;  // warps that share a unit of scores
constexpr int PART_HEADS = ALL_HEADS / PARTS;
constexpr int ROUND = SLICES * 16 >= 8 * WARPS ? 16 : smaller(KEYS, 8 * WARPS / SLICES);
constexpr int ROUNDS = KEYS / ROUND;
constexpr int TASKS = SLICES * (ROUND / 8);  // of a round
constexpr int TASKS_PER_WARP = (TASKS + WARPS - 1) / WARPS;
constexpr int HEADS_PER_WARP = (HEADS + WARPS - 1) / WARPS;
static_assert(EIGHTS <= 2 && WARPS % UNITS == 0 && ALL_HEADS % PARTS == 0, "scores");
static_assert(KEYS % ROUND == 0 && ROUND % 16 == 0, "rounds");
static_assert(!SOFTMAX || BIAS_GRADIENT == BIAS_GRADIENT_NONE, "its ds is not all of the gradient");

constexpr int PAIR_PITCH = ALL_HEADS + 4;  // floats: [query][key][head]
constexpr int PAIR_ROW = ROUND * PAIR_PITCH + 8;
constexpr int SCORE_ROW = KEYS + 8;  // [head][query][key]
constexpr int SCORE_HEAD = QUERIES * SCORE_ROW + 8;

struct Memory {
    Half k[KEY_STAGES][KEYS * TOKEN], v[KEY_STAGES][KEYS * TOKEN];
    Half q[QUERY_STAGES][QUERIES * TOKEN], g[QUERY_STAGES][QUERIES * TOKEN];
    Half z[QUERIES * ROUND * WIDTH], dp[QUERIES * ROUND * WIDTH];
    Half code[GROUPS * QUERIES * KEYS * 8];
    Half ds[ALL_HEADS * SCORE_HEAD];
    float inverse[QUERIES * KEYS];  // r, and 0 for a masked pair
    union {
        float4 squares[WARPS][WARP];
        float from_p[QUERIES * PAIR_ROW];  // dp·V
    };
};

// Where the tokens of a tile lie, and which they are.
struct Tile {
    Shared k, v, q, g;
    int first_query, first_key;
};

typedef ByHead<QUERIES> QueryOrder;
typedef ByHead<KEYS> KeyOrder;

// ---------------------------------------------------------------- the code

typedef float Scores[PART_HEADS][1][4];

// Of the lane's four pairs, all heads: r, and 0 for a masked pair.
DEVICE void inverse_roots(float (&r)[4], Memory &memory, const Scores &score, const Arguments &a,
                          const Sequence &s, int first_query, int first_key) {
    float sum[4] = {};
    if constexpr (NORMALISED) {
#pragma unroll
        for (int i = 0; i < PART_HEADS; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += score[i][0][e] * score[i][0][e];
        }
    }
    if constexpr (NORMALISED && PARTS > 1) {
        memory.squares[my_warp()][my_lane()] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const float4 x = memory.squares[my_warp() % UNITS + part * UNITS][my_lane()];
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
    }
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

DEVICE void write_code(Memory &memory, const Tile &tile, const Arguments &a, const Sequence &s) {
    const int unit = my_warp() % UNITS, first_head = my_warp() / UNITS * PART_HEADS;
    const int row = unit % EIGHTS * 8, column = unit / EIGHTS * 16;
    const int first_query = tile.first_query + row, first_key = tile.first_key + column;
    float exponent[PART_HEADS][2];
    if constexpr (SOFTMAX) {  // while the scores are computed
#pragma unroll
        for (int i = 0; i < PART_HEADS * 2; ++i) {
            const int head = smaller(first_head + i / 2, HEADS - 1);
            exponent[i / 2][i % 2] =
                __ldg(log_sums_of(a, s, first_query + query_of(i % 2)) + head) * -LOG2_E;
        }
    }
    Scores score;
    head_scores<PART_HEADS, 1>(
        score, tile.k + left_rows(KeyOrder::row(column, 0)) + KeyOrder::row(0, first_head) * ROW,
        tile.q + right_rows<1>(QueryOrder::row(row, 0)) + QueryOrder::row(0, first_head) * ROW);
#pragma unroll
    for (int i = 0; i < PART_HEADS; ++i) {
        if (ALL_HEADS != HEADS && first_head + i >= HEADS) break;
        add_bias(score[i][0], a, s, first_head + i, first_query, first_key);
    }
    if constexpr (SOFTMAX) {
#pragma unroll
        for (int i = 0; i < PART_HEADS * 4; ++i) {
            const int e = i % 4;
            const bool exists = ALL_HEADS == HEADS || first_head + i / 4 < HEADS;
            const bool seen = visible(a, s, first_query + query_of(e), first_key + key_of(e));
            float &x = score[i / 4][0][e];
            x = softmax_code(x, exponent_scale(a), exponent[i / 4][e % 2], exists && seen);
        }
    }
    float r[4] = {1.f, 1.f, 1.f, 1.f};
    if constexpr (!SOFTMAX || NORMALISED) {
        inverse_roots(r, memory, score, a, s, first_query, first_key);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int query = row + query_of(e), key = column + key_of(e);
        float code[PART_HEADS];
#pragma unroll
        for (int i = 0; i < PART_HEADS; ++i) code[i] = score[i][0][e] * (scale_of_code(a) * r[e]);
        store_heads(reinterpret_cast<char *>(memory.code) +
                        code_place(first_head / 8, query, key) + first_head % 8 * 2, code);
        if (!SOFTMAX && first_head == 0) memory.inverse[query * KEYS + key] = r[e];
    }
}

// ---------------------------------------------------------------- hidden layer

// Rows of z and dp, [query][key of the round][d], turned so that neither those that are written
// together nor those that are read together share banks.
DEVICE Shared z_place(int query, int key, int piece) {
    return place(query * ROUND + key, piece, (key / 2) ^ (query % 2 * 4));
}
DEVICE Shared dp_place(int query, int key, int piece) {
    return place(query * ROUND + key, piece, query);
}

// z and dp of a pair of queries, p and dz given.
DEVICE void differentiate(Pair &z, Pair &dp, Pair p, float first_dz, float second_dz) {
#if PHI == PHI_RELU
    const Pair active = positive_halves(p);
    z = p & active;
    dp = pack(first_dz, second_dz) & active;
#else
    const Activation x = activate(first_of(p)), y = activate(second_of(p));
    z = pack(x.value, y.value);
    dp = pack(first_dz * x.slope, second_dz * y.slope);
#endif
}

typedef Pair Hidden[EIGHTS][2][2][4];  // [..][key of its pair][upper rows][pair], a pair of queries

// p, in the order of query pairs.
DEVICE void hidden_layer(Hidden &p, Shared values, Shared code) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        Pair left[2][GROUPS][2], right[EIGHTS][2][GROUPS];
        load_heads_of_two(left, values + 2 * r * ALL_HEADS * ROW);
        load_code_of_two<EIGHTS>(right, code + code_by_query(r, neighbour_of_row()));
#pragma unroll
        for (int i = 0; i < EIGHTS * 2; ++i) {
            float c[4];
            contract_heads(c, left[i % 2], right[i / 2][i % 2]);
            p[i / 2][i % 2][0][r] = pack(c[0], c[1]);
            p[i / 2][i % 2][1][r] = pack(c[2], c[3]);
        }
    }
}

DEVICE void exchange(Hidden &x) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i) {
        Pair(&four)[4] = x[i / 4][i / 2 % 2][i % 2];
        exchange_registers(four[0], four[1], four[2], four[3]);
    }
}

// From p to dp, in the order of query pairs; z is stored.
DEVICE void hidden_gradient(Hidden &p, Shared upstream, Shared code, Shared z) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        Pair right[EIGHTS][2][GROUPS];
        load_code_of_two<EIGHTS>(right, code + code_by_key(m, neighbour_of_row()));
        const Shared to = (z ^ (m * 4 * PANEL + m % PIECES * 16)) + 2 * m * ROUND * ROW;
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            Pair left[2][GROUPS][2], own_z[4];
            load_heads_of_two(left, upstream + (eight * 8 + 2 * m) * ALL_HEADS * ROW);
            float dz[2][4];
            contract_heads(dz[0], left[0], right[eight][0]);
            contract_heads(dz[1], left[1], right[eight][1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = i / 2, upper = i % 2, element = 2 * upper + key;
                Pair &x = p[eight][key][upper][m];
                differentiate(own_z[i], x, x, dz[0][element], dz[1][element]);
            }
            store_matrices_transposed(to + eight * 8 * ROUND * ROW, own_z);
        }
    }
}

typedef float ValueGradient[8][GROUPS][4];  // [key][eight of heads]

// dV of eight keys; dp, in the order of key pairs, is stored.
DEVICE void value_gradient(ValueGradient &dv, const Hidden &dp, Shared code, Shared tile, Shared row) {
    const int lane = my_lane();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const Shared to = tile + (row ^ (r * 2 * ROUND * ROW + 2 * r % PIECES * 16)) + 4 * r * PANEL;
        if constexpr (EIGHTS == 2) {  // rows: the queries of both eights
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                store_matrices_transposed(to + key * 2 * PANEL,
                                          {dp[0][key][0][r], dp[0][key][1][r],
                                           dp[EIGHTS - 1][key][0][r], dp[EIGHTS - 1][key][1][r]});
            }
        } else {  // the queries of both keys
            store_matrices_transposed(to, {dp[0][0][0][r], dp[0][0][1][r], dp[0][1][0][r],
                                           dp[0][1][1][r]});
        }
        if constexpr (!KEY_PASS) continue;
        constexpr int BOTH = EIGHTS == 1 && GROUPS > 1 ? 2 : 1;  // groups that a load serves
#pragma unroll
        for (int g = 0; g < GROUPS; g += BOTH) {
            Pair b[4];  // [key][eight of queries or of heads], or two matrices twice
            const int other = lane / 8 % 2;
            load_matrices_transposed(b, code + code_by_query(r, lane / 16) +
                                            (g + (BOTH == 2 ? other : 0)) * CODE_GROUP +
                                            (EIGHTS == 2 ? other * 8 * CODE_ROW : 0));
#pragma unroll
            for (int i = 0; i < 2 * BOTH; ++i) {
                const int key = i / BOTH;
                float(&c)[4] = dv[2 * r + key][g + i % BOTH];
                if constexpr (EIGHTS == 2) {
                    multiply_add(c, c, dp[0][key][0][r], dp[0][key][1][r],
                                 dp[EIGHTS - 1][key][0][r], dp[EIGHTS - 1][key][1][r], b[2 * key],
                                 b[2 * key + 1]);
                } else {
                    multiply_add(c, c, dp[0][key][0][r], dp[0][key][1][r], b[2 * key + i % BOTH]);
                }
            }
        }
    }
}

typedef ValueGradient ValueGradients[ROUNDS][TASKS_PER_WARP];

// The slice of d of a task, and its first key of the round.
DEVICE int slice_of(int task) { return (my_warp() + task * WARPS) % SLICES; }
DEVICE int key_of_task(int task) { return (my_warp() + task * WARPS) / SLICES * 8; }
DEVICE bool is_task(int task) { return TASKS % WARPS == 0 || my_warp() + task * WARPS < TASKS; }

DEVICE void hidden(ValueGradient (&dv)[TASKS_PER_WARP], Memory &memory, const Tile &tile, int round) {
    const int lane = my_lane(), pair = lane % 8 / 2, query = lane % 2, upper = lane / 8 % 2;
#pragma unroll
    for (int task = 0; task < TASKS_PER_WARP; ++task) {
        if (!is_task(task)) break;
        const int slice = slice_of(task), round_key = key_of_task(task);
        const int key = round * ROUND + round_key, piece = 2 * slice + upper;
        const Shared code = shared_address(memory.code) + key * CODE_PIECE;
        Hidden x;
        hidden_layer(x, tile.v + heads_of_two(slice) + key * ALL_HEADS * ROW, code);
        exchange(x);
        hidden_gradient(x, tile.g + heads_of_two(slice), code,
                        shared_address(memory.z) +
                            z_place(query, round_key + 2 * pair + lane / 16, piece));
        exchange(x);
        const int eight = EIGHTS == 2 ? lane / 16 : 0, other_key = EIGHTS == 2 ? 0 : lane / 16;
        value_gradient(dv[task], x, code, shared_address(memory.dp) + round_key * ROW,
                       dp_place(eight * 8 + 2 * pair + query, other_key, piece));
    }
}

// ---------------------------------------------------------------- the code's gradient

// Products [16 × heads] over d, some of each warp: dp·V of its keys of the round, all queries, and
// G·z of its queries, all keys of the round, 16 at a time; of these a lane holds the keys
// 2 (lane / 4) and + 1, two heads each.
constexpr int OWN_KEYS = ROUND / WARPS;
constexpr int OWN_QUERIES = (QUERIES + WARPS - 1) / WARPS;
constexpr int QUERY_UNITS = OWN_QUERIES * (ROUND / 16);
typedef float CodeGradient[GROUPS][4];

DEVICE int own_key(int i) { return my_warp() + i * WARPS; }
DEVICE int own_query(int i) { return my_warp() * OWN_QUERIES + i / (ROUND / 16); }
DEVICE int own_unit(int i) { return i % (ROUND / 16) * 16; }

// Slice by slice, so that the products do not wait for each other.
DEVICE void contract_width(CodeGradient (&from_p)[OWN_KEYS], CodeGradient (&from_z)[QUERY_UNITS],
                           Memory &memory, const Tile &tile, int round) {
    const int lane = my_lane(), row = lane % 16, half = lane / 16;
    constexpr int PRODUCTS = OWN_KEYS + QUERY_UNITS;
    Shared left[PRODUCTS], right[PRODUCTS];
#pragma unroll
    for (int i = 0; i < OWN_KEYS; ++i) {
        left[i] = shared_address(memory.dp) + dp_place(row % QUERIES, own_key(i), half);
        right[i] = tile.v + right_rows<1>(ByToken::row(round * ROUND + own_key(i), 0));
    }
#pragma unroll
    for (int i = 0; i < QUERY_UNITS; ++i) {
        const int key = own_unit(i) + row % 8 * 2 + row / 8;
        left[OWN_KEYS + i] = shared_address(memory.z) + z_place(own_query(i), key, half);
        right[OWN_KEYS + i] = tile.g + right_rows<1>(ByToken::row(own_query(i), 0));
    }
#pragma unroll
    for (int slice = 0; slice < SLICES; slice += 2) {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) {
            CodeGradient &c = i < OWN_KEYS ? from_p[i] : from_z[i - OWN_KEYS];
            Pair x[2][4];
            load_matrices(x[0], pieces_on(left[i], 2 * slice));
            if (slice + 1 < SLICES) load_matrices(x[1], pieces_on(left[i], 2 * slice + 2));
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                Pair y[4];
                load_matrices(y, pieces_on(right[i], 2 * slice) + g * 8 * ROW);
#pragma unroll
                for (int j = 0; j < 2 && slice + j < SLICES; ++j) {
                    multiply_add(c[g], c[g], x[j][0], x[j][1], x[j][2], x[j][3], y[2 * j],
                                 y[2 * j + 1]);
                }
            }
        }
    }
}

DEVICE void store_from_p(Memory &memory, const CodeGradient (&from_p)[OWN_KEYS]) {
#pragma unroll
    for (int i = 0; i < OWN_KEYS * GROUPS * EIGHTS; ++i) {
        const int key = i / (GROUPS * EIGHTS), g = i / EIGHTS % GROUPS, upper = i % EIGHTS;
        const float(&c)[4] = from_p[key][g];
        float *to = memory.from_p + (my_lane() / 4 + upper * 8) * PAIR_ROW +
                    own_key(key) * PAIR_PITCH + g * 8 + my_lane() % 4 * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(c[2 * upper], c[2 * upper + 1]);
    }
}

DEVICE void store_pair(Half *to, float first, float second) {
    *reinterpret_cast<Pair *>(to) = pack(first, second);
}

DEVICE float in_range(float x) {  // bf16 has the range of float32
    return KIND == 1 && x == x ? fminf(fmaxf(x, -65504.f), 65504.f) : x;
}

// Of a query and 16 keys: ds of the lane's two keys, [eight of heads][head][key].
DEVICE void score_gradient(float (&ds)[GROUPS][2][2], const Memory &memory, const Arguments &a,
                           const Sequence &s, const Tile &tile, const CodeGradient &from_z,
                           int query, int round_key, int key) {
    const int column = my_lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        float code[GROUPS][2], da[GROUPS][2], sum = 0.f;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const float2 from_p = *reinterpret_cast<const float2 *>(
                memory.from_p + query * PAIR_ROW + (round_key + k) * PAIR_PITCH + g * 8 + column);
            const Pair two = *reinterpret_cast<const Pair *>(
                reinterpret_cast<const char *>(memory.code) + code_place(g, query, key + k) +
                column * 2);
            code[g][0] = first_of(two), code[g][1] = second_of(two);
            da[g][0] = from_z[g][2 * k] + from_p.x, da[g][1] = from_z[g][2 * k + 1] + from_p.y;
            sum += da[g][0] * code[g][0] + da[g][1] * code[g][1];
        }
        if constexpr (NORMALISED) {
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        }
        const float mean = NORMALISED ? sum * (1.f / HEADS) : 0.f;
        const float r = SOFTMAX ? 0.f : memory.inverse[query * KEYS + key + k];
#pragma unroll
        for (int i = 0; i < GROUPS * 2; ++i) {
            const int head = i / 2 * 8 + column + i % 2;
            const float a_h = code[i / 2][i % 2], da_h = da[i / 2][i % 2];
            const float dt = NORMALISED ? da_h - a_h * mean : da_h;
            float raw = (SOFTMAX ? a_h : r) * dt;
            const int at_query = tile.first_query + query, at_key = tile.first_key + key + k;
            if (r != 0.f && masked_by_bias(a, s, head, at_query, at_key, a_h)) raw = 0.f;
            ds[i / 2][i % 2][k] = with_gain(a.output, raw);
            if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
                if (r == 0.f || head >= HEADS) continue;
                add_bias_gradient(a, s, head, at_query, at_key, ds[i / 2][i % 2][k]);
            }
        }
    }
}

DEVICE void score_gradients(Memory &memory, const Arguments &a, const Sequence &s, const Tile &tile,
                            const CodeGradient (&from_z)[QUERY_UNITS], int round) {
    float ds[QUERY_UNITS][GROUPS][2][2];
    const int round_key = my_lane() / 4 * 2, key = round * ROUND + round_key;
#pragma unroll
    for (int i = 0; i < QUERY_UNITS; ++i) {
        score_gradient(ds[i], memory, a, s, tile, from_z[i], own_query(i), own_unit(i) + round_key,
                       own_unit(i) + key);
    }
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * GROUPS * 2; ++i) {
        const int unit = i / (GROUPS * 2), g = i / 2 % GROUPS;
        const float(&two)[2] = ds[unit][g][i % 2];
        Half *to = memory.ds + (g * 8 + my_lane() % 4 * 2 + i % 2) * SCORE_HEAD +
                   own_query(unit) * SCORE_ROW + own_unit(unit) + key;
        // Scaled here, where it keeps fp16 in its range, and nowhere later.
        store_pair(to, in_range(two[0] * a.scale), in_range(two[1] * a.scale));
    }
}

// ---------------------------------------------------------------- the gradients of keys and queries

constexpr int COLUMNS = WIDTH / 8;
constexpr int KEY_TASKS = (HEADS * KEY_UNITS + WARPS - 1) / WARPS;  // a head and 16 keys each
typedef float KeyGradient[KEY_TASKS][COLUMNS][4];                   // [16 keys × 8 of d]

DEVICE int key_task(int i) { return my_warp() * KEY_TASKS + i; }
DEVICE bool is_key_task(int i) {
    return HEADS * KEY_UNITS % WARPS == 0 || key_task(i) < HEADS * KEY_UNITS;
}

DEVICE void key_gradient(KeyGradient &dk, const Memory &memory, const Tile &tile) {
    const int lane = my_lane();
#pragma unroll
    for (int i = 0; i < KEY_TASKS; ++i) {
        if (!is_key_task(i)) break;
        const int head = key_task(i) / KEY_UNITS, unit = key_task(i) % KEY_UNITS;
        Pair x[4];  // [eight of queries][eight of keys]; of one eight, two matrices twice
        load_matrices_transposed(
            x, shared_address(memory.ds) +
                   2 * (head * SCORE_HEAD + (lane % 8 + lane / 16 % EIGHTS * 8) * SCORE_ROW +
                        unit * 16 + lane / 8 % 2 * 8));
        const Shared rows =
            tile.q + (EIGHTS == 2 ? place(lane % 16, lane / 16) : right_rows<1>(0)) +
            QueryOrder::row(0, head) * ROW;
        constexpr int STEP = 4 / EIGHTS;  // columns that a load serves
#pragma unroll
        for (int n = 0; n < COLUMNS; n += STEP) {
            Pair y[4];
            load_matrices_transposed(y, pieces_on(rows, n));
#pragma unroll
            for (int j = 0; j < STEP && n + j < COLUMNS; ++j) {
                float(&c)[4] = dk[i][n + j];
                if constexpr (EIGHTS == 2) {
                    multiply_add(c, c, x[0], x[1], x[2], x[3], y[2 * j], y[2 * j + 1]);
                } else {
                    multiply_add(c, c, x[0], x[1], y[j]);
                }
            }
        }
    }
}

// [16 queries × 8 of d]; for a softmax a last column, all of it the row sums. Of eight queries, the
// upper rows are anything.
constexpr int ROW_SUMS = SOFTMAX ? COLUMNS : 0;
typedef float HeadGradient[COLUMNS + SOFTMAX][4];
typedef HeadGradient QueryGradient[HEADS_PER_WARP];

DEVICE int own_head(int i) { return my_warp() + i * WARPS; }
DEVICE bool is_head(int i) { return HEADS % WARPS == 0 || own_head(i) < HEADS; }

// c += Σ_k ds K.
DEVICE void query_gradient(HeadGradient &c, const Memory &memory, const Tile &tile, int head) {
    const int lane = my_lane();
    const Shared left =
        shared_address(memory.ds) +
        2 * (head * SCORE_HEAD + lane % 16 % QUERIES * SCORE_ROW + lane / 16 * 8);
    const Shared right = tile.k + place(lane % 16, lane / 16) + KeyOrder::row(0, head) * ROW;
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        Pair x[4];
        load_matrices(x, left + unit * 32);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            Pair y[4];
            load_matrices_transposed(y, pieces_on(right, n) + unit * 16 * ROW);
            multiply_add(c[n], c[n], x[0], x[1], x[2], x[3], y[0], y[1]);
            multiply_add(c[n + 1], c[n + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
        }
        if constexpr (SOFTMAX) {
            const Pair ones = pair_of_ones();
            multiply_add(c[ROW_SUMS], c[ROW_SUMS], x[0], x[1], x[2], x[3], ones, ones);
        }
    }
}

DEVICE float *row_sum(const Arguments &a, long long row, int head) {
    return a.row_sums + row * HEADS + head;
}

DEVICE void add_query_gradient(const Arguments &a, const Sequence &s, const Memory &memory,
                               const Tile &tile) {
    const long long start = output_row(a, s.index, s.first_query, s.queries) + tile.first_query;
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        if (!is_head(i)) break;
        HeadGradient c = {};
        query_gradient(c, memory, tile, own_head(i));
#pragma unroll
        for (int upper = 0; upper < EIGHTS; ++upper) {
            const int query = my_lane() / 4 + upper * 8, column = my_lane() % 4 * 2;
            if (tile.first_query + query >= s.queries) continue;
            float *to = a.query_gradient + ((start + query) * HEADS + own_head(i)) * WIDTH + column;
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                add_atomically(to + n * 8, c[n][2 * upper], c[n][2 * upper + 1]);
            }
            if constexpr (SOFTMAX) {
                const float sum = c[ROW_SUMS][2 * upper];
                if (column == 0) atomicAdd(row_sum(a, start + query, own_head(i)), sum);
            }
        }
    }
}

// ---------------------------------------------------------------- the two passes

// From one stage of what is walked over to the other, where there are two.
constexpr Shared OTHER_STAGE = (STAGES - 1) * (KEY_PASS ? QUERIES : KEYS) * TOKEN * 2;

// Everything up to ds.
DEVICE void gradients_of_tile(ValueGradients &dv, Memory &memory, const Arguments &a,
                              const Sequence &s, const Tile &tile) {
    write_code(memory, tile, a, s);
    __syncthreads();
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        hidden(dv[round], memory, tile, round);
        __syncthreads();
        CodeGradient from_p[OWN_KEYS] = {}, from_z[QUERY_UNITS] = {};
        contract_width(from_p, from_z, memory, tile, round);
        store_from_p(memory, from_p);
        __syncthreads();
        score_gradients(memory, a, s, tile, from_z, round);
    }
    __syncthreads();
}

#if PASS == PASS_KEY

DEVICE void store_key_gradient(const Arguments &a, const Sequence &s, int first_key,
                               const KeyGradient &dk) {
    const long long start = output_row(a, s.index, s.first_key, s.keys);
#pragma unroll
    for (int i = 0; i < KEY_TASKS; ++i) {
        if (!is_key_task(i)) break;
        const int head = key_task(i) / KEY_UNITS, unit = key_task(i) % KEY_UNITS;
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int key = first_key + unit * 16 + my_lane() / 4 + upper * 8;
            if (key >= s.keys) continue;
            Half *to = a.first + ((start + key) * HEADS + head) * WIDTH + my_lane() % 4 * 2;
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                store_pair(to + n * 8, dk[i][n][2 * upper], dk[i][n][2 * upper + 1]);
            }
        }
    }
}

DEVICE void store_value_gradient(const Arguments &a, const Sequence &s, int first_key,
                                 const ValueGradients &dv) {
    const int lane = my_lane();
    const long long start = output_row(a, s.index, s.first_key, s.keys);
#pragma unroll
    for (int i = 0; i < ROUNDS * TASKS_PER_WARP * 8; ++i) {
        const int round = i / 8 / TASKS_PER_WARP, task = i / 8 % TASKS_PER_WARP;
        const int key = first_key + round * ROUND + key_of_task(task) + i % 8;
        if (!is_task(task) || key >= s.keys) continue;
#pragma unroll
        for (int e = 0; e < GROUPS * 4; ++e) {
            const int head = e / 4 * 8 + lane % 4 * 2 + e % 2;
            const int d = slice_of(task) * 16 + lane / 4 + e / 2 % 2 * 8;
            if (head >= HEADS) continue;
            const float x = with_gain(a.output, dv[round][task][i % 8][e / 4][e % 4]);
            a.second[((start + key) * HEADS + head) * WIDTH + d] = static_cast<Half>(pack(x, 0.f));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    alignas(1024) extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_key = static_cast<int>(blockIdx.x / a.batch) * KEYS;
    if (first_key >= s.keys) return;
    const Half *q = tokens_of(a, a.q, s.index, s.first_query);
    const Half *g = tokens_of(a, a.upstream, s.index, s.first_query);
    const int unseen = first_key - s.reach;  // queries that see none of the keys
    const int begin = unseen > 0 ? unseen / QUERIES * QUERIES : 0;

    clear_missing_heads<KEYS, KeyOrder>(memory.k[0]);
    clear_missing_heads<KEYS, ByToken>(memory.v[0]);
#pragma unroll
    for (int stage = 0; stage < QUERY_STAGES; ++stage) {
        clear_missing_heads<QUERIES, QueryOrder>(memory.q[stage]);
        clear_missing_heads<QUERIES, ByToken>(memory.g[stage]);
    }
    Tile tile{shared_address(memory.k), shared_address(memory.v), shared_address(memory.q),
              shared_address(memory.g), begin, first_key};
    copy_tokens<KEYS, KeyOrder, SHARED_BY>(tile.k, tokens_of(a, a.k, s.index, s.first_key), a.k,
                                           first_key, s.keys);
    copy_tokens<KEYS, ByToken, SHARED_BY>(tile.v, tokens_of(a, a.v, s.index, s.first_key), a.v,
                                          first_key, s.keys);
    const auto copy_queries = [&](Shared to_q, Shared to_g, int first) {
        copy_tokens<QUERIES, QueryOrder>(to_q, q, a.q, first, s.queries);
        copy_tokens<QUERIES, ByToken>(to_g, g, a.upstream, first, s.queries);
        close_copies();
    };
    copy_queries(tile.q, tile.g, begin);
    KeyGradient dk = {};
    ValueGradients dv = {};
    const Shared both_q = 2 * tile.q + OTHER_STAGE, both_g = 2 * tile.g + OTHER_STAGE;
#pragma unroll 1
    for (; tile.first_query < s.queries; tile.first_query += QUERIES) {
        wait_for_copies<0>();
        __syncthreads();
        const Shared next_q = both_q - tile.q, next_g = both_g - tile.g;
        if constexpr (STAGES == 2) copy_queries(next_q, next_g, tile.first_query + QUERIES);
        gradients_of_tile(dv, memory, a, s, tile);
        key_gradient(dk, memory, tile);
        if constexpr (ADDS_QUERY_GRADIENT) add_query_gradient(a, s, memory, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            copy_queries(next_q, next_g, tile.first_query + QUERIES);
        }
        tile.q = next_q, tile.g = next_g;
    }
    wait_for_copies<0>();
    store_key_gradient(a, s, first_key, dk);
    store_value_gradient(a, s, first_key, dv);
}

#else

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    alignas(1024) extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x / a.batch)) * QUERIES;
    if (first_query >= s.queries) return;
    const int end = smaller(s.keys, smaller(first_query + QUERIES, s.queries) + s.reach);
    const Half *k = tokens_of(a, a.k, s.index, s.first_key);
    const Half *v = tokens_of(a, a.v, s.index, s.first_key);

    clear_missing_heads<QUERIES, QueryOrder>(memory.q[0]);
    clear_missing_heads<QUERIES, ByToken>(memory.g[0]);
#pragma unroll
    for (int stage = 0; stage < KEY_STAGES; ++stage) {
        clear_missing_heads<KEYS, KeyOrder>(memory.k[stage]);
        clear_missing_heads<KEYS, ByToken>(memory.v[stage]);
    }
    Tile tile{shared_address(memory.k), shared_address(memory.v), shared_address(memory.q),
              shared_address(memory.g), first_query, 0};
    copy_tokens<QUERIES, QueryOrder>(tile.q, tokens_of(a, a.q, s.index, s.first_query), a.q,
                                     first_query, s.queries);
    copy_tokens<QUERIES, ByToken>(tile.g, tokens_of(a, a.upstream, s.index, s.first_query),
                                  a.upstream, first_query, s.queries);
    const auto copy_keys = [&](Shared to_k, Shared to_v, int first) {
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(to_k, k, a.k, first, end);
        copy_tokens<KEYS, ByToken, SHARED_BY>(to_v, v, a.v, first, end);
        close_copies();
    };
    copy_keys(tile.k, tile.v, 0);
    QueryGradient dq = {};
    ValueGradients unused;
    const Shared both_k = 2 * tile.k + OTHER_STAGE, both_v = 2 * tile.v + OTHER_STAGE;
#pragma unroll 1
    for (; tile.first_key < end; tile.first_key += KEYS) {
        wait_for_copies<0>();
        __syncthreads();
        const Shared next_k = both_k - tile.k, next_v = both_v - tile.v;
        if constexpr (STAGES == 2) copy_keys(next_k, next_v, tile.first_key + KEYS);
        gradients_of_tile(unused, memory, a, s, tile);
#pragma unroll
        for (int i = 0; i < HEADS_PER_WARP; ++i) {
            if (is_head(i)) query_gradient(dq[i], memory, tile, own_head(i));
        }
        if constexpr (STAGES == 1) {
            __syncthreads();
            copy_keys(next_k, next_v, tile.first_key + KEYS);
        }
        tile.k = next_k, tile.v = next_v;
    }
    wait_for_copies<0>();

    const long long start = output_row(a, s.index, s.first_query, s.queries) + first_query;
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP * EIGHTS; ++i) {
        const int upper = i % EIGHTS, head = own_head(i / EIGHTS);
        const int query = my_lane() / 4 + upper * 8, column = my_lane() % 4 * 2;
        if (!is_head(i / EIGHTS) || first_query + query >= s.queries) continue;
        const HeadGradient &c = dq[i / EIGHTS];
        Half *to = a.first + ((start + query) * HEADS + head) * WIDTH + column;
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            store_pair(to + n * 8, c[n][2 * upper], c[n][2 * upper + 1]);
        }
        if constexpr (SOFTMAX) {
            if (column == 0) *row_sum(a, start + query, head) = c[ROW_SUMS][2 * upper];
        }
    }
}

#endif
