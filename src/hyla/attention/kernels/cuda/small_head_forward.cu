// The forward pass, one output tile a team.

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
