// What kernel_host.h tells hazards.cpp of threads and of what orders them; nothing, where no checker
// runs.
#ifdef CHECKED
#define HAZARDS(function) extern "C" void hazards_##function;
#define OF_THE_MACHINE __attribute__((noinline, no_sanitize_thread))
#else
#define HAZARDS(function) static inline void hazards_##function {}
#define OF_THE_MACHINE
#endif

enum Meeting { OF_WARP, OF_GROUP, OF_BLOCK, OF_CLUSTER };

struct Launch {
    const char *shared;                    // of a cluster's blocks, one behind the other,
    size_t shared_distance, shared_bytes;  // each with so many bytes of its own
    const char *machine[3][2];             // what every thread may touch: from … up to
    int blocks, threads;                   // of a cluster, of a block
};

HAZARDS(begin_launch(const Launch *))
HAZARDS(begin_cluster())
HAZARDS(end_cluster())
HAZARDS(run(int /* thread; none: -1 */))

// A thread comes to a meeting of those from `first` on, its `turn`-th, and goes on when all have come.
HAZARDS(come(Meeting, int /* first */, unsigned /* turn */))
HAZARDS(go(Meeting, int /* first */, unsigned /* turn */))

// Who acquires has waited for all who released the same, which is a place and a number.
HAZARDS(release(const void *, unsigned))
HAZARDS(acquire(const void *, unsigned))

// A copy is on its way from its start until it is waited for. A thread's own has to be published to
// products like what it stores, that of the engine of bulk copies has not.
HAZARDS(start_copy(const void * /* to */, size_t))
HAZARDS(end_copy(const void * /* to */, size_t, bool /* by the engine */))

// So is a read in bulk, which sees what was published.
HAZARDS(start_read(const void * /* from */, size_t))
HAZARDS(end_read(const void * /* from */, size_t))

HAZARDS(add(const void *, size_t))  // atomically

// Products see what threads have stored if these published it; whether what follows is theirs.
HAZARDS(publish())
HAZARDS(products(bool))
