"""The fused parts of a block as operators, which `vmap`, compilers and graph capture see through.

Operators take members as their first axis [P, ...]; `vmap` folds its own into it, so that a
population is one launch. Parameters come as one list, in the order of `launch`; biases and norms
have one axis. `lay_out` makes tiles of them, which the kernels read; parameters are given to the
others too, because it is by way of these that they have a gradient.

The stream x goes into both operators, and its two gradients are one sum. So that nobody has to pass
over all tokens for it, `project` returns a stand-in for x without numbers, and `finish` takes it
beside x: the gradient of the stand-in is what comes by way of `finish`, and `project` adds its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hyla._compiler_tag import tag_compiled_code
from hyla.training.population.blocks import launch
from hyla.training.population.blocks.parameters import apart
from hyla.training.population.blocks.weights import FinishPlaces, ProjectPlaces

tag_compiled_code()


@torch.library.custom_op("hyla::block_weights", mutates_args=())
def lay_out(parameters: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of a block as tiles, for `project` and for `finish`."""
    return launch.lay_out(parameters, dtype)


@lay_out.register_fake
def _(parameters, dtype):
    sizes = launch.sizes_of(parameters, dtype)
    totals = (ProjectPlaces.of(sizes).total, FinishPlaces.of(sizes).total)
    one, other = (
        parameters[0].new_empty(len(parameters[0]), total, dtype=torch.uint8) for total in totals
    )
    return one, other


@torch.library.custom_op("hyla::block_project", mutates_args=())
def project(
    x: Tensor, weights: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a stand-in for x [P, N, E], and its queries, keys and values."""
    return (_stand_in(x), *launch.project(x, weights, *_projected(parameters)))


@project.register_fake
def _(x, weights, parameters):
    qk, v = _projected(parameters)
    return _stand_in(x), *(x.new_empty(*x.shape[:2], width) for width in (qk, qk, v))


def _projected(parameters: Sequence[Tensor]) -> tuple[int, int]:
    """Return the width of queries and keys, and that of values."""
    return parameters[2].shape[1], parameters[6].shape[1]


@torch.library.custom_op("hyla::block_project_backward", mutates_args=())
def _project_backward(
    x: Tensor,
    residual: Tensor,
    upstream: Sequence[Tensor],
    weights: Tensor,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    return launch.project_backward(x, residual, upstream, weights, parameters)


@_project_backward.register_fake
def _(x, residual, upstream, weights, parameters):
    return _like(x), _side_by_side(parameters)


def _save_project(ctx, inputs, output):
    x, weights, parameters = inputs
    ctx.save_for_backward(x, weights, *parameters)


def _differentiate_project(ctx, residual, dq, dk, dv):
    x, weights, *parameters = ctx.saved_tensors
    dx, gradients = _project_backward(x, residual, [dq, dk, dv], weights, parameters)
    return dx, None, apart(gradients, parameters)


project.register_autograd(_differentiate_project, setup_context=_save_project)


@torch.library.custom_op("hyla::block_finish", mutates_args=())
def finish(
    x: Tensor, stand_in: Tensor, attended: Tensor, weights: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the stream x [P, N, E] with both branches, and with attention's alone."""
    return launch.finish(x, attended, weights, parameters[4].shape[1])


@finish.register_fake
def _(x, stand_in, attended, weights, parameters):
    return _like(x), _like(x)


@torch.library.custom_op("hyla::block_finish_backward", mutates_args=())
def _finish_backward(
    between: Tensor, attended: Tensor, dy: Tensor, weights: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    return launch.finish_backward(between, attended, dy, weights, parameters)


@_finish_backward.register_fake
def _(between, attended, dy, weights, parameters):
    return _like(dy), _like(attended), _side_by_side(parameters)


def _save_finish(ctx, inputs, output):
    _, _, attended, weights, parameters = inputs
    _, between = output
    ctx.save_for_backward(between, attended, weights, *parameters)
    ctx.mark_non_differentiable(between)  # it is handed out for this alone


def _differentiate_finish(ctx, dy, *_):
    between, attended, weights, *parameters = ctx.saved_tensors
    dx, dattended, gradients = _finish_backward(between, attended, dy, weights, parameters)
    return None, dx, dattended, None, apart(gradients, parameters)


finish.register_autograd(_differentiate_finish, setup_context=_save_finish)


def _stand_in(x: Tensor) -> Tensor:
    return x.new_empty(()).expand(x.shape)


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)  # as kernels write it, whatever the strides of x are


def _side_by_side(parameters: Sequence[Tensor]) -> Tensor:
    total = sum(parameter[0].numel() for parameter in parameters)
    return parameters[0].new_empty(len(parameters[0]), total)


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


@lay_out.register_vmap
def _(info, in_dims, parameters, dtype):
    return _unfolded(info, lay_out(_folded(info, in_dims[0], parameters), dtype))


@project.register_vmap
def _(info, in_dims, x, weights, parameters):
    tokens = _folded(info, in_dims[:2], (x, weights))
    return _unfolded(info, project(*tokens, _folded(info, in_dims[2], parameters)))


@finish.register_vmap
def _(info, in_dims, x, stand_in, attended, weights, parameters):
    tokens = _folded(info, in_dims[:4], (x, stand_in, attended, weights))
    return _unfolded(info, finish(*tokens, _folded(info, in_dims[4], parameters)))
