// The walk of a team over the tokens of the other side: tiles, biases, masks, the two streams.

DEVICE int token_of(const Place &place, int row) { return place.first + row_of(row); }

DEVICE void load_tile(const Scalar *tokens, long long stride, const Place &place, int count,
                      float factor, float (&x)[ROWS][LOCAL]) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int token = token_of(place, row);
        load_heads(lane_part(tokens + token * stride), place.live && token < count, x[row]);
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) x[row][i] *= factor;
    }
}

DEVICE void store_tile(Scalar *to, const Place &place, int count, float factor,
                       const float (&x)[ROWS][LOCAL]) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int token = token_of(place, row);
        if (!place.live || token >= count) continue;
        const long long flat = static_cast<long long>(place.batch) * count + token;
        store_heads(lane_part(to + flat * (HEADS * WIDTH)), factor, x[row]);
    }
}

// ---------------------------------------------------------------- biases

// Those of one pair are contiguous, the lane's heads next to each other.
DEVICE int bias_head() { return my_seat() * LANE_HEADS; }
constexpr int BIAS_PIECE = LANE_HEADS % 4 == 0 ? 4 : LANE_HEADS % 2 == 0 ? 2 : 1;

// Where the biases of each row lie, at the token of the other side that the walk is at.
struct Biases {
    const float *at[ROWS];

    DEVICE void advance(long long step) {
        if constexpr (BIASED) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) at[row] += step;
        }
    }

    DEVICE void read_into(float (&s)[ROWS][LANE_HEADS]) const {
#pragma unroll
        for (int i = 0; i < ROWS * LANE_HEADS; i += BIAS_PIECE) {
            const int row = i / LANE_HEADS, h = i % LANE_HEADS;
#pragma unroll
            for (int j = 0; j < BIAS_PIECE; ++j) s[row][h + j] = 0.f;
            if constexpr (BIASED && PASS == PASS_WHOLE) copy<BIAS_PIECE>(at[row] + h, s[row] + h);
            if constexpr (BIASED && PASS != PASS_WHOLE) read<BIAS_PIECE>(at[row] + h, s[row] + h);
        }
    }
};

// The tile's, at the first token of the other side; `step` leads from one row to the next.
DEVICE Biases tile_biases(const Arguments &a, const Place &place, int count, long long step) {
    Biases biases{};
    if constexpr (BIASED) {
        const float *first =
            a.bias + place.batch / a.batch_per_bias * a.bias_batch + bias_head();
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const int token = token_of(place, row);
            biases.at[row] = first + (token < count ? token : count - 1) * step;
        }
    }
    return biases;
}

// Puts 0 where a bias masks the row and head.
DEVICE void clear_masked(const Biases &biases, float (&x)[ROWS][LANE_HEADS]) {
    float bias[ROWS][LANE_HEADS];
    biases.read_into(bias);
#pragma unroll
    for (int i = 0; i < ROWS * LANE_HEADS; ++i) {
        const int row = i / LANE_HEADS, h = i % LANE_HEADS;
        if (masks_pair(bias[row][h])) x[row][h] = 0.f;
    }
}

// ---------------------------------------------------------------- masks

DEVICE bool is_visible(const Arguments &a, bool seen, int query, int key) {
    return !MASKED || (seen && query < a.queries && key <= query + a.reach);
}

// The lane's part of the sums over heads for all rows, after scores that are masked were set to 0:
// by a bias, or as visible(row) says. −∞ and NaN make a sum infinite or NaN, so scores are looked
// through, and biases read again, only where one is. Returns whether a bias may have masked any.
// Of v and g, a pitch is LOCAL, or 0 for a vector that all rows share.
template <typename Visible>
DEVICE bool sums_of_rows(const Biases &biases, Visible visible, float (&s)[ROWS][LANE_HEADS],
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
        if (!visible || query >= a.queries || key >= a.keys) return 0.f;
        const long long row = place.batch / a.batch_per_multiplier * (long long)a.queries + query;
        return __ldg(a.multiplier + row * a.keys + key);
    } else {
        return visible ? 1.f : 0.f;
    }
}

// For the backward, which is not protected from NaN in what it does not see.
DEVICE bool any_row(int) { return true; }

DEVICE int key_end(const Arguments &a, const Place &place) {
    if constexpr (!MASKED) return a.keys;
    const int last = place.first + ROWS < a.queries ? place.first + ROWS : a.queries;
    const int end = last + a.reach < a.keys ? last + a.reach : a.keys;
    return largest_in_warp(place.live ? end : 0);
}

// ---------------------------------------------------------------- the other side

// The two tokens of the walk, and the lane's part of each. `take` has the next ones already on their
// way when PREFETCH is set: a register copy of each costs LOCAL registers and hides the latency of
// a cache miss.
struct Stream {
    const Scalar *left, *right;
    long long left_stride, right_stride;
    const unsigned char *padding;  // of the streamed token, or null
    bool live;
    float next_left[LOCAL], next_right[LOCAL];
    bool next_seen;

    DEVICE void advance(int tokens = 1) {
        left += tokens * left_stride;
        right += tokens * right_stride;
        if (MASKED && padding != nullptr) padding += tokens;
    }

    DEVICE bool sees() const {
        return !MASKED || (live && (padding == nullptr || __ldg(padding) != 0));
    }

    DEVICE void fetch(float (&x)[LOCAL], float (&y)[LOCAL], bool &seen) const {
        seen = sees();
        load_heads(left, seen, x);
        load_heads(right, seen, y);
    }

    DEVICE void start(bool any) {
        if (PREFETCH && any) fetch(next_left, next_right, next_seen);
    }

    DEVICE void take(bool more, float (&x)[LOCAL], float (&y)[LOCAL], bool &seen) {
        if constexpr (PREFETCH) {
#pragma unroll
            for (int i = 0; i < LOCAL; ++i) x[i] = next_left[i], y[i] = next_right[i];
            seen = next_seen;
            advance();
            start(more);
        } else {
            fetch(x, y, seen);
            advance();
        }
    }
};

DEVICE Stream key_stream(const Arguments &a, const Place &place) {
    return {lane_part(a.k + place.batch * a.k_batch),
            lane_part(a.v + place.batch * a.v_batch),
            a.k_token,
            a.v_token,
            a.padding ? a.padding + place.batch * (long long)a.keys : nullptr,
            place.live};
}
