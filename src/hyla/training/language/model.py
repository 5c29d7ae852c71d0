"""A language model as training sees it: tokens in, loss out, in whole or in parts on each rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hyla.nn import Transformer, TransformerConfig
from hyla.training.compiling import OPTIONS
from hyla.training.language.config import Execution
from hyla.training.language.conversion import copy_shared_
from hyla.training.language.loss import cross_entropies, mean_cross_entropy
from hyla.training.run.ranks import Ranks


class LanguageModel(nn.Module):
    """A transformer with its loss: every position of a sequence predicts the next token."""

    def __init__(
        self,
        transformer: Transformer,
        *,
        recompute: bool = False,
        compile_blocks: bool = False,
        compile_loss: bool = False,
    ):
        super().__init__()
        self.transformer = transformer
        self.recompute = recompute
        self.compile_loss = compile_loss
        features = transformer.features
        self._features = torch.compile(features, options=OPTIONS) if compile_blocks else features

    def forward(self, tokens: Int[Tensor, "B T+1"]) -> Float[Tensor, "..."]:
        """Return the mean loss; without gradients, the sums of the losses of each sequence [B]."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        head = self.transformer.head
        if torch.is_grad_enabled():
            hidden = self._features(inputs, recompute=self.recompute)
            return mean_cross_entropy(
                hidden.flatten(0, 1),
                head.weight,
                head.bias,
                targets.flatten(),
                compile=self.compile_loss,
            )
        hidden = self._features(inputs)
        losses = cross_entropies(hidden.flatten(0, 1), head.weight, head.bias, targets.flatten())
        return losses.view(targets.shape).sum(1, dtype=torch.float64)


class ParallelModel:
    """A `LanguageModel` on the ranks: replicated (DDP), in parts (FSDP2), or alone."""

    def __init__(
        self,
        config: TransformerConfig,
        seed: int,
        execution: Execution,
        ranks: Ranks,
        *,
        initial: Mapping[str, Tensor] = MappingProxyType({}),
    ):
        """Begin with the `initial` parameters, and those of the seed where there are none."""
        transformer = Transformer(replace(config, backend=execution.backend))
        # On the CPU, so that a seed means the same numbers on any device and any number of ranks.
        transformer.reset_parameters(torch.Generator().manual_seed(seed))
        copy_shared_(transformer, initial)
        transformer = transformer.to(ranks.device).for_long_sequences()
        on_gpu = ranks.device.type == "cuda"
        self.compiled = compile = on_gpu if execution.compile is None else execution.compile
        if compile:
            torch.compiler.reset()  # its limit of recompilations counts across models
        sharded = execution.strategy == "fsdp"
        if sharded and compile:
            # Block by block: the parts of each are gathered and freed around its own call.
            for block in transformer.blocks:
                block.compile(options=OPTIONS)
        self.model = LanguageModel(
            transformer,
            recompute=execution.recompute,
            compile_blocks=compile and not sharded,  # else they are already, one by one
            compile_loss=compile,
        )
        self.transformer = transformer
        self._replicas: DistributedDataParallel | None = None
        self._sharded = sharded
        if sharded:
            _shard(self.model, ranks)
        elif ranks.size > 1:
            ids = [ranks.device] if ranks.device.type == "cuda" else None
            self._replicas = DistributedDataParallel(self.model, device_ids=ids)
        # After sharding, which replaces the parameters.
        self.parameters = dict(transformer.named_parameters())

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the loss on a rank's tokens, as `LanguageModel.forward`."""
        return (self._replicas or self.model)(tokens)

    def release(self) -> None:
        """Let go of the ranks' process group; the model cannot be trained afterwards.

        DDP's reducer does not give up Python's global lock when it frees the group as its last
        owner, and a thread of gloo that has to end first may be waiting for that lock: for ever.
        """
        if self._replicas is not None:
            del self._replicas.reducer, self._replicas.logger

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Exchange gradients between the ranks after the last part of a batch alone."""
        if self._sharded:
            self.model.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
            yield
        elif self._replicas is not None and not last:
            with self._replicas.no_sync():
                yield
        else:
            yield


def _shard(model: LanguageModel, ranks: Ranks) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for block in model.transformer.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
