// tensor_core.cuh for the CPU: the same functions, on the fibres of kernel_host.h.

typedef unsigned short Half;
typedef unsigned Pair;

static float half_value(Half x) {
#if KIND == 1
    _Float16 y;
    memcpy(&y, &x, 2);
    return static_cast<float>(y);
#else
    return __uint_as_float(static_cast<unsigned>(x) << 16);
#endif
}

static Half half_bits(float x) {
#if KIND == 1
    const _Float16 y = static_cast<_Float16>(x);
    Half bits;
    memcpy(&bits, &y, 2);
    return bits;
#else
    const unsigned bits = __float_as_uint(x);
    return static_cast<Half>(x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u);
#endif
}

static Pair pack(float first, float second) { return half_bits(first) | half_bits(second) << 16; }
static Pair pack_positive(float x, float y) { return pack(x < 0.f ? 0.f : x, y < 0.f ? 0.f : y); }
static float first_of(Pair x) { return half_value(static_cast<Half>(x)); }
static float second_of(Pair x) { return half_value(static_cast<Half>(x >> 16)); }

static float fast_inverse_root(float x) { return rsqrtf(x); }
static Pair positive_halves(Pair x) {
    return (first_of(x) <= 0.f ? 0u : 0xffffu) | (second_of(x) <= 0.f ? 0u : 0xffff0000u);
}
static Pair pair_of_ones() { return KIND == 1 ? 0x3c003c00u : 0x3f803f80u; }

static int host_lane() { return block::current % block::WARP_SIZE; }

typedef unsigned Shared;  // an address in shared memory, in bytes

static char *host_memory() {  // of the block
    return reinterpret_cast<char *>(dynamic) + block::current / block::threads * SHARED_BYTES;
}

static Shared shared_address(const void *at) {
    return static_cast<Shared>(static_cast<const char *>(at) - host_memory());
}

static Half *at_address(Shared at, const char *what) {  // 16 bytes of shared memory
    if (at % 16 != 0 || at + 16 > SHARED_BYTES) block::fail(what);
    return reinterpret_cast<Half *>(host_memory() + at);
}

// The rows of matrix `i` as the lanes addressed them.
static Half *row_address(int i, int row, unsigned set) {
    return at_address(*block::left_by(8 * i + row, set), "row of a matrix misaligned or outside");
}

static void load_matrices(Pair (&x)[4], Shared row) {
    const unsigned set = block::exchange(&row, 1);
    for (int i = 0; i < 4; ++i) {
        memcpy(&x[i], row_address(i, host_lane() / 4, set) + host_lane() % 4 * 2, 4);
    }
}

static void load_matrices_transposed(Pair (&x)[4], Shared row) {
    const unsigned set = block::exchange(&row, 1);
    const int column = host_lane() / 4, first = host_lane() % 4 * 2;
    for (int i = 0; i < 4; ++i) {
        x[i] = row_address(i, first, set)[column] | row_address(i, first + 1, set)[column] << 16;
    }
}

static void store_matrices_transposed(Shared row, const Pair (&x)[4]) {
    const unsigned set = block::exchange(&row, 1);
    const int column = host_lane() / 4, first = host_lane() % 4 * 2;
    for (int i = 0; i < 4; ++i) {
        row_address(i, first, set)[column] = static_cast<Half>(x[i]);
        row_address(i, first + 1, set)[column] = static_cast<Half>(x[i] >> 16);
    }
    block::exchange(&row, 1);  // nobody goes on before all have written
}

OF_THE_MACHINE static float half_left_by(int lane, unsigned set, int word, int which) {
    const Pair pair = block::left_by(lane, set)[word];
    return which == 0 ? first_of(pair) : second_of(pair);
}

// Operands lie as in the fragments of mma.sync: a0 a1 a2 a3 b0 b1.
static void host_multiply_add(float (&d)[4], const float (&c)[4], const Pair (&operands)[6],
                              int terms) {
    const unsigned set = block::exchange(operands, 6);
    for (int e = 0; e < 4; ++e) {
        const int row = host_lane() / 4, column = host_lane() % 4 * 2 + e % 2, upper = e / 2;
        float sum = 0.f;
        for (int t = 0; t < terms; ++t) {
            const int lane_of_term = t % 8 / 2, high = t / 8;
            sum += half_left_by(row * 4 + lane_of_term, set, upper + 2 * high, t % 2) *
                   half_left_by(column * 4 + lane_of_term, set, 4 + high, t % 2);
        }
        d[e] = c[e] + sum;
    }
}

static void multiply_add(float (&d)[4], const float (&c)[4], Pair a0, Pair a1, Pair b0) {
    host_multiply_add(d, c, {a0, a1, 0, 0, b0, 0}, 8);
}

static void multiply_add(float (&d)[4], const float (&c)[4], Pair a0, Pair a1, Pair a2, Pair a3,
                         Pair b0, Pair b1) {
    host_multiply_add(d, c, {a0, a1, a2, a3, b0, b1}, 16);
}

// A copy arrives when it must have, and not before: not even the lane that asked for it may read it
// earlier.
constexpr int MOST_COPIES = 512, MOST_GROUPS = 16;
static struct Copies {
    struct {
        Half *to;
        const Half *from;
    } copy[MOST_COPIES];
    int count, groups, end_of[MOST_GROUPS];
} copies[block::MOST_THREADS];

static void copy_async(Shared to, const Half *from, bool live) {
    if (live && reinterpret_cast<uintptr_t>(from) % 16 != 0) block::fail("misaligned source");
    Copies &mine = copies[block::current];
    if (mine.count == MOST_COPIES) block::fail("too many copies on their way");
    mine.copy[mine.count++] = {at_address(to, "misaligned copy"), live ? from : nullptr};
    hazards_start_copy(mine.copy[mine.count - 1].to, 16);
}

static void close_copies() {
    Copies &mine = copies[block::current];
    if (mine.groups == MOST_GROUPS) block::fail("too many groups of copies on their way");
    mine.end_of[mine.groups++] = mine.count;
}

template <int PENDING>
static void wait_for_copies() {
    Copies &mine = copies[block::current];
    if (mine.groups <= PENDING) return;
    const int done = mine.groups - PENDING, arrived = mine.end_of[done - 1];
    for (int i = 0; i < arrived; ++i) {
        hazards_end_copy(mine.copy[i].to, 16, false);
        if (mine.copy[i].from != nullptr) memcpy(mine.copy[i].to, mine.copy[i].from, 16);
        else memset(mine.copy[i].to, 0, 16);
    }
    mine.count -= arrived;
    mine.groups -= done;
    memmove(mine.copy, mine.copy + arrived, mine.count * sizeof mine.copy[0]);
    for (int i = 0; i < mine.groups; ++i) mine.end_of[i] = mine.end_of[i + done] - arrived;
}

template <int COUNT>
static void group_barrier() {
    const int first = block::current / COUNT * COUNT;
    block::wait_for(&block::Fibre::group_barriers, OF_GROUP, first, COUNT);
}

// An addition in bulk reads and adds when it is waited for, and not before: what has become of the
// shared memory by then is what is added.
constexpr int MOST_ADDITIONS = 16;
static struct Additions {
    struct {
        float *to;
        const float *from;
        int bytes;
    } addition[MOST_ADDITIONS];
    int count, closed;
} additions[block::MOST_THREADS];

static void add_in_bulk(float *to, Shared from, int bytes) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || bytes % 16 != 0) block::fail("misaligned addition");
    Additions &mine = additions[block::current];
    if (mine.count == MOST_ADDITIONS) block::fail("too many additions on their way");
    const void *source = at_address(from, "misaligned addition");
    at_address(from + bytes - 16, "an addition of what lies outside");
    mine.addition[mine.count++] = {to, static_cast<const float *>(source), bytes};
    hazards_start_read(source, bytes);
}

static void publish_to_async() { hazards_publish(); }
static void close_bulk() { additions[block::current].closed = additions[block::current].count; }

static void wait_for_bulk_reads() {
    Additions &mine = additions[block::current];
    for (int i = 0; i < mine.closed; ++i) {
        const auto &one = mine.addition[i];
        hazards_end_read(one.from, one.bytes);
        for (int k = 0; k < one.bytes / 4; ++k) atomicAdd(one.to + k, one.from[k]);
    }
    mine.count -= mine.closed;
    memmove(mine.addition, mine.addition + mine.closed, mine.count * sizeof mine.addition[0]);
    mine.closed = 0;
}

static void add_atomically(float *to, float first, float second) {
    atomicAdd(to, first), atomicAdd(to + 1, second);
}
