// Head-mixing attention for many small heads: forward, and its backward by recomputation.
//
// For a batch element, heads h, a query q and a key k:
//
//     s[h] = scale · Σ_d Q[q,h,d] K[k,h,d] + bias[h,q,k]
//     r    = rsqrt(mean_h s² + eps)                  (1 without normalisation)
//     p[d] = r · Σ_h s[h] V[k,h,d],   z = φ(p)       (hidden value network)
//     O[q,h,d] += s[h] · (r z[d])                    (linear value network: s[h] r V[k,h,d];
//                                                     residual, hidden and linear: their sum)
//
// The code a = r·s is never formed: everything is linear in s up to the factor r, so the two sums
// over heads (Σ s² and Σ s V) are taken together. The backward needs one such exchange as well,
// because the sum in the RMS backward is made of terms already at hand:
//
//     Σ_h da[h] s[h] = Σ_d z[d] (Σ_h s G[q,h,d]) + dp[d] (Σ_h s V[k,h,d])    (+ Σ_h s G·V)
//
// With a softmax over the keys, a[h] = exp(s[h] − log_sum[q,h]) takes the place of s, and r is 1.
// The forward walks over the keys twice: for log_sum, which it keeps, and for O. So does the
// queries' backward: for δ[h] = Σ_k a[h] da[h], which it leaves to the keys' pass, and for
// ds = a (da − δ).
//
// A multiplier m of the pair (attention dropout) makes the code a = m·r·s: m·r takes the place of r
// except where r was differentiated. A masked pair is one with m = 0: no contribution, no gradient.
// In the forward its key and value may even hold NaN, of which 0 · NaN must not be added up. A bias
// of −∞ masks the pair in its head alone: by a score of 0 that has no gradient.
//
// Work is shared out like this. A *tile* is ROWS consecutive tokens of one batch element: queries
// in `forward` and `query_gradient`, keys in `key_gradient`. A tile belongs to a *team* of LANES
// neighbouring lanes of a warp, each of which holds some of the heads, and walks over the tokens
// of the other side. Every vector loaded in the walk serves ROWS pairs; without that, loads and
// not arithmetic are the limit. The heads of a lane come in units of PACK neighbours, dealt out in
// turn (lane 0 takes unit 0, lane 1 unit 1, …), so that a team reads contiguous memory.
//
// Set by the compiler's command line: PASS, BF16, HEADS, WIDTH (the head size d), LANES, ROWS,
// PACK, VECTOR (elements per load; divides PACK · WIDTH), THREADS and BLOCKS (how many must fit on
// a multiprocessor, which caps the registers), PREFETCH, NORMALISED (by RMSHead), SOFTMAX, HIDDEN,
// RESIDUAL (with HIDDEN), PHI, BIASED, BIAS_GRADIENT, MULTIPLIED and OUTPUT (output.cuh; the
// backward knows of a gain alone).

#define PASS_FORWARD 0
#define PASS_QUERY 1
#define PASS_KEY 2

#define BIAS_GRADIENT_NONE 0
#define BIAS_GRADIENT_EACH 1     // one gradient per batch element
#define BIAS_GRADIENT_PARTIAL 2  // summed over the teams of a warp, then stored
#define BIAS_GRADIENT_ATOMIC 3   // summed over the teams of a warp, then added atomically

typedef unsigned short bfloat16_bits;
#if BF16
typedef bfloat16_bits Scalar;
#else
typedef float Scalar;
#endif

struct Arguments {
    const Scalar *q, *k, *v, *upstream;  // [batch, token, head, d]; head and d are contiguous
    const float *bias;                   // [biases, tile, other token, head, row of the tile]
    const unsigned char *padding;        // [batch, key], 0 = masked; null: nothing is masked
    const float *multiplier;             // [multipliers, query, key]
    Scalar *first, *second;              // forward: O; query pass: dQ; key pass: dK and dV
    float *bias_gradient;                // [slabs, tile, key, head, row of the tile]
    long long q_batch, q_token, k_batch, k_token, v_batch, v_token, upstream_batch, upstream_token;
    int batch, queries, keys;
    int batch_per_bias, batch_per_multiplier;  // so many consecutive batch elements share one
    int reach;                                 // a query sees the keys up to its own index + reach
    float scale, eps;
    Output output;
    float *log_sum;        // [batch, query, head]: of a softmax; the forward writes it
    float *mean_gradient;  // [batch, query, head]: its δ; the query pass writes it
};

constexpr int WARP = 32;
constexpr int TEAMS = WARP / LANES;  // per warp
constexpr int UNITS = (HEADS + PACK - 1) / PACK;
constexpr int LANE_UNITS = (UNITS + LANES - 1) / LANES;
constexpr int LANE_HEADS = LANE_UNITS * PACK;
constexpr int LOCAL = LANE_HEADS * WIDTH;  // floats of one token held by one lane
constexpr bool EVEN = LANE_UNITS * LANES * PACK == HEADS;  // no lane holds heads that do not exist
static_assert(VECTOR > 0 && (PACK * WIDTH) % VECTOR == 0, "VECTOR must divide PACK * WIDTH");
static_assert(EVEN || HEADS % PACK == 0, "PACK must divide HEADS");

// ---------------------------------------------------------------- memory

DEVICE void unpack(unsigned word, float *x) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xffff0000u);
}

DEVICE unsigned rounded_bits(float x) {  // bf16, to nearest even; a NaN stays one
    const unsigned bits = __float_as_uint(x);
    return x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u;
}

DEVICE unsigned pack(const float *x) { return rounded_bits(x[0]) | rounded_bits(x[1]) << 16; }

template <int N>
DEVICE void read(const float *from, float *x) {
    if constexpr (N == 4) {
        const float4 w = __ldg(reinterpret_cast<const float4 *>(from));
        x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
    } else if constexpr (N == 2) {
        const float2 w = __ldg(reinterpret_cast<const float2 *>(from));
        x[0] = w.x, x[1] = w.y;
    } else {
        static_assert(N == 1, "float32 loads take 1, 2 or 4 elements");
        x[0] = __ldg(from);
    }
}

template <int N>
DEVICE void read(const bfloat16_bits *from, float *x) {
    if constexpr (N == 8) {
        const uint4 w = __ldg(reinterpret_cast<const uint4 *>(from));
        unpack(w.x, x), unpack(w.y, x + 2), unpack(w.z, x + 4), unpack(w.w, x + 6);
    } else if constexpr (N == 4) {
        const uint2 w = __ldg(reinterpret_cast<const uint2 *>(from));
        unpack(w.x, x), unpack(w.y, x + 2);
    } else if constexpr (N == 2) {
        unpack(__ldg(reinterpret_cast<const unsigned *>(from)), x);
    } else {
        static_assert(N == 1, "bfloat16 loads take 1, 2, 4 or 8 elements");
        x[0] = __uint_as_float(static_cast<unsigned>(__ldg(from)) << 16);
    }
}

template <int N>
DEVICE void write(float *to, const float *x) {
    if constexpr (N == 4) {
        *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else if constexpr (N == 2) {
        *reinterpret_cast<float2 *>(to) = make_float2(x[0], x[1]);
    } else {
        *to = x[0];
    }
}

template <int N>
DEVICE void write(bfloat16_bits *to, const float *x) {
    if constexpr (N == 8) {
        *reinterpret_cast<uint4 *>(to) = make_uint4(pack(x), pack(x + 2), pack(x + 4), pack(x + 6));
    } else if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(pack(x), pack(x + 2));
    } else if constexpr (N == 2) {
        *reinterpret_cast<unsigned *>(to) = pack(x);
    } else {
        *to = static_cast<bfloat16_bits>(rounded_bits(x[0]));
    }
}

DEVICE int my_lane() { return static_cast<int>(threadIdx.x) % WARP; }
DEVICE int my_seat() { return my_lane() % LANES; }  // place in the team

DEVICE bool holds_unit(int unit) { return EVEN || my_seat() + LANES * unit < UNITS; }

// The lane's heads of the token at `token`; zeros where `live` is false, whatever memory holds.
DEVICE void load_heads(const Scalar *token, bool live, float (&x)[LOCAL]) {
#pragma unroll
    for (int unit = 0; unit < LANE_UNITS; ++unit) {
        const bool here = live && holds_unit(unit);
        const Scalar *from = token + (my_seat() + LANES * unit) * (PACK * WIDTH);
#pragma unroll
        for (int i = 0; i < PACK * WIDTH; i += VECTOR) {
            float *into = x + unit * PACK * WIDTH + i;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) into[j] = 0.f;
            if (here) read<VECTOR>(from + i, into);
        }
    }
}

DEVICE void store_heads(Scalar *token, float factor, const float (&x)[LOCAL]) {
#pragma unroll
    for (int unit = 0; unit < LANE_UNITS; ++unit) {
        if (!holds_unit(unit)) continue;
        Scalar *to = token + (my_seat() + LANES * unit) * (PACK * WIDTH);
#pragma unroll
        for (int i = 0; i < PACK * WIDTH; i += VECTOR) {
            float scaled[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) scaled[j] = factor * x[unit * PACK * WIDTH + i + j];
            write<VECTOR>(to + i, scaled);
        }
    }
}

// ---------------------------------------------------------------- where a team works

constexpr bool FOLDS_BIAS =  // a warp takes one tile of several batch elements, to add their ds
    BIAS_GRADIENT == BIAS_GRADIENT_PARTIAL || BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC;

struct Place {
    int batch, tile, first;  // `first` is the tile's first token
    int slab;                // which bias gradient the team adds to
    bool live;               // false: the grid's last teams have nothing to do but to take part
};

DEVICE Place locate(const Arguments &a, int tokens) {
    const int tiles = (tokens + ROWS - 1) / ROWS;
    Place place;
    if constexpr (FOLDS_BIAS) {
        const int warp = static_cast<int>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
        const int folds = (a.batch_per_bias + TEAMS - 1) / TEAMS;
        const int bias = warp / (folds * tiles);
        const int fold = warp % (folds * tiles) / tiles;
        const int member = fold * TEAMS + my_lane() / LANES;
        place.batch = bias * a.batch_per_bias + member;
        place.tile = warp % tiles;
        place.live = member < a.batch_per_bias && place.batch < a.batch;
        place.slab = BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC ? bias : bias * folds + fold;
        // A warp beyond the last bias has no slab: let it point at one it will never write.
        if (bias * a.batch_per_bias >= a.batch) place.slab = -1;
    } else {
        const int team = static_cast<int>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
        place.batch = team / tiles;
        place.tile = team % tiles;
        place.live = place.batch < a.batch;
        place.slab = place.live ? place.batch : -1;
    }
    if (!place.live) place.batch = 0;
    place.first = place.tile * ROWS;
    return place;
}

DEVICE float exchange(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// Loop bounds are the same for all lanes of a warp, because all must take part in exchanges.
DEVICE int largest_in_warp(int x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, x, mask);
        x = other > x ? other : x;
    }
    return x;
}

// ---------------------------------------------------------------- sums over heads

// What is summed over the heads for each pair, and what each lane then needs to know of the pair.
constexpr bool BACKWARD = PASS != PASS_FORWARD;
constexpr bool LINEAR = !HIDDEN || RESIDUAL;
constexpr bool FACTORED = NORMALISED || MULTIPLIED;  // else the code of a pair that is seen is s
constexpr bool OWN_FACTOR = LINEAR && !(RESIDUAL && SOFTMAX && !MULTIPLIED);  // else it is 1
constexpr int HIDDEN_SIZE = HIDDEN ? (BACKWARD ? 2 * WIDTH : WIDTH) : 0;
constexpr int SUMS =
    HIDDEN_SIZE + (LINEAR && BACKWARD && NORMALISED ? 1 : 0) + (NORMALISED ? 1 : 0);
constexpr int FACTORS = HIDDEN_SIZE + (OWN_FACTOR ? 1 : 0) + (BACKWARD && NORMALISED ? 1 : 0);
constexpr int SUM_SPACE = SUMS > 0 ? SUMS : 1;
// Whether scores are looked through for what is masked and not finite. A softmax makes it 0 itself.
constexpr bool LOOKS = !SOFTMAX && (BIASED || PASS == PASS_FORWARD);

// The team's rows are shared out as they are summed, so that a lane ends with the sums of OWNED
// rows: this halves the exchanges at each step, and φ is evaluated once, not once per lane.
constexpr int SHARERS = SUMS == 0 ? 1 : (ROWS < LANES ? ROWS : LANES);
constexpr int OWNED = ROWS / SHARERS;

DEVICE int first_owned() { return my_seat() / (LANES / SHARERS) * OWNED; }

template <int MASK, int ROWS_LEFT>
DEVICE void sum_and_share(float (&x)[ROWS][SUM_SPACE]) {
    if constexpr (MASK > 0) {
        constexpr int KEPT = ROWS_LEFT > 1 ? ROWS_LEFT / 2 : 1;
        const bool upper = my_lane() & MASK;
#pragma unroll
        for (int row = 0; row < KEPT; ++row) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                if constexpr (ROWS_LEFT > 1) {
                    const float sent = upper ? x[row][i] : x[row + KEPT][i];
                    const float kept = upper ? x[row + KEPT][i] : x[row][i];
                    x[row][i] = kept + exchange(sent, MASK);
                } else {
                    x[row][i] += exchange(x[row][i], MASK);
                }
            }
        }
        sum_and_share<MASK / 2, KEPT>(x);
    }
}

// The way back: from the OWNED rows of each lane to all rows in all lanes.
template <int ROWS_HAD>
DEVICE void collect(float (&y)[ROWS][FACTORS]) {
    if constexpr (ROWS_HAD < ROWS) {
        constexpr int MASK = LANES / SHARERS * (ROWS_HAD / OWNED);
        const bool upper = my_lane() & MASK;
#pragma unroll
        for (int row = 0; row < ROWS_HAD; ++row) {
#pragma unroll
            for (int i = 0; i < FACTORS; ++i) {
                const float mine = y[row][i], other = exchange(mine, MASK);
                y[row][i] = upper ? other : mine;
                y[row + ROWS_HAD][i] = upper ? mine : other;
            }
        }
        collect<2 * ROWS_HAD>(y);
    }
}

// ---------------------------------------------------------------- one pair

DEVICE float dot(const float *x, const float *y) {
    float sum = 0.f;
#pragma unroll
    for (int d = 0; d < WIDTH; ++d) sum += x[d] * y[d];
    return sum;
}

// s for the lane's heads: `mine` is already scaled.
DEVICE void add_scores(const float *mine, const float *other, float (&s)[LANE_HEADS]) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
#pragma unroll
        for (int d = 0; d < WIDTH; ++d) s[h] += mine[h * WIDTH + d] * other[h * WIDTH + d];
    }
}

// The lane's part of the sums over heads, in the order that `factors` reads them:
// hidden: Σ s V, (backward: Σ s G,) Σ s²; linear: (backward: Σ s (G·V),) Σ s²; residual: both.
DEVICE void partial_sums(const float (&s)[LANE_HEADS], const float *v, const float *g,
                         float (&x)[SUM_SPACE]) {
#pragma unroll
    for (int i = 0; i < SUM_SPACE; ++i) x[i] = 0.f;
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        if constexpr (HIDDEN) {
#pragma unroll
            for (int d = 0; d < WIDTH; ++d) {
                x[d] += s[h] * v[h * WIDTH + d];
                if constexpr (BACKWARD) x[WIDTH + d] += s[h] * g[h * WIDTH + d];
            }
        }
        if constexpr (LINEAR && BACKWARD && NORMALISED) {
            x[HIDDEN_SIZE] += s[h] * dot(g + h * WIDTH, v + h * WIDTH);
        }
        if constexpr (NORMALISED) x[SUMS - 1] += s[h] * s[h];
    }
}

// From the sums to what multiplies s, G and V. Hidden: r z, (backward: r dp,) …; linear: r, …;
// residual: both; … is, in a normalised backward, the factor by which s is subtracted: m r³ Σ_h da s / H.
DEVICE void factors(const Arguments &a, const float (&x)[SUM_SPACE], float multiplier,
                    float (&y)[FACTORS]) {
    float norm = 1.f;
    if constexpr (NORMALISED) norm = inverse_root_of(x[SUMS - 1] * (1.f / HEADS) + a.eps);
    const float r = multiplier == 0.f ? 0.f : multiplier * norm;  // norm may be infinite
    float gradient_dot = 0.f;
    if constexpr (HIDDEN) {
#pragma unroll
        for (int d = 0; d < WIDTH; ++d) {
            const Activation z = activate(r * x[d]);
            y[d] = !BACKWARD && multiplier == 0.f ? 0.f : r * z.value;  // the sums may be NaN
            if constexpr (BACKWARD) {
                const float dp = r * x[WIDTH + d] * z.slope;
                y[WIDTH + d] = r * dp;
                gradient_dot += z.value * x[WIDTH + d] + dp * x[d];
            }
        }
    }
    if constexpr (OWN_FACTOR) {
        y[HIDDEN_SIZE] = r;
        if constexpr (BACKWARD && NORMALISED) gradient_dot += x[HIDDEN_SIZE];
    }
    if constexpr (BACKWARD && NORMALISED) {
        y[FACTORS - 1] = norm * (norm * (r * gradient_dot)) * (1.f / HEADS);  // r³ may overflow
    }
}

// Residual: what s multiplies is made of the hidden layer and of the head's own vector.
DEVICE void add_own(const float *hidden, const float *own, const float (&y)[FACTORS],
                    float (&sum)[WIDTH]) {
    const float factor = OWN_FACTOR ? y[HIDDEN_SIZE] : 1.f;
#pragma unroll
    for (int d = 0; d < WIDTH; ++d) sum[d] = hidden[d] + factor * own[d];
}

// ds = r da − s · (the last factor)
DEVICE float score_gradient(float s, const float *v, const float *g, const float (&y)[FACTORS]) {
    float ds;
    if constexpr (RESIDUAL) {
        float mixed[WIDTH];
        add_own(y + WIDTH, g, y, mixed);
        ds = dot(g, y) + dot(mixed, v);
    } else if constexpr (HIDDEN) {
        ds = dot(g, y) + dot(y + WIDTH, v);
    } else {
        ds = y[0] * dot(g, v);
    }
    if constexpr (NORMALISED) ds -= s * y[FACTORS - 1];
    return ds;
}

// ---------------------------------------------------------------- softmax over the keys

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float power_of_two(float x) {  // 0 instead of a denormal number
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Σ exp(s) of the scores so far, as sum · exp(largest): no score is too large.
struct RunningSum {
    float largest = -3.4e38f;  // and not −∞, whose distance to a score of −∞ is NaN
    float sum = 0.f;

    DEVICE void add(float s) {
        const float smaller = power_of_two(-LOG2_E * fabsf(s - largest));
        sum = s > largest ? sum * smaller + 1.f : sum + smaller;
        largest = fmaxf(s, largest);
    }
    // Of nothing so large that all codes are 0: with −∞, that of a score of −∞ would be NaN.
    DEVICE float logarithm() const { return sum == 0.f ? LARGEST : largest + logf(sum); }
};

// In place, from the scores of a pair to its codes. Masked pairs may have any score.
DEVICE void soften(float (&s)[LANE_HEADS], const float (&log2_sum)[LANE_HEADS], bool visible) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        s[h] = visible ? power_of_two(fmaf(LOG2_E, s[h], -log2_sum[h])) : 0.f;
    }
}

DEVICE int head_of(int local) {
    return (my_seat() + LANES * (local / PACK)) * PACK + local % PACK;
}

// One number for each of the lane's heads of a query, times `factor`.
DEVICE void load_statistic(const Arguments &a, const float *statistic, int batch, int query,
                           float factor, float (&x)[LANE_HEADS]) {
    const float *from = statistic + (batch * (long long)a.queries + query) * HEADS;
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        const bool here = query < a.queries && (EVEN || head_of(h) < HEADS);
        x[h] = here ? factor * __ldg(from + head_of(h)) : 0.f;
    }
}

DEVICE void store_statistic(const Arguments &a, float *statistic, const Place &place, int query,
                            const float (&x)[LANE_HEADS]) {
    float *to = statistic + (place.batch * (long long)a.queries + query) * HEADS;
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        const bool here = place.live && query < a.queries && (EVEN || head_of(h) < HEADS);
        if (here) to[head_of(h)] = x[h];
    }
}

// ---------------------------------------------------------------- the walk

DEVICE void load_tile(const Scalar *tokens, long long stride, const Place &place, int count,
                      float factor, float (&x)[ROWS][LOCAL]) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int token = place.first + row;
        load_heads(tokens + token * stride, place.live && token < count, x[row]);
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) x[row][i] *= factor;
    }
}

DEVICE void store_tile(Scalar *to, const Place &place, int count, float factor,
                       const float (&x)[ROWS][LOCAL]) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int token = place.first + row;
        if (!place.live || token >= count) continue;
        const long long flat = static_cast<long long>(place.batch) * count + token;
        store_heads(to + flat * (HEADS * WIDTH), factor, x[row]);
    }
}

// The biases of one tile start here, HEADS · ROWS of them for each token of the other side.
DEVICE const float *tile_bias(const Arguments &a, const Place &place, int own, int others) {
    const long long tiles = (own + ROWS - 1) / ROWS;
    const long long record = (place.batch / a.batch_per_bias) * tiles + place.tile;
    return BIASED ? a.bias + record * others * (HEADS * ROWS) : nullptr;
}

DEVICE void start_scores(const float *bias, float (&s)[ROWS][LANE_HEADS]) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        float start[ROWS] = {};
        if constexpr (BIASED) {
            if (EVEN || head_of(h) < HEADS) read<ROWS>(bias + head_of(h) * ROWS, start);
        }
#pragma unroll
        for (int row = 0; row < ROWS; ++row) s[row][h] = start[row];
    }
}

DEVICE bool is_visible(const Arguments &a, bool seen, int query, int key) {
    return seen && query < a.queries && key <= query + a.reach;
}

// Puts 0 where a bias masks the row and head.
DEVICE void clear_masked(const float *biases, float (&x)[ROWS][LANE_HEADS]) {
    float bias[ROWS][LANE_HEADS];
    start_scores(biases, bias);
#pragma unroll
    for (int i = 0; i < ROWS * LANE_HEADS; ++i) {
        const int row = i / LANE_HEADS, h = i % LANE_HEADS;
        if (masks_pair(bias[row][h])) x[row][h] = 0.f;
    }
}

// The lane's part of the sums over heads for all rows, after scores that are masked were set to 0:
// by a bias, or as visible(row) says. −∞ and NaN make a sum infinite or NaN, so scores are looked
// through, and biases read again, only where one is. Returns whether a bias may have masked any.
// Of v and g, a pitch is LOCAL, or 0 for a vector that all rows share.
template <typename Visible>
DEVICE bool sums_of_rows(const float *biases, Visible visible, float (&s)[ROWS][LANE_HEADS],
                         const float *v, int v_pitch, const float *g, int g_pitch,
                         float (&x)[ROWS][SUM_SPACE]) {
    if constexpr (SUMS == 0) {  // nothing that would tell
        if constexpr (LOOKS) clear_masked(biases, s);
        return LOOKS;
    }
    bool finite = true;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        partial_sums(s[row], v + row * v_pitch, g + row * g_pitch, x[row]);
        finite &= fabsf(x[row][NORMALISED ? SUMS - 1 : 0]) <= LARGEST;
    }
    if (!LOOKS || finite) return false;
    clear_masked(biases, s);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) s[row][h] = visible(row) ? s[row][h] : 0.f;
        partial_sums(s[row], v + row * v_pitch, g + row * g_pitch, x[row]);
    }
    return true;
}

// What multiplies the code of a pair: 0 if it is masked.
DEVICE float pair_multiplier(const Arguments &a, const Place &place, int query, int key,
                             bool visible) {
    if constexpr (MULTIPLIED) {
        const long long row = place.batch / a.batch_per_multiplier * (long long)a.queries + query;
        return visible ? __ldg(a.multiplier + row * a.keys + key) : 0.f;
    } else {
        return visible ? 1.f : 0.f;
    }
}

// For the backward, which is not protected from NaN in what it does not see.
DEVICE bool any_row(int) { return true; }

// The two token streams of the walk, with the next tokens already on their way when PREFETCH is
// set: a register copy of each costs LOCAL registers and hides the latency of a cache miss.
struct Stream {
    const Scalar *left, *right;
    long long left_stride, right_stride;
    const unsigned char *padding;  // of the streamed tokens, or null
    bool live;
    float next_left[LOCAL], next_right[LOCAL];
    bool next_seen;

    DEVICE void fetch(int token, float (&x)[LOCAL], float (&y)[LOCAL], bool &seen) const {
        seen = live && (padding == nullptr || __ldg(padding + token) != 0);
        load_heads(left + token * left_stride, seen, x);
        load_heads(right + token * right_stride, seen, y);
    }

    DEVICE void start(int token, int end) {
        if constexpr (PREFETCH) {
            if (token < end) fetch(token, next_left, next_right, next_seen);
        }
    }

    DEVICE void take(int token, int end, float (&x)[LOCAL], float (&y)[LOCAL], bool &seen) {
        if constexpr (PREFETCH) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) x[i] = next_left[i], y[i] = next_right[i];
            seen = next_seen;
            if (token + 1 < end) fetch(token + 1, next_left, next_right, next_seen);
        } else {
            fetch(token, x, y, seen);
        }
    }
};

DEVICE int key_end(const Arguments &a, const Place &place) {
    const int last = place.first + ROWS < a.queries ? place.first + ROWS : a.queries;
    const int end = last + a.reach < a.keys ? last + a.reach : a.keys;
    return largest_in_warp(place.live ? end : 0);
}

#if PASS == PASS_FORWARD

DEVICE void scale_output(const Arguments &a, const Place &place, float (&o)[ROWS][LOCAL]) {
    const long long given = place.batch / a.output.batch_per_factor * (long long)a.queries;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int query = place.first + row;
        const bool live = place.live && query < a.queries;
        float squares = 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) squares += o[row][i] * o[row][i];
#pragma unroll
            for (int mask = LANES / 2; mask > 0; mask /= 2) squares += exchange(squares, mask);
        }
        const float factor = live ? output_factor(a.output, given + query, squares) : 0.f;
        if constexpr (OUTPUT == OUTPUT_RMS) {
            if (live && my_seat() == 0) {
                a.output.total_factor[place.batch * (long long)a.queries + query] = factor;
            }
        }
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) o[row][i] *= factor;
    }
}

// The first walk of a softmax: log_sum of the tile's queries, which is kept for the backward.
DEVICE void sum_over_keys(const Arguments &a, const Place &place, const float *bias, int end,
                          Stream stream, const float (&q)[ROWS][LOCAL],
                          float (&log2_sum)[ROWS][LANE_HEADS]) {
    RunningSum sums[ROWS][LANE_HEADS];
    stream.start(0, end);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], unused[LOCAL], s[ROWS][LANE_HEADS];
        bool seen;
        stream.take(key, end, k, unused, seen);
        start_scores(bias + key * (HEADS * ROWS), s);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            add_scores(q[row], k, s[row]);
            if (!is_visible(a, seen, place.first + row, key)) continue;
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) sums[row][h].add(s[row][h]);
        }
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        float log_sum[LANE_HEADS];
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) {
            log_sum[h] = sums[row][h].logarithm();
            log2_sum[row][h] = LOG2_E * log_sum[h];
        }
        store_statistic(a, a.log_sum, place, place.first + row, log_sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    const Place place = locate(a, a.queries);
    float q[ROWS][LOCAL], o[ROWS][LOCAL] = {};
    load_tile(a.q + place.batch * a.q_batch, a.q_token, place, a.queries, a.scale, q);
    const float *bias = tile_bias(a, place, a.queries, a.keys);
    Stream stream{a.k + place.batch * a.k_batch, a.v + place.batch * a.v_batch, a.k_token,
                  a.v_token, a.padding ? a.padding + place.batch * (long long)a.keys : nullptr,
                  place.live};
    const int end = key_end(a, place);
    float log2_sum[ROWS][LANE_HEADS];
    if constexpr (SOFTMAX) sum_over_keys(a, place, bias, end, stream, q, log2_sum);
    stream.start(0, end);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], v[LOCAL], s[ROWS][LANE_HEADS], x[ROWS][SUM_SPACE], y[ROWS][FACTORS];
        bool seen;
        stream.take(key, end, k, v, seen);
        const auto visible = [&](int row) { return is_visible(a, seen, place.first + row, key); };
        const float *biases = bias + key * (HEADS * ROWS);
        start_scores(biases, s);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            add_scores(q[row], k, s[row]);
            if constexpr (SOFTMAX) soften(s[row], log2_sum[row], visible(row));
        }
        sums_of_rows(biases, visible, s, v, 0, nullptr, 0, x);
        if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            const int row = first_owned() + i;
            const float multiplier =
                pair_multiplier(a, place, place.first + row, key, visible(row));
            factors(a, x[i], multiplier, y[i]);
        }
        if constexpr (SUMS > 0) collect<OWNED>(y);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (LINEAR && !visible(row)) continue;  // a hidden layer is multiplied by 0
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                const float code = HIDDEN || !FACTORED ? s[row][h] : s[row][h] * y[row][0];
                const float *value = HIDDEN ? y[row] : v + h * WIDTH;
                float mixed[WIDTH];
                if constexpr (RESIDUAL) {
                    add_own(y[row], v + h * WIDTH, y[row], mixed);
                    value = mixed;
                }
#pragma unroll
                for (int d = 0; d < WIDTH; ++d) o[row][h * WIDTH + d] += code * value[d];
            }
        }
    }
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) scale_output(a, place, o);
    store_tile(a.first, place, a.queries, 1.f, o);
}

#elif PASS == PASS_QUERY

// ds of a tile, kept as [head][row]; the teams of a warp share the sum out as `sum_and_share` does.
constexpr int DS = LANE_HEADS * ROWS;

template <int MASK, int LEFT>
DEVICE int fold_teams(float (&x)[DS]) {  // returns how many sums the lane ends with
    if constexpr (FOLDS_BIAS && MASK >= LANES) {
        constexpr int KEPT = LEFT % 2 == 0 ? LEFT / 2 : LEFT;
        const bool upper = my_lane() & MASK;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            if constexpr (LEFT % 2 == 0) {
                const float sent = upper ? x[i] : x[i + KEPT];
                const float kept = upper ? x[i + KEPT] : x[i];
                x[i] = kept + exchange(sent, MASK);
            } else {
                x[i] += exchange(x[i], MASK);
            }
        }
        return fold_teams<MASK / 2, KEPT>(x);
    } else {
        return LEFT;
    }
}

// Which of its DS sums the lane ends with, and whether it is the one to write them.
struct Share {
    int first, count;
    bool writes;
};

DEVICE Share my_share() {
    Share share{0, DS, true};
    if constexpr (FOLDS_BIAS) {
#pragma unroll
        for (int mask = WARP / 2; mask >= LANES; mask /= 2) {
            const bool upper = my_lane() & mask;
            if (share.count % 2 == 0) {
                share.count /= 2;
                share.first += upper ? share.count : 0;
            } else {
                share.writes = share.writes && !upper;
            }
        }
    }
    return share;
}

DEVICE void add_bias_gradient(float *record, const Share &share, float (&ds)[DS]) {
    const int count = fold_teams<WARP / 2, DS>(ds);
#pragma unroll
    for (int i = 0; i < DS; ++i) {
        if (i >= count) break;
        const int head = head_of((share.first + i) / ROWS), row = (share.first + i) % ROWS;
        if (!share.writes || head >= HEADS) continue;
        if constexpr (BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC) {
            atomicAdd(record + head * ROWS + row, ds[i]);
        } else {
            record[head * ROWS + row] = ds[i];
        }
    }
}

struct Tile {
    float q[ROWS][LOCAL], g[ROWS][LOCAL];
    float log2_sum[ROWS][LANE_HEADS];  // of a softmax
};

// What `score_gradient` needs of the pairs of a key: s, or with a softmax the code, and factors.
// Returns whether biases may mask some.
DEVICE bool look_at_pairs(const Arguments &a, const Place &place, int key, bool seen,
                          const Tile &tile, const float *biases, const float (&k)[LOCAL],
                          const float (&v)[LOCAL], float (&s)[ROWS][LANE_HEADS],
                          float (&y)[ROWS][FACTORS]) {
    float x[ROWS][SUM_SPACE];
    start_scores(biases, s);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        add_scores(tile.q[row], k, s[row]);
        if constexpr (SOFTMAX) {
            soften(s[row], tile.log2_sum[row], is_visible(a, seen, place.first + row, key));
        }
    }
    const bool masked = sums_of_rows(biases, any_row, s, v, 0, tile.g[0], LOCAL, x);
    if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
    for (int i = 0; i < OWNED; ++i) {
        const int query = place.first + first_owned() + i;
        const bool visible = is_visible(a, seen, query, key);
        factors(a, x[i], pair_multiplier(a, place, query, key, visible), y[i]);
    }
    if constexpr (SUMS > 0) collect<OWNED>(y);
    return masked;
}

// The first walk of a softmax: δ of the tile's queries, which is kept for the keys' pass.
DEVICE void average_gradients(const Arguments &a, const Place &place, const float *bias,
                              Stream stream, const Tile &tile, float (&mean)[ROWS][LANE_HEADS]) {
    float total[ROWS][LANE_HEADS] = {};  // of the codes: 1, but for the rounding of large scores
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) mean[row][h] = 0.f;
    }
    const int end = key_end(a, place);
    stream.start(0, end);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], v[LOCAL], code[ROWS][LANE_HEADS], y[ROWS][FACTORS];
        bool seen;
        stream.take(key, end, k, v, seen);
        const float *biases = bias + key * (HEADS * ROWS);
        look_at_pairs(a, place, key, seen, tile, biases, k, v, code, y);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                const float *g = tile.g[row] + h * WIDTH;
                const float da = score_gradient(code[row][h], v + h * WIDTH, g, y[row]);
                mean[row][h] += code[row][h] * da;
                total[row][h] += code[row][h];
            }
        }
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) {
            if (total[row][h] > 0.f) mean[row][h] = __fdividef(mean[row][h], total[row][h]);
        }
        store_statistic(a, a.mean_gradient, place, place.first + row, mean[row]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    const Place place = locate(a, a.queries);
    Tile tile;
    float dq[ROWS][LOCAL] = {};
    load_tile(a.q + place.batch * a.q_batch, a.q_token, place, a.queries, a.scale, tile.q);
    // The keys' pass scales its results and not the upstream gradient, so δ is kept without gain.
    load_tile(a.upstream + place.batch * a.upstream_batch, a.upstream_token, place, a.queries,
              SOFTMAX ? 1.f : with_gain(a.output, 1.f), tile.g);
    const float *bias = tile_bias(a, place, a.queries, a.keys);
    Stream stream{a.k + place.batch * a.k_batch, a.v + place.batch * a.v_batch, a.k_token,
                  a.v_token, a.padding ? a.padding + place.batch * (long long)a.keys : nullptr,
                  place.live};
    float mean_gradient[ROWS][LANE_HEADS];
    if constexpr (SOFTMAX) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            load_statistic(a, a.log_sum, place.batch, place.first + row, LOG2_E,
                           tile.log2_sum[row]);
        }
        average_gradients(a, place, bias, stream, tile, mean_gradient);
        const float gain = with_gain(a.output, 1.f);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) tile.g[row][i] *= gain;
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) mean_gradient[row][h] *= gain;
        }
    }
    // Every entry of a stored bias gradient has to be written, so that walk skips no key.
    constexpr bool STORES =
        BIAS_GRADIENT == BIAS_GRADIENT_EACH || BIAS_GRADIENT == BIAS_GRADIENT_PARTIAL;
    const int end = STORES ? a.keys : key_end(a, place);
    const long long tiles = (a.queries + ROWS - 1) / ROWS;
    float *bias_gradient = nullptr;
    Share share{};
    if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
        bias_gradient =
            a.bias_gradient + (place.slab * tiles + place.tile) * a.keys * (HEADS * ROWS);
        share = my_share();
        share.writes = share.writes && place.slab >= 0;
    }
    stream.start(0, end);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], v[LOCAL], s[ROWS][LANE_HEADS], y[ROWS][FACTORS], ds[ROWS][LANE_HEADS];
        bool seen;
        stream.take(key, end, k, v, seen);
        const float *biases = bias + key * (HEADS * ROWS);
        const bool masked = look_at_pairs(a, place, key, seen, tile, biases, k, v, s, y);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                const float *g = tile.g[row] + h * WIDTH;
                ds[row][h] = score_gradient(s[row][h], v + h * WIDTH, g, y[row]);
                if constexpr (SOFTMAX) {
                    ds[row][h] = s[row][h] * (ds[row][h] - mean_gradient[row][h]);
                }
            }
        }
        if (masked) clear_masked(biases, ds);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) dq[row][i] += ds[row][i / WIDTH] * k[i];
        }
        if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
            float ds_of_tile[DS];
#pragma unroll
            for (int i = 0; i < DS; ++i) ds_of_tile[i] = ds[i % ROWS][i / ROWS];
            add_bias_gradient(bias_gradient + key * (HEADS * ROWS), share, ds_of_tile);
        }
    }
    store_tile(a.first, place, a.queries, a.scale, dq);
}

#elif PASS == PASS_KEY

// The scores of a softmax must be those of which the queries' pass took δ, to the last bit: where
// one key has all the weight, ds is a difference of nearly equal numbers.
constexpr bool SCALES_QUERY = SOFTMAX;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    const Place place = locate(a, a.keys);
    const unsigned char *padding =
        a.padding ? a.padding + place.batch * (long long)a.keys : nullptr;
    float k[ROWS][LOCAL], v[ROWS][LOCAL], dk[ROWS][LOCAL] = {}, dv[ROWS][LOCAL] = {};
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {  // not `load_tile`: what is padded must not be read
        const int key = place.first + row;
        const bool live = place.live && key < a.keys && (padding == nullptr || padding[key] != 0);
        load_heads(a.k + place.batch * a.k_batch + key * a.k_token, live, k[row]);
        load_heads(a.v + place.batch * a.v_batch + key * a.v_token, live, v[row]);
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) k[row][i] *= SCALES_QUERY ? 1.f : a.scale;
    }
    bool owned_live[OWNED], row_live[ROWS];
#pragma unroll
    for (int i = 0; i < OWNED; ++i) {
        const int key = place.first + first_owned() + i;
        owned_live[i] = place.live && key < a.keys && (padding == nullptr || padding[key] != 0);
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int key = place.first + row;
        row_live[row] = place.live && key < a.keys && (padding == nullptr || padding[key] != 0);
    }
    const float *bias = tile_bias(a, place, a.keys, a.queries);
    Stream stream{a.q + place.batch * a.q_batch, a.upstream + place.batch * a.upstream_batch,
                  a.q_token, a.upstream_token, nullptr, place.live};
    // The first query that sees a key of the warp: key ≤ query + reach.
    const int unseen = place.live ? place.first - a.reach : a.queries;
    const int begin = -largest_in_warp(-(unseen > 0 ? unseen : 0));
    stream.start(begin, a.queries);
#pragma unroll 1
    for (int query = begin; query < a.queries; ++query) {
        float q[LOCAL], g[LOCAL], s[ROWS][LANE_HEADS], x[ROWS][SUM_SPACE], y[ROWS][FACTORS];
        float ds[ROWS][LANE_HEADS];
        bool seen;
        stream.take(query, a.queries, q, g, seen);
        float log2_sum[LANE_HEADS], mean_gradient[LANE_HEADS];
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) q[i] *= SCALES_QUERY ? a.scale : 1.f;
        if constexpr (SOFTMAX) {
            load_statistic(a, a.log_sum, place.batch, query, LOG2_E, log2_sum);
            load_statistic(a, a.mean_gradient, place.batch, query, 1.f, mean_gradient);
        }
        const float *biases = bias + query * (HEADS * ROWS);
        start_scores(biases, s);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            add_scores(k[row], q, s[row]);
            if constexpr (SOFTMAX) {
                const bool visible = is_visible(a, row_live[row], query, place.first + row);
                soften(s[row], log2_sum, visible);
            }
        }
        const bool masked = sums_of_rows(biases, any_row, s, v[0], LOCAL, g, 0, x);
        if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            const int key = place.first + first_owned() + i;
            const bool visible = owned_live[i] && key <= query + a.reach;
            factors(a, x[i], pair_multiplier(a, place, query, key, visible), y[i]);
        }
        if constexpr (SUMS > 0) collect<OWNED>(y);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                ds[row][h] = score_gradient(s[row][h], v[row] + h * WIDTH, g + h * WIDTH, y[row]);
                if constexpr (SOFTMAX) ds[row][h] = s[row][h] * (ds[row][h] - mean_gradient[h]);
            }
        }
        if (masked) clear_masked(biases, ds);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                const float code = HIDDEN ? s[row][h] : s[row][h] * y[row][0];
                const float *upstream = HIDDEN ? y[row] + WIDTH : g + h * WIDTH;
                float mixed[WIDTH];
                if constexpr (RESIDUAL) {
                    add_own(y[row] + WIDTH, g + h * WIDTH, y[row], mixed);
                    upstream = mixed;
                }
#pragma unroll
                for (int d = 0; d < WIDTH; ++d) {
                    dk[row][h * WIDTH + d] += ds[row][h] * q[h * WIDTH + d];
                    dv[row][h * WIDTH + d] += code * upstream[d];
                }
            }
        }
    }
    const float key_scale = SCALES_QUERY ? 1.f : a.scale;
    store_tile(a.first, place, a.keys, with_gain(a.output, key_scale), dk);
    store_tile(a.second, place, a.keys, with_gain(a.output, 1.f), dv);
}

#endif
