// Head-mixing attention for large heads on tensor cores: what the forward and backward share.
//
//     s[h] = scale · Q[q,h]·K[k,h] + bias[h,q,k]      contracts d, one product per head
//     a[h] = s[h] · rsqrt(mean_h s² + eps)            (s itself without normalisation; for a
//                                                      softmax exp(s[h] - log_sum[q,h]))
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
// The code of a tile lies in shared memory once, as [query][key][head], halves. Rows of it read
// straight are what p needs (a key, queries × heads); read transposed, what O needs (a query,
// heads × keys).
//
// Set by the compiler's command line: KIND, HEADS, WIDTH (a multiple of 16), QUERIES and KEYS
// (the tile), WARPS, BLOCKS (that must fit on a multiprocessor), NORMALISED (RMSHead), SOFTMAX, PHI,
// BIASED (0 none, 1 float32, 2 the dtype of q), PADDED, OUTPUT (output.cuh; the backward knows of a
// gain alone), and for the backward PASS, ADDS_QUERY_GRADIENT and BIAS_GRADIENT.

constexpr int WARP = 32;
constexpr int THREADS = WARPS * WARP;
constexpr int GROUPS = (HEADS + 7) / 8;  // of eight heads; missing heads are zeros
constexpr int ALL_HEADS = 8 * GROUPS;
constexpr int SLICES = WIDTH / 16;

// Pitches, in halves, that put eight consecutive rows of 16 bytes into different banks.
constexpr int HEAD_PITCH = WIDTH + 8;
constexpr int TOKEN_PITCH = ALL_HEADS * HEAD_PITCH + 8;
constexpr int CODE_PITCH = ALL_HEADS + (ALL_HEADS % 16 == 0 ? 8 : 0);
constexpr int CODE_ROW = KEYS * CODE_PITCH + 8;

DEVICE int my_lane() { return static_cast<int>(threadIdx.x) % WARP; }
DEVICE int my_warp() { return static_cast<int>(threadIdx.x) / WARP; }

// ---------------------------------------------------------------- tokens in shared memory

// Tokens first … first + COUNT - 1, zeros beyond `end`; all threads take part, a warp per token.
template <int COUNT>
DEVICE void copy_tokens(Half *tile, const Half *from, const Tensor4 &x, int first, int end) {
    constexpr int PIECES = WIDTH / 8, ROUNDS = (HEADS * PIECES + WARP - 1) / WARP;
    from += (first + my_warp()) * x.token;
    tile += my_warp() * TOKEN_PITCH;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int number = round * WARP + my_lane(), head = number / PIECES;
        if (HEADS * PIECES % WARP != 0 && head >= HEADS) break;
        const Half *source = from + head * x.head + number % PIECES * 8;
        Half *to = tile + head * HEAD_PITCH + number % PIECES * 8;
#pragma unroll
        for (int token = 0; token < COUNT; token += WARPS) {
            if (COUNT % WARPS != 0 && token + my_warp() >= COUNT) break;
            const bool live = first + token + my_warp() < end;
            copy_async(to + token * TOKEN_PITCH, live ? source + token * x.token : x.at, live);
        }
    }
}

// Heads that do not exist are zeros from the start, since no copy touches them.
template <int COUNT>
DEVICE void clear_missing_heads(Half *tile) {
    for (int token = 0; token < COUNT; ++token) {
        Half *missing = tile + token * TOKEN_PITCH + HEADS * HEAD_PITCH;
        for (int i = threadIdx.x; i < (ALL_HEADS - HEADS) * HEAD_PITCH; i += THREADS) missing[i] = 0;
    }
}

// ---------------------------------------------------------------- the code of a tile

// c [16 × 8] = left [16 × d] right [8 × d]ᵀ, both rows of 16-byte pieces in shared memory.
DEVICE void contract_width(float (&c)[4], const Half *left, int left_pitch, const Half *right,
                           int right_pitch) {
    const int lane = my_lane();
    left += lane % 16 * left_pitch + lane / 16 * 8;
    right += lane % 8 * right_pitch + lane / 8 * 8;
    const float zero[4] = {};
#pragma unroll
    for (int slice = 0; slice < SLICES; slice += 2) {
        Pair x[4], y[4];
        // One load serves two slices; where the second is missing, it loads anything.
        load_matrices(y, right + (slice + 1 < SLICES || lane < 16 ? slice * 16 : -16));
        load_matrices(x, left + slice * 16);
        if (slice == 0) multiply_add(c, zero, x[0], x[1], x[2], x[3], y[0], y[1]);
        else multiply_add(c, c, x[0], x[1], x[2], x[3], y[0], y[1]);
        if (slice + 1 < SLICES) {
            load_matrices(x, left + slice * 16 + 16);
            multiply_add(c, c, x[0], x[1], x[2], x[3], y[2], y[3]);
        }
    }
}

// Scores of 16 keys × 8 queries of one head.
DEVICE void head_scores(float (&c)[4], const Half *keys, const Half *queries, int head) {
    contract_width(c, keys + head * HEAD_PITCH, TOKEN_PITCH, queries + head * HEAD_PITCH,
                   TOKEN_PITCH);
}

// Which key and query of its unit a lane's four scores belong to.
DEVICE int key_of(int element) { return my_lane() / 4 + element / 2 * 8; }
DEVICE int query_of(int element) { return my_lane() % 4 * 2 + element % 2; }

// The scores of a pair without a bias are products still to be scaled; with one, they are scaled
// here. Scores of masked pairs are anything finite: their factor is 0.
constexpr bool SCALED = BIASED != 0;

DEVICE void add_bias(float (&c)[4], const Arguments &a, const Sequence &s, int head,
                     int first_query, int first_key, const bool (&seen)[4]) {
    if constexpr (BIASED != 0) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            c[e] *= a.scale;
            if (seen[e]) {
                const float bias =
                    bias_of(a, s, head, first_query + query_of(e), first_key + key_of(e));
                c[e] = masks_pair(bias) ? 0.f : c[e] + bias;
            }
        }
    }
}

DEVICE float remaining_scale(const Arguments &a) { return SCALED ? 1.f : a.scale; }

// What RMSHead divides by, inverted, given the sum of squares; 0 for a masked pair.
DEVICE float inverse_root(const Arguments &a, float squares, bool seen) {
    const float scale = remaining_scale(a), mean = squares * (1.f / HEADS) * scale * scale;
    return !seen ? 0.f : NORMALISED ? inverse_root_of(mean + a.eps) : 1.f;
}

// The code of a softmax, in powers of two: its exponent is score · `exponent_scale` + `exponent`.
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NO_CODE = -1e30f;  // an exponent: 2 to its power is 0

DEVICE float exponent_scale(const Arguments &a) { return remaining_scale(a) * LOG2_E; }

// Queries beyond the last one read its entry; they are masked.
DEVICE const float *log_sums_of(const Arguments &a, const Sequence &s, int query) {
    const long long start = output_row(a, s.index, s.first_query, s.queries);
    return a.log_sum + (start + smaller(query, s.queries - 1)) * HEADS;
}

DEVICE float softmax_code(float score, float scale, float exponent, bool seen) {
    return power_of_two(score * scale + (seen ? exponent : NO_CODE));
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
DEVICE void exchange_registers(Pair (&x)[4]) {
    const bool odd = my_lane() & 1, high = my_lane() & 2;
    const Pair a = odd ? x[1] : x[0], b = odd ? x[0] : x[1];
    const Pair c = odd ? x[3] : x[2], d = odd ? x[2] : x[3];
    x[0] = high ? c : a, x[1] = high ? d : b;
    x[2] = high ? a : c, x[3] = high ? b : d;
}

// In the order in which lane pair j carries pair j ^ r: where row n of a matrix is found.
DEVICE int permuted(int row, int r) { return row ^ (r << 1); }

// c [16 × 8] = Σ over heads; a [group][lower or upper rows], b [group].
DEVICE void contract_heads(float (&c)[4], const Pair (&a)[GROUPS][2], const Pair (&b)[GROUPS]) {
    const float zero[4] = {};
    if constexpr (GROUPS == 1) {
        multiply_add(c, zero, a[0][0], a[0][1], b[0]);
    } else {
        multiply_add(c, zero, a[0][0], a[0][1], a[1][0], a[1][1], b[0], b[1]);
#pragma unroll
        for (int g = 2; g + 1 < GROUPS; g += 2) {
            multiply_add(c, c, a[g][0], a[g][1], a[g + 1][0], a[g + 1][1], b[g], b[g + 1]);
        }
        if constexpr (GROUPS % 2 == 1) {
            multiply_add(c, c, a[GROUPS - 1][0], a[GROUPS - 1][1], b[GROUPS - 1]);
        }
    }
}

// [16 of d × heads] of two neighbouring tokens, d from `tile` on: the left side of such products.
DEVICE void load_heads_of_two(Pair (&x)[2][GROUPS][2], const Half *tile) {
    const int lane = my_lane();
    const Half *row = tile + lane / 16 * TOKEN_PITCH + lane % 8 * HEAD_PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Pair m[4];
        load_matrices_transposed(m, row + g * 8 * HEAD_PITCH);
        x[0][g][0] = m[0], x[0][g][1] = m[1], x[1][g][0] = m[2], x[1][g][1] = m[3];
    }
}

// The code of two neighbouring rows as the right side of such products: [heads × 8] each. `row` is
// where lanes 0-7 find the first and lanes 8-15 the second; lanes 16-31 take the next eight heads.
DEVICE void load_code_of_two(Pair (&x)[2][GROUPS], const Half *row) {
#pragma unroll
    for (int g = 0; g < GROUPS; g += 2) {
        const int next = g + 1 < GROUPS ? my_lane() / 16 : 0;
        Pair m[4];
        load_matrices(m, row + (g + next) * 8);
        x[0][g] = m[0], x[1][g] = m[1];
        if (g + 1 < GROUPS) x[0][g + 1] = m[2], x[1][g + 1] = m[3];
    }
}
