// A cluster of SPLIT blocks, each with its own shared memory, into which the others can write.
//
// A block may write to another one only after a barrier with it: before, it may not have begun.

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif

// The shared memory that the launch gave to this block.
DEVICE void *block_memory() {
    alignas(1024) extern __shared__ uint4 dynamic[];
    return dynamic;
}

// The same place in the shared memory of block `rank` of the cluster.
template <typename T>
DEVICE T *in_block(T *at, int rank) {
    unsigned long long there;
    asm("mapa.u64 %0, %1, %2;"
        : "=l"(there) : "l"(reinterpret_cast<unsigned long long>(at)), "r"(rank));
    return reinterpret_cast<T *>(there);
}

// All threads of the cluster; what they wrote before, anywhere, is seen by all after.
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}
