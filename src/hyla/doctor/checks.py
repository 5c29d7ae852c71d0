"""The self-check: does attention compute here what the equations say, gradients included?"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hyla.attention import PRESETS, attention
from hyla.attention.hypernetwork import hidden_value_network, linear_value_network, pair_codes
from hyla.doctor.kernels import CASES, Case, find_kernel
from hyla.nn import MultiHeadAttention

# Norm of the error over norm of the truth. A few roundings of each dtype; what is wrong is off by
# a good part of 1.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str
    seconds: float


class CheckError(Exception):
    """A number is off; the message says which and by how much."""


def run_checks(device: torch.device) -> Iterator[Check]:
    """Run every check that applies to `device`, one after the other."""
    checks: dict[str, Callable[[torch.device], str]] = {
        "equations, float32 against float64": equations_hold_in_float32,
        "attention is a hypernetwork": generated_weights_give_the_output,
        "gradients against finite differences": gradients_are_right,
    }
    for case in CASES:
        if find_kernel(case, device)[0] is not None:
            checks[f"kernel, {case.name}"] = partial(kernel_agrees, case)
    for name, check in checks.items():
        yield _run(name, check, device)


def _run(name: str, check: Callable[[torch.device], str], device: torch.device) -> Check:
    start = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            passed, detail = True, check(device)
    except CheckError as error:
        passed, detail = False, str(error)
    except (
        Exception
    ) as error:  # a crash is a finding too, and the other checks still tell something
        passed, detail = False, f"{type(error).__name__}: {error}"
    return Check(name=name, passed=passed, detail=detail, seconds=time.perf_counter() - start)


def equations_hold_in_float32(device: torch.device) -> str:
    """Compare every member of the family in float32 with itself in float64."""
    q, k, v = torch.randn(3, 2, 9, 4, 8, dtype=torch.float64, device=device)
    deep = torch.randn(4, 8, 8, dtype=torch.float64, device=device) / 8**0.5
    worst = 0.0
    for name, spec in PRESETS.items():
        weight = deep if spec.value == "deep" else None
        member = partial(attention, attention=name, causal=True, backend="reference")
        want = member(q, k, v, value_weight=weight)
        got = member(
            *(x.float() for x in (q, k, v)), value_weight=None if weight is None else weight.float()
        )
        worst = max(worst, _held(name, got, want, TOLERANCE[torch.float32]))
    return f"{len(PRESETS)} members of the family, errors up to {worst:.0e}"


def generated_weights_give_the_output(device: torch.device) -> str:
    """Form the value network of every query-key pair and add up what it makes of the keys."""
    worst = 0.0
    for name in ("hyla", "softmax", "linear"):
        layer = MultiHeadAttention(6, 3, attention=name, backend="reference")
        layer = layer.to(device, torch.float64)
        x = torch.randn(2, 5, 6, dtype=torch.float64, device=device)
        out, code = layer(x, return_code=True)
        pairs = torch.cartesian_prod(*(torch.arange(n, device=device) for n in (2, 5, 5)))
        codes, keys = pair_codes(code, pairs), x[pairs[:, 0], pairs[:, 2]]
        if name == "hyla":
            inner, outer = hidden_value_network(codes, *layer.head_weights())
            hidden = layer.spec.activate(torch.einsum("nde,ne->nd", inner, keys))
            values = torch.einsum("nod,nd->no", outer, hidden)
        else:
            (weight,) = linear_value_network(codes, *layer.head_weights())
            values = torch.einsum("noe,ne->no", weight, keys)
        summed = values.unflatten(0, (2, 5, 5)).sum(2) + layer.out_proj.bias
        worst = max(worst, _held(name, summed, out, TOLERANCE[torch.float64]))
    return f"generated weights give the layer's output, errors up to {worst:.0e}"


def gradients_are_right(device: torch.device) -> str:
    """Compare the gradients of HYLA, softmax and linear attention with finite differences."""
    for name in ("hyla", "softmax", "linear"):
        q, k, v = torch.randn(3, 1, 3, 2, 2, dtype=torch.float64, device=device)
        inputs = tuple(x.requires_grad_() for x in (q, k, v))
        member = partial(attention, attention=name, backend="reference")
        if not torch.autograd.gradcheck(member, inputs, raise_exception=False):
            raise CheckError(f"the gradients of {name} differ from finite differences")
    return "HYLA, softmax and linear attention"


def kernel_agrees(case: Case, device: torch.device) -> str:
    """Compare a fused kernel, output and gradients, with the equations in float64."""
    tensors, bias = case.operands(device)
    got = _outputs_and_gradients(case, tensors, bias, backend="fused")
    exact = [x.detach().double().requires_grad_(case.gradients) for x in tensors]
    exact_bias = None if bias is None else bias.detach().double().requires_grad_(case.gradients)
    want = _outputs_and_gradients(case, exact, exact_bias, backend="reference")
    tolerance = TOLERANCE[case.dtype]
    errors = [_held(name, got[name], want[name], tolerance) for name in want]
    return f"{', '.join(want)}: errors up to {max(errors):.0e}"


def _outputs_and_gradients(
    case: Case, tensors: list[Tensor], bias: Tensor | None, *, backend: str
) -> dict[str, Tensor]:
    q, k, v = tensors
    options = {"attention": case.attention, "bias": bias, "causal": case.causal}
    out = attention(q, k, v, backend=backend, **options)
    if not case.gradients:
        return {"output": out}
    upstream = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    inputs = {"dq": q, "dk": k, "dv": v} | ({} if bias is None else {"dbias": bias})
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream)
    return {"output": out, **dict(zip(inputs, gradients, strict=True))}


def _held(name: str, got: Tensor, want: Tensor, tolerance: float) -> float:
    """Return the relative error of `got`, or raise if it is not within the tolerance."""
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    if not error <= tolerance:  # NaN is not
        raise CheckError(f"{name} is off by {error:.1e}, allowed are {tolerance:.0e}")
    return error
