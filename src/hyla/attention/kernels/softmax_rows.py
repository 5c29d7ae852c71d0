"""What a softmax needs of whole rows, from PyTorch's own flash attention.

The kernels see a few keys at a time. The logarithm of a softmax's sum is theirs to read; and of its
gradient ds = a (da - δ), with δ = Σ_k a da, they compute a da and δ. What is left, dq and dk of
ds = -a δ, is what flash attention computes in its backward for values of 0, if the product of its
output and its upstream gradient is δ.

The operators are PyTorch's internal ones, because the public function neither returns the sums nor
takes an output of ours.
"""

import torch
from torch import Tensor

_MOST_BATCH = 65_535  # a dimension of their grid


def known(q: Tensor, k: Tensor, *, causal: bool) -> bool:
    """Say whether flash attention can compute the rows of these, without bias and padding."""
    # Theirs lets the first query see the first key; ours, the last the last.
    aligned = not causal or q.shape[1] in (1, k.shape[1])
    built = q.device.type != "cuda" or _is_built()
    return aligned and q.shape[0] <= _MOST_BATCH and built


@torch.compiler.assume_constant_result
def _is_built() -> bool:
    return torch.backends.cuda.is_flash_attention_available()


def log_sums(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Return the logarithms [B, Tq, H] of the sums over the keys that a softmax divides by."""
    return _attend(q, k, causal=causal, scale=scale)[1]


def rest_of_gradients(
    q: Tensor,
    k: Tensor,
    log_sum: Tensor,
    row_sums: Tensor,
    *,
    causal: bool,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    """Return what the gradients of q and k lack, given `row_sums` [B, Tq, H], scale · δ.

    Flash attention adds up dq in any order; if that may not be, it is found from the mean key.
    """
    if q.numel() == 0 or k.numel() == 0 or scale == 0:
        return torch.zeros_like(q), torch.zeros_like(k)
    ours, upstream = _factors_of(row_sums / scale, q)
    dq, dk = _differentiate(
        upstream, q, k, torch.zeros_like(k), ours, log_sum, causal=causal, scale=scale
    )
    if deterministic:
        dq = -row_sums[..., None] * _attend(q, k, causal=causal, scale=scale)[0]
    return dq, dk


def _factors_of(delta: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors like `like` whose product, summed over d, is `delta` to many digits."""
    most = torch.finfo(like.dtype).max
    high = delta.clamp(-most, most).to(like.dtype)
    low = (delta - high).clamp(-most, most).to(like.dtype)
    one, other = (torch.zeros(like.shape, dtype=like.dtype, device=like.device) for _ in "12")
    one[..., 0], one[..., 1] = high, low
    other[..., :2] = 1
    return one, other


# ------------------------------------------------------------------ PyTorch's operators


def _attend(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return the mean key of each query [B, Tq, H, D] and the logarithms of the sums."""
    if q.numel() == 0 or k.numel() == 0:
        empty = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
        return torch.zeros_like(q), empty
    causal = causal and q.shape[1] > 1
    queries, keys = q.transpose(1, 2), k.transpose(1, 2)
    if q.device.type == "cuda":
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        mean, log_sum, *_ = flash(queries, keys, keys, 0.0, causal, False, scale=scale)
    else:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mean, log_sum = flash(queries, keys, keys, 0.0, causal, scale=scale)
    # Some versions round the number of queries up.
    return mean.transpose(1, 2), log_sum[..., : q.shape[1]].transpose(1, 2)


def _differentiate(
    upstream: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    log_sum: Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    causal = causal and q.shape[1] > 1
    tensors = [x.transpose(1, 2) for x in (upstream, q, k, v, output)]
    log_sum = log_sum.transpose(1, 2).contiguous()
    aten = torch.ops.aten
    if q.device.type == "cuda":
        state = torch.empty(2, dtype=torch.uint64, device=q.device)  # of a dropout, if there was
        lengths = (None, None, q.shape[1], k.shape[1])
        dq, dk, _ = aten._scaled_dot_product_flash_attention_backward(
            *tensors, log_sum, *lengths, 0.0, causal, state, state, scale=scale
        )
    else:
        dq, dk, _ = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, log_sum, 0.0, causal, scale=scale
        )
    return dq.transpose(1, 2), dk.transpose(1, 2)
