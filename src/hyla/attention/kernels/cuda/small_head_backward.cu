// The whole backward in one walk, of a sequence that fits into shared memory: dQ, dK, dV and the
// gradient of a bias by distance. What two passes compute twice, it computes once.
//
// A block takes one batch element. Its queries and their upstream gradients lie in shared memory,
// with dQ beside them. Teams own tiles of two keys and walk over all queries, each one query ahead
// of the team before it: at no time do two of them add to the same dQ, or to the same distance, and
// a barrier after every step lets the next team go on with the sums. So nothing is atomic, and all
// sums have a fixed order.
//
// Where fewer tiles are left than there are teams, several teams take a tile together: each walks
// over a part of the queries, and what they have of dK and dV is summed in the end.
//
// A softmax takes a walk more, before this one: for δ of every query, summed over the keys as dQ is.
//
// Needs as many queries as a block has teams, or two of them would be at one query.

static_assert(ROWS == 2, "teams with larger tiles may be at the same distance");
static_assert(EVEN, "every lane must have the same number of heads");

constexpr int WARPS = THREADS / WARP;

// From one token or distance to the next: an odd number of what a team reads at once, so that teams
// at neighbours need different banks.
constexpr int READ_AT_ONCE = 4 * LANES;
template <int FLOATS>
constexpr int padded = ((FLOATS + READ_AT_ONCE - 1) / READ_AT_ONCE | 1) * READ_AT_ONCE;

constexpr int G_AT = HEADS * WIDTH, DQ_AT = 2 * G_AT;  // behind Q
constexpr int LOG2_SUM_AT = 3 * G_AT;                   // and for a softmax, by `bias_head`,
constexpr int MEAN_AT = LOG2_SUM_AT + BIAS_HEADS;       // δ and
constexpr int TOTAL_AT = MEAN_AT + BIAS_HEADS;          // the sum of codes: 1, but for rounding
constexpr int TOKEN = padded<SOFTMAX ? TOTAL_AT + BIAS_HEADS : LOG2_SUM_AT>;
// A bias, and its gradient from each row of the tiles: two rows are at different distances.
constexpr int DISTANCE = padded<(1 + ROWS) * BIAS_HEADS>;
constexpr int UNIT_PIECE = PACK * WIDTH % 4 == 0 ? 4 : PACK * WIDTH % 2 == 0 ? 2 : 1;

// Of what lies by `bias_head`.
DEVICE int place_of_head(int head) {
    const int unit = head / PACK;
    return (unit % LANES * LANE_UNITS + unit / LANES) * PACK + head % PACK;
}

DEVICE float *gradient_of(float *distance, int row) { return distance + (1 + row) * BIAS_HEADS; }

DEVICE void wait_for_block() {
    if constexpr (WARPS == 1) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// ---------------------------------------------------------------- what a block has in memory

struct Sequence {
    int batch, tiles;
    int queries;       // with some of zeros at the end, as parts of equal length may have too many
    float *tokens;     // [query, TOKEN]
    float *distances;  // [key − query + queries − 1, DISTANCE], by `bias_head`, with these queries

    DEVICE int distance_count() const { return queries + (tiles + WARPS - 1) * ROWS - 1; }

    DEVICE void fill(const Arguments &a) const {
        constexpr int PIECES = HEADS * WIDTH / VECTOR, WRITTEN = VECTOR < 4 ? VECTOR : 4;
#pragma unroll 4
        for (int i = threadIdx.x; i < queries * PIECES; i += THREADS) {
            const int query = i / PIECES, at = i % PIECES * VECTOR;
            float q[VECTOR] = {}, g[VECTOR] = {}, dq[VECTOR] = {};
            if (query < a.queries) {
                read<VECTOR>(a.q + batch * a.q_batch + query * a.q_token + at, q);
                read<VECTOR>(a.upstream + batch * a.upstream_batch + query * a.upstream_token + at,
                             g);
            }
            float *to = tokens + query * TOKEN + at;
            if constexpr (SCALES_QUERY) {
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) q[j] *= a.scale;
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j += WRITTEN) {
                write<WRITTEN>(to + j, q + j);
                write<WRITTEN>(to + G_AT + j, g + j);
                write<WRITTEN>(to + DQ_AT + j, dq + j);
            }
        }
        if constexpr (SOFTMAX) {
            for (int i = threadIdx.x; i < queries * HEADS; i += THREADS) {
                const int query = i / HEADS;
                float *to = tokens + query * TOKEN + LOG2_SUM_AT + place_of_head(i % HEADS);
                const long long first = batch * (long long)a.queries * HEADS;
                to[0] = query < a.queries ? LOG2_E * __ldg(a.log_sum + first + i) : 0.f;
                to[MEAN_AT - LOG2_SUM_AT] = to[TOTAL_AT - LOG2_SUM_AT] = 0.f;
            }
        }
        if constexpr (BIASED) {
            const float *bias = a.bias + batch / a.batch_per_bias * a.bias_batch;
            const int given = a.queries + a.keys - 1, more = queries - a.queries;
            for (int i = threadIdx.x; i < distance_count() * HEADS; i += THREADS) {
                const int distance = i / HEADS, head = i % HEADS, index = distance - more;
                float *to = distances + distance * DISTANCE + place_of_head(head);
                const bool is_given = index >= 0 && index < given;
                *to = is_given ? __ldg(bias + head * given + index) : 0.f;
#pragma unroll
                for (int row = 0; row < ROWS; ++row) *gradient_of(to, row) = 0.f;
            }
        }
    }

    // From sums over keys to the mean that codes make of gradients.
    DEVICE void average() const {
        for (int i = threadIdx.x; i < queries * HEADS; i += THREADS) {
            float *mean = tokens + i / HEADS * TOKEN + MEAN_AT + i % HEADS;
            const float total = mean[TOTAL_AT - MEAN_AT];
            if (total > 0.f) *mean = __fdividef(*mean, total);
        }
    }

    DEVICE void store(const Arguments &a) const {
        constexpr int PIECES = HEADS * WIDTH / VECTOR;
        const float factor = with_gain(a.output, SCALES_QUERY ? a.scale : 1.f);
        Scalar *dq = a.third + batch * (long long)a.queries * (HEADS * WIDTH);
        for (int i = threadIdx.x; i < a.queries * PIECES; i += THREADS) {
            const float *from = tokens + i / PIECES * TOKEN + DQ_AT + i % PIECES * VECTOR;
            float x[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) x[j] = factor * from[j];
            write<VECTOR>(dq + i * VECTOR, x);
        }
        if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
            const int given = a.queries + a.keys - 1, more = queries - a.queries;
            float *gradient = a.bias_gradient + batch * (long long)given * BIAS_HEADS;
            for (int i = threadIdx.x; i < given * BIAS_HEADS; i += THREADS) {
                float *from = distances + (i / BIAS_HEADS + more) * DISTANCE + i % BIAS_HEADS;
                float sum = 0.f;
#pragma unroll
                for (int row = 0; row < ROWS; ++row) sum += *gradient_of(from, row);
                gradient[i] = with_gain(a.output, sum);
            }
        }
    }
};

// One number for each of the lane's heads.
DEVICE void read_by_head(const float *from, float *x) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; h += BIAS_PIECE) copy<BIAS_PIECE>(from + h, x + h);
}

DEVICE void write_by_head(float *to, const float *x) {
#pragma unroll
    for (int h = 0; h < LANE_HEADS; h += BIAS_PIECE) write<BIAS_PIECE>(to + h, x + h);
}

// The lane's heads of a token, from its part of it.
DEVICE void read_heads(const float *part, float (&x)[LOCAL]) {
#pragma unroll
    for (int i = 0; i < LOCAL; i += UNIT_PIECE) {
        copy<UNIT_PIECE>(part + i / (PACK * WIDTH) * NEXT_UNIT + i % (PACK * WIDTH), x + i);
    }
}

DEVICE void write_heads(float *part, const float (&x)[LOCAL]) {
#pragma unroll
    for (int i = 0; i < LOCAL; i += UNIT_PIECE) {
        write<UNIT_PIECE>(part + i / (PACK * WIDTH) * NEXT_UNIT + i % (PACK * WIDTH), x + i);
    }
}

// ---------------------------------------------------------------- the walk

// A step of the walk of a tile's team: what a query adds to all gradients.
DEVICE void add_gradients(const Arguments &a, const Place &place, int query, float *token,
                          float *(&distance)[ROWS], const Biases &biases, Keys &keys) {
    float *part = lane_part(token), *by_head = token + bias_head();
    float q[LOCAL], g[LOCAL], dq[LOCAL], ds[ROWS][LANE_HEADS], dbias[ROWS][LANE_HEADS];
    Statistics of_query;
    read_heads(part, q);
    read_heads(part + G_AT, g);
    read_heads(part + DQ_AT, dq);
    if constexpr (SOFTMAX) {
        read_by_head(by_head + LOG2_SUM_AT, of_query.log2_sum);
        read_by_head(by_head + MEAN_AT, of_query.mean_gradient);
    }
    if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            read_by_head(gradient_of(distance[row], row), dbias[row]);
        }
    }
    keys.add(a, place, query, biases, of_query, q, g, ds);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int i = 0; i < LOCAL; ++i) dq[i] += ds[row][i / WIDTH] * keys.k[row][i];
    }
    write_heads(part + DQ_AT, dq);
    if constexpr (BIAS_GRADIENT != BIAS_GRADIENT_NONE) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
#pragma unroll
            for (int h = 0; h < LANE_HEADS; ++h) dbias[row][h] += ds[row][h];
            write_by_head(gradient_of(distance[row], row), dbias[row]);
        }
    }
}

// A step of the walk before, of a softmax: what the keys add to the mean of a query.
DEVICE void add_mean(const Arguments &a, const Place &place, int query, float *token,
                     const Biases &biases, const Keys &keys) {
    float *part = lane_part(token), *by_head = token + bias_head();
    float q[LOCAL], g[LOCAL], code[ROWS][LANE_HEADS], y[ROWS][FACTORS];
    float mean[LANE_HEADS], total[LANE_HEADS];
    Statistics of_query;
    read_heads(part, q);
    read_heads(part + G_AT, g);
    read_by_head(by_head + LOG2_SUM_AT, of_query.log2_sum);
    read_by_head(by_head + MEAN_AT, mean);
    read_by_head(by_head + TOTAL_AT, total);
    RmsFirst before;
    keys.look(a, place, query, biases, of_query, q, g, before, code, y);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int h = 0; h < LANE_HEADS; ++h) {
            mean[h] += code[row][h] * keys.gradient(code, y, g, row, h);
            total[h] += code[row][h];
        }
    }
    write_by_head(by_head + MEAN_AT, mean);
    write_by_head(by_head + TOTAL_AT, total);
}

// Over `length` queries from `begin` on, which it goes round; the first is `ahead` of that.
template <bool FOR_MEAN>
DEVICE void walk(const Arguments &a, const Sequence &sequence, const Place &place, int begin,
                 int ahead, int length, Keys &keys) {
    int query = begin + ahead;
    float *distances[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int first = token_of(place, row) + sequence.queries - 1;
        distances[row] = sequence.distances + first * DISTANCE + bias_head();
    }
#pragma unroll 1
    for (int step = 0; step < length; ++step) {
        float *token = sequence.tokens + query * TOKEN, *distance[ROWS];
        Biases biases;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            distance[row] = distances[row] - query * DISTANCE;
            biases.at[row] = distance[row];
        }
        if constexpr (FOR_MEAN) {
            add_mean(a, place, query, token, biases, keys);
        } else {
            add_gradients(a, place, query, token, distance, biases, keys);
        }
        query = query + 1 == begin + length ? begin : query + 1;
        wait_for_block();
    }
}

// All tiles of keys.
template <bool FOR_MEAN>
DEVICE void walk_all(const Arguments &a, const Sequence &sequence) {
    const int warp = static_cast<int>(threadIdx.x) / WARP, team = my_lane() / LANES;
    int taken = TEAMS;  // by a warp at once
#pragma unroll 1
    for (int done = 0; done < sequence.tiles; done += WARPS * taken) {
        while (taken > 1 && done + WARPS * taken > sequence.tiles) taken /= 2;
        const int sharers = TEAMS / taken, length = (a.queries + sharers - 1) / sharers;
        const int part = team / taken, ahead = warp * taken + team % taken;
        Place place{sequence.batch, done + ahead, (done + ahead) * ROWS, 0, true};
        Keys keys;
        keys.load(a, place);
        walk<FOR_MEAN>(a, sequence, place, part * length, ahead, length, keys);
        if constexpr (FOR_MEAN) continue;
        for (int mask = LANES * taken; mask < WARP; mask *= 2) {
#pragma unroll
            for (int i = 0; i < ROWS * LOCAL; ++i) {
                keys.dk[i / LOCAL][i % LOCAL] += exchange(keys.dk[i / LOCAL][i % LOCAL], mask);
                keys.dv[i / LOCAL][i % LOCAL] += exchange(keys.dv[i / LOCAL][i % LOCAL], mask);
            }
        }
        place.live = part == 0;
        keys.store(a, place);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) small_head(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Sequence sequence;
    sequence.batch = static_cast<int>(blockIdx.x);
    sequence.tiles = (a.keys + ROWS - 1) / ROWS;
    sequence.queries = a.queries + TEAMS - 1;
    sequence.tokens = reinterpret_cast<float *>(dynamic);
    sequence.distances = sequence.tokens + sequence.queries * TOKEN;
    sequence.fill(a);
    wait_for_block();
    if constexpr (SOFTMAX) {
        walk_all<true>(a, sequence);
        sequence.average();
        wait_for_block();
    }
    walk_all<false>(a, sequence);
    sequence.store(a);
}
