// The output stage where it takes a pass of its own over rows, a row being all heads of a query.
//
//     FINISH      y = factor · Σ parts                  the parts of a decoded output, float32
//     GRADIENT    the gradient of o, given G, that of y:
//                 rows: factor · G;    rms: f · (G − ŷ · mean(G ŷ)) with ŷ = y / gain
//
// A team of LANES neighbouring threads owns a row, whose numbers stay in registers: memory is read
// once.
//
// Set by the compiler's command line: KIND, PASS, OUTPUT, ROW (numbers of a row), LANES (a power of
// two), THREADS (a multiple of LANES) and VECTOR (elements per load, up to 4; divides ROW).

#define PASS_FINISH 0
#define PASS_GRADIENT 1

constexpr int WARP = 32;
constexpr int VECTORS = (ROW / VECTOR + LANES - 1) / LANES;  // of a thread
constexpr int OWN = VECTORS * VECTOR;
constexpr int ROWS_OF_BLOCK = THREADS / LANES;
static_assert(ROW % VECTOR == 0 && THREADS % LANES == 0 && THREADS % WARP == 0, "a row's threads");

struct Arguments {
    const float *parts;          // FINISH: [part, row, ROW]
    const Scalar *upstream, *y;  // GRADIENT: [row, ROW]; y for rms alone
    Scalar *result;              // [row, ROW]
    int rows, part_count, queries;
    Output output;
};

struct Memory {
    float sums[THREADS / WARP];
};

DEVICE int my_thread() { return static_cast<int>(threadIdx.x); }

// Where the i-th vector of the thread starts in its row.
DEVICE int place_of(int i) { return (i * LANES + my_thread() % LANES) * VECTOR; }
DEVICE bool is_in_row(int i) { return ROW / VECTOR % LANES == 0 || place_of(i) < ROW; }

// All threads of a block take part, once.
DEVICE float sum_over_row(Memory &memory, float x) {
#pragma unroll
    for (int mask = (LANES < WARP ? LANES : WARP) / 2; mask > 0; mask /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    }
    if constexpr (LANES > WARP) {
        if (my_thread() % WARP == 0) memory.sums[my_thread() / WARP] = x;
        __syncthreads();
        x = 0.f;
#pragma unroll
        for (int i = 0; i < LANES / WARP; ++i) {
            x += memory.sums[my_thread() / LANES * (LANES / WARP) + i];
        }
    }
    return x;
}

DEVICE void load_row(const Scalar *row, bool live, float (&x)[OWN]) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        float some[VECTOR] = {};
        if (live && is_in_row(i)) read(row + place_of(i), some);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) x[i * VECTOR + j] = some[j];
    }
}

DEVICE void store_row(Scalar *row, const float (&x)[OWN]) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (is_in_row(i)) write<VECTOR>(row + place_of(i), x + i * VECTOR);
    }
}

DEVICE int my_row() {
    return static_cast<int>(blockIdx.x) * ROWS_OF_BLOCK + my_thread() / LANES;
}

DEVICE long long start_of(int row) { return static_cast<long long>(row) * ROW; }

DEVICE int given_factor(const Arguments &a, int row) {
    const int batch = row / a.queries;
    return batch / a.output.batch_per_factor * a.queries + row % a.queries;
}

#if PASS == PASS_FINISH

DEVICE void sum_parts(const Arguments &a, int row, bool live, float (&x)[OWN]) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) x[i] = 0.f;
    if (!live) return;
    for (int part = 0; part < a.part_count; ++part) {
        const float *from = a.parts + start_of(part * a.rows + row);
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            if (is_in_row(i / VECTOR)) x[i] += __ldg(from + place_of(i / VECTOR) + i % VECTOR);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) output_stage(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const int row = my_row();
    const bool live = row < a.rows;
    float x[OWN], squares = 0.f;
    sum_parts(a, row, live, x);
    if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) squares += x[i] * x[i];
        squares = sum_over_row(memory, squares);
    }
    if (!live) return;
    const float factor = output_factor(a.output, given_factor(a, row), squares);
#pragma unroll
    for (int i = 0; i < OWN; ++i) x[i] *= factor;
    store_row(a.result + start_of(row), x);
}

#else

// A query that sees no key has a large factor and no gradient: 0 · inf must not come of it.
DEVICE float finite(float x) {
    return KIND == 1 && x == x ? fminf(fmaxf(x, -65504.f), 65504.f) : x;
}

extern "C" __global__ void __launch_bounds__(THREADS) output_stage(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const int row = my_row();
    const bool live = row < a.rows;
    float g[OWN], factor = 0.f;
    load_row(a.upstream + start_of(row), live, g);
    if constexpr (OUTPUT == OUTPUT_RMS) {
        float y[OWN], dot = 0.f;
        load_row(a.y + start_of(row), live, y);
        const float inverse_gain = a.output.gain == 0.f ? 0.f : 1.f / a.output.gain;
#pragma unroll
        for (int i = 0; i < OWN; ++i) y[i] *= inverse_gain, dot += g[i] * y[i];
        const float mean = sum_over_row(memory, dot) * a.output.inverse_size;
#pragma unroll
        for (int i = 0; i < OWN; ++i) g[i] -= y[i] * mean;
        if (live) factor = a.output.total_factor[row];
    } else if (live) {
        factor = output_factor(a.output, given_factor(a, row), 0.f);
    }
    if (!live) return;
#pragma unroll
    for (int i = 0; i < OWN; ++i) g[i] = finite(g[i] * factor);
    store_row(a.result + start_of(row), g);
}

#endif
