"""The value networks of a Hugging Face model: its projections, read and compared.

Architectures name and pack their projections in different ways. They are read by those names, and
what was read is compared with what the layers compute: a wrong reading is an error, never a result.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hyla._hooks import hooks_removed
from hyla.integrations.transformers.codes.interception import AttentionCall, intercepted
from hyla.latents.capture import Inputs, run
from hyla.latents.hypernetworks import ValueNetworks
from hyla.latents.observe import Site, UnsupportedModelError

_VALUE_NAMES = ("v_proj", "v", "value", "v_lin", "c_attn", "qkv_proj", "query_key_value")
_OUT_NAMES = ("o_proj", "out_proj", "o", "out_lin", "c_proj", "dense")

# In float32 the two sides of the identity differ by rounding alone.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def value_networks(model: nn.Module, inputs: Inputs) -> dict[Site, ValueNetworks]:
    """Return what `hyla.latents.value_networks` returns of a transformers model."""
    found: dict[Site, ValueNetworks] = {}
    checked: set[Site] = set()
    parents = {child: module for module in model.modules() for child in module.children()}

    def read(call: AttentionCall) -> None:
        projection = _out_projection(call.module, parents.get(call.module))
        found[call.site] = networks = _read_networks(call, projection)

        def check(*call_of_projection: Any) -> None:
            hook.remove()
            _check(networks(call.code, call.source), call_of_projection[-1], call)
            checked.add(call.site)

        hook = projection.register_forward_hook(check)
        hooks.append(hook)

    hooks: list[RemovableHandle] = []
    with hooks_removed(hooks), intercepted(model, read):
        run(model, inputs)
    for site in found.keys() - checked:
        raise UnsupportedModelError(f"{site}: the projection that was taken for W_out never ran")
    return found


def _read_networks(call: AttentionCall, out_projection: nn.Module) -> ValueNetworks:
    num_heads, num_value_heads, size = call.code.shape[1], call.value.shape[1], call.value.shape[-1]
    w_out, b_out = _affine(out_projection)
    w_value, b_value = _value_weights(call, num_value_heads, size)
    copies = num_heads // num_value_heads
    return ValueNetworks(
        w_value=w_value.repeat_interleave(copies, dim=0),
        b_value=None if b_value is None else b_value.repeat_interleave(copies, dim=0),
        w_out=w_out.unflatten(1, (num_heads, size)).transpose(0, 1),
        b_out=b_out,
    )


def _value_weights(
    call: AttentionCall, num_heads: int, size: int
) -> tuple[Float[Tensor, "H D E"], Float[Tensor, "H D"] | None]:
    """Return the weights of the values, by head, from a projection of theirs or a common one."""
    projection = _child(call.module, _VALUE_NAMES)
    if projection is None:
        raise _unknown(call.module, "values", _VALUE_NAMES)
    weight, bias = _affine(projection)
    for rows in _value_rows(len(weight), num_heads, size):
        w, b = weight[rows], None if bias is None else bias[rows]
        value = torch.einsum("hde,bke->bhkd", w, call.source)
        value = value if b is None else value + b[:, None]
        if value.shape == call.value.shape and _agree(value, call.value):
            return w, b
    raise UnsupportedModelError(
        f"the values of {type(call.module).__name__} are not a projection of its input: its value "
        "networks are not those of Eq. 4"
    )


def _value_rows(total: int, num_heads: int, size: int) -> Iterator[Int64[Tensor, "H D"]]:
    """Yield the places where values may be in a projection: last, or last for each head."""
    rows = torch.arange(total)
    if total >= num_heads * size:
        yield rows[-num_heads * size :].view(num_heads, size)
    if total % (num_heads * size) == 0:
        yield rows.view(num_heads, -1, size)[:, -1]


def _out_projection(module: nn.Module, parent: nn.Module | None) -> nn.Module:
    """Return the projection of the heads' outputs: the layer's own, or beside it as in BERT."""
    beside = getattr(parent, "output", None)
    projection = _child(module, _OUT_NAMES) or (beside and _child(beside, ("dense",)))
    if projection is None:
        raise _unknown(module, "outputs", _OUT_NAMES)
    return projection


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _affine(projection: nn.Module) -> tuple[Float[Tensor, "O I"], Float[Tensor, " O"] | None]:
    if isinstance(projection, nn.Linear):
        weight, bias = projection.weight, projection.bias
    elif type(projection).__name__ == "Conv1D":  # GPT-2's linear layer, stored the other way round
        weight, bias = cast(Tensor, projection.weight).T, cast(Tensor, projection.bias)
    else:
        raise UnsupportedModelError(
            f"a projection is a {type(projection).__name__}, of which no weights can be read"
        )
    return weight.detach(), None if bias is None else bias.detach()


def _unknown(module: nn.Module, what: str, names: tuple[str, ...]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(module).__name__} has no projection of its {what} under a known name ({names})"
    )


def _check(generated: Tensor, computed: Tensor, call: AttentionCall) -> None:
    if generated.shape != computed.shape or not _agree(generated, computed):
        raise UnsupportedModelError(
            f"{call.site}: what {type(call.module).__name__} computes is not the sum of its value "
            "networks' outputs (Eq. 5)"
        )


def _agree(a: Tensor, b: Tensor) -> bool:
    tolerance = _TOLERANCE.get(b.dtype, 1e-4)
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
