// warpgroup.cuh for the CPU: the same functions, on the fibres of kernel_host.h.
//
// Products of tiles happen when they are waited for, in every other pair of blocks, and at once in
// the others; and one warpgroup of two is late, in every other block the second. What is read too
// early or overwritten too soon shows in one of them. tf32 is not rounded to, so that everything else
// can be held to float32.

typedef unsigned long long Descriptor;

static unsigned shared_offset(const void *at) {
    const ptrdiff_t offset =
        reinterpret_cast<const char *>(at) - reinterpret_cast<const char *>(dynamic);
    if (offset < 0 || offset >= static_cast<ptrdiff_t>(sizeof dynamic)) {
        block::fail("address outside shared memory");
    }
    return static_cast<unsigned>(offset);
}

static void be_late() {
    if ((block::current / 128 + blockIdx.x) % 2 == 0) return;
    for (int turn = 0; turn < 100; ++turn) block::yield();
}

static void leave_barrier_late() {
    __syncthreads();
    be_late();
}
#define __syncthreads leave_barrier_late

static unsigned rounded(float x) { return __float_as_uint(x); }

namespace products {

constexpr int TERMS = KIND == 2 ? 8 : 16;  // of a step
constexpr int MOST = 256, GROUPS = 16;     // that a thread may have on their way

struct Product {
    float *sums;
    int columns;
    bool add, of_tiles;
    Descriptor left, right;
    float terms[2][TERMS];  // of the left operand, of the thread's two rows
};

struct Pending {
    Product queue[MOST];
    int count, committed[GROUPS], groups;
};
static Pending pending[block::MOST_THREADS];

static Pending &mine() { return pending[block::current]; }

static float element(Descriptor tile, int row, int term) {
    if (tile >> 62 != 1 || (tile >> 32 & 0x3fff) != 64) block::fail("another layout of tiles");
    const unsigned start = static_cast<unsigned>(tile & 0x3fff) << 4;
    const int size = KIND == 2 ? 4 : 2;
    unsigned at = start + row * 128 + term * size;  // rows of eight follow each other
    at ^= at >> 3 & 0x70;                           // by the address, as the hardware does
    if (at + size > sizeof dynamic) block::fail("tile outside shared memory");
    const char *from = reinterpret_cast<const char *>(dynamic) + at;
    if (KIND == 2) {
        float x;
        memcpy(&x, from, 4);
        return x;
    }
    Half x;
    memcpy(&x, from, 2);
    return first_of(x);
}

OF_THE_MACHINE static void execute(const Product &p) {
    const int lane = block::current % block::WARP_SIZE;
    const int warp = block::current / block::WARP_SIZE % 4;
    hazards_products(true);
    for (int h = 0; h < 2; ++h) {
        float left[TERMS];
        for (int t = 0; t < TERMS; ++t) {
            left[t] = p.of_tiles ? element(p.left, 16 * warp + lane / 4 + 8 * h, t) : p.terms[h][t];
        }
        for (int j = 0; j < p.columns / 8; ++j) {
            for (int i = 0; i < 2; ++i) {
                float sum = 0.f;
                for (int t = 0; t < TERMS; ++t) {
                    sum += left[t] * element(p.right, 8 * j + lane % 4 * 2 + i, t);
                }
                float &d = p.sums[4 * j + 2 * h + i];
                d = (p.add ? d : 0.f) + sum;
            }
        }
    }
    hazards_products(false);
}

static void start(const Product &p) {
    if (blockIdx.x / 2 % 2 == 1) return execute(p);
    if (mine().count == MOST) block::fail("too many products on their way");
    for (int i = 0; !p.add && i < p.columns / 2; ++i) p.sums[i] = __uint_as_float(0x7fc00000u);
    mine().queue[mine().count++] = p;
}

}  // namespace products

template <int N>
static void multiply(float *d, Descriptor a, Descriptor b, bool add) {
    block::exchange(&d, 0);  // all warps take part
    products::start({d, N, add, true, a, b, {}});
}

template <int N>
static void multiply(float *d, const unsigned (&a)[4], Descriptor b, bool add) {
    using namespace products;
    Product p = {d, N, add, false, 0, b, {}};
    const unsigned set = block::exchange(a, 4);
    const int quad = block::current % block::WARP_SIZE / 4 * 4;
    for (int t = 0; t < TERMS; ++t) {
        // The lane that has a term, and which of its registers.
        const int lane = quad + (KIND == 2 ? t % 4 : t % 8 / 2), i = KIND == 2 ? t / 4 : t / 8;
        for (int h = 0; h < 2; ++h) {
            const unsigned word = block::left_by(lane, set)[h + 2 * i];
            p.terms[h][t] = KIND == 2      ? __uint_as_float(word)
                            : t % 2 == 0 ? first_of(word)
                                         : second_of(word);
        }
    }
    start(p);
}

template <int N>
static void settle(float (&)[N]) {}
template <int N>
static void settle(unsigned (&)[N][4]) {}
static void begin_products() {}

static void commit_products() {
    products::Pending &mine = products::mine();
    if (mine.groups == products::GROUPS) block::fail("too many groups of products");
    mine.committed[mine.groups++] = mine.count;
}

template <int PENDING>
static void wait_for_products() {
    products::Pending &mine = products::mine();
    be_late();
    if (mine.groups > PENDING) {
        const int done = mine.groups - PENDING, ready = mine.committed[done - 1];
        for (int k = 0; k < ready; ++k) products::execute(mine.queue[k]);
        for (int k = ready; k < mine.count; ++k) mine.queue[k - ready] = mine.queue[k];
        for (int g = 0; g < PENDING; ++g) mine.committed[g] = mine.committed[g + done] - ready;
        mine.count -= ready, mine.groups = PENDING;
    }
    block::exchange(&mine, 0);  // a warp waits as one
}

static void publish_tiles() { hazards_publish(); }

// ---------------------------------------------------------------- copies and who waits for them

struct Barrier {
    unsigned short arrivals, missing;
    unsigned bytes : 31, phase : 1;
};

namespace bulk {

struct Copy {
    Barrier *barrier;
    void *to;
    const void *from;
    int bytes;
};
constexpr int MOST = 64;
static Copy queue[MOST];
static int count = 0;

OF_THE_MACHINE static void complete(Barrier &barrier) {
    if (barrier.missing > 0 || barrier.bytes > 0) return;
    barrier.missing = barrier.arrivals, barrier.phase ^= 1;
}

OF_THE_MACHINE static void arrive(Barrier &barrier, int bytes) {
    hazards_release(&barrier, barrier.phase);
    if (barrier.missing == 0) block::fail("more arrive than were expected");
    barrier.bytes += bytes, --barrier.missing;
    complete(barrier);
}

}  // namespace bulk

OF_THE_MACHINE static void set_up(Barrier &barrier, int arrivals) {
    barrier = {static_cast<unsigned short>(arrivals), static_cast<unsigned short>(arrivals), 0, 0};
}

static void arrive(Barrier &barrier) { bulk::arrive(barrier, 0); }
static void arrive_expecting(Barrier &barrier, int bytes) { bulk::arrive(barrier, bytes); }

// Copies happen when somebody waits for them; until then there is nothing to be read.
static void copy_to_shared(void *to, const void *from, int bytes, Barrier &barrier) {
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || shared_offset(to) % 16 != 0 ||
        bytes % 16 != 0) {
        block::fail("misaligned copy");
    }
    if (bulk::count == bulk::MOST) block::fail("too many copies on their way");
    memset(to, 0xff, bytes);
    hazards_start_copy(to, bytes);
    bulk::queue[bulk::count++] = {&barrier, to, from, bytes};
}

OF_THE_MACHINE static void wait(Barrier &barrier, int phase) {
    for (int turn = 0; barrier.phase == static_cast<unsigned>(phase); ++turn) {
        for (int k = 0; k < bulk::count;) {
            const bulk::Copy copy = bulk::queue[k];
            if (copy.barrier != &barrier) {
                ++k;
                continue;
            }
            memcpy(copy.to, copy.from, copy.bytes);
            hazards_end_copy(copy.to, copy.bytes);
            hazards_release(&barrier, phase);
            barrier.bytes -= copy.bytes;
            bulk::queue[k] = bulk::queue[--bulk::count];
            bulk::complete(barrier);
        }
        if (turn == 1 << 20) block::fail("waits for ever");
        block::yield();
    }
    hazards_acquire(&barrier, phase);
}

// ---------------------------------------------------------------- memory

template <typename T>
static void host_store(void *to, int offset, T x, bool live) {
    char *at = static_cast<char *>(to) + offset;
    if (!live) return;
    if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) block::fail("misaligned store");
    memcpy(at, &x, sizeof(T));
}

template <int OFFSET = 0>
static void store_global(void *to, uint2 x, bool live = true) {
    host_store(to, OFFSET, x, live);
}

template <int OFFSET = 0>
static void store_global(void *to, uint4 x, bool live = true) {
    host_store(to, OFFSET, x, live);
}

static void store_columns(void *column, const Pair (&x)[4]) {
    const unsigned words[6] = {shared_offset(column), 0, x[0], x[1], x[2], x[3]};
    const unsigned set = block::exchange(words, 6);
    const int lane = block::current % block::WARP_SIZE;
    for (int m = 0; m < 4; ++m) {
        for (int i = 0; i < 2; ++i) {
            const unsigned at = block::left_by(8 * m + lane % 4 * 2 + i, set)[0];
            if (at % 16 != 0) block::fail("misaligned column");
            const Half value = static_cast<Half>(i == 0 ? x[m] : x[m] >> 16);
            memcpy(reinterpret_cast<char *>(dynamic) + at + 2 * (lane / 4), &value, 2);
        }
    }
    block::exchange(words, 0);  // nobody goes on before all have written
}

static void fetch_ahead(const void *) {}
