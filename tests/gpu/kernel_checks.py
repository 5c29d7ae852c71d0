"""What the GPU tests of the kernels share: draws, the exact result, and how far one may be off."""

from typing import Any

import torch

from hyla.attention.distance import DistanceBias
from hyla.attention.groups import for_every_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.choice import choose_kernel
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.phi import PHIS
from hyla.attention.reference import reference_attention
from hyla.attention.spec import AttentionSpec, resolve_spec

SCALE, EPS = 0.7, 1e-6
PLAIN_OUTPUT = {"output": "plain", "gain": 1.0, "row_factor": None}
HYLA: dict[str, Any] = {"normalisation": "rms_head", "value": "hidden", "phi": "relu"}
NAMES = ("output", "dq", "dk", "dv", "dbias")
# Roundings of the largest entry.
FLOOR = {torch.float32: 4e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (scale * torch.randn(*shape, device="cuda")).to(dtype)


def member_of(name):
    """Return the member of the family as kernels know it."""
    spec = resolve_spec(name)
    steps = "+".join(map(str, spec.normalisation_steps))
    phi = "identity" if spec.value == "linear" else spec.phi
    return {"normalisation": steps, "value": spec.value, "phi": phi}


def _mask(q, k, padding, causal):
    mask = torch.ones(1, 1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    if causal:
        mask = mask.tril(k.shape[1] - q.shape[1])
    return mask if padding is None else mask & padding[:, None, None]


def _scaled(o, *, output, gain, row_factor):
    if output == "rows":
        rows = row_factor.to(o.dtype).repeat_interleave(len(o) // len(row_factor), dim=0)
        o = o * rows[:, :, None, None]
    if output == "rms":
        o = o * (o.square().mean((2, 3), keepdim=True) + EPS).rsqrt()
    return gain * o


def _split(options):
    """Tell what becomes of the output from the member of the family."""
    stage = {name: options.pop(name, default) for name, default in PLAIN_OUTPUT.items()}
    return stage, options


def reference(q, k, v, bias=None, padding=None, *, causal=False, **options):
    """Compute as `hyla.attention` does without kernels: half precision in float32."""
    stage, member = _split(options)
    k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
    if bias is not None:
        bias = DistanceBias(bias).for_pairs(k.shape[1]) if bias.ndim == 3 else bias
        bias = bias.repeat_interleave(q.shape[0] // bias.shape[0], dim=0)
    options = {"scale": SCALE, "eps": EPS, "bias": bias, "mask": _mask(q, k, padding, causal)}
    member["normalisation"] = tuple(member["normalisation"].split("+"))
    o = reference_attention(q, k, v, spec=AttentionSpec(**member), **options)[0]
    return _scaled(o, **stage)


def einsums(q, k, v, bias=None, padding=None, *, causal=False, **options):
    """Compute the products in the dtype of q, and what is between them in float32.

    In float16 the gradient of a small code through RMSHead leaves its range.
    """
    stage, member = _split(options)
    return _scaled(_raw_einsums(q, k, v, bias, padding, causal=causal, **member), **stage)


def _raw_einsums(q, k, v, bias, padding, *, causal, normalisation, value, phi):
    k, v = (for_every_head(x, q.shape[2]) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q * SCALE, k)
    if bias is not None:
        scores = scores + bias.to(q.dtype).repeat_interleave(len(q) // len(bias), dim=0)
    mask = _mask(q, k, padding, causal)
    code = scores.float() * mask
    for step in normalisation.split("+"):
        if step == "softmax":
            shares = torch.softmax(code.masked_fill(~mask, -torch.inf), -1)
            code = shares.masked_fill(~mask, 0)  # also of a query that sees no key
        if step == "rms_head":
            mean = code.square().mean(1, keepdim=True)
            code = code * (mean + EPS).rsqrt()
    code = code.to(q.dtype)
    if value == "linear":
        return torch.einsum("bhqk,bkhd->bqhd", code, v)
    hidden = PHIS[phi](torch.einsum("bhqk,bkhd->bqkd", code, v))
    return torch.einsum("bhqk,bqkd->bqhd", code, hidden)


def fused(
    q,
    k,
    v,
    bias=None,
    padding=None,
    *,
    causal=False,
    deterministic=False,
    row_factor=None,
    **member,
):
    formula = Formula(scale=SCALE, eps=EPS, causal=causal, **member)
    options: dict[str, Any] = {"row_factor": row_factor, "deterministic": deterministic}
    if bias is not None and bias.ndim == 3:  # by distance: learned, as T5's
        options["bias_masks"] = False
    call = Call(q, k, v, formula=formula, bias=bias, padding=padding, **options)
    kernel, reason = choose_kernel(call)
    assert kernel is not None, reason
    return fused_attention(kernel, call)


def with_gradients(function, tensors, padding, upstream, dtype, **options):
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in tensors]
    output = function(*leaves, padding, **options)
    output.backward(upstream.to(dtype))
    return [output.detach(), *(x.grad for x in leaves if x is not None)]


def assert_as_good_as_torch(tensors, padding=None, *, baseline=reference, **options):
    """Hold output and gradients to twice the error of `baseline` in the same dtype."""
    dtype = tensors[0].dtype
    upstream = torch.randn_like(tensors[0])
    exact = with_gradients(reference, tensors, padding, upstream, torch.float64, **options)
    plain = with_gradients(baseline, tensors, padding, upstream, dtype, **options)
    ours = with_gradients(fused, tensors, padding, upstream, dtype, **options)
    missed = []
    for name, truth, theirs, mine in zip(NAMES, exact, plain, ours, strict=False):
        error, theirs = (_size(x.double() - truth, baseline) for x in (mine, theirs))
        allowed = 2 * theirs + FLOOR[dtype] * _size(truth, baseline)
        if not error <= allowed:
            limit = f"allowed {allowed:.2e} for torch's {theirs:.2e}"
            missed.append(f"{name}: error {error:.2e}, {limit}; {_where(mine, truth)}")
    assert not missed, _told(missed, tensors, padding is not None, options)


def _where(mine, truth):
    """Say what a log must tell: where it is wrong most, in how many places, and by how much."""
    off = (mine.to(truth.device).double() - truth).abs().nan_to_num(nan=torch.inf)
    at = torch.unravel_index(off.argmax(), off.shape)
    return (
        f"of {tuple(mine.shape)} worst at {tuple(map(int, at))}, {mine[at].item():.6g} for "
        f"{truth[at].item():.6g}; {(off >= off.max() / 2).sum().item()} entries half as wrong, "
        f"{(~mine.isfinite()).sum().item()} not finite, largest {truth.abs().max().item():.2e}"
    )


def _told(missed, tensors, padded, options):
    shapes = ", ".join(str(tuple(x.shape)) for x in tensors if x is not None)
    call = f"seed {torch.initial_seed()}, {tensors[0].dtype} {shapes}, padded {padded}, {options}"
    return "\n".join([call, *missed])


def check_bias_of_minus_infinity(q, k, v, bias, *, deterministic=False, **options):
    """Mask some pairs by the bias, and all of one query; the truth is the CPU's, which looks."""
    masked = torch.rand(bias.shape, device="cuda") > 0.6
    masked[:, :, 0] = True
    tensors = (q, k, v, bias.to(q.dtype).masked_fill(masked, -torch.inf))
    upstream, member = torch.randn_like(q), HYLA | {"phi": "silu"} | options
    on_cpu = [x.cpu() for x in tensors]
    exact = with_gradients(reference, on_cpu, None, upstream.cpu(), torch.float64, **member)
    member["deterministic"] = deterministic
    ours = with_gradients(fused, tensors, None, upstream, q.dtype, **member)
    missed = []
    for name, truth, mine in zip(NAMES, exact, ours, strict=True):
        error = ((mine.cpu().double() - truth).norm() / truth.norm()).item()
        if not error <= 4 * FLOOR[q.dtype]:
            missed.append(f"{name}: relative error {error:.2e}; {_where(mine, truth)}")
    assert not missed, _told(missed, tensors, False, member)
    output, dq, *_, dbias = ours
    assert not output[:, 0].any()
    assert not dq[:, 0].any()
    assert not dbias[masked].any()


def check_nan_in_a_later_token(q, k, v, *, at, **options):
    """Put NaN into a key or value: the outputs before it stay what they were, to the bit."""
    member = HYLA | {"phi": "silu", "causal": True} | options
    want = fused(q, k, v, **member)[:, :at]
    hole = torch.zeros(k.shape[1], 1, 1, device="cuda", dtype=k.dtype)
    hole[at] = torch.nan
    for to_k, to_v in ((hole, hole), (hole, 0), (0, hole)):
        output = fused(q, k + to_k, v + to_v, **member)
        assert torch.equal(output[:, :at], want)
        assert output[:, at:].isnan().all()


def captured(step):
    """Call `step`, which compiles its kernels, capture it, and return the graph and its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


def _size(x, baseline):
    """The largest entry; in half precision the norm: at ReLU's kink, rounding decides entries."""
    return (x.abs().max() if baseline is reference else x.norm()).item()


def check(*tensors, padding=None, **options):
    """Hold a call of HYLA to its dtype's own arithmetic in PyTorch: q, k, v and perhaps a bias."""
    tensors = (*tensors, None) if len(tensors) == 3 else tensors
    baseline = reference if tensors[0].dtype == torch.float32 else einsums
    assert_as_good_as_torch(tensors, padding, baseline=baseline, **HYLA | options)
