// warpgroup.cuh for the CPU: the same functions, on the fibres of kernel_host.h.
//
// Products of tiles happen when they are waited for, in every other pair of blocks, and at once in
// the others; and one warpgroup of two is late, in every other block the second. What is read too
// early or overwritten too soon shows in one of them.

typedef unsigned long long Descriptor;

template <int ROW_BYTES>
static Descriptor describe(unsigned tile, int eight_rows) {
    const Descriptor layout = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    return tile >> 4 | static_cast<Descriptor>(eight_rows >> 4) << 32 | layout << 62;
}

static Descriptor moved(Descriptor of, int bytes) { return of + (bytes >> 4); }

static void be_late() {
    if ((block::current / 128 + blockIdx.x) % 2 == 0) return;
    for (int turn = 0; turn < 100; ++turn) block::yield();
}

static void leave_barrier_late() {
    __syncthreads();
    be_late();
}
#define __syncthreads leave_barrier_late

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
    const unsigned start = static_cast<unsigned>(tile & 0x3fff) << 4;
    const unsigned eight_rows = static_cast<unsigned>(tile >> 32 & 0x3fff) << 4;
    const int layout = tile >> 62, size = KIND == 2 ? 4 : 2;
    if (layout == 0) block::fail("another layout of tiles");
    const int row_bytes = 256 >> layout;  // 128, 64, 32
    if (eight_rows % (8 * row_bytes) != 0) block::fail("rows that overlap");
    unsigned at = start + row / 8 * eight_rows + row % 8 * row_bytes + term * size;
    at ^= at >> 3 & (row_bytes - 16);  // by the address, as the hardware does
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

