// RMSHead before a softmax: t[h] = r·s[h] in the exponent, and ds = r (dt − t · mean_h(dt t)) of it.
//
// A head that a bias of −∞ masks counts as 0 among the others, and stays masked.

constexpr bool MASKS_HEADS = MASKED && BIASED;

// A tile's pairs with one token of the other side.
struct RmsFirst {
    float r[ROWS], t[ROWS][LANE_HEADS];

    // In place, from scores to t.
    DEVICE void apply(const Arguments &a, float (&s)[ROWS][LANE_HEADS]) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            r[row] = 0.f;
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) {
                t[row][h] = MASKS_HEADS && masks_pair(s[row][h]) ? 0.f : s[row][h];
                r[row] += t[row][h] * t[row][h];
            }
        }
        sum_rows(r);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            r[row] = inverse_root_of(r[row] * (1.f / HEADS) + a.eps);
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) t[row][h] *= r[row], s[row][h] *= r[row];
        }
    }

    // In place, from the gradients of t to those of the scores.
    DEVICE void differentiate(float (&dt)[ROWS][LANE_HEADS]) const {
        float sum[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS * LANE_HEADS; ++i) {
            const int row = i / LANE_HEADS, h = i % LANE_HEADS;
            sum[row] += dt[row][h] * t[row][h];
        }
        sum_rows(sum);
#pragma unroll
        for (int i = 0; i < ROWS * LANE_HEADS; ++i) {
            const int row = i / LANE_HEADS, h = i % LANE_HEADS;
            dt[row][h] = r[row] * (dt[row][h] - t[row][h] * (sum[row] * (1.f / HEADS)));
        }
    }
};
