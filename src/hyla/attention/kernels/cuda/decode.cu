// Decoding: one query per sequence against a cache of keys and values. Memory is what it costs:
// each key and value is read once, 16 bytes a lane and, where registers have room for it, the next
// ones while these are computed with.
//
// A *team* of LANES neighbouring lanes holds one head of a token, a piece of 16 bytes in each lane.
// TEAMS_PER_KEY teams share the heads of a key, SLOTS heads each; what is left of a warp takes
// further keys. Scores are sums over a team, the mean square and p sums over the teams of a key,
// all by exchanges between lanes: a warp waits for no other. Each lane adds to its share of the
// output, which stays in registers.
//
// A block owns some consecutive keys of one sequence, and its warps take them in turn. Outputs are
// added up at the end: over the warps here, over the blocks by output_stage.cu.
//
// Set by the compiler's command line: KIND (0 bf16, 1 fp16, 2 float32), HEADS, WIDTH (a multiple of
// 8), SHARED_BY (heads of q for each of k and v), WARPS, BUFFERS (divides WARPS), NORMALISED, PHI,
// BIASED (0 none, 1 float32, 2 the dtype of q), PADDED, and PAGE: the tokens of a page where the
// cache lies in pages, else 0.

DEVICE constexpr int power_of_two_from(int x) {
    int power = 1;
    while (power < x) power *= 2;
    return power;
}
DEVICE constexpr int smaller(int x, int y) { return x < y ? x : y; }
DEVICE constexpr int larger(int x, int y) { return x < y ? y : x; }

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;
constexpr int VECTOR = 16 / sizeof(Scalar);  // elements of a piece
constexpr int PIECES = WIDTH / VECTOR;
constexpr int LANES = power_of_two_from(PIECES);
constexpr int TEAMS_PER_KEY = smaller(power_of_two_from(HEADS), WARP / LANES);
constexpr int LANES_PER_KEY = TEAMS_PER_KEY * LANES;
constexpr int KEYS_PER_WARP = WARP / LANES_PER_KEY;
constexpr int SLOTS = (HEADS + TEAMS_PER_KEY - 1) / TEAMS_PER_KEY;
constexpr bool FULL = LANES == PIECES && HEADS == TEAMS_PER_KEY * SLOTS;
// Heads of k that a team loads: one for all its slots that share it.
constexpr int SLOTS_PER_LOAD =
    SHARED_BY % SLOTS == 0 ? SLOTS : SLOTS % SHARED_BY == 0 ? SHARED_BY : 1;
constexpr int LOADS = SLOTS / SLOTS_PER_LOAD;
constexpr int STEP = larger(1, smaller(4, 4 / SLOTS));  // keys that a lane computes with at once
constexpr int STRIDE = WARPS * KEYS_PER_WARP;           // between these
// What is kept in registers, where there is room: the query, and the pieces of the next keys.
constexpr int OUTPUTS = SLOTS * VECTOR;
constexpr bool KEEPS_QUERY = OUTPUTS <= 32;
constexpr int KEPT = OUTPUTS * (1 + KEEPS_QUERY) + STEP * (SLOTS + LOADS * 16);
constexpr bool AHEAD = KEPT <= 200;
constexpr int BLOCKS = KEPT <= 100 ? 2 : 1;  // on a multiprocessor
constexpr int ROW = HEADS * WIDTH;
constexpr int TOKENS_OF_PAGE = PAGE == 0 ? 1 : PAGE;
static_assert(WIDTH % VECTOR == 0 && LANES <= WARP && WARPS % BUFFERS == 0, "what a team can hold");

struct Tensor4 {  // [batch, token, head, d] with d contiguous; strides in elements
    const Scalar *at;
    long long batch, token, head;
};

struct Arguments {
    Tensor4 q, k, v;   // k and v in pages: [page, token, head, d]
    const void *bias;  // [biases, head, key]
    long long bias_batch, bias_head, bias_key;
    const unsigned char *padding;  // [batch, key], 0 = masked
    const int *table, *lengths;    // in pages: [batch, pages_per_sequence] and [batch]
    float *output;                 // [split, batch, head, d]
    int batch, keys, splits, batch_per_bias, pages, pages_per_sequence;
    float scale, eps;
};

struct Memory {
    float output[BUFFERS][ROW];
};

DEVICE int my_lane() { return static_cast<int>(threadIdx.x) % WARP; }
DEVICE int my_warp() { return static_cast<int>(threadIdx.x) / WARP; }
DEVICE int my_piece() { return my_lane() % LANES; }
DEVICE int my_head(int slot) { return my_lane() / LANES % TEAMS_PER_KEY * SLOTS + slot; }
DEVICE bool is_head(int slot) { return FULL || my_head(slot) < HEADS; }
DEVICE bool holds(int slot) { return FULL || (my_piece() < PIECES && my_head(slot) < HEADS); }

// Over lanes whose numbers differ in the bits from FROM up to TO, without it.
template <int FROM, int TO>
DEVICE float sum_over_lanes(float x) {
#pragma unroll
    for (int mask = FROM; mask < TO; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

// ---------------------------------------------------------------- the cache

struct Keys {  // those of the block
    int sequence, end;
    bool lost;  // some key's page, or their number, is none
};

DEVICE Keys keys_of_block(const Arguments &a, int &begin) {
    Keys keys{static_cast<int>(blockIdx.x) % a.batch, a.keys, false};
    if constexpr (PAGE != 0) {
        keys.end = __ldg(a.lengths + keys.sequence);
        keys.lost = keys.end < 0 || keys.end > a.pages_per_sequence * TOKENS_OF_PAGE;
        if (keys.lost) keys.end = 0;
    }
    const int share = (keys.end + a.splits - 1) / a.splits;
    begin = static_cast<int>(blockIdx.x) / a.batch * share;
    if (begin + share < keys.end) keys.end = begin + share;
    return keys;
}

// Which keys a lane computes with in a step: `first` and every STRIDE-th from there.
struct Step {
    bool seen[STEP];
    int page[STEP];
};

DEVICE Step find_step(const Arguments &a, Keys &keys, int first) {
    Step step;
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        const int key = first + i * STRIDE;
        bool seen = key < keys.end;
        if constexpr (PADDED) {
            seen = seen && a.padding[static_cast<long long>(keys.sequence) * a.keys + key] != 0;
        }
        step.page[i] = keys.sequence;  // a cache that is none of pages has one for each sequence
        if constexpr (PAGE != 0) {
            const long long row = static_cast<long long>(keys.sequence) * a.pages_per_sequence;
            if (seen) step.page[i] = __ldg(a.table + row + key / TOKENS_OF_PAGE);
            const bool exists = step.page[i] >= 0 && step.page[i] < a.pages;
            keys.lost |= seen && !exists;
            seen = seen && exists;
        }
        step.seen[i] = seen;
    }
    return step;
}

struct Piece {
    uint4 words;

    DEVICE float value(int i) const {
        const unsigned all[4] = {words.x, words.y, words.z, words.w};
#if KIND == 2
        return __uint_as_float(all[i]);
#else
        return i % 2 == 0 ? first_of(all[i / 2]) : second_of(all[i / 2]);
#endif
    }
};

// Heads of k from the first one that a team loads to another.
DEVICE int heads_on(int load) {
    if (SHARED_BY % SLOTS == 0 || SLOTS % SHARED_BY == 0) return load;
    return my_head(load) / SHARED_BY - my_head(0) / SHARED_BY;
}

// Where the lane's first piece would lie if its key were the first of the first page.
DEVICE const Scalar *first_piece(const Tensor4 &x) {
    return x.at + my_head(0) / SHARED_BY * x.head + my_piece() * VECTOR;
}

// Of the i-th key in a step. What is masked, or beyond the end, is zeros whatever memory holds.
DEVICE Piece load_piece(const Tensor4 &x, const Step &step, int first, int i, int load) {
    const int key = first + i * STRIDE;
    if (!step.seen[i] || !holds(load * SLOTS_PER_LOAD)) return {make_uint4(0, 0, 0, 0)};
    const Scalar *from = first_piece(x) + step.page[i] * x.batch +
                         (PAGE == 0 ? key : key % TOKENS_OF_PAGE) * x.token +
                         heads_on(load) * x.head;
    return {__ldg(reinterpret_cast<const uint4 *>(from))};
}

struct Pieces {
    Piece of[STEP][LOADS];
};

DEVICE Pieces load_pieces(const Tensor4 &x, const Step &step, int first) {
    Pieces pieces;
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
#pragma unroll
        for (int load = 0; load < LOADS; ++load) {
            pieces.of[i][load] = load_piece(x, step, first, i, load);
        }
    }
    return pieces;
}

// ---------------------------------------------------------------- what is computed

typedef float PerSlot[SLOTS][VECTOR];
typedef float Code[STEP][SLOTS];

DEVICE void load_query(float (&x)[VECTOR], const Arguments &a, int sequence, int slot) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) x[i] = 0.f;
    if (!holds(slot)) return;
    read(a.q.at + sequence * a.q.batch + my_head(slot) * a.q.head + my_piece() * VECTOR, x);
}

DEVICE float with_bias(const Arguments &a, int sequence, int head, int key, float score) {
    const long long at = sequence / a.batch_per_bias * a.bias_batch + head * a.bias_head +
                         key * a.bias_key;
    const float bias = BIASED == 1 ? static_cast<const float *>(a.bias)[at]
                                   : to_float(static_cast<const Scalar *>(a.bias)[at]);
    return masks_pair(bias) ? 0.f : score + bias;
}

DEVICE void normalise(Code &code, float eps) {
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        float squares = 0.f;
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) squares += code[i][slot] * code[i][slot];
        squares = sum_over_lanes<LANES, LANES_PER_KEY>(squares);
        const float r = inverse_root_of(squares * (1.f / HEADS) + eps);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) code[i][slot] *= r;
    }
}

// The code of a step's keys, in all lanes of a team.
DEVICE void compute_code(Code &code, const Arguments &a, const Keys &keys, const Step &step,
                         const Pieces &k, const PerSlot &query, int first) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        float q[VECTOR];
        if constexpr (!KEEPS_QUERY) load_query(q, a, keys.sequence, slot);
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
            const int load = slot / SLOTS_PER_LOAD;
            const Piece piece = AHEAD ? k.of[i][load] : load_piece(a.k, step, first, i, load);
            float s = 0.f;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                s += piece.value(j) * (KEEPS_QUERY ? query[slot][j] : q[j]);
            }
            s = sum_over_lanes<1, LANES>(s) * a.scale;
            if (BIASED != 0 && step.seen[i] && is_head(slot)) {
                s = with_bias(a, keys.sequence, my_head(slot), first + i * STRIDE, s);
            }
            code[i][slot] = s;
        }
    }
    if constexpr (NORMALISED) normalise(code, a.eps);
}

DEVICE void add_values(PerSlot &out, const Arguments &a, const Step &step, const Pieces &v,
                       const Code &code, int first) {
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
        float z[VECTOR] = {};
#pragma unroll
        for (int load = 0; load < LOADS; ++load) {
            const Piece piece = AHEAD ? v.of[i][load] : load_piece(a.v, step, first, i, load);
            float together = 0.f;  // the codes of heads that share the value
#pragma unroll
            for (int slot = 0; slot < SLOTS_PER_LOAD; ++slot) {
                together += code[i][load * SLOTS_PER_LOAD + slot];
            }
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) z[j] += together * piece.value(j);
        }
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            z[j] = activate(sum_over_lanes<LANES, LANES_PER_KEY>(z[j])).value;
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) out[slot][j] += code[i][slot] * z[j];
        }
    }
}

// BUFFERS warps at a time, in a fixed order. A sequence that has lost keys gets no number.
DEVICE void store_sum_over_warps(Memory &memory, float *to, const PerSlot &out, bool lost) {
    const float nothing = lost ? __uint_as_float(0x7fc00000u) : 0.f;
#pragma unroll 1
    for (int turn = 0; turn < WARPS / BUFFERS; ++turn) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                if (my_warp() / BUFFERS != turn) continue;
                const float x = sum_over_lanes<LANES_PER_KEY, WARP>(out[slot][j] + nothing);
                if (my_lane() >= LANES_PER_KEY || !holds(slot)) continue;
                float &sum = memory.output[my_warp() % BUFFERS]
                                          [my_head(slot) * WIDTH + my_piece() * VECTOR + j];
                sum = turn == 0 ? x : sum + x;
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < ROW; i += THREADS) {
        float sum = 0.f;
#pragma unroll
        for (int buffer = 0; buffer < BUFFERS; ++buffer) sum += memory.output[buffer][i];
        to[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) decode(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    int begin;
    Keys keys = keys_of_block(a, begin);
    PerSlot query, out = {};
    if constexpr (KEEPS_QUERY) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) load_query(query[slot], a, keys.sequence, slot);
    }
    // All lanes of a warp make as many steps: they exchange numbers.
    const int of_lane = my_lane() / LANES_PER_KEY;
    int of_warp = begin + my_warp() * KEYS_PER_WARP;
    Step now = find_step(a, keys, of_warp + of_lane);
    Step next = find_step(a, keys, of_warp + of_lane + STEP * STRIDE);
    Pieces k, v, next_k, next_v;
    if constexpr (AHEAD) {
        next_k = load_pieces(a.k, now, of_warp + of_lane);
        next_v = load_pieces(a.v, now, of_warp + of_lane);
    }
#pragma unroll 1
    for (; of_warp < keys.end; of_warp += STEP * STRIDE) {
        const int first = of_warp + of_lane, following = first + STEP * STRIDE;
        const Step after = find_step(a, keys, following + STEP * STRIDE);
        if constexpr (AHEAD) {
            k = next_k, v = next_v;
            next_k = load_pieces(a.k, next, following);
            next_v = load_pieces(a.v, next, following);
        }
        Code code;
        compute_code(code, a, keys, now, k, query, first);
        add_values(out, a, now, v, code, first);
        now = next, next = after;
    }
    store_sum_over_warps(memory, a.output + static_cast<long long>(blockIdx.x) * ROW, out,
                         keys.lost);
}
