// The backward pass of queries: dQ, the gradient of the bias and, of a softmax, δ.

// ds of a tile, [row][head]; the teams of a warp share the sum out, half of what is left at a time.
constexpr int DS = ROWS * LANE_HEADS;

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

// `record` is the key's entry of the slab for query 0.
DEVICE void add_bias_gradient(const Arguments &a, const Place &place, float *record,
                              const Share &share, float (&ds)[DS]) {
    const int count = fold_teams<WARP / 2, DS>(ds);
#pragma unroll
    for (int i = 0; i < DS; ++i) {
        if (i >= count) break;
        const int query = token_of(place, (share.first + i) / LANE_HEADS);
        if (!share.writes || query >= a.queries) continue;
        float *to = record + query * (long long)a.keys * BIAS_HEADS + (share.first + i) % LANE_HEADS;
        if constexpr (BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC) {
            atomicAdd(to, ds[i]);
        } else {
            *to = ds[i];
        }
    }
}

struct Tile {
    float q[ROWS][LOCAL], g[ROWS][LOCAL];
    float log2_sum[ROWS][LANE_HEADS];  // of a softmax
};

// What `score_gradient` needs of the pairs of a key: s, or with a softmax the code, and factors.
// And `before`, where RMSHead comes before the softmax. Returns whether biases may mask some.
DEVICE bool look_at_pairs(const Arguments &a, const Place &place, int key, bool seen,
                          const Tile &tile, const Biases &biases, const float (&k)[LOCAL],
                          const float (&v)[LOCAL], RmsFirst &before,
                          float (&s)[ROWS][LANE_HEADS], float (&y)[ROWS][FACTORS]) {
    float x[ROWS][SUM_SPACE];
    biases.read_into(s);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) add_scores(tile.q[row], k, s[row]);
    if constexpr (RMS_FIRST) before.apply(a, s);
    if constexpr (SOFTMAX) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            soften(s[row], tile.log2_sum[row], is_visible(a, seen, token_of(place, row), key));
        }
    }
    const bool masked = sums_of_rows(biases, any_row, s, v, 0, tile.g[0], LOCAL, x);
    if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
    for (int row = 0; row < OWNED; ++row) {
        const int query = token_of(place, row);
        const bool visible = is_visible(a, seen, query, key);
        factors(a, x[row], pair_multiplier(a, place, query, key, visible), y[row]);
    }
    if constexpr (SUMS > 0) collect<OWNED>(y);
    return masked;
}

// The first walk of a softmax: δ of the tile's queries, which is kept for the keys' pass.
DEVICE void average_gradients(const Arguments &a, const Place &place, Biases biases, Stream stream,
                              const Tile &tile, float (&mean)[ROWS][LANE_HEADS]) {
    float total[ROWS][LANE_HEADS] = {};  // of the codes: 1, but for the rounding of large scores
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) mean[row][h] = 0.f;
    }
    const int end = key_end(a, place);
    stream.start(end > 0);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], v[LOCAL], code[ROWS][LANE_HEADS], y[ROWS][FACTORS];
        RmsFirst before;
        bool seen;
        stream.take(key + 1 < end, k, v, seen);
        look_at_pairs(a, place, key, seen, tile, biases, k, v, before, code, y);
        biases.advance(BIAS_HEADS);
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
        store_statistic(a, a.mean_gradient, place, token_of(place, row), mean[row]);
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
    Biases biases = tile_biases(a, place, a.queries, a.bias_query);
    Stream stream = key_stream(a, place);
    float mean_gradient[ROWS][LANE_HEADS];
    if constexpr (SOFTMAX) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            load_statistic(a, a.log_sum, place.batch, token_of(place, row), LOG2_E,
                           tile.log2_sum[row]);
        }
        average_gradients(a, place, biases, stream, tile, mean_gradient);
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
    float *bias_gradient = nullptr;
    Share share{};
    if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
        const long long pairs = static_cast<long long>(a.queries) * a.keys;
        bias_gradient = a.bias_gradient + place.slab * pairs * BIAS_HEADS + bias_head();
        share = my_share();
        share.writes = share.writes && place.slab >= 0;
    }
    stream.start(end > 0);
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], v[LOCAL], s[ROWS][LANE_HEADS], y[ROWS][FACTORS], ds[ROWS][LANE_HEADS];
        RmsFirst before;
        bool seen;
        stream.take(key + 1 < end, k, v, seen);
        const bool masked = look_at_pairs(a, place, key, seen, tile, biases, k, v, before, s, y);
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
        if constexpr (RMS_FIRST) before.differentiate(ds);
        biases.advance(BIAS_HEADS);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) dq[row][i] += ds[row][i / WIDTH] * k[i];
        }
        if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
            float ds_of_tile[DS];
#pragma unroll
            for (int i = 0; i < DS; ++i) ds_of_tile[i] = ds[i / LANE_HEADS][i % LANE_HEADS];
            add_bias_gradient(a, place, bias_gradient + key * BIAS_HEADS, share, ds_of_tile);
        }
    }
    store_tile(a.first, place, a.queries, a.scale, dq);
}
