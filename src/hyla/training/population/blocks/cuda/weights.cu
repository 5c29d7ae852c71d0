// Weights as the other kernels want them: tiles, rounded, in the order of each product's operands,
// with the gain of a norm in front multiplied in, and its shift in the biases.
//
//     W (gain x̂ + shift) + b = (W gain) x̂ + (W shift + b)
//
// A thread writes 16 bytes of a tile; after the tiles, a warp computes one bias.
//
// Set by the compiler's command line: KIND (0 bf16, 2 float32), which is that of the tiles.

constexpr int THREADS = 256;
constexpr int PIECE = 16 / static_cast<int>(sizeof(Scalar));  // terms that a thread writes
constexpr int MOST_TILES = 13, MOST_BIASES = 6;

// Orders of rows and terms, in groups of 16: as they are; as registers hold columns (rows.cuh); as
// they are a left operand; the last one, of units in the order of `hidden_backward.cu`.
#define ORDER_PLAIN 0
#define ORDER_COLUMNS 1
#define ORDER_TERMS 2
#define ORDER_HIDDEN 3

struct Tiles {
    const float *source;  // of the first member
    const float *gain;    // or none
    int row_stride, term_stride;  // of the source
    int gain_by_rows;             // whose index the gain has
    int rows, terms, row_order, term_order;
    int first_term;        // of the tile, whose other terms come from other sources
    int part, at;          // of the block's weights; bytes, in a member's of that part
    int count;             // such tiles, each further on by
    int source_step, step;  // numbers of the source and bytes
};

struct Bias {
    const float *source, *weight, *shift;  // the latter two [count, E] and [E], or none
    int count, part, at;
};

struct Part {
    char *weights;     // [P, stride]
    long long stride;  // bytes from member to member

    DEVICE char *of(int member) const { return weights + member * stride; }
};

struct Arguments {
    Tiles tiles[MOST_TILES];
    Bias biases[MOST_BIASES];
    Part parts[2];     // what comes before attention, and what comes after it
    long long stride;  // of parameters from member to member
    int tile_kinds, bias_kinds, tile_blocks, bias_blocks;  // blocks of a member
};

DEVICE int column_of_place(int p) { return p % 8 / 2 * 4 + p / 8 * 2 + p % 2; }

DEVICE int term_of_place(int p) {
    return KIND == 2 ? p % 4 * 4 + p / 8 * 2 + p % 8 / 4 : column_of_place(p);
}

DEVICE int source_index(int place, int order) {
    const int group = place / 16 * 16, p = place % 16;
    if (order == ORDER_COLUMNS) return group + column_of_place(p);
    if (order == ORDER_TERMS) return group + term_of_place(p);
    if (order == ORDER_HIDDEN) {
        const int stored = term_of_place(p);
        return group + stored / 2 + stored % 2 * 8;
    }
    return place;
}

DEVICE void write_piece(const Arguments &a, int member, int number) {
    int kind = 0;
    while (kind < a.tile_kinds) {
        const Tiles &t = a.tiles[kind];
        const int pieces = t.rows * (t.terms / PIECE) * t.count;
        if (number < pieces) break;
        number -= pieces, ++kind;
    }
    if (kind == a.tile_kinds) return;
    const Tiles &t = a.tiles[kind];
    const int per_row = t.terms / PIECE, row = number / per_row % t.rows;
    const int tile = number / per_row / t.rows, term = number % per_row * PIECE;
    const float *source = t.source + member * a.stride + tile * t.source_step;
    const int from_row = source_index(row, t.row_order);
    float x[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
        const int from = source_index(term + i, t.term_order);
        x[i] = __ldg(source + from_row * t.row_stride + from * t.term_stride);
        if (t.gain != nullptr) {
            x[i] *= __ldg(t.gain + member * a.stride + (t.gain_by_rows ? from_row : from));
        }
    }
    const int byte = (t.first_term + term) * static_cast<int>(sizeof(Scalar));
    char *to = a.parts[t.part].of(member) + t.at + tile * t.step +
               byte / ROW_BYTES * t.rows * ROW_BYTES + exchanged(row, byte % ROW_BYTES);
#if KIND == 2
    store_global(to, packed(x[0], x[1], x[2], x[3]));
#else
    const Four one = packed(x[0], x[1], x[2], x[3]), two = packed(x[4], x[5], x[6], x[7]);
    store_global(to, make_uint4(one.x, one.y, two.x, two.y));
#endif
}

DEVICE void write_bias(const Arguments &a, int member, int number) {
    int kind = 0;
    while (kind < a.bias_kinds && number >= a.biases[kind].count) number -= a.biases[kind++].count;
    if (kind == a.bias_kinds) return;
    const Bias &b = a.biases[kind];
    float sum = 0.f;
    if (b.weight != nullptr) {
        const float *weight = b.weight + member * a.stride + number * EMBED;
        const float *shift = b.shift + member * a.stride;
        for (int e = my_lane(); e < EMBED; e += WARP) sum += __ldg(weight + e) * __ldg(shift + e);
    }
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    sum += __ldg(b.source + member * a.stride + number);
    float *to = reinterpret_cast<float *>(a.parts[b.part].of(member) + b.at);
    if (my_lane() == 0) to[number] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) block_weights(const Arguments a) {
    const int blocks = a.tile_blocks + a.bias_blocks;
    const int member = blockIdx.x / blocks, block = blockIdx.x % blocks;
    if (block < a.tile_blocks) {
        write_piece(a, member, block * THREADS + my_thread());
    } else {
        write_bias(a, member, (block - a.tile_blocks) * (THREADS / WARP) + my_thread() / WARP);
    }
}
