"""`explain(q, k, v)`: which path `attention` would take, why, and what would be faster."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyla.attention.dispatch import Path, choose_path, wants_kernel
from hyla.attention.distance import DistanceBias
from hyla.attention.kernels import ELSEWHERE, ON_REQUEST
from hyla.attention.pairs import as_pairs
from hyla.attention.paths import linear
from hyla.attention.paths.chunking import queries_per_chunk
from hyla.attention.precision import in_autocast_dtype
from hyla.attention.spec import AttentionSpec, resolve_spec
from hyla.attention.validation import check_arguments

PATHS = {
    "reference": "the equations, by PyTorch's own operations",
    "small_head": "the fused kernel for heads up to 16",
    "large_head": "the fused kernel for larger heads, on tensor cores",
    "large_head_plain": "the fused kernel for larger heads, without tensor cores",
    "large_head_softmax": "the fused kernels for larger heads and a softmax, on tensor cores",
    "large_head_plain_softmax": "the kernels for larger heads and a softmax, without tensor cores",
    "large_head_plain_dropout": "the kernel for larger heads and dropout, without tensor cores",
    "small_head_cpu": "the kernel for heads up to 16 on a CPU",
    "decode": "the fused kernel for one query against a cache",
    "scaled_dot_product_attention": "PyTorch's fused softmax attention",
    "linear_time": "sums of keys and values, in time linear in the tokens",
}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What would become of a call; as a string, three lines for people.

    `path` is a name of `PATHS` (or two of them with " + "), None where the call would raise.
    `faster` lists changes of the call, each of which would put it on a faster path.
    """

    path: str | None
    reason: str
    faster: tuple[str, ...]

    def __str__(self) -> str:
        names = self.path.split(" + ") if self.path else []
        path = ", then ".join(f"{name} ({PATHS[name]})" for name in names)
        faster = "; ".join(self.faster) or "nothing that changes the call alone"
        return f"path: {path or 'none, it raises'}\nwhy: {self.reason}\nfaster: {faster}"


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attention: str | AttentionSpec = "hyla",
    bias: Tensor | DistanceBias | None = None,
    bias_masks: bool = True,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
    value_weight: Tensor | None = None,
    code_multiplier: Tensor | None = None,
    return_code: bool | Tensor | Sequence[tuple[int, int]] = False,
) -> Explanation:
    """Say which path `attention` with the same arguments would take, and why. Computes nothing.

    (Where a kernel for the CPU is asked about first, the compiler is tried, which takes a second.)
    Whether gradients are needed, autocast and the device count as they would there; the answer is
    that of a call which is not compiled.
    """
    spec = resolve_spec(attention)
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))
    operands = {"bias": bias, "mask": mask, "code_multiplier": code_multiplier}
    check_arguments(
        *(q, k, v),
        spec=spec,
        value_weight=value_weight,
        eps=eps,
        backend=backend,
        return_code=return_code if isinstance(return_code, bool) else as_pairs(return_code),
        **operands,
    )
    options = operands | {
        "spec": spec,
        "scale": 1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        "eps": eps,
        "bias_masks": bias_masks,
        "causal": causal,
        "value_weight": value_weight,
    }
    call = _Call(backend, q, k, v, options)
    path, reason = call.outcome()
    faster = [words for words, changed in _changes(call) if changed.speed() > call.speed()]
    if call.is_for_a_gpu():
        faster.append(
            "a CUDA GPU (for heads larger than 16 a Hopper or newer), where there is a fused kernel"
        )
    if return_code is True and path not in ("reference", None):
        faster.append("return_code=[(query, key), ...]: the codes of all pairs are computed beside")
    return Explanation(path=path, reason=reason, faster=tuple(faster))


class _Call(NamedTuple):
    """The arguments of a call, to be asked again with some of them changed."""

    backend: str
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]

    def chosen(self) -> Path | str:
        return choose_path(
            self.q, self.k, self.v, if_faster=self.backend != "fused", **self.options
        )

    def outcome(self) -> tuple[str | None, str]:
        """Return the path and why it is taken."""
        chosen = self.chosen() if wants_kernel(self.backend, self.q) else self._why_not_asked()
        if not isinstance(chosen, str):
            return chosen.name, f"backend {self.backend!r} takes what is fastest and applies"
        if self.backend == "fused":
            return None, f"backend 'fused' cannot compute this: {chosen}"
        rows = queries_per_chunk(self.q, self.k, self.v, self.options["spec"])
        if rows < self.q.shape[1]:
            chosen += f" (memory: {rows} queries at a time, computed again in the backward pass)"
        return "reference", chosen

    def _why_not_asked(self) -> str:
        if self.backend == "reference":
            return "backend 'reference' was asked for"
        here = f"backend 'auto' looks for kernels on CUDA devices, and q is on {self.q.device}"
        reason = self.why_no_kernel()
        if reason is None or reason.startswith(ELSEWHERE):
            return here
        if reason.endswith(ON_REQUEST):
            return f"{here}; on one, {reason}"
        return f"{here}; a CUDA device would not help: {reason}"

    def why_no_kernel(self) -> str | None:
        chosen = self.chosen()
        return chosen if isinstance(chosen, str) else None

    def is_for_a_gpu(self) -> bool:
        """Say whether there is a kernel for GPUs, and the tensors are elsewhere."""
        chosen = self.chosen()
        if isinstance(chosen, str):
            return chosen.startswith(ELSEWHERE)
        return "small_head_cpu" in chosen.name.split(" + ")

    def speed(self) -> int:
        """Rank the path: the equations, kernels in plain arithmetic, whatever else there is.

        Of two, the slower counts.
        """
        path, _ = self.outcome()
        if path is None or (path == "linear_time" and self.k.shape[1] <= linear.CHUNK):
            return 0  # one chunk is what the equations compute
        slow = {name: 1 for name in PATHS if name.startswith("large_head_plain")} | {"reference": 0}
        return min(slow.get(part, 2) for part in path.split(" + "))

    def with_options(self, **changes: Any) -> "_Call":
        return self._replace(options=self.options | changes)

    def with_operands(self, change: Callable[[Tensor], Tensor]) -> "_Call":
        """Change q, k and v, and what of the rest is floating point."""

        def changed(x: Any) -> Any:
            if isinstance(x, DistanceBias):
                return DistanceBias(change(x.table))
            return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x

        options = {name: changed(x) for name, x in self.options.items()}
        return _Call(self.backend, change(self.q), change(self.k), change(self.v), options)


def _changes(call: _Call) -> Iterator[tuple[str, _Call]]:
    """Yield what a caller could do otherwise, in words and done."""
    q, spec = call.q, call.options["spec"]
    given = [name for name in ("mask", "bias", "code_multiplier") if call.options[name] is not None]
    backend = "auto" if q.is_cuda else "fused"
    yield f"backend={backend!r}", call._replace(backend=backend)
    if q.dtype in (torch.float32, torch.float64):
        yield "bfloat16, as under torch.autocast", call.with_operands(_in_bfloat16)
    yield "no gradients (torch.no_grad())", call.with_operands(Tensor.detach)
    if "mask" in given:
        padding = torch.ones(len(q), 1, 1, call.k.shape[1], dtype=torch.bool, device=q.device)
        words = "if the mask is causality and key padding: causal=True, mask=padding[:, None, None]"
        yield words, call.with_options(mask=padding, causal=True)
    if "bias" in given:
        words = "bias_masks=False, if no bias is -inf"
        yield words, call.with_options(bias_masks=False)
    for name in given:
        yield f"no {name}", call.with_options(**{name: None})
    if not isinstance(spec.phi, str):
        words = "φ by its name, if it has one in hyla.attention.PHIS"
        yield words, call.with_options(spec=replace(spec, phi="relu"))


def _in_bfloat16(x: Tensor) -> Tensor:
    """Return a tensor of that shape and dtype that takes no memory: nobody reads it."""
    one = torch.empty(1, dtype=torch.bfloat16, device=x.device, requires_grad=x.requires_grad)
    return one.expand(x.shape)
