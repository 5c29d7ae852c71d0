// The forward's scores where each warp multiplies by itself.

constexpr int UNITS = QUERIES / (8 * UNIT) * (KEYS / 16);

template <typename Memory>
DEVICE void write_code(Memory &memory, const Arguments &a, const Sequence &s, int first_query,
                       int first_key, int end) {
#pragma unroll 1
    for (int unit = my_warp(); unit < UNITS; unit += WARPS) {
        const int row = unit % (QUERIES / (8 * UNIT)) * 8 * UNIT;
        const int column = unit / (QUERIES / (8 * UNIT)) * 16;
        if (first_key + column >= end) continue;  // nobody will read it
        const Shared keys = shared_address(memory.k) + HeadRows::left_rows(column);
        const Shared queries = shared_address(memory.q) + HeadRows::right_rows<UNIT>(row);
        write_unit(memory, a, s, row, column, first_query + row, first_key + column,
                   [=](Scores &score, int group) {
                       head_scores<8, UNIT>(score, keys + group * 8 * KEYS * HeadRows::ROW,
                                            queries + group * 8 * QUERIES * HeadRows::ROW);
                   });
    }
}
