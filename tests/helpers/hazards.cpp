// Looks at every access of a kernel that runs on the fibres of kernel_host.h: g++ calls what
// -fsanitize=thread calls, and finds it here instead of in its own library.
//
// A thread has a clock, and knows of every other thread up to which of its times all it did is over:
// barriers pass that on (vector clocks). A byte of shared memory remembers its last write, and the
// last read of each thread. Who touches it must know of them, or nothing orders the two. An exchange
// between lanes orders no memory; __syncwarp does. What is on its way (an asynchronous copy) has a
// time that nobody knows of until it is waited for.
//
// Of tensors the same is kept, more coarsely: nothing orders the blocks of a grid.
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#define CHECKED
#include "hazards.h"

namespace {

typedef uint32_t Time;
constexpr Time ON_ITS_WAY = ~Time(0);
constexpr size_t GRAIN = 2;  // bytes that are told apart: a half

enum Kind {
    WRITE_AFTER_WRITE,
    WRITE_AFTER_READ,
    READ_AFTER_WRITE,
    NEVER_WRITTEN,
    OUTSIDE,
    NOT_PUBLISHED,
};

struct Hazard {
    int kind, first_thread, second_thread, block;
    const void *first_line, *second_line;
    long long at;  // in shared memory, or -1
};
std::vector<Hazard> hazards;
std::set<std::tuple<int, const void *, const void *>> known;

struct Write {
    Time time;
    int thread;
    const void *line;
    bool by_engine;  // of copies, which products see at once
};
struct Read {
    bool any;  // since the last write
    int thread;
    const void *line;
};
struct BulkRead {
    const void *from, *line;
    int thread;
};
struct GlobalAccess {
    const void *line;
    int thread, cluster;  // the last one
    Time time;
    bool any, many_clusters, atomic;
};
struct Tensor {
    const char *begin, *end;
    std::vector<GlobalAccess> written, read;
};

Launch launch;
int cluster, current = -1, all_threads;
bool of_products = false;
Time first_time;                 // of the cluster that runs
std::vector<Time> times;         // [thread, what it knows or is published to it, of thread]
Time *known_by(int thread) { return times.data() + size_t(thread) * 2 * all_threads; }
Time *published_to(int thread) { return known_by(thread) + all_threads; }
Time &now(int thread) { return known_by(thread)[thread]; }

size_t grains;  // of a block
std::vector<Write> written;
std::vector<Read> read_last;
Time *reads = nullptr;  // [grain, thread of the block]
size_t reads_bytes = 0;
std::vector<BulkRead> on_their_way;
std::vector<Tensor> tensors;

struct Gathered {
    std::vector<Time> times;
    unsigned turn = ~0u;
};
std::map<std::tuple<int, int, int>, Gathered> meetings;
std::map<std::pair<const void *, unsigned>, std::vector<Time>> released;

void report(Kind kind, int first, const void *first_line, const void *second_line, long long at) {
    if (!known.insert({kind, first_line, second_line}).second) return;
    hazards.push_back({kind, first, current, cluster, first_line, second_line, at});
}

void learn(Time *mine, const Time *theirs, int count) {
    for (int i = 0; i < count; ++i) mine[i] = std::max(mine[i], theirs[i]);
}

// ---------------------------------------------------------------- shared memory

bool is_over(const Write &w) { return w.time != ON_ITS_WAY && w.time <= known_by(current)[w.thread]; }

void check_writes(Kind kind, size_t grain, long long at, const void *line) {
    const Write &w = written[grain];
    if (w.time >= first_time && !is_over(w)) report(kind, w.thread, w.line, line, at);
}

void check_reads(size_t grain, int owner, long long at, const void *line) {
    if (!read_last[grain].any) return;
    const Time *of = reads + grain * launch.threads;
    const Time *mine = known_by(current) + owner * launch.threads;
    bool over = true;
    for (int i = 0; i < launch.threads; ++i) over &= of[i] <= mine[i];  // ON_ITS_WAY: nobody knows
    if (over) return;
    for (int i = 0; i < launch.threads; ++i) {
        const int thread = owner * launch.threads + i;
        if (of[i] > mine[i] && (thread != current || of[i] == ON_ITS_WAY)) {
            report(WRITE_AFTER_READ, thread, read_last[grain].line, line, at);
            return;
        }
    }
}

// Or something beside it: a load of 16 bytes may bring what only fills a row up.
bool is_written(int owner, long long at) {
    const size_t first = at / 16 * 16 / GRAIN, end = std::min(first + 16 / GRAIN, grains);
    for (size_t place = first; place < end; ++place) {
        if (written[owner * grains + place].time >= first_time) return true;
    }
    return false;
}

size_t first_grain(const void *at) {
    const size_t offset = static_cast<const char *>(at) - launch.shared;
    return offset / launch.shared_distance * grains + offset % launch.shared_distance / GRAIN;
}

void touch_shared(size_t offset, size_t bytes, bool writes, bool starts, const void *line) {
    const int owner = int(offset / launch.shared_distance), mine = current / launch.threads;
    const long long at = offset % launch.shared_distance;
    const bool alone = owner == mine;
    // Another block may only be written to, and once it has begun.
    if (at + bytes > launch.shared_bytes || (!alone && !writes) ||
        (!alone && known_by(current)[owner * launch.threads] < first_time)) {
        return report(OUTSIDE, current, line, line, at);
    }
    for (size_t place = at / GRAIN; place <= (at + bytes - 1) / GRAIN; ++place) {
        const size_t grain = owner * grains + place;
        if (writes) {
            check_writes(WRITE_AFTER_WRITE, grain, at, line);
            check_reads(grain, owner, at, line);
            written[grain] = {starts ? ON_ITS_WAY : now(current), current, line, false};
            read_last[grain].any = false;
            continue;
        }
        check_writes(READ_AFTER_WRITE, grain, at, line);
        const Write &w = written[grain];
        const bool of_others = of_products || starts;
        if (of_others && !w.by_engine && is_over(w) && w.time > published_to(current)[w.thread]) {
            report(NOT_PUBLISHED, w.thread, w.line, line, at);
        }
        // A warp multiplies as one: once a lane has waited, the products of all are over.
        const int reader = of_products ? current / 32 * 32 : current;
        Time &last = reads[grain * launch.threads + reader % launch.threads];
        if (last != ON_ITS_WAY) last = starts ? ON_ITS_WAY : now(reader);
        read_last[grain] = {true, reader, line};
    }
    if (!writes && !is_written(owner, at)) report(NEVER_WRITTEN, current, line, line, at);
}

// ---------------------------------------------------------------- tensors

bool is_ordered(const GlobalAccess &x) {
    return !x.any || (x.cluster == cluster && !x.many_clusters && x.time <= known_by(current)[x.thread]);
}

void note(GlobalAccess &x, const void *line, bool atomic) {
    const bool many = x.any && (x.many_clusters || x.cluster != cluster);
    x = {line, current, cluster, now(current), true, many, atomic};
}

void touch_tensor(Tensor &tensor, const char *at, size_t bytes, bool writes, bool atomic,
                  const void *line) {
    const size_t begin = (at - tensor.begin) / GRAIN, end = (at - tensor.begin + bytes - 1) / GRAIN;
    for (size_t i = begin; i <= end; ++i) {
        GlobalAccess &w = tensor.written[i], &r = tensor.read[i];
        if (!is_ordered(w) && !(atomic && w.atomic)) {
            report(writes ? WRITE_AFTER_WRITE : READ_AFTER_WRITE, w.thread, w.line, line, -1);
        }
        if (writes && !is_ordered(r)) report(WRITE_AFTER_READ, r.thread, r.line, line, -1);
        note(writes ? w : r, line, atomic);
    }
}

void touch(const void *address, size_t bytes, bool writes, const void *line, bool starts = false,
           bool atomic = false) {
    if (current < 0 || bytes == 0) return;
    const char *at = static_cast<const char *>(address);
    const size_t offset = at - launch.shared;  // huge, if before it
    if (offset < launch.shared_distance * launch.blocks) {
        return touch_shared(offset, bytes, writes, starts, line);
    }
    for (const auto &range : launch.machine) {
        if (at >= range[0] && at + bytes <= range[1]) return;
    }
    for (Tensor &tensor : tensors) {
        if (at >= tensor.begin && at + bytes <= tensor.end) {
            return touch_tensor(tensor, at, bytes, writes, atomic, line);
        }
    }
    report(OUTSIDE, current, line, line, -1);
}

}  // namespace

// ---------------------------------------------------------------- what kernel_host.h tells

#define CALLER __builtin_return_address(0)

extern "C" {

void hazards_begin_launch(const Launch *given) {
    launch = *given, current = -1, cluster = -1, first_time = 1;
    all_threads = launch.blocks * launch.threads;
    times.assign(size_t(all_threads) * 2 * all_threads, 0);
    grains = (launch.shared_bytes + GRAIN - 1) / GRAIN;
    written.assign(grains * launch.blocks, Write{});
    read_last.assign(grains * launch.blocks, Read{});
    if (reads != nullptr) munmap(reads, reads_bytes);
    reads_bytes = std::max<size_t>(grains * launch.blocks * launch.threads * sizeof(Time), 4096);
    reads = static_cast<Time *>(mmap(nullptr, reads_bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    meetings.clear(), released.clear();
}

void hazards_begin_cluster() {
    ++cluster;
    Time last = first_time;
    for (int i = 0; i < all_threads; ++i) last = std::max(last, now(i));
    first_time = last + 1;  // before it, all is over
    std::fill(times.begin(), times.end(), last);
    for (int i = 0; i < all_threads; ++i) now(i) = first_time;
    meetings.clear(), released.clear();
}

// What was written to another block must have been there before that one ended.
void hazards_end_cluster() {
    for (size_t grain = 0; grain < written.size(); ++grain) {
        const Write &w = written[grain];
        const int owner = int(grain / grains);
        if (w.time < first_time || w.thread / launch.threads == owner) continue;
        bool seen = false;
        for (int i = 0; i < launch.threads; ++i) {
            seen |= known_by(owner * launch.threads + i)[w.thread] >= w.time;
        }
        if (!seen) report(OUTSIDE, w.thread, w.line, w.line, grain % grains * GRAIN);
    }
    for (const BulkRead &x : on_their_way) {  // the next block's writes
        report(WRITE_AFTER_READ, x.thread, x.line, x.line, -1);
    }
    on_their_way.clear();
    current = -1;
}

void hazards_run(int thread) { current = thread; }

void hazards_come(Meeting meeting, int first, unsigned turn) {
    Gathered &x = meetings[{meeting, first, turn % 2}];
    if (x.turn != turn) x.turn = turn, x.times.assign(2 * all_threads, 0);
    learn(x.times.data(), known_by(current), 2 * all_threads);
}

void hazards_go(Meeting meeting, int first, unsigned turn) {
    learn(known_by(current), meetings[{meeting, first, turn % 2}].times.data(), 2 * all_threads);
    ++now(current);
}

void hazards_release(const void *at, unsigned number) {
    std::vector<Time> &x = released[{at, number}];
    x.resize(2 * all_threads);
    learn(x.data(), known_by(current), 2 * all_threads);
    ++now(current);
}

void hazards_acquire(const void *at, unsigned number) {
    const auto x = released.find({at, number});
    if (x != released.end()) learn(known_by(current), x->second.data(), 2 * all_threads);
}

void hazards_start_copy(const void *to, size_t bytes) { touch(to, bytes, true, CALLER, true); }

void hazards_end_copy(const void *to, size_t bytes, bool by_engine) {
    const size_t first = first_grain(to);
    for (size_t grain = first; grain < first + bytes / GRAIN; ++grain) {
        written[grain] = {now(current), current, written[grain].line, by_engine};
    }
}

void hazards_start_read(const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 16) {
        touch(static_cast<const char *>(from) + i, 16, false, CALLER, true);
    }
    on_their_way.push_back({from, CALLER, current});
}

void hazards_end_read(const void *from, size_t bytes) {
    const size_t first = first_grain(from);
    for (size_t grain = first; grain < first + bytes / GRAIN; ++grain) {
        reads[grain * launch.threads + current % launch.threads] = now(current);
    }
    const auto ended = std::find_if(on_their_way.begin(), on_their_way.end(), [&](const BulkRead &x) {
        return x.from == from && x.thread == current;
    });
    if (ended != on_their_way.end()) on_their_way.erase(ended);
}

void hazards_add(const void *to, size_t bytes) { touch(to, bytes, true, CALLER, false, true); }

void hazards_publish() {
    learn(published_to(current), known_by(current), all_threads);
    ++now(current);
}

void hazards_products(bool begin) { of_products = begin; }

// ---------------------------------------------------------------- what g++ calls

#define ACCESS(name, bytes, writes) \
    void __tsan_##name(void *at) { touch(at, bytes, writes, CALLER); }
#define ACCESSES(bytes)                           \
    ACCESS(read##bytes, bytes, false)             \
    ACCESS(write##bytes, bytes, true)             \
    ACCESS(unaligned_read##bytes, bytes, false)   \
    ACCESS(unaligned_write##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void *at, size_t bytes) { touch(at, bytes, false, CALLER); }
void __tsan_write_range(void *at, size_t bytes) { touch(at, bytes, true, CALLER); }
void __tsan_init() {}

// ---------------------------------------------------------------- what the tests ask

void hazards_forget() { tensors.clear(), hazards.clear(), known.clear(); }

void hazards_allow(const char *begin, const char *end) {
    const size_t count = (end - begin + GRAIN - 1) / GRAIN;
    tensors.push_back({begin, end, std::vector<GlobalAccess>(count), std::vector<GlobalAccess>(count)});
}

int hazards_count() { return int(hazards.size()); }
const Hazard *hazards_found(int i) { return &hazards[i]; }

}  // extern "C"
