// What the fused blocks ask of Hopper beside products by warpgroups: copies that a barrier counts, and
// single stores.
//
// KIND: 0 bf16, 2 float32.

DEVICE unsigned shared_offset(const void *at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// ---------------------------------------------------------------- copies and who waits for them

struct Barrier {
    unsigned long long state;
};

DEVICE void set_up(Barrier &barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_offset(&barrier)), "r"(arrivals) : "memory");
}

DEVICE void arrive(Barrier &barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared_offset(&barrier)) : "memory");
}

// Arrive, and let the barrier wait for so many bytes, too.
DEVICE void arrive_expecting(Barrier &barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_offset(&barrier)), "r"(bytes) : "memory");
}

// All arrived and all bytes there, for the first time (phase 0), the second (1), the third (0), …
DEVICE void wait(Barrier &barrier, int phase) {
    unsigned done;
    do {
        asm volatile("{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
                     "selp.u32 %0, 1, 0, done;}"
                     : "=r"(done) : "r"(shared_offset(&barrier)), "r"(phase) : "memory");
    } while (done == 0);
}

// Multiples of 16 bytes.
DEVICE void copy_to_shared(void *to, const void *from, int bytes, Barrier &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(shared_offset(to)), "l"(from), "r"(bytes), "r"(shared_offset(&barrier))
                 : "memory");
}

// ---------------------------------------------------------------- memory and rounding

// One store each, or none: left to itself, the compiler takes some of them apart. OFFSET is in bytes.
template <int OFFSET = 0>
DEVICE void store_global(void *to, uint2 x, bool live = true) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %3, 0; "
                 "@live st.global.v2.b32 [%0+%4], {%1,%2};}"
                 :: "l"(to), "r"(x.x), "r"(x.y), "r"(static_cast<int>(live)), "n"(OFFSET)
                 : "memory");
}

template <int OFFSET = 0>
DEVICE void store_global(void *to, uint4 x, bool live = true) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %5, 0; "
                 "@live st.global.v4.b32 [%0+%6], {%1,%2,%3,%4};}"
                 :: "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(static_cast<int>(live)),
                    "n"(OFFSET)
                 : "memory");
}

// Four matrices of 8 × 8 halves, transposed: lane l holds the pair of columns 2 (l % 4), + 1 of row
// l / 4 of each, and lanes 8 m … 8 m + 7 say where the columns of the m-th go, 16 bytes each.
DEVICE void store_columns(void *column, const Pair (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(shared_offset(column)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// Begin to fetch 128 bytes that will be read soon; an address beyond the end does no harm.
DEVICE void fetch_ahead(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}

DEVICE unsigned rounded(float x) {  // to the nearest tf32
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
