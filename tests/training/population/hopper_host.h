// hopper.cuh for the CPU: the same functions, on the fibres of kernel_host.h. tf32 is not rounded to, so
// that everything else can be held to float32.

static unsigned shared_offset(const void *at) {
    const ptrdiff_t offset =
        reinterpret_cast<const char *>(at) - reinterpret_cast<const char *>(dynamic);
    if (offset < 0 || offset >= static_cast<ptrdiff_t>(sizeof dynamic)) {
        block::fail("address outside shared memory");
    }
    return static_cast<unsigned>(offset);
}

static unsigned rounded(float x) { return __float_as_uint(x); }

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
            hazards_end_copy(copy.to, copy.bytes, true);
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
