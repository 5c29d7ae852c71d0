"""What a transformer block does around attention, in Triton: five kernels for narrow models.

A program takes some tokens of one member through a whole chain of products and norms. What lies
between stays in registers, and is computed again in the backward pass instead of being kept:
memory is slower than arithmetic here. Parameters of a member follow each other in memory, so one
stride leads from each to the next member's.

    project   q, k, v = W (norm x) + b
    finish    between = x + W_out a + b,  y = between + W_down gelu(W_up (norm between) + b) + b

Sums over tokens (gradients of parameters) are cut into parts, one for each program, written as a
row of [member, part, ...] and added up by the caller: the same numbers in every run.
"""

import triton
import triton.language as tl

_GELU_LINEAR = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
_GELU_CUBIC = tl.constexpr(0.044715)


@triton.jit
def _rows_of(base, first, tokens, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load tokens [ROWS, WIDTH] from `first` on, in float32; zeros beyond the last one."""
    rows = first + tl.arange(0, ROWS)[:, None]
    at = rows * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(base + at, mask=rows < tokens, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(base, values, first, tokens, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = first + tl.arange(0, ROWS)[:, None]
    at = rows * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(base + at, values.to(base.dtype.element_ty), mask=rows < tokens)


@triton.jit
def _vector(base, SIZE: tl.constexpr):
    return tl.load(base + tl.arange(0, SIZE)).to(tl.float32)


@triton.jit
def _matrix(base, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * row_stride + tl.arange(0, COLUMNS)[None, :]
    return tl.load(base + at)


@triton.jit
def _store_matrix(base, values, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * row_stride + tl.arange(0, COLUMNS)[None, :]
    tl.store(base + at, values)


@triton.jit
def _product(a, b, BF16: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply on tensor cores, in bfloat16 or as `PRECISION` says; the sum is float32."""
    if BF16:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)


@triton.jit
def _centred(x, WIDTH: tl.constexpr):
    return x - tl.sum(x, axis=1)[:, None] / WIDTH


@triton.jit
def _inverse_deviation(centred, eps, WIDTH: tl.constexpr):
    """Return one over the standard deviation of each row [ROWS, 1]."""
    return 1 / tl.sqrt(tl.sum(centred * centred, axis=1)[:, None] / WIDTH + eps)


@triton.jit
def _standardised(x, eps, WIDTH: tl.constexpr):
    centred = _centred(x, WIDTH)
    return centred * _inverse_deviation(centred, eps, WIDTH)


@triton.jit
def _through_standardising(upstream, standardised, inverse, WIDTH: tl.constexpr):
    """Return the gradient with respect to what was standardised."""
    mean = tl.sum(upstream, axis=1)[:, None] / WIDTH
    along = tl.sum(upstream * standardised, axis=1)[:, None] / WIDTH
    return (upstream - mean - standardised * along) * inverse


@triton.jit
def _gate(h):
    """Return what the tanh-approximated GELU multiplies h by: (1 + tanh u) / 2 = sigmoid(2 u)."""
    return tl.sigmoid(2 * _GELU_LINEAR * (h + _GELU_CUBIC * h * h * h))


@triton.jit
def _gelu_slope(h, gate):
    slope_of_gate = gate * (1 - gate) * 2 * _GELU_LINEAR * (1 + 3 * _GELU_CUBIC * h * h)
    return gate + h * slope_of_gate


@triton.jit
def project_forward(
    x,  # [P, N, E]
    gain,  # [P, E] and so on, `stride` from member to member
    shift,
    q_weight,
    q_bias,
    k_weight,
    k_bias,
    v_weight,
    v_bias,
    q,  # [P, N, QK]
    k,
    v,  # [P, N, V]
    tokens,
    stride,
    eps,
    E: tl.constexpr,
    QK: tl.constexpr,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Queries, keys and values of the normalised tokens. Grid: blocks of tokens, members."""
    first = tl.program_id(0) * ROWS
    member = tl.program_id(1).to(tl.int64)
    own = member * stride
    standardised = _standardised(_rows_of(x + member * tokens * E, first, tokens, ROWS, E), eps, E)
    normed = standardised * _vector(gain + own, E)[None, :] + _vector(shift + own, E)[None, :]
    out = _product(normed, tl.trans(_matrix(q_weight + own, E, QK, E)), BF16, PRECISION)
    out += _vector(q_bias + own, QK)[None, :]
    _store_rows(q + member * tokens * QK, out, first, tokens, ROWS, QK)
    out = _product(normed, tl.trans(_matrix(k_weight + own, E, QK, E)), BF16, PRECISION)
    out += _vector(k_bias + own, QK)[None, :]
    _store_rows(k + member * tokens * QK, out, first, tokens, ROWS, QK)
    out = _product(normed, tl.trans(_matrix(v_weight + own, E, V, E)), BF16, PRECISION)
    out += _vector(v_bias + own, V)[None, :]
    _store_rows(v + member * tokens * V, out, first, tokens, ROWS, V)


@triton.jit
def project_backward(
    x,  # [P, N, E]
    dq,  # [P, N, QK]
    dk,
    dv,  # [P, N, V]
    gain,
    q_weight,
    k_weight,
    v_weight,
    dx,  # [P, N, E]
    sums,  # [P, parts, total]: for each of q, k, v the products [.., E] and the sum of upstream
    tokens,
    stride,
    total,
    eps,
    E: tl.constexpr,
    QK: tl.constexpr,
    V: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of `project_forward`. Grid: parts of the tokens, members."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    member = tl.program_id(1).to(tl.int64)
    own = member * stride
    x += member * tokens * E
    dx += member * tokens * E
    dq += member * tokens * QK
    dk += member * tokens * QK
    dv += member * tokens * V
    scale = _vector(gain + own, E)[None, :]
    wq = _matrix(q_weight + own, E, QK, E)
    wk = _matrix(k_weight + own, E, QK, E)
    wv = _matrix(v_weight + own, E, V, E)
    dwq = tl.zeros([QK, E], tl.float32)
    dwk = tl.zeros([QK, E], tl.float32)
    dwv = tl.zeros([V, E], tl.float32)
    dbq = tl.zeros([QK], tl.float32)
    dbk = tl.zeros([QK], tl.float32)
    dbv = tl.zeros([V], tl.float32)
    for turn in range(TURNS):
        first = (turn * parts + part) * ROWS
        centred = _centred(_rows_of(x, first, tokens, ROWS, E), E)
        inverse = _inverse_deviation(centred, eps, E)
        standardised = centred * inverse
        upstream = _rows_of(dq, first, tokens, ROWS, QK)
        dnormed = _product(upstream, wq, BF16, PRECISION)
        dwq += _product(tl.trans(upstream), standardised, BF16, PRECISION)
        dbq += tl.sum(upstream, axis=0)
        upstream = _rows_of(dk, first, tokens, ROWS, QK)
        dnormed += _product(upstream, wk, BF16, PRECISION)
        dwk += _product(tl.trans(upstream), standardised, BF16, PRECISION)
        dbk += tl.sum(upstream, axis=0)
        upstream = _rows_of(dv, first, tokens, ROWS, V)
        dnormed += _product(upstream, wv, BF16, PRECISION)
        dwv += _product(tl.trans(upstream), standardised, BF16, PRECISION)
        dbv += tl.sum(upstream, axis=0)
        gradient = _through_standardising(dnormed * scale, standardised, inverse, E)
        _store_rows(dx, gradient, first, tokens, ROWS, E)
    sums += (member * parts + part) * total
    _store_matrix(sums, dwq, E, QK, E)
    tl.store(sums + QK * E + tl.arange(0, QK), dbq)
    sums += QK * E + QK
    _store_matrix(sums, dwk, E, QK, E)
    tl.store(sums + QK * E + tl.arange(0, QK), dbk)
    sums += QK * E + QK
    _store_matrix(sums, dwv, E, V, E)
    tl.store(sums + V * E + tl.arange(0, V), dbv)


@triton.jit
def finish_forward(
    x,  # [P, N, E]
    attended,  # [P, N, V]
    out_weight,
    out_bias,
    gain,
    shift,
    up_weight,
    up_bias,
    down_weight,
    down_bias,
    between,  # [P, N, E]
    y,  # [P, N, E]
    tokens,
    stride,
    eps,
    E: tl.constexpr,
    V: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add both branches to the stream. Grid: blocks of tokens, members."""
    first = tl.program_id(0) * ROWS
    member = tl.program_id(1).to(tl.int64)
    own = member * stride
    stream = _rows_of(x + member * tokens * E, first, tokens, ROWS, E)
    heads = _rows_of(attended + member * tokens * V, first, tokens, ROWS, V)
    stream += _product(heads, tl.trans(_matrix(out_weight + own, V, E, V)), BF16, PRECISION)
    stream += _vector(out_bias + own, E)[None, :]
    _store_rows(between + member * tokens * E, stream, first, tokens, ROWS, E)
    # The backward pass begins from what was stored, so this does too.
    stream = stream.to(between.dtype.element_ty).to(tl.float32)
    standardised = _standardised(stream, eps, E)
    normed = standardised * _vector(gain + own, E)[None, :] + _vector(shift + own, E)[None, :]
    stream += _vector(down_bias + own, E)[None, :]
    for start in range(0, M, CHUNK):
        up = _matrix(up_weight + own + start * E, E, CHUNK, E)
        h = _product(normed, tl.trans(up), BF16, PRECISION)
        h += _vector(up_bias + own + start, CHUNK)[None, :]
        activated = h * _gate(h)
        down = _matrix(down_weight + own + start, M, E, CHUNK)
        stream += _product(activated, tl.trans(down), BF16, PRECISION)
    _store_rows(y + member * tokens * E, stream, first, tokens, ROWS, E)


@triton.jit
def finish_backward_tokens(
    between,  # [P, N, E]
    attended,  # [P, N, V]
    dy,  # [P, N, E]
    out_weight,
    gain,
    shift,
    up_weight,
    up_bias,
    down_weight,
    dx,  # [P, N, E]
    dattended,  # [P, N, V]
    sums,  # [P, parts, total]: weight and bias of out_proj, bias of down
    tokens,
    stride,
    total,
    eps,
    E: tl.constexpr,
    V: tl.constexpr,
    M: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of tokens and of what is not feed-forward weights. Grid: parts, members."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    member = tl.program_id(1).to(tl.int64)
    own = member * stride
    between += member * tokens * E
    dy += member * tokens * E
    dx += member * tokens * E
    attended += member * tokens * V
    dattended += member * tokens * V
    scale = _vector(gain + own, E)[None, :]
    offset = _vector(shift + own, E)[None, :]
    out = _matrix(out_weight + own, V, E, V)
    dout = tl.zeros([E, V], tl.float32)
    dout_bias = tl.zeros([E], tl.float32)
    ddown_bias = tl.zeros([E], tl.float32)
    for turn in range(TURNS):
        first = (turn * parts + part) * ROWS
        centred = _centred(_rows_of(between, first, tokens, ROWS, E), E)
        inverse = _inverse_deviation(centred, eps, E)
        standardised = centred * inverse
        normed = standardised * scale + offset
        upstream = _rows_of(dy, first, tokens, ROWS, E)
        ddown_bias += tl.sum(upstream, axis=0)
        dnormed = tl.zeros([ROWS, E], tl.float32)
        for start in range(0, M, CHUNK):
            up = _matrix(up_weight + own + start * E, E, CHUNK, E)
            down = _matrix(down_weight + own + start, M, E, CHUNK)
            h = _product(normed, tl.trans(up), BF16, PRECISION)
            h += _vector(up_bias + own + start, CHUNK)[None, :]
            dh = _product(upstream, down, BF16, PRECISION) * _gelu_slope(h, _gate(h))
            dnormed += _product(dh, up, BF16, PRECISION)
        upstream += _through_standardising(dnormed * scale, standardised, inverse, E)
        _store_rows(dx, upstream, first, tokens, ROWS, E)
        dheads = _product(upstream, out, BF16, PRECISION)
        _store_rows(dattended, dheads, first, tokens, ROWS, V)
        # Rows beyond the last token are zero in `upstream`: nothing standardised flows there.
        heads = _rows_of(attended, first, tokens, ROWS, V)
        dout += _product(tl.trans(upstream), heads, BF16, PRECISION)
        dout_bias += tl.sum(upstream, axis=0)
    sums += (member * parts + part) * total
    across = tl.arange(0, E)
    _store_matrix(sums, dout, V, E, V)
    sums += E * V
    tl.store(sums + across, dout_bias)
    tl.store(sums + E + across, ddown_bias)


@triton.jit
def finish_backward_weights(
    between,  # [P, N, E]
    dy,  # [P, N, E]
    gain,
    shift,
    up_weight,
    up_bias,
    down_weight,
    sums,  # [P, parts, total]: products [M, E] and sum of the gradient of h, weight of down
    tokens,
    stride,
    total,
    eps,
    E: tl.constexpr,
    M: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of the feed-forward weights. Grid: parts, members, chunks of the hidden layer."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    member = tl.program_id(1).to(tl.int64)
    start = tl.program_id(2) * CHUNK
    own = member * stride
    between += member * tokens * E
    dy += member * tokens * E
    scale = _vector(gain + own, E)[None, :]
    offset = _vector(shift + own, E)[None, :]
    up = _matrix(up_weight + own + start * E, E, CHUNK, E)
    bias = _vector(up_bias + own + start, CHUNK)[None, :]
    down = _matrix(down_weight + own + start, M, E, CHUNK)
    dup = tl.zeros([CHUNK, E], tl.float32)
    dup_bias = tl.zeros([CHUNK], tl.float32)
    ddown = tl.zeros([E, CHUNK], tl.float32)
    for turn in range(TURNS):
        first = (turn * parts + part) * ROWS
        standardised = _standardised(_rows_of(between, first, tokens, ROWS, E), eps, E)
        normed = standardised * scale + offset
        upstream = _rows_of(dy, first, tokens, ROWS, E)
        h = _product(normed, tl.trans(up), BF16, PRECISION) + bias
        gate = _gate(h)
        dh = _product(upstream, down, BF16, PRECISION) * _gelu_slope(h, gate)
        dup += _product(tl.trans(dh), standardised, BF16, PRECISION)
        dup_bias += tl.sum(dh, axis=0)
        ddown += _product(tl.trans(upstream), h * gate, BF16, PRECISION)
    sums += (member * parts + part) * total
    _store_matrix(sums + start * E, dup, E, CHUNK, E)
    tl.store(sums + M * E + start + tl.arange(0, CHUNK), dup_bias)
    _store_matrix(sums + M * E + M + start, ddown, M, E, CHUNK)
