// Backward by recomputation:
//
//     dz = Σ_h a[h] G[q,h]          one product per query        dp = dz · φ'(p)
//     da[h] = G[q,h]·z + dp·V[k,h]  per query, and per key
//     ds = r (da − a · mean_h(da a))                             (RMSHead; else da)
//     dV[k,h] += Σ_q a dp (per key),   dK[k,h] += Σ_q (scale ds) Q,   dQ[q,h] += Σ_k (scale ds) K
//
// The key pass makes dK and dV and, if ADDS_QUERY_GRADIENT, adds its share of dQ to global memory
// atomically: with BULK a tile's rows wait in shared memory, where z and dp were, and are added from
// there while dK and the next code are computed. For sums in a fixed order it leaves dQ to the query
// pass, which computes everything up to ds again. The gradient of the bias is ds itself.
//
// Of a softmax's ds = a (da − Σ_k a da) only the first part is known before the last key is; with
// RMSHead after it that is a (da − a · mean_h(da a)), because r divides what it multiplies. What dK
// and dQ lack is linear in the row sums of that part; those are written too, and `softmax_rows.py`
// makes the rest of them. A row sum is one more entry of dQ, with a key that is 1 there, so that it
// adds up the very ds, rounded, which dQ does.
//
// RMSHead before the softmax leaves n = r s, whose gradient is dn = a (da − δ), and
// ds = r (dn − n · mean_h(dn n)). A pass of its own, much like the query pass, first makes
// δ = Σ_k a da / Σ_k a. n lies where ds will be written in its place.
//
// A block owns KEYS keys (key pass) or QUERIES queries (query pass) and walks over the others, tile
// by tile, with STAGES = 2 the next one on its way. Step by step, with a barrier after each:
//
//     code     a warp takes the scores of 16 keys × 8 queries, or some heads of them
//     and then, ROUND keys at a time, because shared memory holds no more of z and dp:
//     hidden   each warp 16 of d and 8 keys: p, z, dz, dp, dV; z and dp go to shared memory,
//              because what follows contracts d, over which they were split
//     codes'   each warp some keys (dp·V) and some queries (G·z); ds where the latter is
//              (a cluster: dV of those keys too, and the sums over its own d of the heads that
//              another block has are sent there)
//     and for the whole tile
//     rest     each warp some heads: dK or dQ; with BULK dQ, a barrier, dK

#define PASS_QUERY 1
#define PASS_KEY 2
#define PASS_DELTA 4

// Whether row sums for flash attention's part of the gradient are made.
constexpr bool FOR_FLASH = SOFTMAX && !RMS_FIRST;

constexpr bool KEY_PASS = PASS == PASS_KEY;
constexpr int QUERY_STAGES = KEY_PASS ? STAGES : 1, KEY_STAGES = KEY_PASS ? 1 : STAGES;
constexpr int ROUND = SLICES * 16 >= 8 * WARPS ? 16 : smaller(KEYS, 8 * WARPS / SLICES);
constexpr int ROUNDS = KEYS / ROUND;
// Eights of queries of a task: both, which load the same values, unless warps were left without any.
constexpr int TASK_EIGHTS = SPLIT == 1 || SLICES * (ROUND / 8) >= WARPS ? EIGHTS : 1;
constexpr int TASKS = SLICES * (ROUND / 8) * (EIGHTS / TASK_EIGHTS);  // of a round
constexpr int TASKS_PER_WARP = (TASKS + WARPS - 1) / WARPS;
constexpr int BLOCK_HEADS = SPLIT == 1 ? HEADS : OWN_HEADS;
constexpr int HEADS_PER_WARP = (BLOCK_HEADS + WARPS - 1) / WARPS;
static_assert(EIGHTS <= 2 && KEYS % ROUND == 0 && ROUND % 16 == 0, "rounds");
static_assert(SPLIT == 1 || (EIGHTS == 2 && ROUNDS == 1 && STAGES == 1), "tiles of a cluster");
static_assert(!SOFTMAX || BIASED == 0, "a bias is for plain arithmetic");

constexpr int PAIR_PITCH = ALL_HEADS + 4;  // floats: [query][key][head]
constexpr int PAIR_ROW = ROUND * PAIR_PITCH + 8;
constexpr int SCORE_ROW = KEYS + 8;  // [head][query][key]
constexpr int SCORE_HEAD = QUERIES * SCORE_ROW + 8;

// Products over d, some of each warp: dp·V of its keys of the round, all queries, and G·z of its
// queries, all keys of the round, 16 at a time.
constexpr int OWN_KEYS = ROUND / WARPS;
constexpr int OWN_QUERIES = (QUERIES + WARPS - 1) / WARPS;
constexpr int QUERY_UNITS = OWN_QUERIES * (ROUND / 16);

DEVICE int own_key(int i) { return my_warp() + i * WARPS; }
DEVICE int own_query(int i) { return my_warp() * OWN_QUERIES + i / (ROUND / 16); }
DEVICE int own_unit(int i) { return i % (ROUND / 16) * 16; }

// What another block of the cluster sends, lane by lane: of the keys 2 (lane / 4) and + 1 of each
// unit two heads of each eight, over its own d; and Σ_h da a of these keys.
struct Message {
    float4 da[OWN_GROUPS][QUERY_UNITS][WARPS][WARP];
    float2 sum[QUERY_UNITS][WARPS][WARP / 4];
};

// dQ of a tile, row by row as in global memory. Eight floats more put the four rows that are written
// together into different banks.
constexpr bool ADDS_IN_BULK = BULK && ADDS_QUERY_GRADIENT && KEY_PASS;
constexpr int GRADIENT_ROW = HEADS * WIDTH, STAGED_ROW = GRADIENT_ROW + 8;
static_assert(!BULK || (SPLIT == 1 && STAGES == 2), "a block alone, whose next tile has a place");

struct Memory {
    Half k[KEY_STAGES][KEYS * TOKEN], v[KEY_STAGES][KEYS * TOKEN];
    Half q[QUERY_STAGES][QUERIES * TOKEN], g[QUERY_STAGES][QUERIES * TOKEN];
    union {
        struct {
            Half z[QUERIES * ROUND * SHARE], dp[QUERIES * ROUND * SHARE];
        };
        float query_gradient[BULK ? QUERIES * STAGED_ROW : 1];
#if SPLIT == 1
    };
    union {
#endif  // a cluster's tile has one round, and each of these is read before the next is written
        Squares squares;
        float from_p[QUERIES * PAIR_ROW];  // dp·V
    };
#if SPLIT > 1
    Message received[SPLIT - 1];
#endif
    Half code[GROUPS * QUERIES * KEYS * 8];
    Half ds[OWN_HEADS * SCORE_HEAD];  // RMS_FIRST: n before
    float inverse[QUERIES * KEYS];  // r, and 0 for a masked pair
};

// Where the tokens of a tile lie, and which they are.
struct Tile {
    Shared k, v, q, g;
    int first_query, first_key;
};

// ---------------------------------------------------------------- hidden layer

// Rows of z and dp, [query][key of the round][d], turned so that neither those that are written
// together nor those that are read together share banks. Two rows of 32 turn as one of 64 does.
constexpr int ROW = ShareRows::ROW, PANEL = ShareRows::PANEL;
constexpr int TURNS = PANEL >= 32 ? 8 : ShareRows::PIECES;

DEVICE Shared turned(int row, int piece, int turn) {
    return ShareRows::place(row, piece, 0) ^ (turn % TURNS * 16);
}
DEVICE Shared z_place(int query, int key, int piece) {
    return turned(query * ROUND + key, piece, (key / 2) ^ (query % 2 * 4));
}
DEVICE Shared dp_place(int query, int key, int piece) {
    return turned(query * ROUND + key, piece, query);
}

// What is kept of a pair of queries' p until dz is there: of ReLU z itself, which says as much.
DEVICE Pair pack_hidden(float first, float second) {
    return PHI == PHI_RELU ? pack_positive(first, second) : pack(first, second);
}

// z and dp of a pair of queries, what was kept of p and dz given.
DEVICE void differentiate(Pair &z, Pair &dp, Pair p, float first_dz, float second_dz) {
#if PHI == PHI_RELU
    z = p;
    dp = pack(first_dz, second_dz) & positive_halves(p);
#else
    const Activation x = activate(first_of(p)), y = activate(second_of(p));
    z = pack(x.value, y.value);
    dp = pack(first_dz * x.slope, second_dz * y.slope);
#endif
}

typedef Pair Hidden[TASK_EIGHTS][2][2][4];  // [..][key of its pair][upper rows][pair], a pair of queries

// p, in the order of query pairs.
DEVICE void hidden_layer(Hidden &p, Shared values, Shared code) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        Pair left[2][GROUPS][2], right[TASK_EIGHTS][2][GROUPS];
        load_heads_of_two(left, values + 2 * r * ALL_HEADS * ROW);
        load_code_of_two<TASK_EIGHTS>(right, code + code_by_query(r, neighbour_of_row()));
#pragma unroll
        for (int i = 0; i < TASK_EIGHTS * 2; ++i) {
            float c[4];
            contract_heads(c, left[i % 2], right[i / 2][i % 2]);
            p[i / 2][i % 2][0][r] = pack_hidden(c[0], c[1]);
            p[i / 2][i % 2][1][r] = pack_hidden(c[2], c[3]);
        }
    }
}

DEVICE void exchange(Hidden &x) {
#pragma unroll
    for (int i = 0; i < TASK_EIGHTS * 4; ++i) {
        Pair(&four)[4] = x[i / 4][i / 2 % 2][i % 2];
        exchange_registers(four[0], four[1], four[2], four[3]);
    }
}

// From p to dp, in the order of query pairs; z is stored.
DEVICE void hidden_gradient(Hidden &p, Shared upstream, Shared code, Shared z) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        Pair right[TASK_EIGHTS][2][GROUPS];
        load_code_of_two<TASK_EIGHTS>(right, code + code_by_key(m, neighbour_of_row()));
        const Shared to = (z ^ (m * 4 * PANEL + m % TURNS * 16)) + 2 * m * ROUND * ROW;
#pragma unroll
        for (int eight = 0; eight < TASK_EIGHTS; ++eight) {
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

// Key pair r of dp, in the order of key pairs, is stored.
DEVICE void store_dp(const Hidden &dp, int r, Shared tile, Shared row) {
    constexpr int LAST = TASK_EIGHTS - 1;
    const Shared to = tile + (row ^ (r * 2 * ROUND * ROW + 2 * r % TURNS * 16)) + 4 * r * PANEL;
    if constexpr (TASK_EIGHTS == 2) {  // rows: the queries of both eights
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            store_matrices_transposed(to ^ key * 2 * PANEL,
                                      {dp[0][key][0][r], dp[0][key][1][r], dp[LAST][key][0][r],
                                       dp[LAST][key][1][r]});
        }
    } else {  // the queries of both keys
        store_matrices_transposed(
            to, {dp[0][0][0][r], dp[0][0][1][r], dp[0][1][0][r], dp[0][1][1][r]});
    }
}

// The slice of d of a task, its first key of the round and its first query.
DEVICE int slice_of(int task) { return (my_warp() + task * WARPS) % SLICES; }
DEVICE int key_of_task(int task) {
    return (my_warp() + task * WARPS) / SLICES % (ROUND / 8) * 8;
}
DEVICE int query_of_task(int task) {
    return TASK_EIGHTS == EIGHTS ? 0 : (my_warp() + task * WARPS) / (SLICES * (ROUND / 8)) * 8;
}
DEVICE bool is_task(int task) { return TASKS % WARPS == 0 || my_warp() + task * WARPS < TASKS; }

// `use(task, dp, code, r)` is given key pair r of dp while it is in registers.
template <typename Use>
DEVICE void hidden(Memory &memory, const Tile &tile, int round, const Use &use) {
    const int lane = my_lane(), pair = lane % 8 / 2, query = lane % 2, upper = lane / 8 % 2;
#pragma unroll
    for (int task = 0; task < TASKS_PER_WARP; ++task) {
        if (!is_task(task)) break;
        const int slice = slice_of(task), round_key = key_of_task(task), row = query_of_task(task);
        const int key = round * ROUND + round_key, piece = 2 * slice + upper;
        const Shared code = shared_address(memory.code) + row * CODE_ROW + key * CODE_PIECE;
        Hidden x;
        hidden_layer(x, tile.v + heads_of_two(slice) + key * ALL_HEADS * ROW, code);
        exchange(x);
        hidden_gradient(x, tile.g + heads_of_two(slice) + row * ALL_HEADS * ROW, code,
                        shared_address(memory.z) + row * ROUND * ROW +
                            z_place(query, round_key + 2 * pair + lane / 16, piece));
        exchange(x);
        const int eight = TASK_EIGHTS == 2 ? lane / 16 : 0;
        const int other_key = TASK_EIGHTS == 2 ? 0 : lane / 16;
        const Shared dp = shared_address(memory.dp) + (row * ROUND + round_key) * ROW;
        const Shared dp_row = dp_place(eight * 8 + 2 * pair + query, other_key, piece);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            store_dp(x, r, dp, dp_row);
            use(task, x, code, r);
        }
    }
}

// ---------------------------------------------------------------- the gradient of the values

#if SPLIT == 1

// Of the warp's tasks, from dp in registers.
typedef float ValueGradient[8][GROUPS][4];  // [key][eight of heads]
typedef ValueGradient ValueGradients[ROUNDS][TASKS_PER_WARP];

// dV of key pair r.
DEVICE void value_gradient(ValueGradient &dv, const Hidden &dp, Shared code, int r) {
    constexpr int BOTH = EIGHTS == 1 && GROUPS > 1 ? 2 : 1;  // groups that a load serves
    const int lane = my_lane();
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
                multiply_add(c, c, dp[0][key][0][r], dp[0][key][1][r], dp[EIGHTS - 1][key][0][r],
                             dp[EIGHTS - 1][key][1][r], b[2 * key], b[2 * key + 1]);
            } else {
                multiply_add(c, c, dp[0][key][0][r], dp[0][key][1][r], b[2 * key + i % BOTH]);
            }
        }
    }
}

// f(key, slice, [eight of heads][4]) of all that the warp has.
template <typename Function>
DEVICE void for_each_value_gradient(const ValueGradients &dv, const Function &f) {
#pragma unroll
    for (int i = 0; i < ROUNDS * TASKS_PER_WARP * 8; ++i) {
        const int round = i / 8 / TASKS_PER_WARP, task = i / 8 % TASKS_PER_WARP;
        if (!is_task(task)) continue;
        f(round * ROUND + key_of_task(task) + i % 8, slice_of(task), dv[round][task][i % 8]);
    }
}

#else

// Of the warp's keys, all heads and the block's d, from dp in shared memory: where a task has 32
// heads of eight keys, these would be the registers of half of the warps, and nothing of the others.
typedef float ValueGradients[OWN_KEYS][SLICES][GROUPS][4];

DEVICE void value_gradient(ValueGradients &dv, const Memory &memory) {
    const int lane = my_lane();
#pragma unroll
    for (int i = 0; i < OWN_KEYS; ++i) {
        Pair code[GROUPS][2];  // [eight of heads][eight of queries]
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2) {
            Pair m[4];
            load_matrices_transposed(m, shared_address(memory.code) +
                                            code_place(g + lane / 16, lane % 16, own_key(i)));
            code[g][0] = m[0], code[g][1] = m[1], code[g + 1][0] = m[2], code[g + 1][1] = m[3];
        }
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            const int query = lane % 8 + lane / 16 * 8, piece = 2 * slice + lane / 8 % 2;
            Pair x[4];
            load_matrices_transposed(x,
                                     shared_address(memory.dp) + dp_place(query, own_key(i), piece));
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                float(&c)[4] = dv[i][slice][g];
                multiply_add(c, c, x[0], x[1], x[2], x[3], code[g][0], code[g][1]);
            }
        }
    }
}

template <typename Function>
DEVICE void for_each_value_gradient(const ValueGradients &dv, const Function &f) {
#pragma unroll
    for (int i = 0; i < OWN_KEYS * SLICES; ++i) {
        f(own_key(i / SLICES), i % SLICES, dv[i / SLICES][i % SLICES]);
    }
}

#endif

// ---------------------------------------------------------------- the code's gradient

// [16 × heads]: of G·z a lane holds the keys 2 (lane / 4) and + 1 of a unit, two heads each.
typedef float CodeGradient[GROUPS][4];

// Slice by slice, so that the products do not wait for each other.
DEVICE void contract_width(CodeGradient (&from_p)[OWN_KEYS], CodeGradient (&from_z)[QUERY_UNITS],
                           Memory &memory, const Tile &tile, int round) {
    const int lane = my_lane(), row = lane % 16, half = lane / 16;
    constexpr int PRODUCTS = OWN_KEYS + QUERY_UNITS;
    Shared left[PRODUCTS], right[PRODUCTS];
#pragma unroll
    for (int i = 0; i < OWN_KEYS; ++i) {
        left[i] = shared_address(memory.dp) + dp_place(row % QUERIES, own_key(i), half);
        right[i] = tile.v + ByToken::right_rows<1>(ByToken::row(round * ROUND + own_key(i), 0));
    }
#pragma unroll
    for (int i = 0; i < QUERY_UNITS; ++i) {
        const int key = own_unit(i) + row % 8 * 2 + row / 8;
        left[OWN_KEYS + i] = shared_address(memory.z) + z_place(own_query(i), key, half);
        right[OWN_KEYS + i] = tile.g + ByToken::right_rows<1>(ByToken::row(own_query(i), 0));
    }
#pragma unroll
    for (int slice = 0; slice < SLICES; slice += 2) {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) {
            CodeGradient &c = i < OWN_KEYS ? from_p[i] : from_z[i - OWN_KEYS];
            Pair x[2][4];
            load_matrices(x[0], ShareRows::pieces_on(left[i], 2 * slice));
            if (slice + 1 < SLICES) load_matrices(x[1], ShareRows::pieces_on(left[i], 2 * slice + 2));
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                Pair y[4];
                load_matrices(y, ShareRows::pieces_on(right[i], 2 * slice) + g * 8 * ROW);
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

DEVICE void load_code(float (&code)[2], const Memory &memory, int group, int query, int key) {
    const Pair two = *reinterpret_cast<const Pair *>(
        reinterpret_cast<const char *>(memory.code) + code_place(group, query, key) +
        my_lane() % 4 * 4);
    code[0] = first_of(two), code[1] = second_of(two);
}

// Of one of the lane's two keys: the code and da of two heads of each eight, and Σ_h da a over all
// heads; of a cluster, what the block's own d has of it.
DEVICE float code_gradient(float (&code)[GROUPS][2], float (&da)[GROUPS][2], const Memory &memory,
                           const CodeGradient &from_z, int query, int round_key, int key, int k) {
    float sum = 0.f;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const float2 from_p = *reinterpret_cast<const float2 *>(
            memory.from_p + query * PAIR_ROW + (round_key + k) * PAIR_PITCH + g * 8 +
            my_lane() % 4 * 2);
        load_code(code[g], memory, g, query, key + k);
        da[g][0] = from_z[g][2 * k] + from_p.x, da[g][1] = from_z[g][2 * k + 1] + from_p.y;
        sum += da[g][0] * code[g][0] + da[g][1] * code[g][1];
    }
    if constexpr (NORMALISED) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
    return sum;
}

// Where ds of a pair lies, of the block's own heads; and n before.
DEVICE int score_place(int own_head, int query, int key) {
    return own_head * SCORE_HEAD + query * SCORE_ROW + key;
}

DEVICE int score_head(int i) { return i / 2 * 8 + my_lane() % 4 * 2 + i % 2; }  // of a lane

DEVICE float normal_score(const Memory &memory, int i, int query, int key) {
    return first_of(memory.ds[score_place(score_head(i), query, key)]);
}

// Of the block's own heads of a key, in place from da, which is whole, to dn; and Σ_h dn n of them.
DEVICE float normal_gradient(float (&da)[OWN_GROUPS][2], const Memory &memory, const Arguments &a,
                             const Sequence &s, const Tile &tile,
                             const float (&code)[OWN_GROUPS][2], int query, int key) {
    const long long row = output_row(a, s.index, s.first_query, s.queries) +
                          smaller(tile.first_query + query, s.queries - 1);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < OWN_GROUPS * 2; ++i) {
        const int head = smaller(my_first_head() + score_head(i), HEADS - 1);
        float &x = da[i / 2][i % 2];
        x = code[i / 2][i % 2] * (x - __ldg(a.row_sums + row * HEADS + head));
        sum += x * normal_score(memory, i, query, key);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
}

// Of δ, what a lane has of its queries and heads.
struct RowSums {
    float sum[QUERY_UNITS][OWN_GROUPS][2], weight[QUERY_UNITS][OWN_GROUPS][2];

    DEVICE void add(int unit, const float (&code)[OWN_GROUPS][2],
                    const float (&da)[OWN_GROUPS][2]) {
#pragma unroll
        for (int i = 0; i < OWN_GROUPS * 2; ++i) {
            sum[unit][i / 2][i % 2] += code[i / 2][i % 2] * da[i / 2][i % 2];
            weight[unit][i / 2][i % 2] += code[i / 2][i % 2];
        }
    }
};

// ds of the block's own heads of a key; da (RMS_FIRST: dn) and the sum are whole.
DEVICE void score_gradient(float (&ds)[OWN_GROUPS][2], const Memory &memory, const Arguments &a,
                           const Sequence &s, const Tile &tile, const float (&code)[OWN_GROUPS][2],
                           const float (&da)[OWN_GROUPS][2], float sum, int query, int key) {
    const float mean = HAS_RMS ? sum * (1.f / HEADS) : 0.f;
    const float r = FOR_FLASH ? 0.f : memory.inverse[query * KEYS + key];
#pragma unroll
    for (int i = 0; i < OWN_GROUPS * 2; ++i) {
        const int head = my_first_head() + score_head(i);
        const float a_h = code[i / 2][i % 2], da_h = da[i / 2][i % 2];
        const float base = RMS_FIRST ? normal_score(memory, i, query, key) : a_h;
        const float dt = HAS_RMS ? da_h - base * mean : da_h;
        float raw = (FOR_FLASH ? a_h : r) * dt;
        const int at_query = tile.first_query + query, at_key = tile.first_key + key;
        // Tiles reach beyond the heads, and the biases end with these.
        const bool live = r != 0.f && head < HEADS;
        if (live && masked_by_bias(a, s, head, at_query, at_key, a_h)) raw = 0.f;
        ds[i / 2][i % 2] = with_gain(a.output, raw);
        if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
            if (live) add_bias_gradient(a, s, head, at_query, at_key, ds[i / 2][i % 2]);
        }
    }
}

DEVICE void store_score_gradients(Memory &memory, const Arguments &a,
                                  const float (&ds)[QUERY_UNITS][2][OWN_GROUPS][2], int key) {
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * OWN_GROUPS * 2; ++i) {
        const int unit = i / (OWN_GROUPS * 2), g = i / 2 % OWN_GROUPS;
        Half *to = memory.ds + score_place(score_head(i % (OWN_GROUPS * 2)), own_query(unit),
                                           own_unit(unit) + key);
        // Scaled here, where it keeps fp16 in its range, and nowhere later.
        store_pair(to, in_range(ds[unit][0][g][i % 2] * a.scale),
                   in_range(ds[unit][1][g][i % 2] * a.scale));
    }
}

#if SPLIT == 1

DEVICE void score_gradients(RowSums &rows, Memory &memory, const Arguments &a, const Sequence &s,
                            const Tile &tile, const CodeGradient (&from_z)[QUERY_UNITS],
                            int round) {
    float ds[QUERY_UNITS][2][OWN_GROUPS][2];
    const int round_key = my_lane() / 4 * 2, key = round * ROUND + round_key;
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * 2; ++i) {
        const int unit = i / 2, k = i % 2, query = own_query(unit);
        float code[GROUPS][2], da[GROUPS][2];
        float sum = code_gradient(code, da, memory, from_z[unit], query,
                                  own_unit(unit) + round_key, own_unit(unit) + key, k);
        const int at = own_unit(unit) + key + k;
        if constexpr (PASS == PASS_DELTA) {
            rows.add(unit, code, da);
            continue;
        }
        if constexpr (RMS_FIRST) sum = normal_gradient(da, memory, a, s, tile, code, query, at);
        score_gradient(ds[unit][k], memory, a, s, tile, code, da, sum, query, at);
    }
    if constexpr (PASS != PASS_DELTA) store_score_gradients(memory, a, ds, key);
}

#else

// Where another block keeps what this one sends it: a place for each of the others, in their order.
DEVICE Message &message_to(Memory &memory, int rank) {
    return *in_block(&memory.received[my_rank() - (my_rank() > rank)], rank);
}

// Sums over the heads of each block, of a unit's two keys, become those over all heads.
DEVICE void sum_over_blocks(float (&sum)[QUERY_UNITS][2], Memory &memory) {
    const int lane = my_lane(), warp = my_warp();
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * SPLIT; ++i) {
        const int unit = i / SPLIT, rank = i % SPLIT;
        if (rank == my_rank() || lane % 4 != 0) continue;
        float2 &to = message_to(memory, rank).sum[unit][warp][lane / 4];
        to = make_float2(sum[unit][0], sum[unit][1]);
    }
    meet();
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * (SPLIT - 1); ++i) {
        const int unit = i / (SPLIT - 1);
        const float2 x = memory.received[i % (SPLIT - 1)].sum[unit][warp][lane / 4];
        sum[unit][0] += x.x, sum[unit][1] += x.y;
    }
}

typedef float OwnHeads[OWN_GROUPS][2];

// Calls f(unit, k, query, key, code of the block's own heads) of both keys of each unit.
template <typename Function>
DEVICE void for_each_own_key(const Memory &memory, const Function &f) {
#pragma unroll
    for (int i = 0; i < QUERY_UNITS * 2; ++i) {
        const int unit = i / 2, query = own_query(unit);
        const int key = own_unit(unit) + my_lane() / 4 * 2 + i % 2;
        OwnHeads code;
#pragma unroll
        for (int g = 0; g < OWN_GROUPS; ++g) {
            load_code(code[g], memory, my_first_head() / 8 + g, query, key);
        }
        f(unit, i % 2, query, key, code);
    }
}

// The heads of every block, over this one's d, go to that block; what it gets in turn is added.
DEVICE void score_gradients(RowSums &rows, Memory &memory, const Arguments &a, const Sequence &s,
                            const Tile &tile, const CodeGradient (&from_z)[QUERY_UNITS]) {
    const int lane = my_lane(), warp = my_warp(), key = lane / 4 * 2;
    float own[QUERY_UNITS][2][OWN_GROUPS][2], sum[QUERY_UNITS][2];
#pragma unroll
    for (int unit = 0; unit < QUERY_UNITS; ++unit) {
        float code[GROUPS][2], da[2][GROUPS][2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            sum[unit][k] = code_gradient(code, da[k], memory, from_z[unit], own_query(unit),
                                         own_unit(unit) + key, own_unit(unit) + key, k);
        }
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
            const float(&first)[GROUPS][2] = da[0], (&second)[GROUPS][2] = da[1];
            if (rank == my_rank()) {
#pragma unroll
                for (int i = 0; i < OWN_GROUPS * 4; ++i) {
                    const int k = i / 2 % 2, g = i / 4;
                    own[unit][k][g][i % 2] = da[k][rank * OWN_GROUPS + g][i % 2];
                }
                continue;
            }
            Message &to = message_to(memory, rank);
#pragma unroll
            for (int i = 0; i < OWN_GROUPS; ++i) {
                const int g = rank * OWN_GROUPS + i;
                to.da[i][unit][warp][lane] =
                    make_float4(first[g][0], first[g][1], second[g][0], second[g][1]);
            }
            if (NORMALISED && lane % 4 == 0) {
                to.sum[unit][warp][lane / 4] = make_float2(sum[unit][0], sum[unit][1]);
            }
        }
    }
    meet();
    float ds[QUERY_UNITS][2][OWN_GROUPS][2];
#pragma unroll
    for (int unit = 0; unit < QUERY_UNITS; ++unit) {
#pragma unroll
        for (int i = 0; i < SPLIT - 1; ++i) {
            const Message &from = memory.received[i];
#pragma unroll
            for (int g = 0; g < OWN_GROUPS; ++g) {
                const float4 x = from.da[g][unit][warp][lane];
                own[unit][0][g][0] += x.x, own[unit][0][g][1] += x.y;
                own[unit][1][g][0] += x.z, own[unit][1][g][1] += x.w;
            }
            if constexpr (NORMALISED) {
                const float2 x = from.sum[unit][warp][lane / 4];
                sum[unit][0] += x.x, sum[unit][1] += x.y;
            }
        }
    }
    if constexpr (PASS == PASS_DELTA) {
        for_each_own_key(memory, [&](int unit, int k, int, int, const OwnHeads &code) {
            rows.add(unit, code, own[unit][k]);
        });
        return;
    }
    if constexpr (RMS_FIRST) {
        for_each_own_key(memory, [&](int unit, int k, int query, int at, const OwnHeads &code) {
            sum[unit][k] = normal_gradient(own[unit][k], memory, a, s, tile, code, query, at);
        });
        sum_over_blocks(sum, memory);
    }
    for_each_own_key(memory, [&](int unit, int k, int query, int at, const OwnHeads &code) {
        score_gradient(ds[unit][k], memory, a, s, tile, code, own[unit][k], sum[unit][k], query,
                       at);
    });
    store_score_gradients(memory, a, ds, key);
}

#endif

// ---------------------------------------------------------------- the gradients of keys and queries

constexpr int COLUMNS = WIDTH / 8;
constexpr int KEY_TASKS = (BLOCK_HEADS * KEY_UNITS + WARPS - 1) / WARPS;  // a head and 16 keys each
typedef float KeyGradient[KEY_TASKS][COLUMNS][4];                   // [16 keys × 8 of d]

DEVICE int key_task(int i) { return my_warp() * KEY_TASKS + i; }
DEVICE bool is_key_task(int i) {
    return BLOCK_HEADS * KEY_UNITS % WARPS == 0 || key_task(i) < BLOCK_HEADS * KEY_UNITS;
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
            tile.q +
            (EIGHTS == 2 ? HeadRows::left_rows(0) : HeadRows::right_rows<1>(0)) +
            QueryOrder::row(0, head) * HeadRows::ROW;
        constexpr int STEP = 4 / EIGHTS;  // columns that a load serves
#pragma unroll
        for (int n = 0; n < COLUMNS; n += STEP) {
            Pair y[4];
            load_matrices_transposed(y, HeadRows::pieces_on(rows, n));
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

// [16 queries × 8 of d]; for flash attention a last column, all of it the row sums. Of eight queries,
// the upper rows are anything.
constexpr int ROW_SUMS = FOR_FLASH ? COLUMNS : 0;
typedef float HeadGradient[COLUMNS + FOR_FLASH][4];
typedef HeadGradient QueryGradient[HEADS_PER_WARP];

DEVICE int own_head(int i) { return my_warp() + i * WARPS; }
DEVICE bool is_head(int i) { return BLOCK_HEADS % WARPS == 0 || own_head(i) < BLOCK_HEADS; }

// c += Σ_k ds K.
DEVICE void query_gradient(HeadGradient &c, const Memory &memory, const Tile &tile, int head) {
    const int lane = my_lane();
    const Shared left =
        shared_address(memory.ds) +
        2 * (head * SCORE_HEAD + lane % 16 % QUERIES * SCORE_ROW + lane / 16 * 8);
    const Shared right = tile.k + HeadRows::left_rows(0) + KeyOrder::row(0, head) * HeadRows::ROW;
#pragma unroll
    for (int unit = 0; unit < KEY_UNITS; ++unit) {
        Pair x[4];
        load_matrices(x, left + unit * 32);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            Pair y[4];
            load_matrices_transposed(y, HeadRows::pieces_on(right, n) + unit * 16 * HeadRows::ROW);
            multiply_add(c[n], c[n], x[0], x[1], x[2], x[3], y[0], y[1]);
            multiply_add(c[n + 1], c[n + 1], x[0], x[1], x[2], x[3], y[2], y[3]);
        }
        if constexpr (FOR_FLASH) {
            const Pair ones = pair_of_ones();
            multiply_add(c[ROW_SUMS], c[ROW_SUMS], x[0], x[1], x[2], x[3], ones, ones);
        }
    }
}

DEVICE float *row_sum(const Arguments &a, long long row, int head) {
    return a.row_sums + row * HEADS + head;
}

// Of the tile's first query.
DEVICE long long gradient_row(const Arguments &a, const Sequence &s, const Tile &tile) {
    return output_row(a, s.index, s.first_query, s.queries) + tile.first_query;
}

// To global memory, or with BULK to where `send_query_gradient` finds it.
DEVICE void add_query_gradient(const Arguments &a, const Sequence &s, Memory &memory,
                               const Tile &tile) {
    const long long start = gradient_row(a, s, tile);
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP; ++i) {
        if (!is_head(i) || !exists(own_head(i))) break;
        const int head = my_first_head() + own_head(i);
        HeadGradient c = {};
        query_gradient(c, memory, tile, own_head(i));
#pragma unroll
        for (int upper = 0; upper < EIGHTS; ++upper) {
            const int query = my_lane() / 4 + upper * 8, column = my_lane() % 4 * 2;
            const bool live = tile.first_query + query < s.queries;
            if constexpr (FOR_FLASH) {
                const float sum = c[ROW_SUMS][2 * upper];
                if (live && column == 0) atomicAdd(row_sum(a, start + query, head), sum);
            }
            if (!live && !ADDS_IN_BULK) continue;  // in bulk, no such row is sent
            float *to = ADDS_IN_BULK ? memory.query_gradient + query * STAGED_ROW
                                     : a.query_gradient + (start + query) * GRADIENT_ROW;
            to += head * WIDTH + column;
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                const float first = c[n][2 * upper], second = c[n][2 * upper + 1];
                if constexpr (ADDS_IN_BULK) {
                    *reinterpret_cast<float2 *>(to + n * 8) = make_float2(first, second);
                } else {
                    add_atomically(to + n * 8, first, second);
                }
            }
        }
    }
}

// What all warps have of dQ is added to global memory, a row by each of some lanes.
DEVICE void send_query_gradient(const Arguments &a, const Sequence &s, const Memory &memory,
                                const Tile &tile) {
    const int query = my_warp() * OWN_QUERIES + my_lane();
    if (my_lane() >= OWN_QUERIES || tile.first_query + query >= s.queries) return;
    add_in_bulk(a.query_gradient + (gradient_row(a, s, tile) + query) * GRADIENT_ROW,
                shared_address(memory.query_gradient + query * STAGED_ROW), 4 * GRADIENT_ROW);
    close_bulk();
}

// ---------------------------------------------------------------- the two passes

// From one stage of what is walked over to the other, where there are two.
constexpr Shared OTHER_STAGE = (STAGES - 1) * (KEY_PASS ? QUERIES : KEYS) * TOKEN * 2;

DEVICE void code_of_tile(Memory &memory, const Arguments &a, const Sequence &s,
                         const Tile &tile) {
    write_code(
        memory, a, s, tile.k, tile.q, tile.first_query, tile.first_key,
        [&](int query, int key, float r) { memory.inverse[query * KEYS + key] = r; },
        [&](int own_head, int query, int key, float n) {
            if constexpr (PASS == PASS_DELTA) return;
            memory.ds[score_place(own_head, query, key)] = static_cast<Half>(pack(n, 0.f));
        });
    if constexpr (ADDS_IN_BULK) wait_for_bulk_reads();  // before z and dp are written
    meet();
}

// From the code to ds. `values_read()` is called when V and G are no longer needed.
template <typename Function>
DEVICE void gradients_of_tile(ValueGradients &dv, RowSums &rows, Memory &memory,
                              const Arguments &a, const Sequence &s, const Tile &tile,
                              const Function &values_read) {
#if SPLIT == 1
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        hidden(memory, tile, round, [&](int task, const Hidden &dp, Shared code, int r) {
            if constexpr (KEY_PASS) value_gradient(dv[round][task], dp, code, r);
        });
        __syncthreads();
        CodeGradient from_p[OWN_KEYS] = {}, from_z[QUERY_UNITS] = {};
        contract_width(from_p, from_z, memory, tile, round);
        store_from_p(memory, from_p);
        __syncthreads();
        if (round == ROUNDS - 1) values_read();
        score_gradients(rows, memory, a, s, tile, from_z, round);
    }
#else
    hidden(memory, tile, 0, [](int, const Hidden &, Shared, int) {});
    __syncthreads();
    if constexpr (KEY_PASS) value_gradient(dv, memory);
    CodeGradient from_p[OWN_KEYS] = {}, from_z[QUERY_UNITS] = {};
    contract_width(from_p, from_z, memory, tile, 0);
    __syncthreads();
    values_read();
    store_from_p(memory, from_p);
    __syncthreads();
    score_gradients(rows, memory, a, s, tile, from_z);
#endif
    __syncthreads();
}

#if PASS == PASS_KEY

DEVICE void store_key_gradient(const Arguments &a, const Sequence &s, int first_key,
                               const KeyGradient &dk) {
    const long long start = output_row(a, s.index, s.first_key, s.keys);
#pragma unroll
    for (int i = 0; i < KEY_TASKS; ++i) {
        const int own = key_task(i) / KEY_UNITS, unit = key_task(i) % KEY_UNITS;
        if (!is_key_task(i) || !exists(own)) break;
        const int head = my_first_head() + own;
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
    for_each_value_gradient(dv, [&](int tile_key, int slice, const float (&own)[GROUPS][4]) {
        const int key = first_key + tile_key;
        if (key >= s.keys) return;
#pragma unroll
        for (int e = 0; e < GROUPS * 4; ++e) {
            const int head = e / 4 * 8 + lane % 4 * 2 + e % 2;
            const int d = my_first_d() + slice * 16 + lane / 4 + e / 2 % 2 * 8;
            if (head >= HEADS) continue;
            const float x = with_gain(a.output, own[e / 4][e % 4]);
            a.second[((start + key) * HEADS + head) * WIDTH + d] = static_cast<Half>(pack(x, 0.f));
        }
    });
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, my_task() % a.batch);
    const int first_key = my_task() / a.batch * KEYS;
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
    const auto copy_q = [&](Shared to, int first) {
        copy_tokens<QUERIES, QueryOrder>(to, q, a.q, first, s.queries);
        close_copies();
    };
    const auto copy_g = [&](Shared to, int first) {
        copy_tokens<QUERIES, ByToken>(to, g, a.upstream, first, s.queries);
        close_copies();
    };
    copy_q(tile.q, begin);
    copy_g(tile.g, begin);
    KeyGradient dk = {};
    ValueGradients dv = {};
    RowSums unused;
    if constexpr (SPLIT > 1) meet();  // all have begun
    const Shared both_q = 2 * tile.q + OTHER_STAGE, both_g = 2 * tile.g + OTHER_STAGE;
    const auto tile_is_there = [] {
        wait_for_copies<0>();
        __syncthreads();
    };
    if constexpr (ADDS_IN_BULK) tile_is_there();
#pragma unroll 1
    for (; tile.first_query < s.queries; tile.first_query += QUERIES) {
        if constexpr (!ADDS_IN_BULK) tile_is_there();
        const Shared next_q = both_q - tile.q, next_g = both_g - tile.g;
        const int next = tile.first_query + QUERIES;
        const auto copy_both = [&] { copy_q(next_q, next), copy_g(next_g, next); };
        if constexpr (STAGES == 2 && !ADDS_IN_BULK) copy_both();
        code_of_tile(memory, a, s, tile);
        if constexpr (ADDS_IN_BULK) copy_both();
        gradients_of_tile(dv, unused, memory, a, s, tile, [&] {
            if constexpr (STAGES == 1) copy_g(next_g, next);
        });
        if constexpr (ADDS_IN_BULK) {
            // The barrier between dQ and dK is that before the next tile, too: what dK reads is
            // not written before all have met once more, in the next code.
            add_query_gradient(a, s, memory, tile);
            publish_to_async();
            tile_is_there();
            send_query_gradient(a, s, memory, tile);
        }
        key_gradient(dk, memory, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            copy_q(next_q, next);
        }
        if constexpr (ADDS_QUERY_GRADIENT && !ADDS_IN_BULK) {
            add_query_gradient(a, s, memory, tile);
        }
        tile.q = next_q, tile.g = next_g;
    }
    wait_for_copies<0>();
    if constexpr (ADDS_IN_BULK) wait_for_bulk_reads();
    store_key_gradient(a, s, first_key, dk);
    store_value_gradient(a, s, first_key, dv);
}

#else

// δ of the block's queries, of which so many are left, from what the lanes have of it.
DEVICE void store_delta(const Arguments &a, const RowSums &rows, long long start, int left) {
    constexpr int UNITS_OF_QUERY = ROUND / 16;
#pragma unroll
    for (int i = 0; i < OWN_QUERIES * OWN_GROUPS * 2; ++i) {
        const int own = i / (OWN_GROUPS * 2), entry = i % (OWN_GROUPS * 2);
        float sum = 0.f, weight = 0.f;
#pragma unroll
        for (int j = 0; j < UNITS_OF_QUERY; ++j) {
            sum += rows.sum[own * UNITS_OF_QUERY + j][entry / 2][entry % 2];
            weight += rows.weight[own * UNITS_OF_QUERY + j][entry / 2][entry % 2];
        }
#pragma unroll
        for (int mask = 4; mask < WARP; mask *= 2) {  // over the keys
            sum += __shfl_xor_sync(0xffffffffu, sum, mask);
            weight += __shfl_xor_sync(0xffffffffu, weight, mask);
        }
        const int query = own_query(own * UNITS_OF_QUERY);
        const int head = my_first_head() + score_head(entry);
        if (my_lane() >= 4 || query >= left || head >= HEADS) continue;
        *row_sum(a, start + query, head) = weight > 0.f ? sum / weight : sum;
    }
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    Memory &memory = *static_cast<Memory *>(block_memory());
    const Sequence s = sequence(a, my_task() % a.batch);
    const int tiles = (a.queries + QUERIES - 1) / QUERIES;
    const int first_query = (tiles - 1 - my_task() / a.batch) * QUERIES;
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
    const auto copy_k = [&](Shared to, int first) {
        copy_tokens<KEYS, KeyOrder, SHARED_BY>(to, k, a.k, first, end);
        close_copies();
    };
    const auto copy_v = [&](Shared to, int first) {
        copy_tokens<KEYS, ByToken, SHARED_BY>(to, v, a.v, first, end);
        close_copies();
    };
    copy_k(tile.k, 0);
    copy_v(tile.v, 0);
    QueryGradient dq = {};
    ValueGradients unused;
    RowSums rows = {};
    if constexpr (SPLIT > 1) meet();  // all have begun
    const Shared both_k = 2 * tile.k + OTHER_STAGE, both_v = 2 * tile.v + OTHER_STAGE;
#pragma unroll 1
    for (; tile.first_key < end; tile.first_key += KEYS) {
        wait_for_copies<0>();
        __syncthreads();
        const Shared next_k = both_k - tile.k, next_v = both_v - tile.v;
        const int next = tile.first_key + KEYS;
        if constexpr (STAGES == 2) copy_k(next_k, next), copy_v(next_v, next);
        code_of_tile(memory, a, s, tile);
        gradients_of_tile(unused, rows, memory, a, s, tile, [&] {
            if constexpr (STAGES == 1) copy_v(next_v, next);
        });
#pragma unroll
        for (int i = 0; i < HEADS_PER_WARP; ++i) {
            if (PASS == PASS_QUERY && is_head(i)) query_gradient(dq[i], memory, tile, own_head(i));
        }
        if constexpr (STAGES == 1) {
            __syncthreads();
            copy_k(next_k, next);
        }
        tile.k = next_k, tile.v = next_v;
    }
    wait_for_copies<0>();

    const long long start = output_row(a, s.index, s.first_query, s.queries) + first_query;
    if constexpr (PASS == PASS_DELTA) {
        store_delta(a, rows, start, s.queries - first_query);
        return;
    }
#pragma unroll
    for (int i = 0; i < HEADS_PER_WARP * EIGHTS; ++i) {
        const int upper = i % EIGHTS, own = own_head(i / EIGHTS), head = my_first_head() + own;
        const int query = my_lane() / 4 + upper * 8, column = my_lane() % 4 * 2;
        if (!is_head(i / EIGHTS) || !exists(own) || first_query + query >= s.queries) continue;
        const HeadGradient &c = dq[i / EIGHTS];
        Half *to = a.first + ((start + query) * HEADS + head) * WIDTH + column;
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            store_pair(to + n * 8, c[n][2 * upper], c[n][2 * upper + 1]);
        }
        if constexpr (FOR_FLASH) {
            if (column == 0) *row_sum(a, start + query, head) = c[ROW_SUMS][2 * upper];
        }
    }
}

#endif
