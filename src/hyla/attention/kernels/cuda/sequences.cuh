// What the kernels for large heads are given, and where in it a sequence lies.

#define BIAS_GRADIENT_NONE 0
#define BIAS_GRADIENT_STORE 1   // every pair has a place of its own
#define BIAS_GRADIENT_ATOMIC 2  // batch elements share a place

struct Tensor4 {  // [batch, token, head, d] with d contiguous; strides in elements
    const Scalar *at;
    long long batch, token, head;
};

struct Arguments {
    Tensor4 q, k, v, upstream;
    const void *bias;                        // [biases, head, query, key]
    long long bias_batch, bias_head, bias_query, bias_key;
    const unsigned char *padding;            // [batch, key], 0 = masked
    const int *query_starts, *key_starts;    // packed sequences: batch + 1 offsets; or null
    Scalar *first, *second;                  // contiguous: O; dQ; dK and dV
    float *query_gradient;                   // contiguous
    float *bias_gradient;                    // [slabs, head, query, key]
    int batch, queries, keys;
    int batch_per_bias, batch_per_slab;
    int causal;
    float scale, eps;
    Output output;
    // Of a softmax, [batch, query, head]: the logarithms of its sums, and for its backward δ; where
    // flash attention made the former, Σ over the keys of scale · ds.
    float *log_sum, *row_sums;
    const float *multiplier;  // [multipliers, query, key]: of a pair's codes; in plain arithmetic
    int batch_per_multiplier;
};

DEVICE constexpr int smaller(int x, int y) { return x < y ? x : y; }
DEVICE constexpr int larger(int x, int y) { return x < y ? y : x; }

struct Sequence {
    int index, queries, keys;
    long long first_query, first_key;  // where it starts among the packed tokens
    int reach;                         // a query sees the keys up to its own index + reach
};

DEVICE Sequence sequence(const Arguments &a, int index) {
    Sequence s{index, a.queries, a.keys, 0, 0, 0};
    if (a.query_starts != nullptr) {
        s.first_query = a.query_starts[index];
        s.queries = a.query_starts[index + 1] - a.query_starts[index];
        s.first_key = a.key_starts[index];
        s.keys = a.key_starts[index + 1] - a.key_starts[index];
    }
    s.reach = a.causal ? s.keys - s.queries : s.keys;
    return s;
}

DEVICE const Scalar *tokens_of(const Arguments &a, const Tensor4 &x, int index, long long first) {
    return x.at + (a.query_starts == nullptr ? index * x.batch : first * x.token);
}

// Outputs are contiguous, so packed tokens and whole batches are addressed alike.
DEVICE long long output_row(const Arguments &a, int index, long long first, int tokens) {
    return a.query_starts == nullptr ? static_cast<long long>(index) * tokens : first;
}

// Where the output factors of the sequence's queries start.
DEVICE long long factor_row(const Arguments &a, const Sequence &s) {
    const long long batch = s.index / a.output.batch_per_factor;
    return a.query_starts == nullptr ? batch * s.queries : s.first_query;
}

DEVICE bool visible(const Arguments &a, const Sequence &s, int query, int key) {
    bool seen = query < s.queries && key < s.keys && key <= query + s.reach;
    if constexpr (PADDED) {
        seen = seen && a.padding[static_cast<long long>(s.index) * a.keys + key] != 0;
    }
    return seen;
}

DEVICE float bias_of(const Arguments &a, const Sequence &s, int head, int query, int key) {
    const long long at = s.index / a.batch_per_bias * a.bias_batch + head * a.bias_head +
                         query * a.bias_query + key * a.bias_key;
    return BIASED == 1 ? static_cast<const float *>(a.bias)[at]
                       : to_float(static_cast<const Scalar *>(a.bias)[at]);
}

// Whether a bias masks a pair that is visible in this head. Its code is 0 then, as few others are:
// only for those is the bias read.
DEVICE bool masked_by_bias(const Arguments &a, const Sequence &s, int head, int query, int key,
                           float code) {
    if constexpr (BIASED == 0) return false;
    return code == 0.f && masks_pair(bias_of(a, s, head, query, key));
}

DEVICE void add_bias_gradient(const Arguments &a, const Sequence &s, int head, int query, int key,
                              float ds) {
    const long long slab = s.index / a.batch_per_slab;
    float *to = a.bias_gradient + ((slab * HEADS + head) * a.queries + query) * a.keys + key;
    if constexpr (BIAS_GRADIENT == BIAS_GRADIENT_ATOMIC) {
        atomicAdd(to, ds);
    } else {
        *to = ds;
    }
}
