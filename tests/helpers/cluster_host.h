// cluster.cuh for the CPU: the blocks of a cluster run together, one memory behind the other.

#define CLUSTER

static void *block_memory() { return host_memory(); }

template <typename T>
static T *in_block(T *at, int rank) {
    char *memory = reinterpret_cast<char *>(dynamic) + rank * SHARED_BYTES;
    return reinterpret_cast<T *>(memory + (reinterpret_cast<char *>(at) - host_memory()));
}

static void cluster_barrier() {
    bool &waits = block::fibre[block::current].waits_for_cluster;
    waits = true;
    block::wait_for(&block::Fibre::cluster_barriers, OF_CLUSTER, 0, SPLIT * block::threads);
    waits = false;
}
