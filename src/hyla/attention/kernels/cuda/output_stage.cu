// The output stage where it takes a pass of its own over rows, a row being all heads of a query.
//
//     FINISH      y = factor · Σ parts                  the parts of a decoded output, float32
//     GRADIENT    the gradient of o, given G, that of y:
//                 rows: factor · G;    rms: f · (G − ŷ · mean(G ŷ)) with ŷ = y / gain
//
// A team of LANES neighbouring threads owns a row, whose numbers stay in registers: memory is read
// once. There are few decoded rows and many parts of them, so in FINISH all teams of a block share
// out the parts of one row.
//
// Set by the compiler's command line: KIND, PASS, OUTPUT, ROW (numbers of a row), LANES (a power of
// two), THREADS (a multiple of LANES) and VECTOR (elements per load, up to 4; divides ROW).

#define PASS_FINISH 0
#define PASS_GRADIENT 1

constexpr int WARP = 32;
constexpr int VECTORS = (ROW / VECTOR + LANES - 1) / LANES;  // of a thread
constexpr int OWN = VECTORS * VECTOR;
constexpr int TEAMS = THREADS / LANES;
constexpr int ROWS_OF_BLOCK = PASS == PASS_FINISH ? 1 : TEAMS;
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
#if PASS == PASS_FINISH
    float parts[OWN][THREADS];
#endif
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

DEVICE int my_team() { return my_thread() / LANES; }
DEVICE int my_row() {
    return static_cast<int>(blockIdx.x) * ROWS_OF_BLOCK + my_team() % ROWS_OF_BLOCK;
}

DEVICE long long start_of(int row) { return static_cast<long long>(row) * ROW; }

DEVICE int given_factor(const Arguments &a, int row) {
    const int batch = row / a.queries;
    return batch / a.output.batch_per_factor * a.queries + row % a.queries;
}

#if PASS == PASS_FINISH

template <int N>
DEVICE void read_floats(const float *from, float (&x)[N]) {
    if constexpr (N == 4) {
        const float4 y = __ldg(reinterpret_cast<const float4 *>(from));
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = __ldg(from + i);
    }
}

// In all teams: each adds up every TEAMS-th part, then what the teams have.
DEVICE void sum_parts(Memory &memory, const Arguments &a, int row, float (&x)[OWN]) {
#pragma unroll
    for (int i = 0; i < OWN; ++i) x[i] = 0.f;
#pragma unroll 8
    for (int part = my_team(); part < a.part_count; part += TEAMS) {
        const float *from = a.parts + start_of(part * a.rows + row);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (!is_in_row(i)) continue;
            float some[VECTOR];
            read_floats(from + place_of(i), some);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) x[i * VECTOR + j] += some[j];
        }
    }
    if constexpr (TEAMS > 1) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) memory.parts[i][my_thread()] = x[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            x[i] = 0.f;
#pragma unroll
            for (int team = 0; team < TEAMS; ++team) {
                x[i] += memory.parts[i][team * LANES + my_thread() % LANES];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) output_stage(const Arguments a) {
    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const int row = my_row();
    float x[OWN], squares = 0.f;
    sum_parts(memory, a, row, x);
    if constexpr (OUTPUT == OUTPUT_RMS) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) squares += x[i] * x[i];
        squares = sum_over_row(memory, squares);
    }
    if (my_team() != 0) return;
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
