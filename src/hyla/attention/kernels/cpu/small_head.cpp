// Head-mixing attention for many small heads on a CPU: the forward pass and all gradients.
//
// A vector has one number for each of LANES consecutive queries (machine.h), so that nothing is
// summed across a vector but the gradients of keys and values. For each key, the scores of all heads,
// the code, the hidden layer and what it adds to the output stay in registers and the first cache.
// With a softmax all keys of these queries are scored before the first is used, else one at a time.
//
// Macros: HEADS, WIDTH; NORMALISED, RMS_FIRST, SOFTMAX, PHI, OUTPUT as on the GPU; HIDDEN, RESIDUAL;
// BIASED, BIAS_MASKS, MASKED, MULTIPLIED.

constexpr int ROW = HEADS * WIDTH;

struct Bias {  // of groups of sequences; lanes are queries
    const float *at;
    float *gradient;  // of each part of a group
    long group, head, key, first, part;
};

struct Arguments {
    const float *q, *k, *v, *upstream;  // [batch, token, head, d]
    const bool *padding;                // [batch, key]
    const float *multiplier;            // [batch / batch_per_multiplier, key, query]
    float *y, *dq, *dk, *dv;
    float *log_sum;  // [batch, query, head]
    Bias bias;
    Output output;
    long batch, queries, keys, batch_per_bias, batch_per_multiplier, multiplier_key, parts;
    long reach;  // query i sees keys up to i + reach
    float scale, eps;
    int threads;
};

struct Pairs {  // of LANES queries with one key
    Vector code[HEADS];
    Vector inner[HEADS];     // after the first of two normalisations
    Vector gradient[HEADS];  // of the scores, in the end
    Vector root;             // what RMSHead multiplied by
};

// What a thread works on: LANES queries of one sequence, from `first` on.
struct Work {
    const Arguments &given;
    long sequence, part, first;
    Which real;  // the lanes that have a query: the last of a sequence need not fill a vector
    std::vector<Pairs> pairs;
    std::vector<float> keys, values;   // those that are not finite are 0 here, and
    std::vector<float> poison;         // NaN here, for the queries that see them
    Vector q[ROW], upstream[ROW], sum[ROW];  // sum: of outputs, or gradients of q

    explicit Work(const Arguments &given) : given(given), pairs(SOFTMAX ? given.keys : 1) {}

    const float *key(long k) const { return (MASKED ? keys.data() : given.k + sequence * given.keys * ROW) + k * ROW; }
    const float *value(long k) const { return (MASKED ? values.data() : given.v + sequence * given.keys * ROW) + k * ROW; }

    long here() const { return std::min<long>(LANES, given.queries - first); }
    static Which lane_numbers() {
        Which number;
        for (int i = 0; i < LANES; ++i) number[i] = i;
        return number;
    }
    bool seen_by_none(long k) const {
        if (!MASKED) return false;
        return k > first + LANES - 1 + given.reach || (given.padding && !given.padding[sequence * given.keys + k]);
    }
    Which seen(long k) const {
        return real & (lane_numbers() >= static_cast<int32_t>(k - given.reach - first));
    }
    Vector bias_of(int head, long k) const { return read(given.bias.at + bias_offset(head, k)); }
    long bias_offset(int head, long k) const {
        const Bias &bias = given.bias;
        return sequence / given.batch_per_bias * bias.group + head * bias.head + k * bias.key + bias.first + first;
    }
    // In which of the queries a head sees the key.
    Which seen(int head, long k) const {
        Which pairs = seen(k);
        if (BIASED && BIAS_MASKS) pairs &= ~(bias_of(head, k) < -LARGEST);  // NaN masks nothing
        return pairs;
    }
    Vector multiplier(long k) const {
        const long group = sequence / given.batch_per_multiplier;
        return read(given.multiplier + (group * given.keys + k) * given.multiplier_key + first);
    }

    void begin_sequence(long which) {
        sequence = which;
        if (!MASKED) return;
        const long count = given.keys * ROW;
        keys.assign(given.k + sequence * count, given.k + (sequence + 1) * count);
        values.assign(given.v + sequence * count, given.v + (sequence + 1) * count);
        poison.assign(given.keys, 0.f);
        for (long k = 0; k < given.keys; ++k) {
            float sum = 0.f;
            for (int i = 0; i < ROW; ++i) sum += 0.f * keys[k * ROW + i] + 0.f * values[k * ROW + i];
            if (sum == 0.f) continue;
            poison[k] = sum;
            std::fill_n(keys.begin() + k * ROW, ROW, 0.f);
            std::fill_n(values.begin() + k * ROW, ROW, 0.f);
        }
    }

    void begin_queries(long query) {
        first = query;
        real = lane_numbers() < static_cast<int32_t>(here());
        load(q, given.q, given.scale);
        for (Vector &x : sum) x = Vector{};
    }

    void load(Vector *to, const float *from, float factor) const {
        for (int c = 0; c < ROW; ++c) to[c] = Vector{};
        for (long i = 0; i < here(); ++i) {
            const float *row = from + (sequence * given.queries + first + i) * ROW;
            for (int c = 0; c < ROW; ++c) to[c][i] = row[c] * factor;
        }
    }

    void normalise_heads(Pairs &pairs) const {
        Vector squares{};
        for (const Vector &x : pairs.code) squares += x * x;
        const Vector mean = squares * (1.f / HEADS) + given.eps;
        pairs.root = only(real, each(mean, [](float x) { return inverse_root_of(x); }));
        for (Vector &x : pairs.code) x *= pairs.root;
    }

    // The scores with a key, 0 where a pair is masked; and their RMSHead, where it comes first.
    void score(Pairs &pairs, long k) const {
        const float *key = this->key(k);
        for (int h = 0; h < HEADS; ++h) {
            Vector s{};
            for (int d = 0; d < WIDTH; ++d) s += q[h * WIDTH + d] * key[h * WIDTH + d];
            if (BIASED) s += bias_of(h, k);
            pairs.code[h] = MASKED ? only(seen(h, k), s + poison[k]) : only(real, s);
        }
        if (RMS_FIRST || (NORMALISED && !SOFTMAX)) normalise_heads(pairs);
        if (RMS_FIRST) memcpy(pairs.inner, pairs.code, sizeof pairs.code);
    }

    // Turn scores of all keys into the softmax's code; `known`: from sums that the forward pass left.
    void divide_by_sums(bool known) {
        for (int h = 0; h < HEADS; ++h) {
            float *kept = given.log_sum + (sequence * given.queries + first) * HEADS + h;
            Vector shift{};
            if (known) {
                for (long i = 0; i < here(); ++i) shift[i] = kept[i * HEADS];
            } else {
                shift -= LARGEST;  // the largest score
                for (long k = 0; k < given.keys; ++k) {
                    const Vector s = pairs[k].code[h];
                    const Which larger = MASKED ? seen_by(h, k) & ~(s <= shift) : ~(s <= shift);  // NaN, too
                    shift = larger ? s : shift;
                }
            }
            Vector total{};
            for (long k = 0; k < given.keys; ++k) {
                const Vector part = each(pairs[k].code[h] - shift, exponential);
                pairs[k].code[h] = only(MASKED ? seen_by(h, k) : real, part);
                total += pairs[k].code[h];
            }
            if (known) continue;
            for (Pairs &of_key : pairs) of_key.code[h] /= total == 0.f ? Vector{} + 1.f : total;
            const Vector log_sum = shift + each(total, logf);
            for (long i = 0; i < here(); ++i) kept[i * HEADS] = log_sum[i];
        }
        if (!NORMALISED) return;
        for (Pairs &of_key : pairs) {
            memcpy(of_key.inner, of_key.code, sizeof of_key.code);
            normalise_heads(of_key);
        }
    }
    Which seen_by(int head, long k) const { return seen_by_none(k) ? Which{} : seen(head, k); }

    // The codes of the keys from `k` on: of all, or of that one.
    void encode(long k, bool known) {
        if (!SOFTMAX) return score(pairs[0], k);
        for (long i = 0; i < given.keys; ++i) {
            if (seen_by_none(i)) {
                memset(&pairs[i], 0, sizeof(Pairs));
            } else {
                score(pairs[i], i);
            }
        }
        divide_by_sums(known);
    }
    long block() const { return SOFTMAX ? given.keys : 1; }

    // ------------------------------------------------------------------ forward

    void attend() {
        for (long k0 = 0; k0 < given.keys; k0 += block()) {
            if (!SOFTMAX && seen_by_none(k0)) continue;
            encode(k0, false);
            for (long i = 0; i < block(); ++i)
                if (!seen_by_none(k0 + i)) add_output(pairs[i], k0 + i);
        }
        store_output();
    }

    void add_output(const Pairs &pairs, long k) {
        const float *v = value(k);
        Vector code[HEADS];
        multiplied(code, pairs, k);
        Vector hidden[WIDTH] = {};
        if (HIDDEN) {
            for (int h = 0; h < HEADS; ++h)
                for (int d = 0; d < WIDTH; ++d) hidden[d] += code[h] * v[h * WIDTH + d];
            for (Vector &x : hidden) x = each(x, [](float p) { return activate(p).value; });
        }
        for (int h = 0; h < HEADS; ++h)
            for (int d = 0; d < WIDTH; ++d) {
                const int c = h * WIDTH + d;
                sum[c] += code[h] * (!HIDDEN ? Vector{} + v[c] : RESIDUAL ? hidden[d] + v[c] : hidden[d]);
            }
    }

    void multiplied(Vector *code, const Pairs &pairs, long k) const {
        for (int h = 0; h < HEADS; ++h) code[h] = MULTIPLIED ? pairs.code[h] * multiplier(k) : pairs.code[h];
    }

    void store_output() const {
        for (long i = 0; i < here(); ++i) {
            const long row = sequence * given.queries + first + i;
            float squares = 0.f;
            for (const Vector &x : sum) squares += x[i] * x[i];
            const long of_factors = sequence / given.output.batch_per_factor * given.queries + first + i;
            const float factor = output_factor(given.output, of_factors, squares);
            if (OUTPUT == OUTPUT_RMS) given.output.total_factor[row] = factor;
            for (int c = 0; c < ROW; ++c) given.y[row * ROW + c] = sum[c][i] * factor;
        }
    }

    // ------------------------------------------------------------------ backward

    void differentiate() {
        load(upstream, given.upstream, given.output.gain);
        for (long k0 = 0; k0 < given.keys; k0 += block()) {
            if (!SOFTMAX && seen_by_none(k0)) continue;
            encode(k0, true);
            for (long i = 0; i < block(); ++i)
                if (!seen_by_none(k0 + i)) through_value_network(pairs[i], k0 + i);
            if (SOFTMAX) through_softmax();
            for (long i = 0; i < block(); ++i)
                if (!seen_by_none(k0 + i)) through_scores(pairs[i], k0 + i);
        }
        for (long i = 0; i < here(); ++i)
            for (int c = 0; c < ROW; ++c)
                given.dq[(sequence * given.queries + first + i) * ROW + c] = sum[c][i] * given.scale;
    }

    // The gradient of the values, and of the code, through RMSHead where that came last.
    void through_value_network(Pairs &pairs, long k) const {
        const float *v = value(k);
        Vector code[HEADS];
        multiplied(code, pairs, k);
        Vector hidden[WIDTH] = {}, dhidden[WIDTH] = {};
        if (HIDDEN) {
            for (int h = 0; h < HEADS; ++h)
                for (int d = 0; d < WIDTH; ++d) {
                    hidden[d] += code[h] * v[h * WIDTH + d];
                    dhidden[d] += code[h] * upstream[h * WIDTH + d];
                }
            for (int d = 0; d < WIDTH; ++d) {
                dhidden[d] *= each(hidden[d], [](float p) { return activate(p).slope; });
                hidden[d] = each(hidden[d], [](float p) { return activate(p).value; });
            }
        }
        Vector dv[ROW];
        for (int h = 0; h < HEADS; ++h) {
            Vector gradient{};
            for (int d = 0; d < WIDTH; ++d) {
                const int c = h * WIDTH + d;
                dv[c] = Vector{};
                if (HIDDEN) {
                    gradient += upstream[c] * hidden[d] + dhidden[d] * v[c];
                    dv[c] += code[h] * dhidden[d];
                }
                if (!HIDDEN || RESIDUAL) {
                    gradient += upstream[c] * v[c];
                    dv[c] += code[h] * upstream[c];
                }
            }
            pairs.gradient[h] = MULTIPLIED ? gradient * multiplier(k) : gradient;
        }
        add_sums(given.dv + (sequence * given.keys + k) * ROW, dv, ROW);
        if (NORMALISED) through_heads(pairs.gradient, pairs.code, pairs.root);
    }

    void through_heads(Vector *gradient, const Vector *normalised, Vector root) const {
        Vector mean{};
        for (int h = 0; h < HEADS; ++h) mean += gradient[h] * normalised[h];
        mean *= 1.f / HEADS;
        for (int h = 0; h < HEADS; ++h) gradient[h] = root * (gradient[h] - normalised[h] * mean);
    }

    void through_softmax() {
        for (int h = 0; h < HEADS; ++h) {
            // Divided by their sum, too: rounded, large scores leave shares that do not add up to 1.
            Vector mean{}, total{};
            for (long k = 0; k < given.keys; ++k) {
                if (seen_by_none(k)) continue;
                mean += share(pairs[k], h) * pairs[k].gradient[h];
                total += share(pairs[k], h);
            }
            mean = total == 0.f ? mean : mean / total;
            for (Pairs &of_key : pairs) of_key.gradient[h] = share(of_key, h) * (of_key.gradient[h] - mean);
        }
        if (!RMS_FIRST) return;
        for (Pairs &of_key : pairs) through_heads(of_key.gradient, of_key.inner, of_key.root);
    }
    static Vector share(const Pairs &pairs, int h) { return NORMALISED ? pairs.inner[h] : pairs.code[h]; }

    void through_scores(Pairs &pairs, long k) {
        const float *key = this->key(k);
        Vector dk[ROW];
        for (int h = 0; h < HEADS; ++h) {
            const Vector ds = only(MASKED ? seen(h, k) : real, pairs.gradient[h]);
            if (BIASED && given.bias.gradient)
                add(given.bias.gradient + part * given.bias.part + bias_offset(h, k), ds);
            for (int d = 0; d < WIDTH; ++d) {
                const int c = h * WIDTH + d;
                sum[c] += ds * key[c];
                dk[c] = ds * q[c];
            }
        }
        add_sums(given.dk + (sequence * given.keys + k) * ROW, dk, ROW);
    }
};

// Each group of sequences that share a bias is cut into parts, so that no two threads add to the same
// gradient.
template <typename Task>
static void for_all_queries(const Arguments &given, Task task) {
    const long groups = given.batch / given.batch_per_bias;
    share_out(groups * given.parts, given.threads, [&](long from, long to) {
        Work work(given);
        for (long item = from; item < to; ++item) {
            const long group = item / given.parts, size = given.batch_per_bias;
            work.part = item % given.parts;
            const long begin = group * size + size * work.part / given.parts;
            const long end = group * size + size * (work.part + 1) / given.parts;
            for (long sequence = begin; sequence < end; ++sequence) {
                work.begin_sequence(sequence);
                for (long query = 0; query < given.queries; query += LANES) {
                    work.begin_queries(query);
                    task(work);
                }
            }
        }
    });
}

extern "C" void forward(const Arguments *given) {
    for_all_queries(*given, [](Work &work) { work.attend(); });
}

extern "C" void backward(const Arguments *given) {
    for_all_queries(*given, [](Work &work) { work.differentiate(); });
}
