// Head-mixing attention in plain float32 arithmetic, forward and backward, for what the tensor
// cores do not take: float32, and heads so many and large that their tokens overflow a block.
//
//     s[h] = scale · Q[q,h]·K[k,h] + bias[h,q,k]      a[h] = s[h] · r,  r = rsqrt(mean_h s² + eps)
//     p    = Σ_h a[h] V[k,h],  z = φ(p)               O[q,h] += Σ_k a[h] z
//
//     dz = Σ_h a[h] G[q,h]                            dp = dz · φ'(p),  dV[k,h] += Σ_q a[h] dp
//     da[h] = G[q,h]·z + dp·V[k,h]                    ds = r (da − a · mean_h(da a))
//     dK[k,h] += Σ_q (scale ds) Q                     dQ[q,h] += Σ_k (scale ds) K
//
// Without HIDDEN, the linear value network: V[k,h] takes the place of z, and G[q,h] that of dp; da
// is G[q,h]·V[k,h].
//
// MULTIPLIED (attention dropout): the code is m·a, with a number m of the pair, and everything is made
// of that; but ds is made of m·da and of a itself, which differentiating RMSHead or a softmax leaves.
//
// With a SOFTMAX over the keys, b = exp(s − log_sum) takes the place of s, and RMSHead, where there
// is one, comes after it (NORMALISED) or before it (RMS_FIRST: r·s in the exponent). Two more passes
// sum the rows: one makes log_sum, the other δ = Σ_k b db / Σ_k b, of which the gradient b (db − δ)
// is made. Divided by Σ_k b, and with b the same to the last bit in all passes, because where one key
// has all the weight db − δ would otherwise be the rounding of log_sum.
//
// What mixes heads (p, dz and the rest of the value network) works on each d alone: a lane owns
// SHARE of d and needs nothing of the others, but for da, which sums over d. A *team* of LANES
// lanes owns LANES · SHARE of d of one token, a query (forward) or a key (backward), whose heads
// lie in registers, and walks over the tokens of the other side in the tile. Rows wider than that
// take TEAMS_PER_TOKEN teams. The code of a pair is read by broadcast.
//
// What contracts d or tokens (scores, dK, dQ) is blocked in registers, four by four. For the
// scores, q and k pass through shared memory PIECE of d at a time, so that rows of any width do.
//
// A block owns QUERIES queries (forward, query pass) or KEYS keys (key pass) and walks over the
// others, a tile of QUERIES × KEYS at a time; in the backward the owner's dK or dQ is summed in
// shared memory, dV in registers. If ADDS_QUERY_GRADIENT the key pass adds its share of dQ to
// global memory atomically; for a fixed order the query pass computes everything up to ds again.
//
// Set by the compiler's command line: KIND, PASS, HEADS, SHARED_BY, WIDTH (a multiple of 16),
// QUERIES and KEYS (multiples of 4), WARPS, BLOCKS (that must fit on a multiprocessor), LANES, SHARE,
// NORMALISED, SOFTMAX, RMS_FIRST, MULTIPLIED, HIDDEN, PHI, BIASED (0 none, 1 float32, 2 the dtype of
// q), PADDED, ADDS_QUERY_GRADIENT, BIAS_GRADIENT and OUTPUT (output.cuh; the backward knows of a gain
// alone).

#define PASS_FORWARD 0
#define PASS_QUERY 1
#define PASS_KEY 2
#define PASS_SUMS 3   // of a softmax, log_sum
#define PASS_DELTA 4  // and δ
#define BACKWARD (PASS != PASS_FORWARD && PASS != PASS_SUMS)

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;
constexpr int TEAM_WIDTH = LANES * SHARE;
constexpr int TEAMS_PER_TOKEN = (WIDTH + TEAM_WIDTH - 1) / TEAM_WIDTH;
constexpr int TOKENS_AT_ONCE = THREADS / LANES / TEAMS_PER_TOKEN;
constexpr int VECTOR = SHARE % 4 == 0 ? 4 : SHARE % 2 == 0 ? 2 : 1;  // elements per load
constexpr int PAIRS = QUERIES * KEYS;
constexpr int PIECE = 16;
static_assert(WIDTH % PIECE == 0 && QUERIES % 4 == 0 && KEYS % 4 == 0, "tile");
static_assert(THREADS % (LANES * TEAMS_PER_TOKEN) == 0, "no team is left over");

// Pitches, in floats, that put what a warp touches at once into different banks.
constexpr int PIECE_PITCH = PIECE + 4;
constexpr int HEAD_FOURS = (HEADS + 3) / 4;
constexpr int CODE_PITCH = 4 * (HEAD_FOURS % 2 == 0 ? HEAD_FOURS + 1 : HEAD_FOURS);
template <int TOKENS>
constexpr int HEAD_PITCH = TOKENS * PIECE_PITCH + (TOKENS % 8 == 0 ? 16 : 0);

constexpr int OWN_TOKENS = PASS == PASS_KEY ? KEYS : QUERIES;

struct Memory {
    union {
        struct {
            float q[HEADS * HEAD_PITCH<QUERIES>], k[HEADS * HEAD_PITCH<KEYS>];
        };
        float code[PAIRS * CODE_PITCH];  // [query][key][head]
    };
    // [head][query][key]: s, of a softmax then b (with RMS_FIRST r·s), and in the end scale · ds.
    float score[HEADS * PAIRS];
#if BACKWARD
    float inverse[PAIRS];  // r, and 0 for a masked pair
    float code_gradient[TEAMS_PER_TOKEN][PAIRS * CODE_PITCH];
#endif
#if PASS == PASS_QUERY || PASS == PASS_KEY
    float sums[OWN_TOKENS * HEADS * WIDTH];  // dK or dQ
#endif
};

DEVICE int my_thread() { return static_cast<int>(threadIdx.x); }
DEVICE int my_team() { return my_thread() / LANES; }
DEVICE int my_seat() { return my_thread() % LANES; }

// ---------------------------------------------------------------- tokens

struct Tokens {  // of one sequence
    const Scalar *at;  // [token, head, d], heads contiguous
    long long token;
    int count;
    int sharing;                   // heads of q that share one of them
    const unsigned char *padding;  // null: none is masked

    DEVICE bool holds(int i) const {
        return i < count && (!PADDED || padding == nullptr || padding[i] != 0);
    }
    DEVICE const Scalar *find(int i, int h, int d) const {
        return at + i * token + h / sharing * WIDTH + d;
    }

    // Four elements of token i; zeros where there is no such token, whatever memory holds.
    DEVICE void load(int i, const Scalar *from, float (&x)[4]) const {
        x[0] = x[1] = x[2] = x[3] = 0.f;
        if (holds(i)) read(from, x);
    }
};

DEVICE Tokens of_queries(const Arguments &a, const Sequence &s, const Tensor4 &x) {
    return {tokens_of(a, x, s.index, s.first_query), x.token, s.queries, 1, nullptr};
}

DEVICE Tokens of_keys(const Arguments &a, const Sequence &s, const Tensor4 &x) {
    const unsigned char *padding = nullptr;
    if constexpr (PADDED) padding = a.padding + static_cast<long long>(s.index) * a.keys;
    return {tokens_of(a, x, s.index, s.first_key), x.token, s.keys, SHARED_BY, padding};
}

// Which of d the lane owns: VECTOR from here on.
DEVICE int own_width(int vector) {
    const int seat = vector * LANES + my_seat();
    return my_team() % TEAMS_PER_TOKEN * TEAM_WIDTH + seat * VECTOR;
}

DEVICE bool has_width(int vector) {
    return WIDTH % TEAM_WIDTH == 0 || own_width(vector) < WIDTH;
}

DEVICE void load_share(const Tokens &tokens, int token, int head, float (&x)[SHARE]) {
#pragma unroll
    for (int i = 0; i < SHARE / VECTOR; ++i) {
        float some[VECTOR] = {};
        if (has_width(i)) read(tokens.find(token, head, own_width(i)), some);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) x[i * VECTOR + j] = some[j];
    }
}

// `to` is a contiguous token.
DEVICE void store_share(Scalar *to, const float (&x)[HEADS][SHARE]) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < SHARE / VECTOR; ++i) {
            if (has_width(i)) write<VECTOR>(to + h * WIDTH + own_width(i), x[h] + i * VECTOR);
        }
    }
}

// ---------------------------------------------------------------- the code of a tile

// A thread stages the same four elements of every STEP-th token.
template <int COUNT>
DEVICE void stage(float *tile, const Tokens &tokens, int first, int d) {
    constexpr int FOURS = PIECE / 4, FOURS_OF_TOKEN = HEADS * FOURS, STEP = THREADS / FOURS_OF_TOKEN;
    static_assert(STEP > 0, "a token has no more than a four for each thread");
    const int four = my_thread() % FOURS * 4, head = my_thread() / FOURS % HEADS;
    const int start = my_thread() / FOURS_OF_TOKEN;
    const Scalar *from = tokens.find(first + start, head, d + four);
    float *to = tile + head * HEAD_PITCH<COUNT> + start * PIECE_PITCH + four;
    if (start >= STEP) return;
#pragma unroll 2
    for (int token = start; token < COUNT; token += STEP) {
        float x[4];
        tokens.load(first + token, from, x);
        *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
        from += STEP * tokens.token, to += STEP * PIECE_PITCH;
    }
}

DEVICE void load_four(const float *from, float (&x)[4]) {
    const float4 w = *reinterpret_cast<const float4 *>(from);
    x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
}

// A thread's unit is one head of four queries × four keys, each a quarter of the tile apart.
constexpr int QUERY_QUARTER = QUERIES / 4, KEY_QUARTER = KEYS / 4;
constexpr int UNITS = HEADS * QUERY_QUARTER * KEY_QUARTER;
constexpr int UNITS_PER_THREAD = (UNITS + THREADS - 1) / THREADS;

struct Unit {
    int head, query, key;
};

DEVICE Unit unit(int number) {
    return {number / (KEY_QUARTER * QUERY_QUARTER), number / KEY_QUARTER % QUERY_QUARTER,
            number % KEY_QUARTER};
}

DEVICE void add_products(float (&c)[4][4], const Memory &memory, const Unit &u) {
    const float *queries = memory.q + u.head * HEAD_PITCH<QUERIES> + u.query * PIECE_PITCH;
    const float *keys = memory.k + u.head * HEAD_PITCH<KEYS> + u.key * PIECE_PITCH;
#pragma unroll 1
    for (int d = 0; d < PIECE; d += 4) {
        float q[4][4], k[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            load_four(queries + i * QUERY_QUARTER * PIECE_PITCH + d, q[i]);
            load_four(keys + i * KEY_QUARTER * PIECE_PITCH + d, k[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) c[i][j] += q[i][e] * k[j][e];
            }
        }
    }
}

DEVICE void scores(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                   int first_key) {
    const Tokens queries = of_queries(a, s, a.q), keys = of_keys(a, s, a.k);
    float c[UNITS_PER_THREAD][4][4] = {};
#pragma unroll 1
    for (int d = 0; d < WIDTH; d += PIECE) {
        stage<QUERIES>(memory.q, queries, first_query, d);
        stage<KEYS>(memory.k, keys, first_key, d);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < UNITS_PER_THREAD; ++i) {
            const int number = my_thread() + i * THREADS;
            if (number < UNITS) add_products(c[i], memory, unit(number));
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        const int number = my_thread() + i * THREADS;
        if (number >= UNITS) break;
        const Unit u = unit(number);
#pragma unroll
        for (int e = 0; e < 16; ++e) {
            const int query = u.query + e / 4 * QUERY_QUARTER, key = u.key + e % 4 * KEY_QUARTER;
            float score = c[i][e / 4][e % 4] * a.scale;
            if constexpr (BIASED != 0) {
                if (visible(a, s, first_query + query, first_key + key)) {
                    const float bias =
                        bias_of(a, s, u.head, first_query + query, first_key + key);
                    score = !masks_pair(bias) ? score + bias : SOFTMAX ? bias : 0.f;
                }
            }
            memory.score[u.head * PAIRS + query * KEYS + key] = score;
        }
    }
    __syncthreads();
}

// A head that a bias of −∞ masks counts as 0 among the others.
DEVICE float present(float score) {
    return BIASED != 0 && SOFTMAX && masks_pair(score) ? 0.f : score;
}

DEVICE float inverse_root(const Memory &memory, const Arguments &a, int pair) {
    if constexpr (!NORMALISED && !RMS_FIRST) return 1.f;
    float squares = 0.f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const float x = present(memory.score[h * PAIRS + pair]);
        squares += x * x;
    }
    return inverse_root_of(squares * (1.f / HEADS) + a.eps);
}

// Where one number for each head of a query lies, of a softmax.
DEVICE long long statistic(const Arguments &a, const Sequence &s, int query) {
    return (output_row(a, s.index, s.first_query, s.queries) + query) * HEADS;
}

DEVICE float softmax_code(const Arguments &a, float score, long long row, int head) {
    return power_of_two((score - __ldg(a.log_sum + row + head)) * LOG2_E);
}

// Of a pair that is seen.
DEVICE float multiplier_of(const Arguments &a, const Sequence &s, int query, int key) {
    if constexpr (!MULTIPLIED) return 1.f;
    const long long first = static_cast<long long>(s.index / a.batch_per_multiplier) * a.queries;
    return __ldg(a.multiplier + (first + query) * a.keys + key);
}

DEVICE void code(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                 int first_key) {
    for (int pair = my_thread(); pair < PAIRS; pair += THREADS) {
        const int query = first_query + pair / KEYS, key = first_key + pair % KEYS;
        const bool seen = visible(a, s, query, key);
        const long long row = SOFTMAX && seen ? statistic(a, s, query) : 0;
        if constexpr (SOFTMAX && !RMS_FIRST) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                float &x = memory.score[h * PAIRS + pair];
                x = seen ? softmax_code(a, x, row, h) : 0.f;
            }
        }
        const float r = inverse_root(memory, a, pair);
        const float m = seen ? multiplier_of(a, s, query, key) : 0.f;
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float &x = memory.score[h * PAIRS + pair], code = x * r;
            if constexpr (RMS_FIRST) {
                x = code;
                code = softmax_code(a, x, row, h);
            }
            memory.code[pair * CODE_PITCH + h] = m == 0.f ? 0.f : code * m;
        }
#if BACKWARD
        memory.inverse[pair] = seen ? r : 0.f;
#endif
    }
    __syncthreads();
}

DEVICE void load_code(const Memory &memory, int pair, float (&x)[4 * HEAD_FOURS]) {
#pragma unroll
    for (int i = 0; i < HEAD_FOURS; ++i) {  // beyond the last head: anything
        float four[4];
        load_four(memory.code + pair * CODE_PITCH + 4 * i, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[4 * i + j] = four[j];
    }
}

DEVICE void hidden_layer(float (&p)[SHARE], const float (&code)[4 * HEAD_FOURS],
                         const float (&v)[HEADS][SHARE]) {
#pragma unroll
    for (int i = 0; i < SHARE; ++i) p[i] = 0.f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) p[i] += code[h] * v[h][i];
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

// Calls f(i, query, head) of the thread's i-th row of the tile.
constexpr int ROWS_PER_THREAD = (QUERIES * HEADS + THREADS - 1) / THREADS;

template <typename Function>
DEVICE void for_each_row(const Function &f) {
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
        const int row = my_thread() + i * THREADS;
        if (row < QUERIES * HEADS) f(i, row % QUERIES, row / QUERIES);
    }
}

#if PASS == PASS_FORWARD

constexpr int ROUNDS = QUERIES / TOKENS_AT_ONCE;  // queries of a team
static_assert(QUERIES % TOKENS_AT_ONCE == 0, "every team has as many queries");

DEVICE void scale_output(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                         float (&out)[ROUNDS][HEADS][SHARE]) {
    const int own = my_team() / TEAMS_PER_TOKEN;
    float squares[ROUNDS] = {};
    if constexpr (OUTPUT == OUTPUT_RMS) {
        float *sums = memory.score;  // no longer needed
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
            for (int j = 0; j < HEADS * SHARE; ++j) {
                squares[i] += out[i][j / SHARE][j % SHARE] * out[i][j / SHARE][j % SHARE];
            }
#pragma unroll
            for (int mask = LANES / 2; mask > 0; mask /= 2) {
                squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], mask);
            }
            if (my_seat() == 0) sums[my_team() * ROUNDS + i] = squares[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            squares[i] = 0.f;
#pragma unroll
            for (int team = 0; team < TEAMS_PER_TOKEN; ++team) {
                squares[i] += sums[(own * TEAMS_PER_TOKEN + team) * ROUNDS + i];
            }
        }
    }
    const long long given = factor_row(a, s);
    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int row = first_query + own + i * TOKENS_AT_ONCE;
        if (row >= s.queries) continue;
        const float factor = output_factor(a.output, given + row, squares[i]);
        if constexpr (OUTPUT == OUTPUT_RMS) {
            const bool writes = my_seat() == 0 && my_team() % TEAMS_PER_TOKEN == 0;
            if (writes) a.output.total_factor[start + row] = factor;
        }
#pragma unroll
        for (int j = 0; j < HEADS * SHARE; ++j) out[i][j / SHARE][j % SHARE] *= factor;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_query = my_first_query(a), end = last_key(s, first_query);
    if (first_query >= s.queries) return;
    const Tokens values = of_keys(a, s, a.v);
    const int own = my_team() / TEAMS_PER_TOKEN;
    float out[ROUNDS][HEADS][SHARE] = {};
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        scores(memory, a, s, first_query, first_key);
        code(memory, a, s, first_query, first_key);
        const int keys = smaller(KEYS, end - first_key);
        const auto add_key = [&](int key, bool hides) {
            if (!values.holds(first_key + key)) return;
            float v[HEADS][SHARE];
#pragma unroll
            for (int h = 0; h < HEADS; ++h) load_share(values, first_key + key, h, v[h]);
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                const int query = own + i * TOKENS_AT_ONCE;
                // Its code is 0, but the value of a later token may be NaN.
                if (hides && first_key + key > first_query + query + s.reach) continue;
                float code[4 * HEAD_FOURS], z[SHARE];
                load_code(memory, query * KEYS + key, code);
                if constexpr (HIDDEN) {
                    hidden_layer(z, code, v);
#pragma unroll
                    for (int j = 0; j < SHARE; ++j) z[j] = activate(z[j]).value;
                }
#pragma unroll
                for (int h = 0; h < HEADS; ++h) {
                    const float(&value)[SHARE] = HIDDEN ? z : v[h];
#pragma unroll
                    for (int j = 0; j < SHARE; ++j) out[i][h][j] += code[h] * value[j];
                }
            }
        };
        // Only where causality hides some of the keys must each be looked at.
        if (first_key + keys - 1 > first_query + s.reach) {
#pragma unroll 1
            for (int key = 0; key < keys; ++key) add_key(key, true);
        } else {
#pragma unroll 1
            for (int key = 0; key < keys; ++key) add_key(key, false);
        }
        __syncthreads();
    }
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) scale_output(memory, a, s, first_query, out);
    const long long start = output_row(a, s.index, s.first_query, s.queries);
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int query = first_query + own + i * TOKENS_AT_ONCE;
        if (query < s.queries) store_share(a.first + (start + query) * (HEADS * WIDTH), out[i]);
    }
}

#elif PASS == PASS_SUMS

// A thread has some of the tile's queries and heads to itself; it begins with a key of its own, so
// that neighbours read from different banks.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_query = my_first_query(a), end = last_key(s, first_query);
    if (first_query >= s.queries) return;
    RunningSum sums[ROWS_PER_THREAD];
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        scores(memory, a, s, first_query, first_key);
        if constexpr (RMS_FIRST) {
            for (int pair = my_thread(); pair < PAIRS; pair += THREADS) {
                const float r = inverse_root(memory, a, pair);
#pragma unroll
                for (int h = 0; h < HEADS; ++h) memory.score[h * PAIRS + pair] *= r;
            }
            __syncthreads();
        }
        for_each_row([&](int i, int query, int head) {
            const float *row = memory.score + head * PAIRS + query * KEYS;
            for (int n = 0; n < KEYS; ++n) {
                const int key = (n + my_thread()) % KEYS;
                if (visible(a, s, first_query + query, first_key + key)) sums[i].add(row[key]);
            }
        });
    }
    for_each_row([&](int i, int query, int head) {
        if (first_query + query >= s.queries) return;
        a.log_sum[statistic(a, s, first_query + query) + head] = sums[i].logarithm();
    });
}

#else

// ---------------------------------------------------------------- gradients of a tile

static_assert(KEYS == TOKENS_AT_ONCE, "a team owns one key");
constexpr int AHEAD = BLOCKS == 1 ? 2 : 1;  // with registers to spare, loads may run ahead

// Sums over the lanes of a team, which share them out as they go; each stores what it ends with.
template <int MASK, int LEFT>
DEVICE void store_sums_over_team(float (&x)[HEADS], float *to, bool stores) {
    if constexpr (MASK == 0) {
#pragma unroll
        for (int i = 0; i < LEFT; ++i) {
            if (stores) to[i] = x[i];
        }
    } else {
        constexpr bool SHARES = LEFT % 2 == 0;
        constexpr int KEPT = SHARES ? LEFT / 2 : LEFT;
        const bool upper = my_thread() & MASK;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            const float sent = SHARES && !upper ? x[LEFT - KEPT + i] : x[i];
            const float kept = SHARES && upper ? x[LEFT - KEPT + i] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, MASK);
        }
        if (SHARES) to += upper ? KEPT : 0;
        else stores = stores && !upper;
        store_sums_over_team<MASK / 2, KEPT>(x, to, stores);
    }
}

// A pair's da, of the lane's d, and what it adds to dV.
DEVICE void through_hidden_layer(float (&dv)[HEADS][SHARE], float (&da)[HEADS],
                                 const float (&code)[4 * HEAD_FOURS],
                                 const float (&v)[HEADS][SHARE], const Tokens &upstream,
                                 int query) {
    float z[SHARE], slope[SHARE], dp[SHARE] = {};
    hidden_layer(z, code, v);
#pragma unroll
    for (int i = 0; i < SHARE; ++i) {
        const Activation x = activate(z[i]);
        z[i] = x.value, slope[i] = x.slope;
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        float g[SHARE];
        load_share(upstream, query, h, g);
        da[h] = 0.f;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) dp[i] += code[h] * g[i], da[h] += g[i] * z[i];
    }
#pragma unroll
    for (int i = 0; i < SHARE; ++i) dp[i] *= slope[i];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            da[h] += dp[i] * v[h][i];
            if constexpr (PASS == PASS_KEY) dv[h][i] += code[h] * dp[i];
        }
    }
}

// The same of the linear value network.
DEVICE void through_values(float (&dv)[HEADS][SHARE], float (&da)[HEADS],
                           const float (&code)[4 * HEAD_FOURS], const float (&v)[HEADS][SHARE],
                           const Tokens &upstream, int query) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        float g[SHARE];
        load_share(upstream, query, h, g);
        da[h] = 0.f;
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            da[h] += g[i] * v[h][i];
            if constexpr (PASS == PASS_KEY) dv[h][i] += code[h] * g[i];
        }
    }
}

// Of the team's key, for all queries of the tile: dV, and da into shared memory.
DEVICE void value_gradients(float (&dv)[HEADS][SHARE], Memory &memory, const Arguments &a,
                            const Sequence &s, int first_query, int first_key) {
    const Tokens values = of_keys(a, s, a.v), upstream = of_queries(a, s, a.upstream);
    const int own = my_team() / TEAMS_PER_TOKEN;
    float *code_gradient = memory.code_gradient[my_team() % TEAMS_PER_TOKEN];
    float v[HEADS][SHARE] = {};
    if (values.holds(first_key + own)) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) load_share(values, first_key + own, h, v[h]);
    }
    const int queries = smaller(QUERIES, s.queries - first_query);
#pragma unroll 1
    for (int query = 0; query < queries; ++query) {
        float code[4 * HEAD_FOURS], da[HEADS];
        load_code(memory, query * KEYS + own, code);
        if constexpr (HIDDEN) {
            through_hidden_layer(dv, da, code, v, upstream, first_query + query);
        } else {
            through_values(dv, da, code, v, upstream, first_query + query);
        }
        store_sums_over_team<LANES / 2, HEADS>(
            da, code_gradient + (query * KEYS + own) * CODE_PITCH, true);
    }
    __syncthreads();
}

// Of a pair, from the gradients of its code to those of s, with a softmax of b.
DEVICE void code_gradient(float (&da)[HEADS], const Memory &memory, int pair, float m) {
    const float r = memory.inverse[pair];
    const auto code = [&](int h) {
        return MULTIPLIED ? memory.score[h * PAIRS + pair] * r : memory.code[pair * CODE_PITCH + h];
    };
    float mean = 0.f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        da[h] = 0.f;
#pragma unroll
        for (int team = 0; team < TEAMS_PER_TOKEN; ++team) {
            // Of a pair that is masked it may be nothing: of queries that do not exist, none is made.
            if (r != 0.f) da[h] += memory.code_gradient[team][pair * CODE_PITCH + h];
        }
        da[h] *= m;
        if constexpr (NORMALISED) mean += da[h] * code(h) * (1.f / HEADS);
    }
    if constexpr (NORMALISED) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) da[h] = r * (da[h] - code(h) * mean);
    }
}

// b of a softmax, of a pair that is seen; `row` is where the statistics of its query lie.
DEVICE float softened(const Memory &memory, const Arguments &a, long long row, int pair, int h) {
    const float score = memory.score[h * PAIRS + pair];
    if constexpr (!RMS_FIRST) return score;
    return MULTIPLIED ? softmax_code(a, score, row, h) : memory.code[pair * CODE_PITCH + h];
}

// In place, of a pair that is seen, from the gradients of b to those of s.
DEVICE void through_softmax(float (&dx)[HEADS], const Memory &memory, const Arguments &a,
                            const Sequence &s, int pair, int query) {
    const long long row = statistic(a, s, query);
    float mean = 0.f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        dx[h] = softened(memory, a, row, pair, h) * (dx[h] - __ldg(a.row_sums + row + h));
        if constexpr (RMS_FIRST) {
            mean += dx[h] * present(memory.score[h * PAIRS + pair]) * (1.f / HEADS);
        }
    }
    if constexpr (RMS_FIRST) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float t = present(memory.score[h * PAIRS + pair]);
            dx[h] = memory.inverse[pair] * (dx[h] - t * mean);
        }
    }
}

DEVICE void score_gradient(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                           int first_key) {
    for (int pair = my_thread(); pair < PAIRS; pair += THREADS) {
        const int query = first_query + pair / KEYS, key = first_key + pair % KEYS;
        const bool seen = memory.inverse[pair] != 0.f;
        float ds[HEADS];
        code_gradient(ds, memory, pair, seen ? multiplier_of(a, s, query, key) : 0.f);
        if constexpr (SOFTMAX) {
            if (seen) through_softmax(ds, memory, a, s, pair, query);
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float code = memory.code[pair * CODE_PITCH + h];
            const bool masked = !seen || masked_by_bias(a, s, h, query, key, code);
            ds[h] = with_gain(a.output, masked ? 0.f : ds[h]);
            memory.score[h * PAIRS + pair] = ds[h] * a.scale;
            if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
                if (seen) add_bias_gradient(a, s, h, query, key, ds[h]);
            }
        }
    }
    __syncthreads();
}

// Calls add(token, head, d, four sums) with Σ ds · x over the tokens x of the other side.
template <bool OF_KEYS, typename Add>
DEVICE void contract_tokens(const Memory &memory, const Tokens &others, int first, Add add) {
    constexpr int OWN = OF_KEYS ? KEYS : QUERIES, OTHERS = OF_KEYS ? QUERIES : KEYS;
    constexpr int ROWS = OWN % 8 == 0 ? 8 : 4, FOURS = WIDTH / 4;
#pragma unroll 1
    for (int i = my_thread(); i < HEADS * FOURS * (OWN / ROWS); i += THREADS) {
        const int d = i % FOURS * 4, head = i / FOURS % HEADS, row = i / (FOURS * HEADS) * ROWS;
        const float *ds = memory.score + head * PAIRS;
        const Scalar *from = others.find(first, head, d);
        float c[ROWS][4] = {};
#pragma unroll AHEAD
        for (int other = 0; other < OTHERS; other += 4) {
            float x[4][4];
#pragma unroll
            for (int j = 0; j < 4; ++j, from += others.token) {
                others.load(first + other + j, from, x[j]);
            }
#pragma unroll
            for (int m = 0; m < ROWS; m += 4) {
                float w[4][4];  // OF_KEYS: [other][own], else [own][other]
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    load_four(ds + (OF_KEYS ? (other + j) * KEYS + row + m
                                            : (row + m + j) * KEYS + other), w[j]);
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        const float factor = OF_KEYS ? w[j][n] : w[n][j];
#pragma unroll
                        for (int e = 0; e < 4; ++e) c[m + n][e] += factor * x[j][e];
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < ROWS; ++m) add(row + m, head, d, c[m]);
    }
}

// Four neighbours in global memory.
DEVICE void add_atomically(float *to, const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
    for (int i = 0; i < 4; ++i) atomicAdd(to + i, x[i]);
#endif
}

// ---------------------------------------------------------------- δ of a softmax

#if PASS == PASS_DELTA

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int first_query = my_first_query(a), end = last_key(s, first_query);
    if (first_query >= s.queries) return;
    float unused[HEADS][SHARE], sum[ROWS_PER_THREAD] = {}, weight[ROWS_PER_THREAD] = {};
#pragma unroll 1
    for (int first_key = 0; first_key < end; first_key += KEYS) {
        scores(memory, a, s, first_query, first_key);
        code(memory, a, s, first_query, first_key);
        value_gradients(unused, memory, a, s, first_query, first_key);
        for (int pair = my_thread(); pair < PAIRS; pair += THREADS) {
            const int query = first_query + pair / KEYS, key = first_key + pair % KEYS;
            const bool seen = memory.inverse[pair] != 0.f;
            const long long row = seen ? statistic(a, s, query) : 0;
            float db[HEADS];
            code_gradient(db, memory, pair, seen ? multiplier_of(a, s, query, key) : 0.f);
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                const float b = seen ? softened(memory, a, row, pair, h) : 0.f;
                memory.code_gradient[0][pair * CODE_PITCH + h] = seen ? b * db[h] : 0.f;
                memory.score[h * PAIRS + pair] = b;
            }
        }
        __syncthreads();
        for_each_row([&](int i, int query, int head) {
            for (int pair = query * KEYS; pair < (query + 1) * KEYS; ++pair) {
                sum[i] += memory.code_gradient[0][pair * CODE_PITCH + head];
                weight[i] += memory.score[head * PAIRS + pair];
            }
        });
        __syncthreads();
    }
    for_each_row([&](int i, int query, int head) {
        if (first_query + query >= s.queries) return;
        a.row_sums[statistic(a, s, first_query + query) + head] =
            weight[i] > 0.f ? sum[i] / weight[i] : sum[i];
    });
}

#else

// ---------------------------------------------------------------- the two passes

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) large_head(const Arguments a) {
    constexpr bool OF_KEYS = PASS == PASS_KEY;
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const Sequence s = sequence(a, static_cast<int>(blockIdx.x % a.batch));
    const int own = OF_KEYS ? static_cast<int>(blockIdx.x / a.batch) * KEYS : my_first_query(a);
    if (own >= (OF_KEYS ? s.keys : s.queries)) return;
    const int unseen = own - s.reach;  // so many queries see none of the keys
    const int begin = OF_KEYS && unseen > 0 ? unseen : 0;
    const int end = OF_KEYS ? s.queries : last_key(s, own);
    const Tokens queries = of_queries(a, s, a.q), keys = of_keys(a, s, a.k);
    const long long query_row = output_row(a, s.index, s.first_query, s.queries);

    for (int i = my_thread(); i < OWN_TOKENS * HEADS * WIDTH; i += THREADS) memory.sums[i] = 0.f;
    float dv[HEADS][SHARE] = {};
#pragma unroll 1
    for (int other = begin; other < end; other += OF_KEYS ? QUERIES : KEYS) {
        const int first_query = OF_KEYS ? other : own, first_key = OF_KEYS ? own : other;
        scores(memory, a, s, first_query, first_key);
        code(memory, a, s, first_query, first_key);
        value_gradients(dv, memory, a, s, first_query, first_key);
        score_gradient(memory, a, s, first_query, first_key);
        contract_tokens<OF_KEYS>(
            memory, OF_KEYS ? queries : keys, other,
            [&](int token, int head, int d, const float(&x)[4]) {
                float *sum = memory.sums + (token * HEADS + head) * WIDTH + d;
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += x[i];
            });
        if constexpr (OF_KEYS && ADDS_QUERY_GRADIENT) {
            contract_tokens<false>(
                memory, keys, first_key, [&](int token, int head, int d, const float(&x)[4]) {
                    const int query = first_query + token;
                    float *to = a.query_gradient + ((query_row + query) * HEADS + head) * WIDTH + d;
                    if (query < s.queries) add_atomically(to, x);
                });
        }
        __syncthreads();
    }
    __syncthreads();  // the sums are there, even if there was nothing to sum
    const long long row = OF_KEYS ? output_row(a, s.index, s.first_key, s.keys) : query_row;
    const int left = (OF_KEYS ? s.keys : s.queries) - own;
    for (int i = my_thread() * 4; i < smaller(OWN_TOKENS, left) * HEADS * WIDTH; i += THREADS * 4) {
        write<4>(a.first + (row + own) * (HEADS * WIDTH) + i, memory.sums + i);
    }
    if constexpr (OF_KEYS) {
        const int key = my_team() / TEAMS_PER_TOKEN;
#pragma unroll
        for (int i = 0; i < HEADS * SHARE; ++i) {
            dv[i / SHARE][i % SHARE] = with_gain(a.output, dv[i / SHARE][i % SHARE]);
        }
        if (key < left) store_share(a.second + (row + own + key) * (HEADS * WIDTH), dv);
    }
}

#endif
#endif
