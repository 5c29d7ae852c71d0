"""What fused blocks are held to: the plain equations in float64, outputs and every gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.training.population.blocks import ops

Run = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    embed: int
    qk: int
    heads: int
    hidden: int

    @property
    def project(self) -> list[tuple[int, ...]]:
        """Shapes of the parameters of `ops.project`."""
        layers = [
            shape
            for size in (self.qk, self.qk, self.heads)
            for shape in ((size, self.embed), (size,))
        ]
        return [(self.embed,), (self.embed,), *layers]

    @property
    def finish(self) -> list[tuple[int, ...]]:
        """Shapes of the parameters of `ops.finish`."""
        embed, heads, hidden = self.embed, self.heads, self.hidden
        out, feed_forward = (
            ((embed, heads), (embed,)),
            ((hidden, embed), (hidden,), (embed, hidden), (embed,)),
        )
        return [*out, (embed,), (embed,), *feed_forward]


SMALL = Sizes(embed=128, qk=16, heads=16, hidden=128)
SRAVEN = Sizes(embed=128, qk=64, heads=64, hidden=256)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.mT + bias[:, None]


def norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * gain[:, None] + shift[:, None]


def plain_project(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    gain, shift, *layers = parameters
    normed = norm(x, gain, shift)
    return tuple(linear(normed, *layers[i : i + 2]) for i in (0, 2, 4))


def plain_finish(x: Tensor, attended: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    out, out_bias, gain, shift, up, up_bias, down, down_bias = parameters
    between = x + linear(attended, out, out_bias)
    hidden = F.gelu(linear(norm(between, gain, shift), up, up_bias), approximate="tanh")
    return (between + linear(hidden, down, down_bias),)


def plain_block(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Both parts, with something in between that takes queries, keys and values of one width."""
    q, k, v = plain_project(x, *parameters[:8])
    return plain_finish(x, q * k + v, *parameters[8:])


def fused_project(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    out = (parameters[6].mT, parameters[0])  # any that fit: what follows is not computed
    hidden = (parameters[6][:, :1].expand(-1, 128, -1), parameters[0])
    rest = (*out, *parameters[:2], *hidden, hidden[0].mT, parameters[0])
    weights = _laid_out(x, *parameters, *rest)
    return ops.project(x, weights[0], parameters)[1:]


def fused_finish(x: Tensor, attended: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    layer = (parameters[0].mT, parameters[0][:, 0])  # any that fits: it is not computed
    weights = _laid_out(x, *parameters[2:4], *layer, *layer, *layer, *parameters)
    return ops.finish(x, x.view_as(x), attended, weights[1], parameters)[:1]


def fused_block(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    weights = _laid_out(x, *parameters)
    stand_in, q, k, v = ops.project(x, weights[0], parameters[:8])
    return ops.finish(x, stand_in, q * k + v, weights[1], parameters[8:])[:1]


def _laid_out(x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    return ops.lay_out([parameter.detach() for parameter in parameters], x.dtype)


def drawn(shapes: Sequence[tuple[int, ...]], members: int, device: str = "cpu") -> list[Tensor]:
    """Tensors [members, ...], views of one matrix as the parameters of a population are."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    matrix = torch.randn(members, sum(sizes)).to(device) / 3
    parts = zip(matrix.split(sizes, dim=1), shapes, strict=True)
    return [part.unflatten(1, shape).requires_grad_() for part, shape in parts]


def outputs_and_gradients(
    run: Run, inputs: Sequence[Tensor], upstream: Sequence[Tensor]
) -> list[Tensor]:
    outputs = run(*inputs)
    weights = [weight.to(y) for weight, y in zip(upstream, outputs, strict=True)]
    return [*outputs, *torch.autograd.grad(outputs, inputs, weights)]


def check(fused: Run, plain: Run, inputs: list[Tensor], tolerance: float) -> None:
    """Hold outputs and all gradients against the plain ones in float64."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    upstream = [torch.randn_like(y) for y in plain(*exact)]
    found = outputs_and_gradients(fused, inputs, upstream)
    expected = outputs_and_gradients(plain, exact, upstream)
    for got, truth in zip(found, expected, strict=True):
        assert (got.double() - truth).norm() <= tolerance * truth.norm()
