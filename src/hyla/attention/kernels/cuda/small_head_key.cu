// The backward pass of keys: dK and dV.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    const Place place = locate(a, a.keys);
    Keys keys;
    keys.load(a, place);
    Biases biases = tile_biases(a, place, a.keys, BIAS_HEADS);
    Stream stream{lane_part(a.q + place.batch * a.q_batch),
                  lane_part(a.upstream + place.batch * a.upstream_batch),
                  a.q_token,
                  a.upstream_token,
                  nullptr,
                  place.live};
    int begin = 0;
    if constexpr (MASKED) {  // the first query that sees a key of the warp: key ≤ query + reach
        const int unseen = place.live ? place.first - a.reach : a.queries;
        begin = -largest_in_warp(-(unseen > 0 ? unseen : 0));
    }
    stream.advance(begin);
    stream.start(begin < a.queries);
    biases.advance(begin * a.bias_query);
#pragma unroll 1
    for (int query = begin; query < a.queries; ++query) {
        float q[LOCAL], g[LOCAL], ds[ROWS][LANE_HEADS];
        bool seen;
        stream.take(query + 1 < a.queries, q, g, seen);
        Statistics of_query;
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) q[i] *= SCALES_QUERY ? a.scale : 1.f;
        if constexpr (SOFTMAX) {
            load_statistic(a, a.log_sum, place.batch, query, LOG2_E, of_query.log2_sum);
            load_statistic(a, a.mean_gradient, place.batch, query, 1.f, of_query.mean_gradient);
        }
        keys.add(a, place, query, biases, of_query, q, g, ds);
        biases.advance(a.bias_query);
    }
    keys.store(a, place);
}
