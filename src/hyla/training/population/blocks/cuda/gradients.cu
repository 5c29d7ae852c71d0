// Gradients of parameters from the rows of sums that blocks have left (shares.cuh), in a fixed order.
//
// Of a layer behind a norm, the sums are A = Σ upstream x̂ᵀ and b = Σ upstream, and the rest follows:
//
//     dW = A gain + b shiftᵀ,   dgain = Σ over outputs of W A,   dshift = Σ over outputs of W b
//
// A block takes eight channels of one member's layers behind the norm; blocks after these add up
// what needs no more than that. Where members are few, rows are many and what they cost is waiting
// for memory: either half of a block then takes half of them, and asks for more at a time. Where
// members are many, smaller blocks hide each other's waiting.
//
// Set by the compiler's command line: PARTS (1 or 2: threads that share out the rows of a seat).

constexpr int SEATS = 512, THREADS = PARTS * SEATS;
constexpr int GROUP = 4 * PARTS;  // rows that a thread asks for at a time
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
    float4 fours[SEATS];  // what the other threads of a seat have
    float ones[SEATS];
    float parts[SEATS / WARP][2][CHANNELS];
};

DEVICE int my_seat() { return my_thread() % SEATS; }
DEVICE int my_part() { return my_thread() / SEATS; }

DEVICE void add(float4 &sum, const float4 &x) {
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}

struct Rows {
    const float *at;
    int stride, count;

    DEVICE Rows(const Sums &sums, int member, int slice) : stride(sums.slices * sums.length) {
        const long long start = static_cast<long long>(member) * sums.line.tokens;
        const int first = sums.line.block_at(start);
        count = sums.line.block_at(start + sums.line.tokens - 1) - first + 1;
        at = sums.rows + static_cast<long long>(first + member) * stride + slice * sums.length;
    }
    // Four neighbours and one more, each over all rows: in the first threads of all seats, and all
    // threads take part. `live` is whether a seat has any.
    DEVICE float4 sums(Memory &memory, bool live, int offset, int other, float &one) const {
        const int end = live ? count * (my_part() + 1) / PARTS : 0;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        one = 0.f;
#pragma unroll 1
        for (int first = count * my_part() / PARTS; first < end; first += GROUP) {
            float4 fours[GROUP];
            float ones[GROUP];
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                const float *row = at + static_cast<long long>(first + k) * stride;
                const bool there = first + k < end;
                fours[k] = there ? __ldg(reinterpret_cast<const float4 *>(row + offset))
                                 : make_float4(0.f, 0.f, 0.f, 0.f);
                ones[k] = there ? __ldg(row + other) : 0.f;
            }
#pragma unroll
            for (int k = 0; k < GROUP; ++k) add(sum, fours[k]), one += ones[k];
        }
        if constexpr (PARTS == 2) {
            __syncthreads();  // nobody needs an earlier seat's any more
            if (my_part() == 1) memory.fours[my_seat()] = sum, memory.ones[my_seat()] = one;
            __syncthreads();
            if (my_part() == 0) add(sum, memory.fours[my_seat()]), one += memory.ones[my_seat()];
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
    int outputs = 0;  // of all layers
    for (int kind = 0; kind < a.layer_kinds; ++kind) outputs += a.layers[kind].outputs;
    for (int first = 0; first < outputs; first += SEATS / 2) {
        const int number = first + my_seat() / 2;
        const bool live = number < outputs;
        const Rows rows(a.sums[0], member, live ? number / a.outputs : 0);
        float bias;
        const float4 sums = rows.sums(memory, live, number % a.outputs * EMBED + channel,
                                      a.bias_start + number % a.outputs, bias);
        if (!live || my_part() > 0) continue;
        const float along[4] = {sums.x, sums.y, sums.z, sums.w};
        int output = number, kind = 0;
        while (output >= a.layers[kind].outputs) output -= a.layers[kind++].outputs;
        const Layer &layer = a.layers[kind];
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
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int mask = 2; mask < WARP; mask *= 2) {
            dgain[i] += __shfl_xor_sync(0xffffffffu, dgain[i], mask);
            dshift[i] += __shfl_xor_sync(0xffffffffu, dshift[i], mask);
        }
        if (my_lane() < 2 && my_part() == 0) {
            memory.parts[my_thread() / WARP][0][four + i] = dgain[i];
            memory.parts[my_thread() / WARP][1][four + i] = dshift[i];
        }
    }
    __syncthreads();
    if (my_thread() >= 2 * CHANNELS) return;
    const int which = my_thread() / CHANNELS, of = my_thread() % CHANNELS;
    float sum = 0.f;
    for (int warp = 0; warp < SEATS / WARP; ++warp) sum += memory.parts[warp][which][of];
    result[(which == 0 ? a.gain_to : a.shift_to) + channel - four + of] = sum;
}

DEVICE void add_plain(const Arguments &a, Memory &memory, int member, int number) {
    int kind = 0;
    while (kind < a.plain_kinds) {
        const Plain &p = a.plain[kind];
        const int fours = p.rows * (p.columns / 4) * p.slices;
        if (number < fours) break;
        number -= fours, ++kind;
    }
    const bool live = kind < a.plain_kinds;
    const Plain &p = a.plain[live ? kind : 0];
    const int per_row = p.columns / 4, row = number / per_row % p.rows;
    const int slice = live ? number / per_row / p.rows : 0, column = 4 * (number % per_row);
    const Rows rows(a.sums[p.sums], member, slice);
    const int offset = p.start + row * p.columns + column;
    float ignored;
    const float4 x = rows.sums(memory, live, offset, offset, ignored);
    if (!live || my_part() > 0) return;
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
        add_plain(a, memory, member, (block - NORM_BLOCKS) * SEATS + my_seat());
    }
}
