"""The fused parts of a block as operators, which `vmap`, compilers and graph capture see through.

Operators take members as their first axis [P, ...]; `vmap` folds its own into it, so that a
population is one launch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hyla._compiler_tag import tag_compiled_code
from hyla.training.population.blocks import launch

tag_compiled_code()

# Parameters come as one list, in the order of `launch`; biases and norms have one axis.


@torch.library.custom_op("hyla::block_project", mutates_args=())
def project(x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the normalised tokens x [P, N, E]."""
    gain, shift, *layers = parameters
    return launch.project(x, gain, shift, layers)


@project.register_fake
def _(x, parameters):
    sizes = (parameters[i].shape[1] for i in (2, 4, 6))
    return tuple(x.new_empty(*x.shape[:2], size) for size in sizes)


@torch.library.custom_op("hyla::block_project_backward", mutates_args=())
def _project_backward(
    x: Tensor, upstream: Sequence[Tensor], gain: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    return launch.project_backward(x, upstream, gain, weights)


@_project_backward.register_fake
def _(x, upstream, gain, weights):
    total = sum(weight[0].numel() + weight.shape[1] for weight in weights)
    return torch.empty_like(x), gain.new_empty(len(x), total)


def _save_project(ctx, inputs, output):
    x, parameters = inputs
    ctx.save_for_backward(x, *parameters)


def _differentiate_project(ctx, *upstream):
    x, gain, shift, *layers = ctx.saved_tensors
    weights = layers[::2]
    dx, sums = _project_backward(x, upstream, gain, weights)
    dgain, dshift, gradients = 0, 0, []
    for weight in weights:
        size, products = weight.shape[1], weight[0].numel()
        along, bias, sums = sums.split([products, size, sums.shape[1] - products - size], dim=1)
        along = along.unflatten(1, weight.shape[1:])
        gradients += [*_through_norm(along, bias, gain, shift)]
        dgain, dshift = dgain + (weight * along).sum(1), dshift + _applied(weight, bias)
    return dx, [dgain, dshift, *gradients]


project.register_autograd(_differentiate_project, setup_context=_save_project)


@torch.library.custom_op("hyla::block_finish", mutates_args=())
def finish(x: Tensor, attended: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the stream x [P, N, E] with attention's branch, and with both branches."""
    return launch.finish(x, attended, parameters)


@finish.register_fake
def _(x, attended, parameters):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("hyla::block_finish_backward", mutates_args=())
def _finish_backward(
    between: Tensor, attended: Tensor, dy: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return launch.finish_backward(between, attended, dy, parameters)


@_finish_backward.register_fake
def _(between, attended, dy, parameters):
    out, gain, up = parameters[0], parameters[1], parameters[3]
    members, embed, hidden = *gain.shape, up.shape[1]
    return (
        torch.empty_like(between),
        torch.empty_like(attended),
        gain.new_empty(members, out[0].numel() + 2 * embed),
        gain.new_empty(members, 2 * hidden * embed + hidden),
    )


def _save_finish(ctx, inputs, output):
    _, attended, parameters = inputs
    between, _ = output
    ctx.save_for_backward(between, attended, *parameters)
    ctx.mark_non_differentiable(between)  # it is handed out for this alone


def _differentiate_finish(ctx, _, dy):
    between, attended, *parameters = ctx.saved_tensors
    out, _, gain, shift, up, up_bias, down, _ = parameters
    needed = [out, gain, shift, up, up_bias, down]
    dx, dattended, sums, weight_sums = _finish_backward(between, attended, dy, needed)
    embed, hidden = down.shape[1:]
    dout, dout_bias, ddown_bias = sums.split([out[0].numel(), embed, embed], dim=1)
    along, dup_bias, ddown = weight_sums.split([hidden * embed, hidden, embed * hidden], dim=1)
    along = along.unflatten(1, up.shape[1:])
    dup, dup_bias = _through_norm(along, dup_bias, gain, shift)
    return (
        dx,
        dattended,
        [
            *(dout.unflatten(1, out.shape[1:]), dout_bias),
            *((up * along).sum(1), _applied(up, dup_bias)),
            *(dup, dup_bias, ddown.unflatten(1, down.shape[1:]), ddown_bias),
        ],
    )


finish.register_autograd(_differentiate_finish, setup_context=_save_finish)


def _through_norm(
    along: Tensor, bias: Tensor, gain: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias of a layer on `gain * standardised + shift`.

    `along` [P, O, E] are the sums of upstream times standardised inputs, `bias` [P, O] of upstream.
    """
    return along * gain[:, None] + bias[:, :, None] * shift[:, None], bias


def _applied(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of the norm's shift: what the layer makes of its bias's."""
    return torch.einsum("poe,po->pe", weight, bias)


def _folded(info, in_dims, tensors):
    """Give each tensor the mapped axis in front, and put it together with that of the members."""
    return [
        (y.expand(info.batch_size, *y.shape) if mapped is None else y.movedim(mapped, 0)).flatten(
            0, 1
        )
        for y, mapped in zip(tensors, in_dims, strict=True)
    ]


def _unfolded(info, outputs):
    return tuple(y.unflatten(0, (info.batch_size, -1)) for y in outputs), (0,) * len(outputs)


@project.register_vmap
def _(info, in_dims, x, parameters):
    [x] = _folded(info, in_dims[:1], [x])
    return _unfolded(info, project(x, _folded(info, in_dims[1], parameters)))


@finish.register_vmap
def _(info, in_dims, x, attended, parameters):
    x, attended = _folded(info, in_dims[:2], (x, attended))
    return _unfolded(info, finish(x, attended, _folded(info, in_dims[2], parameters)))
