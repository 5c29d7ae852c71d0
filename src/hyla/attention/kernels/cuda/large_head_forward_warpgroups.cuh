// The forward's scores where four warps multiply together (warpgroup.cuh), straight from shared memory:
// nothing is loaded into registers first. Per head, the tile's 64 keys are the rows of a product, 16
// for each of the warps, and 16 queries its columns. So a warp has units as large_head_forward_code.cuh
// takes them, and the lanes have the same pairs as after products of a warp.

constexpr int WARPGROUP_COUNT = WARPS / 4;
static_assert(GROUPS == 1 && KEYS == 64 && WARPS % 4 == 0, "a tile is the rows of a product");
static_assert(QUERIES % (8 * UNIT * WARPGROUP_COUNT) == 0, "warpgroups own as much as the others");

// The same in all lanes, and so that the compiler knows.
DEVICE int my_warpgroup() {
    return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / (4 * WARP), 0);
}

// Of all heads and the queries from `row` on.
template <typename Memory>
DEVICE void multiply_heads(Scores &score, const Memory &memory, int row) {
    constexpr int ROW = HeadRows::ROW, EIGHT_ROWS = 8 * ROW, ROW_BYTES = 2 * HeadRows::PANEL;
    const Descriptor keys = describe<ROW_BYTES>(shared_address(memory.k), EIGHT_ROWS);
    const Descriptor queries = describe<ROW_BYTES>(shared_address(memory.q) + row * ROW, EIGHT_ROWS);
    begin_products();
#pragma unroll
    for (int slice = 0; slice < HeadRows::ROW_SLICES; ++slice) {
        const int step = static_cast<int>(HeadRows::pieces_on(0, 2 * slice));
#pragma unroll
        for (int head = 0; head < 8; ++head) {
            multiply<8 * UNIT>(score[head][0], moved(keys, head * KEYS * ROW + step),
                               moved(queries, head * QUERIES * ROW + step), slice > 0);
        }
    }
    commit_products();
    wait_for_products<0>();
#pragma unroll
    for (int i = 0; i < 8 * UNIT; ++i) settle(score[i / UNIT][i % UNIT]);
}

template <typename Memory>
DEVICE void write_code(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                       int first_key, int) {
    const int column = my_warp() % 4 * 16;
#pragma unroll 1
    for (int row = my_warpgroup() * 8 * UNIT; row < QUERIES; row += WARPGROUP_COUNT * 8 * UNIT) {
        write_unit(memory, a, s, row, column, first_query + row, first_key + column,
                   [&](Scores &score, int) { multiply_heads(score, memory, row); });
    }
}
