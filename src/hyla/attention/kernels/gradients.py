"""Whether a call will be differentiated, and how."""

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import (
    GradInterpreter,
    JvpInterpreter,
    retrieve_all_functorch_interpreters,
)
from torch.autograd import forward_ad


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Say whether a backward pass may follow; tensors inside `vmap` do not tell by themselves."""
    if under_torch_func_grad():
        return True
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def is_differentiated(x: Tensor) -> bool:
    """Say whether a gradient of this very tensor may be asked for, also inside `vmap` or `grad`."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled() and x.requires_grad
    while is_functorch_wrapped_tensor(x) and not x.requires_grad:
        x = get_unwrapped(x)
    return torch.is_grad_enabled() and x.requires_grad


def under_torch_func_grad() -> bool:
    """Say whether `torch.func.grad` or one of its kin is at work."""
    return _is_active(GradInterpreter)


def why_not_forward_mode(*tensors: Tensor | None) -> str | None:
    """Say that a kernel has no forward-mode derivative, if one is asked for."""
    if torch.compiler.is_compiling():
        return None
    dual = forward_ad._current_level >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )
    if dual or _is_active(JvpInterpreter):
        return "the kernels have no forward-mode derivative (jvp, jacfwd)"
    return None


def _is_active(kind: type) -> bool:
    if torch.compiler.is_compiling():
        return False
    return any(isinstance(x, kind) for x in retrieve_all_functorch_interpreters())
