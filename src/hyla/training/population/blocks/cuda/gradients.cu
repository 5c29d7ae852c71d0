// Gradients of parameters from the rows of sums that blocks have left (shares.cuh), in a fixed order.
//
// Of a layer behind a norm, the sums are A = Σ upstream x̂ᵀ and b = Σ upstream, and the rest follows:
//
//     dW = A gain + b shiftᵀ,   dgain = Σ over outputs of W A,   dshift = Σ over outputs of W b
//
// A block takes eight channels of one member's layers behind the norm; blocks after these add up
// what needs no more than that.

constexpr int THREADS = 512;
constexpr int CHANNELS = 8;
constexpr int NORM_BLOCKS = EMBED / CHANNELS;  // of a member
constexpr int MOST_LAYERS = 3, MOST_PLAIN = 5;

struct Sums {
    const float *rows;    // [rows, slices, length]
    int length, slices;
    Line line;
};

struct Layer {
    const float *weight;  // [outputs, E] of the first member
    int outputs, to;      // of its gradient in a member's
};

// [rows, columns] of every slice, those of the next one beside them; or of the first one alone.
struct Plain {
    int sums, start, rows, columns, to, to_stride, slices;
};

struct Arguments {
    Sums sums[2];  // the first ones hold [outputs, E] of the layers behind the norm
    Layer layers[MOST_LAYERS];
    Plain plain[MOST_PLAIN];
    const float *gain, *shift;   // of the first member
    float *result;               // [P, total]
    long long stride;            // of parameters from member to member
    int total, layer_kinds, plain_kinds, plain_blocks;
    int outputs, bias_start;     // of a slice; where its b is
    int gain_to, shift_to;
};

struct Memory {
    float parts[THREADS / WARP][2][CHANNELS];
};

struct Rows {
    const float *at;
    int stride, count;

    DEVICE Rows(const Sums &sums, int member, int slice) : stride(sums.slices * sums.length) {
        const long long start = static_cast<long long>(member) * sums.line.tokens;
        const int first = sums.line.block_at(start);
        count = sums.line.block_at(start + sums.line.tokens - 1) - first + 1;
        at = sums.rows + static_cast<long long>(first + member) * stride + slice * sums.length;
    }
    // Four neighbours and one more, each over all rows.
    DEVICE float4 sums(int offset, int other, float &one) const {
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        one = 0.f;
#pragma unroll 4
        for (int k = 0; k < count; ++k) {
            const float *row = at + static_cast<long long>(k) * stride;
            const float4 x = __ldg(reinterpret_cast<const float4 *>(row + offset));
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            one += __ldg(row + other);
        }
        return sum;
    }
};

DEVICE void store_four(float *to, const float (&x)[4]) {
    store_global(to, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                __float_as_uint(x[2]), __float_as_uint(x[3])));
}

DEVICE void behind_norm(const Arguments &a, Memory &memory, int member, int channel) {
    const int four = 4 * (my_thread() % 2);  // of the eight channels
    channel += four;
    float *result = a.result + static_cast<long long>(member) * a.total;
    const float *gains = a.gain + member * a.stride + channel;
    const float *shifts = a.shift + member * a.stride + channel;
    float gain[4], shift[4], dgain[4] = {}, dshift[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) gain[i] = __ldg(gains + i), shift[i] = __ldg(shifts + i);
    int before = 0;  // outputs of the layers so far
    for (int kind = 0; kind < a.layer_kinds; before += a.layers[kind++].outputs) {
        const Layer &layer = a.layers[kind];
        for (int output = my_thread() / 2; output < layer.outputs; output += THREADS / 2) {
            const int number = before + output;
            const Rows rows(a.sums[0], member, number / a.outputs);
            float bias;
            const float4 sums = rows.sums(number % a.outputs * EMBED + channel,
                                          a.bias_start + number % a.outputs, bias);
            const float along[4] = {sums.x, sums.y, sums.z, sums.w};
            const float *weight = layer.weight + member * a.stride + output * EMBED + channel;
            float gradient[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float w = __ldg(weight + i);
                dgain[i] += w * along[i], dshift[i] += w * bias;
                gradient[i] = along[i] * gain[i] + bias * shift[i];
            }
            store_four(result + layer.to + output * EMBED + channel, gradient);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int mask = 2; mask < WARP; mask *= 2) {
            dgain[i] += __shfl_xor_sync(0xffffffffu, dgain[i], mask);
            dshift[i] += __shfl_xor_sync(0xffffffffu, dshift[i], mask);
        }
        if (my_lane() < 2) {
            memory.parts[my_thread() / WARP][0][four + i] = dgain[i];
            memory.parts[my_thread() / WARP][1][four + i] = dshift[i];
        }
    }
    __syncthreads();
    if (my_thread() >= 2 * CHANNELS) return;
    const int which = my_thread() / CHANNELS, of = my_thread() % CHANNELS;
    float sum = 0.f;
    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += memory.parts[warp][which][of];
    result[(which == 0 ? a.gain_to : a.shift_to) + channel - four + of] = sum;
}

DEVICE void add_plain(const Arguments &a, int member, int number) {
    int kind = 0;
    while (kind < a.plain_kinds) {
        const Plain &p = a.plain[kind];
        const int fours = p.rows * (p.columns / 4) * p.slices;
        if (number < fours) break;
        number -= fours, ++kind;
    }
    if (kind == a.plain_kinds) return;
    const Plain &p = a.plain[kind];
    const int per_row = p.columns / 4, row = number / per_row % p.rows;
    const int slice = number / per_row / p.rows, column = 4 * (number % per_row);
    const Rows rows(a.sums[p.sums], member, slice);
    float ignored;
    const float4 x = rows.sums(p.start + row * p.columns + column, 0, ignored);
    const float some[4] = {x.x, x.y, x.z, x.w};
    store_four(a.result + static_cast<long long>(member) * a.total + p.to + row * p.to_stride +
                   slice * p.columns + column,
               some);
}

extern "C" __global__ void __launch_bounds__(THREADS) block_gradients(const Arguments a) {
    extern __shared__ __align__(1024) uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const int blocks = NORM_BLOCKS + a.plain_blocks;
    const int member = blockIdx.x / blocks, block = blockIdx.x % blocks;
    if (block < NORM_BLOCKS) {
        behind_norm(a, memory, member, block * CHANNELS);
    } else {
        add_plain(a, member, (block - NORM_BLOCKS) * THREADS + my_thread());
    }
}
