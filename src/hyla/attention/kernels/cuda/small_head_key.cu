// The backward pass of keys: dK and dV.

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
