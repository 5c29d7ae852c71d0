"""Calls of the small-head kernel, at plans of one's own, and what they are held to."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyla.attention.distance import DistanceBias
from hyla.attention.kernels import small_head
from hyla.attention.kernels.call import Call
from hyla.attention.kernels.formula import Formula
from hyla.attention.kernels.ops import fused_attention
from hyla.attention.kernels.plans.small import Plan
from hyla.attention.reference import reference_attention
from hyla.attention.spec import AttentionSpec


@dataclass(frozen=True)
class Case:
    H: int
    D: int
    Tq: int
    Tk: int
    lanes: int = 1
    rows: int = 1
    B: int = 2
    biases: int = 0  # 0: no bias
    by_distance: bool = False
    bias_masks: bool = True
    warps: int = 0  # that walk once; 0: the backward takes two passes
    causal: bool = False
    padding: bool = False
    multipliers: int = 0  # 0: none
    normalisation: str = "rms_head"
    value: str = "hidden"
    phi: str = "relu"
    prefetch: bool = False
    deterministic: bool = False
    dtype: torch.dtype = torch.float32

    def __str__(self):
        names = ("causal", "padding", "prefetch", "deterministic", "by_distance")
        flags = [name for name in names if getattr(self, name)]
        return "-".join(
            [
                f"H{self.H}D{self.D}Tq{self.Tq}Tk{self.Tk}B{self.B}G{self.lanes}R{self.rows}",
                *([f"W{self.warps}"] if self.warps else []),
                *([f"bias{self.biases}"] if self.biases else []),
                *([] if self.bias_masks else ["unmasked"]),
                *([f"multiplier{self.multipliers}"] if self.multipliers else []),
                *(self.normalisation, self.value, self.phi, *flags, str(self.dtype)[6:]),
            ]
        )


def draw(case, seed=0) -> tuple[tuple[Any, ...], Any, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(case.dtype)

    q = normal(case.B, case.Tq, case.H, case.D)
    k, v = (normal(case.B, case.Tk, case.H, case.D) for _ in "kv")
    pairs = (case.Tq + case.Tk - 1,) if case.by_distance else (case.Tq, case.Tk)
    bias = normal(case.biases, case.H, *pairs) if case.biases else None
    padding = torch.rand(case.B, case.Tk, generator=generator) > 0.3 if case.padding else None
    return (q, k, v, bias), padding, normal(*q.shape)


SCALE, EPS = 0.7, 1e-6
KERNEL = "small_head"


def multiplier_of(case):
    """Like attention dropout: some pairs out, the others louder, each by its own amount."""
    if not case.multipliers:
        return None
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(case.multipliers, case.Tq, case.Tk, generator=generator)
    return (drawn > 0.3) * (1 + drawn)


def reference(case, q, k, v, bias, padding):
    steps = tuple(case.normalisation.split("+"))
    spec = AttentionSpec(normalisation=steps, value=case.value, phi=case.phi)
    mask = torch.ones(1, 1, case.Tq, case.Tk, dtype=torch.bool)
    if case.causal:
        mask = mask.tril(case.Tk - case.Tq)
    if padding is not None:
        mask = mask & padding[:, None, None]
    if case.by_distance:
        bias = DistanceBias(bias).for_pairs(case.Tk)
    if bias is not None:
        bias = bias.repeat_interleave(case.B // case.biases, dim=0)
    multiplier = multiplier_of(case)
    if multiplier is not None:
        multiplier = multiplier.repeat_interleave(case.B // case.multipliers, dim=0)[:, None]
    options = {"bias": bias, "mask": mask, "code_multiplier": multiplier}
    return reference_attention(q, k, v, spec=spec, scale=SCALE, eps=EPS, **options)[0]


def fused(case, q, k, v, bias=None, padding=None):
    formula = Formula(
        normalisation=case.normalisation,
        value=case.value,
        phi=case.phi,
        scale=SCALE,
        eps=EPS,
        causal=case.causal,
    )
    options = {"bias": bias, "padding": padding, "multiplier": multiplier_of(case)}
    options |= {"bias_masks": case.bias_masks, "deterministic": case.deterministic}
    return fused_attention(KERNEL, Call(q, k, v, formula=formula, **options))


def with_gradients(function, case, inputs, padding, upstream, dtype):
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
    output = function(case, *leaves, padding)
    output.backward(upstream.to(dtype))
    return [output.detach(), *(x.grad for x in leaves if x is not None)]


def use_plan(monkeypatch, case):
    plan = Plan(lanes=case.lanes, rows=case.rows, threads=64, prefetch=case.prefetch)
    monkeypatch.setattr(small_head, "choose_plan", lambda pass_name, own: plan)
    walk = Plan(lanes=case.lanes, rows=2, threads=32 * case.warps) if case.warps else None
    monkeypatch.setattr(small_head, "choose_one_walk", lambda call, room: walk)


def assert_as_good_as_torch(case, inputs, padding, upstream, floor=None):
    exact = with_gradients(reference, case, inputs, padding, upstream, torch.float64)
    plain = with_gradients(reference, case, inputs, padding, upstream, case.dtype)
    ours = with_gradients(fused, case, inputs, padding, upstream, case.dtype)
    # A float32 sum of a few terms in another order may be off by a few roundings of the largest.
    floor = floor or (4e-6 if case.dtype == torch.float32 else 4e-3)
    for name, truth, theirs, mine in zip(
        ("output", "dq", "dk", "dv", "dbias"), exact, plain, ours, strict=False
    ):
        assert mine.shape == truth.shape
        error = (mine.double() - truth).abs().max().item()
        allowed = 2 * (theirs.double() - truth).abs().max().item() + floor * truth.abs().max()
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"
