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
// With a softmax over the keys, a[h] = exp(s[h] − log_sum[q,h]) takes the place of s, and r is 1;
// with RMSHead after it, r is that of a, and with RMSHead before it r·s is in the exponent
// (small_head_rms_first.cuh). The forward walks over the keys twice: for log_sum, which it keeps,
// and for O. So does the queries' backward: for δ[h] = Σ_k a[h] da[h], which it leaves to the keys'
// pass, and for ds = a (da − δ).
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
// a multiprocessor, which caps the registers), PREFETCH, NORMALISED (by RMSHead, after a softmax if
// there is one), SOFTMAX, RMS_FIRST (RMSHead before the softmax), HIDDEN, RESIDUAL (with HIDDEN),
// PHI, BIASED, BIAS_GRADIENT, MASKED (whether causality, padding or a bias of −∞ may mask a pair),
// MULTIPLIED and OUTPUT (output.cuh; the backward knows of a gain alone).

#define PASS_FORWARD 0
#define PASS_QUERY 1
#define PASS_KEY 2
#define PASS_WHOLE 3  // the backward in one pass

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
    const float *bias;                   // [biases, …, head as `bias_head` orders them]; for the
                                         // whole backward [biases, head, distance]
    const unsigned char *padding;        // [batch, key], 0 = masked; null: nothing is masked
    const float *multiplier;             // [multipliers, query, key]
    Scalar *first, *second, *third;      // forward: O; query pass: dQ; others: dK, dV (and dQ)
    float *bias_gradient;                // [slabs, query, key, head as `bias_head` orders them]
    long long q_batch, q_token, k_batch, k_token, v_batch, v_token, upstream_batch, upstream_token;
    long long bias_batch, bias_query;  // from one bias, and from one query in it, to the next
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
constexpr int BIAS_HEADS = LANES * LANE_HEADS;  // of a pair, and from one key's biases to the next
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

// The same from shared memory.
template <int N>
DEVICE void copy(const float *from, float *x) {
    if constexpr (N == 4) {
        const float4 w = *reinterpret_cast<const float4 *>(from);
        x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
    } else if constexpr (N == 2) {
        const float2 w = *reinterpret_cast<const float2 *>(from);
        x[0] = w.x, x[1] = w.y;
    } else {
        x[0] = *from;
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

// Where the lane's first unit lies in a token; its others follow at equal distances.
constexpr int NEXT_UNIT = LANES * PACK * WIDTH;

template <typename T>
DEVICE T *lane_part(T *token) {
    return token + my_seat() * (PACK * WIDTH);
}

// The lane's heads of a token, from its part of it; zeros unless `live`, whatever memory holds.
DEVICE void load_heads(const Scalar *part, bool live, float (&x)[LOCAL]) {
#pragma unroll
    for (int unit = 0; unit < LANE_UNITS; ++unit) {
        const bool here = live && holds_unit(unit);
#pragma unroll
        for (int i = 0; i < PACK * WIDTH; i += VECTOR) {
            float *into = x + unit * PACK * WIDTH + i;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) into[j] = 0.f;
            if (here) read<VECTOR>(part + unit * NEXT_UNIT + i, into);
        }
    }
}

DEVICE void store_heads(Scalar *part, float factor, const float (&x)[LOCAL]) {
#pragma unroll
    for (int unit = 0; unit < LANE_UNITS; ++unit) {
        if (!holds_unit(unit)) continue;
#pragma unroll
        for (int i = 0; i < PACK * WIDTH; i += VECTOR) {
            float scaled[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) scaled[j] = factor * x[unit * PACK * WIDTH + i + j];
            write<VECTOR>(part + unit * NEXT_UNIT + i, scaled);
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
    int first_of_bias = 0;
    if constexpr (FOLDS_BIAS) {
        const int warp = static_cast<int>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
        const int folds = (a.batch_per_bias + TEAMS - 1) / TEAMS;
        const int bias = warp / (folds * tiles);
        const int fold = warp % (folds * tiles) / tiles;
        const int member = fold * TEAMS + my_lane() / LANES;
        first_of_bias = bias * a.batch_per_bias;
        place.batch = first_of_bias + member;
        place.tile = warp % tiles;
        place.live = member < a.batch_per_bias && place.batch < a.batch;
        place.slab = BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC ? bias : bias * folds + fold;
        // A warp beyond the last bias has no slab: let it point at one it will never write.
        if (first_of_bias >= a.batch) place.slab = -1;
    } else {
        const int team = static_cast<int>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
        place.batch = team / tiles;
        place.tile = team % tiles;
        place.live = place.batch < a.batch;
        place.slab = place.live ? place.batch : -1;
    }
    // What has nothing to do reads what is there, of its own bias: a NaN elsewhere must not come in.
    if (!place.live) place.batch = FOLDS_BIAS && place.slab >= 0 ? first_of_bias : 0;
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

