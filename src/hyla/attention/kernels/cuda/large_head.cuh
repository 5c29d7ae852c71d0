// Head-mixing attention for large heads on tensor cores: what the forward and backward share.
//
//     s[h] = scale · Q[q,h]·K[k,h] + bias[h,q,k]      contracts d, one product per head
//     a[h] = s[h] · rsqrt(mean_h s² + eps)            (s itself without normalisation; with a
//                                                      softmax exp(s[h] - log_sum[q,h]) for s;
//                                                      with RMSHead before it that of s · rsqrt(…))
//     p    = Σ_h a[h] V[k,h],  z = φ(p)               contracts h, one product per KEY
//     O[q,h] += Σ_k a[h] z                            contracts k, one product per QUERY
//
// A tensor core works on one product with all lanes, so what is "one product per …" must be the
// same in all lanes and can only change from register to register. Between p (a register per key,
// queries over the lanes) and O (a register per query, keys over the lanes) everything would have
// to be transposed. It need not be, because two orders are free: the rows of a matrix are loaded
// from any address, so the product of key pair r may see its queries in the order in which lane
// pair j carries query pair j ^ r. Then exchanging the *registers* of each lane, r → r ^ j, leaves
// in register m the query pair m with key pair j ^ m in lane pair j: all lanes agree on the query,
// and the code, loaded in that order of keys, multiplies it. No value ever changes lanes.
//
// The code of a tile lies in shared memory once, eight heads (16 bytes) of a pair together. Rows of
// it read straight are what p needs (a key, queries × heads); read transposed, what O needs (a
// query, heads × keys).
//
// Rows too wide for one block are shared by a cluster of SPLIT blocks, each on a multiprocessor of
// its own. Scores need all of d but one head at a time; the value network needs all heads but each d
// by itself. So a block has some heads of Q and K, all of d, and of V all heads, some of d: nothing
// is held or computed twice, and what crosses over is small: sums of squares, the code, and in the
// backward its gradient.
//
// Set by the compiler's command line: KIND, HEADS, WIDTH (16, 32, 64 or 128), QUERIES and KEYS
// (the tile), SHARED_BY (heads of q for each of k and v), WARPS, BLOCKS (that must fit on a
// multiprocessor), SPLIT (blocks of a cluster), NORMALISED (RMSHead, after a softmax if there is
// one), SOFTMAX, RMS_FIRST (RMSHead, before the softmax), PHI, BIASED (0 none, 1 float32, 2 the dtype
// of q), PADDED, OUTPUT (output.cuh; the backward knows of a gain alone), PASS and STAGES (but in
// the forward), for the forward WARPGROUPS, and for the backward ADDS_QUERY_GRADIENT,
// BIAS_GRADIENT and BULK (whether dQ is added from shared memory, which Hopper can).

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;
constexpr int GROUPS = HEADS <= 8 ? 1 : HEADS <= 16 ? 2 : 4;  // of eight heads; missing are zeros
constexpr int ALL_HEADS = 8 * GROUPS;
constexpr int OWN_GROUPS = GROUPS / SPLIT, OWN_HEADS = ALL_HEADS / SPLIT;  // of Q and K
constexpr int SHARE = WIDTH / SPLIT;                                       // of d, of the rest
constexpr int SLICES = SHARE / 16;
constexpr int TOKEN = ALL_HEADS * SHARE;  // halves
static_assert(GROUPS % SPLIT == 0 && SHARE % 16 == 0, "every block has as much as the others");
static_assert(WARPS % 8 == 0 && QUERIES % 8 == 0 && KEYS % 16 == 0, "rows come in eights");
static_assert(WIDTH % 16 == 0 && (WIDTH & (WIDTH - 1)) == 0 && WIDTH <= 128, "size of a head");

DEVICE int my_lane() { return static_cast<int>(threadIdx.x % WARP); }
DEVICE int my_warp() { return static_cast<int>(threadIdx.x / WARP % WARPS); }

// Which of its cluster a block is; its first head of Q and K, and the first of its share of d.
DEVICE int my_rank() { return SPLIT == 1 ? 0 : static_cast<int>(blockIdx.x % SPLIT); }
DEVICE int my_first_head() { return my_rank() * OWN_HEADS; }
DEVICE int my_first_d() { return my_rank() * SHARE; }

// What the blocks of a cluster do together.
DEVICE int my_task() { return static_cast<int>(blockIdx.x / SPLIT); }

// Whether one of the block's heads exists. Those that do not lie behind those that do.
DEVICE bool exists(int own_head) {
    return ALL_HEADS == HEADS || my_first_head() + own_head < HEADS;
}

// The same place in the i-th block of the cluster from this one on.
template <typename T>
DEVICE T *in_cluster(T *at, int i) {
    return i == 0 ? at : in_block(at, (my_rank() + i) % SPLIT);
}

// A barrier that orders what blocks wrote to each other; of one block, nothing but its own.
DEVICE void meet() {
    if constexpr (SPLIT > 1) cluster_barrier();
    else __syncthreads();
}

// ---------------------------------------------------------------- rows in shared memory

// A row is LENGTH halves in pieces of 16 bytes; eight rows, up to 64 of d, lie together. A matrix
// is the same piece of eight rows, which must lie in different banks: the row's `turn` is XORed to
// the number of the piece. Addresses are built so that from there on constants are added or XORed.
template <int LENGTH>
struct Rows {
    static constexpr int ROW_PIECES = LENGTH / 8, ROW_SLICES = LENGTH / 16;
    static constexpr int PANEL = LENGTH < 64 ? LENGTH : 64;
    static constexpr int PIECES = PANEL / 8;
    static constexpr int EIGHT_ROWS = 8 * PANEL * 2;  // bytes
    static constexpr int ROW = LENGTH * 2;            // bytes that eight rows take, divided by eight

    static DEVICE Shared place(int row, int piece, int turn) {
        return (row / 8 * (LENGTH / PANEL) + piece / PIECES) * EIGHT_ROWS + row % 8 * (2 * PANEL) +
               ((piece % PIECES) ^ (turn % PIECES)) * 16;
    }

    static DEVICE Shared place(int row, int piece) {
        return place(row, piece, row / (8 / PIECES));
    }

    // From a piece in the first 2 (or 4) of a row to the one `pieces`, a multiple of 2 (or 4), on.
    static DEVICE Shared pieces_on(Shared at, int pieces) {
        return (at ^ (pieces % PIECES * 16)) + pieces / PIECES * EIGHT_ROWS;
    }

    // Where a lane finds its rows of the left side of a product, and of the right side, of which one
    // load serves two eights of rows, or two slices.
    static DEVICE Shared left_rows(int row) { return place(row + my_lane() % 16, my_lane() / 16); }

    template <int UNIT>
    static DEVICE Shared right_rows(int row) {
        const int lane = my_lane();
        if constexpr (UNIT == 2) return place(row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
        return place(row + lane % 8, smaller(lane / 8, ROW_PIECES - 1));  // or anything, of no slice
    }
};

// Where in a tile of `tokens` a head of a token lies, and which part of a token the block has. What
// is multiplied head by head (Q and K) lies by heads; what is multiplied token by token (V and G), by
// tokens.
typedef Rows<WIDTH> HeadRows;
typedef Rows<SHARE> ShareRows;

template <int TOKENS>
struct ByHead : HeadRows {
    static constexpr int TILE_HEADS = OWN_HEADS;
    static DEVICE int row(int token, int head) { return head * TOKENS + token; }
    static DEVICE int first_head() { return my_first_head(); }
    static DEVICE int first_d() { return 0; }
};
struct ByToken : ShareRows {
    static constexpr int TILE_HEADS = ALL_HEADS;
    static DEVICE int row(int token, int head) { return token * ALL_HEADS + head; }
    static DEVICE int first_head() { return 0; }
    static DEVICE int first_d() { return my_first_d(); }
};

// Tokens first … first + COUNT - 1, zeros beyond `end`; all threads take part, a warp per token. A
// head of them that several heads of q share goes to the place of each.
template <int COUNT, typename Order, int SHARING = 1>
DEVICE void copy_tokens(Shared tile, const Half *from, const Tensor4 &x, int first, int end) {
    constexpr int ROW_PIECES = Order::ROW_PIECES;
    constexpr int MOST_HEADS = smaller(HEADS, Order::TILE_HEADS);
    constexpr int ROUNDS = (MOST_HEADS * ROW_PIECES + WARP - 1) / WARP;
    constexpr bool SOME_MISSING = SPLIT > 1 && HEADS < ALL_HEADS;
    const int first_head = Order::first_head(), heads = smaller(HEADS - first_head, MOST_HEADS);
    const long long step = WARPS * x.token;
    from += first * x.token + Order::first_d();
    end -= first + my_warp();
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int number = round * WARP + my_lane(), head = number / ROW_PIECES;
        if ((SOME_MISSING || MOST_HEADS * ROW_PIECES % WARP != 0) && head >= heads) break;
        const int piece = number % ROW_PIECES;
        const Half *source =
            from + (my_warp() * x.token + (first_head + head) / SHARING * x.head + piece * 8);
        const Shared to = tile + Order::place(Order::row(my_warp(), head), piece);
#pragma unroll
        for (int token = 0; token < COUNT; token += WARPS, source += step) {
            copy_async(to + Order::row(token, 0) * Order::ROW, source, token < end);
        }
    }
}

// Heads that do not exist are zeros from the start, since no copy touches them.
template <int COUNT, typename Order>
DEVICE void clear_missing_heads(Half *tile) {
    if constexpr (ALL_HEADS == HEADS) return;
    constexpr int ROW_PIECES = Order::ROW_PIECES;
    const int heads = smaller(Order::TILE_HEADS, larger(HEADS - Order::first_head(), 0));
    const unsigned pieces = (Order::TILE_HEADS - heads) * COUNT * ROW_PIECES;
    for (unsigned i = threadIdx.x; i < pieces; i += THREADS) {
        const int row = Order::row(i / ROW_PIECES % COUNT, heads + i / (ROW_PIECES * COUNT));
        char *at = reinterpret_cast<char *>(tile) + Order::place(row, i % ROW_PIECES);
        *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
    }
}

// ---------------------------------------------------------------- the code of a tile

// Eight heads of a pair: keys in an order that puts eight of them, and eight queries, into different
// banks. In the orders of the exchange this leaves addresses that are nearly the same for all of it.
constexpr int CODE_PIECE = 16, CODE_ROW = KEYS * CODE_PIECE, CODE_GROUP = QUERIES * CODE_ROW;

DEVICE Shared code_place(int group, int query, int key) {
    return group * CODE_GROUP + query * CODE_ROW + (key ^ (query % 8)) * CODE_PIECE;
}

// A lane's row for the product of key pair r, a row per query, in the order j ^ r.
DEVICE Shared code_by_query(int r, int key_of_pair) {
    const int row = my_lane() % 8;
    return (row ^ (2 * r)) * CODE_ROW + (row ^ key_of_pair) * CODE_PIECE;
}

// And for the product of query pair m, a row per key, in the order j ^ m.
DEVICE Shared code_by_key(int m, int query_of_pair) {
    return (2 * m + query_of_pair) * CODE_ROW + (my_lane() % 8 ^ query_of_pair) * CODE_PIECE;
}

// Scores of 16 keys × 8 UNIT queries, COUNT heads. Slice by slice, so that the products of different
// heads do not wait for each other; one load of queries serves two eights of them, or two slices.
template <int COUNT, int UNIT>
DEVICE void head_scores(float (&score)[COUNT][UNIT][4], Shared keys, Shared queries) {
    constexpr int STEP = UNIT == 2 ? 1 : 2, ROW = HeadRows::ROW, SLICES = HeadRows::ROW_SLICES;
#pragma unroll
    for (int i = 0; i < COUNT * UNIT * 4; ++i) score[i / (4 * UNIT)][i / 4 % UNIT][i % 4] = 0.f;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice += STEP) {
        const Shared right = HeadRows::pieces_on(queries, 2 * slice);
        const Shared left[2] = {HeadRows::pieces_on(keys, 2 * slice),
                                HeadRows::pieces_on(keys, 2 * slice + 2)};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float(&first)[4] = score[i][0], (&last)[4] = score[i][UNIT - 1];
            Pair x[4], y[4];
            load_matrices(y, right + i * QUERIES * ROW);
            load_matrices(x, left[0] + i * KEYS * ROW);
            multiply_add(first, first, x[0], x[1], x[2], x[3], y[0], y[1]);
            if (UNIT == 1 && slice + 1 < SLICES) load_matrices(x, left[1] + i * KEYS * ROW);
            if (UNIT == 2 || slice + 1 < SLICES) {
                multiply_add(last, last, x[0], x[1], x[2], x[3], y[2], y[3]);
            }
        }
    }
}

// Which key and query of 16 keys × 8 queries a lane's four scores belong to.
DEVICE int key_of(int element) { return my_lane() / 4 + element / 2 * 8; }
DEVICE int query_of(int element) { return my_lane() % 4 * 2 + element % 2; }

// The scores of a pair without a bias are products still to be scaled; with one, they are scaled
// here. Scores of masked pairs are anything finite: their factor is 0.
constexpr bool SCALED = BIASED != 0;

DEVICE void add_bias(float (&c)[4], const Arguments &a, const Sequence &s, int head,
                     int first_query, int first_key) {
    if constexpr (BIASED != 0) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int query = first_query + query_of(e), key = first_key + key_of(e);
            c[e] *= a.scale;
            if (visible(a, s, query, key)) {
                const float bias = bias_of(a, s, head, query, key);
                c[e] = masks_pair(bias) ? 0.f : c[e] + bias;
            }
        }
    }
}

DEVICE float remaining_scale(const Arguments &a) { return SCALED ? 1.f : a.scale; }

// And once a softmax was made of them.
DEVICE float scale_of_code(const Arguments &a) { return SOFTMAX ? 1.f : remaining_scale(a); }

constexpr bool HAS_RMS = NORMALISED || RMS_FIRST;

// What RMSHead divides by, inverted, given the sum of squares; where they overflowed no number.
DEVICE float inverse_root(const Arguments &a, float squares) {
    const float scale = RMS_FIRST ? remaining_scale(a) : scale_of_code(a);
    const float x = squares * (scale * scale * (1.f / HEADS)) + a.eps;
    return HAS_RMS ? fast_inverse_root(x) + 0.f * x : 1.f;
}

// Whether none of 16 keys × `queries` is masked, so that nobody need ask pair by pair.
DEVICE bool all_visible(const Sequence &s, int first_query, int queries, int first_key) {
    return !PADDED && first_query + queries <= s.queries && first_key + 16 <= s.keys &&
           first_key + 15 <= first_query + s.reach;
}

// The code of a softmax, in powers of two: its exponent is score · `exponent_scale` + `exponent`.
constexpr float NO_CODE = -1e30f;  // an exponent: 2 to its power is 0

DEVICE float exponent_scale(const Arguments &a) { return remaining_scale(a) * LOG2_E; }

// Queries beyond the last one read its entry; they are masked.
DEVICE const float *log_sums_of(const Arguments &a, const Sequence &s, int query) {
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    return a.log_sum + (start + smaller(query, s.queries - 1)) * HEADS;
}

// `r` is that of RMSHead before the softmax, or 1; 0 where the pair is masked.
DEVICE float softmax_code(const Arguments &a, float score, float r, float exponent) {
    return power_of_two(score * (exponent_scale(a) * r) + (r != 0.f ? exponent : NO_CODE));
}

// ---------------------------------------------------------------- products over heads and keys

DEVICE Pair activate_pair(float first, float second) {
#if PHI == PHI_RELU
    return pack_positive(first, second);
#else
    return pack(activate(first).value, activate(second).value);
#endif
}

// Register r of lane pair j goes to register r ^ j.
DEVICE void exchange_registers(Pair &x0, Pair &x1, Pair &x2, Pair &x3) {
    const bool odd = my_lane() & 1, high = my_lane() & 2;
    const Pair a = odd ? x1 : x0, b = odd ? x0 : x1;
    const Pair c = odd ? x3 : x2, d = odd ? x2 : x3;
    x0 = high ? c : a, x1 = high ? d : b;
    x2 = high ? a : c, x3 = high ? b : d;
}

// c [16 × 8] = Σ over heads; a [group][lower or upper rows], b [group].
DEVICE void contract_heads(float (&c)[4], const Pair (&a)[GROUPS][2], const Pair (&b)[GROUPS]) {
    const float zero[4] = {};
    if constexpr (GROUPS == 1) {
        multiply_add(c, zero, a[0][0], a[0][1], b[0]);
    } else {
        multiply_add(c, zero, a[0][0], a[0][1], a[1][0], a[1][1], b[0], b[1]);
#pragma unroll
        for (int g = 2; g < GROUPS; g += 2) {
            multiply_add(c, c, a[g][0], a[g][1], a[g + 1][0], a[g + 1][1], b[g], b[g + 1]);
        }
    }
}

// Operands of such products must lie in neighbouring registers, so one load brings both of a pair of
// groups of heads; where there is one group, both neighbours of a pair of tokens.
DEVICE int neighbour_of_row() { return GROUPS == 1 ? my_lane() / 8 % 2 : my_lane() / 16; }
DEVICE int other_of_row() { return GROUPS == 1 ? my_lane() / 16 : my_lane() / 8 % 2; }

// [16 of d × heads] of two neighbouring tokens: the left side.
DEVICE Shared heads_of_two(int slice) {
    const int next = my_lane() / 16;
    const int head = (GROUPS == 1 ? 0 : next * 8) + my_lane() % 8;
    return ByToken::place(ByToken::row(GROUPS == 1 ? next : 0, head),
                          2 * slice + my_lane() / 8 % 2);
}

DEVICE void load_heads_of_two(Pair (&x)[2][GROUPS][2], Shared at) {
    if constexpr (GROUPS == 1) {
        Pair m[4];
        load_matrices_transposed(m, at);
        x[0][0][0] = m[0], x[0][0][1] = m[1], x[1][0][0] = m[2], x[1][0][1] = m[3];
    } else {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i += 2) {
            const int token = i / GROUPS, g = i % GROUPS;
            Pair m[4], (&own)[GROUPS][2] = x[token];
            load_matrices_transposed(m, at + (token * ALL_HEADS + g * 8) * ByToken::ROW);
            own[g][0] = m[0], own[g][1] = m[1], own[g + 1][0] = m[2], own[g + 1][1] = m[3];
        }
    }
}

// The right side: the code of two neighbours, [heads × 8], for EIGHTS eights of queries. `at` is the
// lane's row of the neighbour `neighbour_of_row`.
template <int EIGHTS>
DEVICE void load_code_of_two(Pair (&x)[EIGHTS][2][GROUPS], Shared at) {
    if constexpr (GROUPS > 1) {
#pragma unroll
        for (int i = 0; i < EIGHTS * GROUPS; i += 2) {
            const int g = i % GROUPS;
            Pair m[4], (&two)[2][GROUPS] = x[i / GROUPS];
            load_matrices(m, at + i / GROUPS * 8 * CODE_ROW + (g + other_of_row()) * CODE_GROUP);
            two[0][g] = m[0], two[0][g + 1] = m[1], two[1][g] = m[2], two[1][g + 1] = m[3];
        }
    } else {
#pragma unroll
        for (int i = 0; i < EIGHTS; i += 2) {  // of one eight, the same twice
            Pair m[4];
            load_matrices(m, at + (i + (EIGHTS == 1 ? 0 : other_of_row())) * 8 * CODE_ROW);
            x[i][0][0] = m[0], x[i][1][0] = m[1];
            if constexpr (EIGHTS > 1) x[i + 1][0][0] = m[2], x[i + 1][1][0] = m[3];
        }
    }
}

DEVICE float in_range(float x) {  // bf16 has the range of float32
    return KIND == 1 && x == x ? fminf(fmaxf(x, -65504.f), 65504.f) : x;
}
