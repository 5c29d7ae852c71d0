// Of one pair: sums over the heads, what multiplies s, G and V, and a softmax over the keys.

// ---------------------------------------------------------------- sums over heads

// What is summed over the heads for each pair, and what each lane then needs to know of the pair.
constexpr bool BACKWARD = PASS != PASS_FORWARD;
constexpr bool LINEAR = !HIDDEN || RESIDUAL;
constexpr bool FACTORED = NORMALISED || MULTIPLIED;  // else the code of a pair that is seen is s
constexpr bool OWN_FACTOR = LINEAR && !(RESIDUAL && SOFTMAX && !FACTORED);  // else it is 1
constexpr int HIDDEN_SIZE = HIDDEN ? (BACKWARD ? 2 * WIDTH : WIDTH) : 0;
constexpr int SUMS =
    HIDDEN_SIZE + (LINEAR && BACKWARD && NORMALISED ? 1 : 0) + (NORMALISED ? 1 : 0);
constexpr int FACTORS = HIDDEN_SIZE + (OWN_FACTOR ? 1 : 0) + (BACKWARD && NORMALISED ? 1 : 0);
constexpr int SUM_SPACE = SUMS > 0 ? SUMS : 1;
// Whether scores are looked through for what is masked and not finite. A softmax makes it 0 itself.
constexpr bool LOOKS = MASKED && !SOFTMAX && (BIASED || PASS == PASS_FORWARD);

// The team's rows are shared out as they are summed, so that a lane ends with the sums of OWNED
// rows: this halves the exchanges at each step, and φ is evaluated once, not once per lane.
constexpr int SHARERS = SUMS == 0 ? 1 : (ROWS < LANES ? ROWS : LANES);
constexpr int OWNED = ROWS / SHARERS;

DEVICE int first_owned() { return my_seat() / (LANES / SHARERS) * OWNED; }

// Which row of the tile a lane keeps at `place`. Each lane begins with the rows it will own, and
// lanes that exchange differ in one bit of that order: what one sends from the upper half of its
// places belongs to the lower half of the other's, so nothing has to be selected.
DEVICE int row_of(int place) { return place ^ first_owned(); }

template <int MASK, int ROWS_LEFT>
DEVICE void sum_and_share(float (&x)[ROWS][SUM_SPACE]) {
    if constexpr (MASK > 0) {
        constexpr int KEPT = ROWS_LEFT > 1 ? ROWS_LEFT / 2 : 1;
#pragma unroll
        for (int row = 0; row < KEPT; ++row) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) x[row][i] += exchange(x[ROWS_LEFT - KEPT + row][i], MASK);
        }
        sum_and_share<MASK / 2, KEPT>(x);
    }
}

// The way back: from the OWNED rows of each lane to all rows in all lanes.
template <int ROWS_HAD>
DEVICE void collect(float (&y)[ROWS][FACTORS]) {
    if constexpr (ROWS_HAD < ROWS) {
        constexpr int MASK = LANES / SHARERS * (ROWS_HAD / OWNED);
#pragma unroll
        for (int row = 0; row < ROWS_HAD; ++row) {
#pragma unroll
            for (int i = 0; i < FACTORS; ++i) y[row + ROWS_HAD][i] = exchange(y[row][i], MASK);
        }
        collect<2 * ROWS_HAD>(y);
    }
}

// Sums over the lanes of a team, for all rows in all lanes.
DEVICE void sum_rows(float (&x)[ROWS]) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        const int apart = mask / (LANES / SHARERS) * OWNED;  // of a row's places in the two lanes
        float theirs[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; ++row) theirs[row] = exchange(x[row ^ apart], mask);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) x[row] += theirs[row];
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

DEVICE int head_of(int local) {
    return (my_seat() + LANES * (local / PACK)) * PACK + local % PACK;
}

// In place, from the scores of a pair to its codes. Masked pairs may have any score; a head that does
// not exist has a code of 0, which RMSHead does not see.
DEVICE void soften(float (&s)[LANE_HEADS], const float (&log2_sum)[LANE_HEADS], bool visible) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; ++h) {
        const bool here = visible && (EVEN || head_of(h) < HEADS);
        s[h] = here ? power_of_two(fmaf(LOG2_E, s[h], -log2_sum[h])) : 0.f;
    }
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

