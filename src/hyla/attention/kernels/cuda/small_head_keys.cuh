// A tile of keys on its walk over queries: dK and dV, and on the way ds of every pair.

// The scores of a softmax must be those of which the queries' pass took δ, to the last bit: where
// one key has all the weight, ds is a difference of nearly equal numbers.
constexpr bool SCALES_QUERY = SOFTMAX;

// What is known of a query, by head: of a softmax alone.
struct Statistics {
    float log2_sum[LANE_HEADS], mean_gradient[LANE_HEADS];
};

struct Keys {
    float k[ROWS][LOCAL], v[ROWS][LOCAL];  // k is scaled, unless the queries are
    float dk[ROWS][LOCAL], dv[ROWS][LOCAL];
    bool live[ROWS];

    DEVICE void load(const Arguments &a, const Place &place) {
        const long long first = place.batch * (long long)a.keys;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {  // not `load_tile`: what is padded must not be read
            const int key = token_of(place, row);
            live[row] = place.live && key < a.keys;
            if (MASKED && live[row] && a.padding) live[row] = __ldg(a.padding + first + key) != 0;
            load_heads(lane_part(a.k + place.batch * a.k_batch + key * a.k_token), live[row], k[row]);
            load_heads(lane_part(a.v + place.batch * a.v_batch + key * a.v_token), live[row], v[row]);
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) {
                k[row][i] *= SCALES_QUERY ? 1.f : a.scale;
                dk[row][i] = dv[row][i] = 0.f;
            }
        }
    }

    // What `gradient` needs of the pairs of a query: s, or with a softmax the code, and factors.
    // And `before`, where RMSHead comes before the softmax. Returns whether biases may mask some.
    DEVICE bool look(const Arguments &a, const Place &place, int query, const Biases &biases,
                     const Statistics &of_query, const float (&q)[LOCAL], const float (&g)[LOCAL],
                     RmsFirst &before, float (&s)[ROWS][LANE_HEADS],
                     float (&y)[ROWS][FACTORS]) const {
        float x[ROWS][SUM_SPACE];
        const auto visible = [&](int row) {
            return is_visible(a, live[row], query, token_of(place, row));
        };
        biases.read_into(s);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) add_scores(k[row], q, s[row]);
        if constexpr (RMS_FIRST) before.apply(a, s);
        if constexpr (SOFTMAX) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {  // a key that does not exist would have a code, too
                soften(s[row], of_query.log2_sum, live[row] && visible(row));
            }
        }
        const bool masked = sums_of_rows(biases, any_row, s, v[0], LOCAL, g, 0, x);
        if constexpr (SUMS > 0) sum_and_share<LANES / 2, ROWS>(x);
#pragma unroll
        for (int row = 0; row < OWNED; ++row) {
            const int key = token_of(place, row);
            factors(a, x[row], pair_multiplier(a, place, query, key, visible(row)), y[row]);
        }
        if constexpr (SUMS > 0) collect<OWNED>(y);
        return masked;
    }

    // Of the score; with a softmax of the code.
    DEVICE float gradient(const float (&s)[ROWS][LANE_HEADS], const float (&y)[ROWS][FACTORS],
                          const float (&g)[LOCAL], int row, int h) const {
        return score_gradient(s[row][h], v[row] + h * WIDTH, g + h * WIDTH, y[row]);
    }

    // Adds what a query and its upstream gradient give to dK and dV, and returns ds.
    DEVICE void add(const Arguments &a, const Place &place, int query, const Biases &biases,
                    const Statistics &of_query, const float (&q)[LOCAL], const float (&g)[LOCAL],
                    float (&ds)[ROWS][LANE_HEADS]) {
        float s[ROWS][LANE_HEADS], y[ROWS][FACTORS];
        RmsFirst before;
        const bool masked = look(a, place, query, biases, of_query, q, g, before, s, y);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                ds[row][h] = gradient(s, y, g, row, h);
                if constexpr (SOFTMAX) {
                    ds[row][h] = s[row][h] * (ds[row][h] - of_query.mean_gradient[h]);
                }
            }
        }
        if (masked) clear_masked(biases, ds);
        if constexpr (RMS_FIRST) before.differentiate(ds);
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

    DEVICE void store(const Arguments &a, const Place &place) const {
        const float key_scale = SCALES_QUERY ? 1.f : a.scale;
        store_tile(a.first, place, a.keys, with_gain(a.output, key_scale), dk);
        store_tile(a.second, place, a.keys, with_gain(a.output, 1.f), dv);
    }
};
