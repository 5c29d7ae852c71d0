// The walk of a team over the tokens of the other side: tiles, biases, masks, the two streams.

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

