// The forward pass, one output tile a team.

DEVICE void scale_output(const Arguments &a, const Place &place, float (&o)[ROWS][LOCAL]) {
    const long long given = place.batch / a.output.batch_per_factor * (long long)a.queries;
    float squares[ROWS] = {};
    if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
        for (int i = 0; i < ROWS * LOCAL; ++i) {
            squares[i / LOCAL] += o[i / LOCAL][i % LOCAL] * o[i / LOCAL][i % LOCAL];
        }
        sum_rows(squares);
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int query = token_of(place, row);
        const bool live = place.live && query < a.queries;
        const float factor = live ? output_factor(a.output, given + query, squares[row]) : 0.f;
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
DEVICE void sum_over_keys(const Arguments &a, const Place &place, Biases biases, int end,
                          Stream stream, const float (&q)[ROWS][LOCAL],
                          float (&log2_sum)[ROWS][LANE_HEADS]) {
    RunningSum sums[ROWS][LANE_HEADS];
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float k[LOCAL], s[ROWS][LANE_HEADS];
        const bool seen = stream.sees();
        load_heads(stream.left, seen, k);
        stream.advance();
        biases.read_into(s);
        biases.advance(BIAS_HEADS);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) add_scores(q[row], k, s[row]);
        if constexpr (RMS_FIRST) RmsFirst().apply(a, s);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (!is_visible(a, seen, token_of(place, row), key)) continue;
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
        store_statistic(a, a.log_sum, place, token_of(place, row), log_sum);
    }
}

// Keys, values and biases of the next step are asked for as soon as those of this one were used
// for the last time: they arrive in the same registers, while the rest of the step is computed.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    const Place place = locate(a, a.queries);
    float q[ROWS][LOCAL], o[ROWS][LOCAL] = {};
    load_tile(a.q + place.batch * a.q_batch, a.q_token, place, a.queries, a.scale, q);
    Biases biases = tile_biases(a, place, a.queries, a.bias_query);
    Stream stream = key_stream(a, place);
    const int end = key_end(a, place);
    float log2_sum[ROWS][LANE_HEADS];
    if constexpr (SOFTMAX) sum_over_keys(a, place, biases, end, stream, q, log2_sum);
    float k[LOCAL], v[LOCAL], next_s[ROWS][LANE_HEADS];
    bool next_seen = false;
    if (end > 0) {
        stream.fetch(k, v, next_seen);
        biases.read_into(next_s);
    }
#pragma unroll 1
    for (int key = 0; key < end; ++key) {
        float s[ROWS][LANE_HEADS], x[ROWS][SUM_SPACE], y[ROWS][FACTORS];
        const bool seen = next_seen;
        const auto visible = [&](int row) { return is_visible(a, seen, token_of(place, row), key); };
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) s[row][h] = next_s[row][h];
            add_scores(q[row], k, s[row]);
        }
        if constexpr (RMS_FIRST) RmsFirst().apply(a, s);
        if constexpr (SOFTMAX) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) soften(s[row], log2_sum[row], visible(row));
        }
        const bool more = key + 1 < end;  // else the last is read again
        if (more) stream.advance();
        next_seen = stream.sees();
        load_heads(stream.left, next_seen, k);
        sums_of_rows(biases, visible, s, v, 0, nullptr, 0, x);
        if constexpr (!LINEAR) load_heads(stream.right, next_seen, v);
        if (more) biases.advance(BIAS_HEADS);
        biases.read_into(next_s);
        if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
        for (int row = 0; row < OWNED; ++row) {
            const int query = token_of(place, row);
            factors(a, x[row], pair_multiplier(a, place, query, key, visible(row)), y[row]);
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
        if constexpr (LINEAR) load_heads(stream.right, next_seen, v);
    }
    if constexpr (OUTPUT != OUTPUT_AS_IT_IS) scale_output(a, place, o);
    store_tile(a.first, place, a.queries, 1.f, o);
}
