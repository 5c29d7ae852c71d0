// How blocks share out tokens, and where their sums go.
//
// The tokens of all members stand in one line, which is cut into equal pieces, one for each block. A
// block that crosses from one member to the next has two of what follows: weights to fetch, and a
// row of sums to write. Block b writes its sums for member m to row b + m, so rows of a member follow
// each other, and whoever adds them up does so in the same order in every run.

struct Line {
    int members, tokens, blocks;  // tokens of each member

    DEVICE long long length() const { return static_cast<long long>(members) * tokens; }
    DEVICE long long cut(int block) const { return length() * block / blocks; }
    // The block that has this place: the last one whose cut is not beyond it.
    DEVICE int block_at(long long place) const {
        return static_cast<int>(((place + 1) * blocks - 1) / length());
    }
};

struct Piece {
    int member, first, last;  // tokens first … last - 1 of a member
};

struct Share {
    long long at, end;
    int tokens;

    DEVICE Share(const Line &line, int block)
        : at(line.cut(block)), end(line.cut(block + 1)), tokens(line.tokens) {}
    DEVICE bool is_left() const { return at < end; }
    DEVICE Piece next() {
        const int member = static_cast<int>(at / tokens), first = static_cast<int>(at % tokens);
        const long long length = end - at, rest = tokens - first;
        const int taken = static_cast<int>(length < rest ? length : rest);
        at += taken;
        return {member, first, first + taken};
    }
};

// A piece in tiles of up to 64 tokens, one for each warpgroup at a time, all about as full.
struct Tiling {
    int passes, rows;

    DEVICE Tiling(const Piece &piece, int warpgroups) {
        const int length = piece.last - piece.first, at_once = 64 * warpgroups;
        passes = (length + at_once - 1) / at_once;
        const int tiles = passes * warpgroups;
        rows = (length + tiles - 1) / tiles;
    }
    DEVICE int first(const Piece &piece, int pass, int warpgroups) const {
        return piece.first + (pass * warpgroups + my_warpgroup()) * rows;
    }
};
