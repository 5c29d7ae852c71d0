"""The optimisation steps of a run: a model, its optimiser, and the order of its data."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hyla.nn import BranchScales
from hyla.nn.scales import by_block, recorded_scales, scales_by_block
from hyla.tasks.language import TrainingOrder, Windows
from hyla.tasks.language.corpus import Tokens
from hyla.training.language.config import Execution, LanguageConfig
from hyla.training.language.model import ParallelModel
from hyla.training.language.ranks import Ranks
from hyla.training.optimizer import BETAS, EPS, decay_mask, scheduled_rate
from hyla.training.precision import autocast


class Steps:
    """Takes the steps of a run, each of which is a function of the state and its number."""

    def __init__(self, config: LanguageConfig, tokens: Tokens, execution: Execution, ranks: Ranks):
        self.config = config
        self.ranks = ranks
        self.number = 0
        """Steps taken so far."""
        self.model = ParallelModel(config.model, config.member.seed, execution, ranks)
        share = config.batch_size // ranks.size
        self._accumulation = execution.accumulation(share)
        self.micro_batch = share // self._accumulation
        """Sequences that this rank computes at once."""
        self._order = TrainingOrder(
            Windows(tokens, config.model.sequence_length),
            batch_size=config.batch_size,
            seed=config.member.seed,
        )
        self._optimizer = _optimizer(self.model.parameters, config.member.weight_decay)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._losses_summed = 0

    @property
    def compiled(self) -> bool:
        """Whether `prepare` is worth calling."""
        return self.model.compiled

    def prepare(self) -> None:
        """Compile and take all memory before the first step. Changes no numbers."""
        tokens = self._batch()[: self.micro_batch]
        with self.model.accumulating(last=True):
            with autocast(self.config.precision, self.ranks.device):
                loss = self.model(tokens)
            loss.backward()
        self._optimizer.zero_grad(set_to_none=True)
        self.losses(tokens)

    def take(self) -> None:
        """Take the next step; on a GPU, without waiting for it."""
        self._set_learning_rate()
        parts = self._batch().chunk(self._accumulation)
        for i, tokens in enumerate(parts, 1):
            with self.model.accumulating(last=i == len(parts)):
                with autocast(self.config.precision, self.ranks.device):
                    loss = self.model(tokens) / len(parts)
                loss.backward()
            self._loss_sum += loss.detach()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses_summed += 1
        self.number += 1

    @torch.no_grad()
    def losses(self, tokens: Tensor) -> Tensor:
        """Return the sums of the losses of each sequence, as training computes them."""
        with autocast(self.config.precision, self.ranks.device):
            return self.model(tokens)

    def branch_scales(self, sequences: int) -> list[BranchScales]:
        """Return the scales in each block on some of this rank's next batch; all ranks take part.

        They call the whole model, as the parts of one that is sharded are gathered for that alone.
        """
        tokens = self._batch()[: min(sequences, self.micro_batch)]
        with (
            torch.compiler.set_stance("force_eager"),  # what looks inside is not to be compiled
            recorded_scales(self.model.transformer) as recorded,
        ):
            self.losses(tokens)
        return scales_by_block(by_block(recorded))

    @property
    def has_unlogged_losses(self) -> bool:
        """Whether a step was taken since `mean_loss` was last called."""
        return self._losses_summed > 0

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call, over all ranks."""
        total, count = self._losses()
        self._loss_sum.zero_()
        self._losses_summed = 0
        return total / max(1, count)

    # --- state ----------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint has to hold, by name; to be read into as well."""
        tensors = {}
        for name, parameter in self.model.parameters.items():
            moments = self._optimizer.state[parameter]
            tensors[f"parameters/{name}"] = parameter.detach()
            tensors[f"first_moment/{name}"] = moments["exp_avg"]
            tensors[f"second_moment/{name}"] = moments["exp_avg_sq"]
        return tensors

    def losses_so_far(self) -> list[float | int | None]:
        """Return the sum and number of the losses since `mean_loss`; None is not finite."""
        total, count = self._losses()
        return [total if math.isfinite(total) else None, count]

    def continue_from(self, number: int, losses_so_far: Sequence[float | int | None]) -> None:
        """Go on after step `number`, whose `tensors` were read in."""
        self.number = number
        for moments in self._optimizer.state.values():
            moments["step"].fill_(number)
        total, count = losses_so_far
        self._loss_sum.fill_(math.nan if total is None else total)
        self._losses_summed = int(count or 0)

    def _losses(self) -> tuple[float, int]:
        return float(self.ranks.sum(self._loss_sum)) / self.ranks.size, self._losses_summed

    def _set_learning_rate(self) -> None:
        member = self.config.member
        rate = scheduled_rate(
            torch.tensor(self.number),
            peak=torch.tensor([member.learning_rate], dtype=torch.float64),
            warmup=torch.tensor([member.warmup_steps], dtype=torch.float64),
            total=self.config.steps,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = float(rate)

    def _batch(self) -> Tensor:
        share = self._order.batch(self.number, rank=self.ranks.rank, ranks=self.ranks.size)
        batch = torch.from_numpy(share)
        if self.ranks.device.type == "cuda":
            batch = batch.pin_memory().to(self.ranks.device, non_blocking=True)
        return batch


def _optimizer(parameters: dict[str, torch.nn.Parameter], decay: float) -> torch.optim.AdamW:
    """Return AdamW with moments in place, so that a checkpoint can be read into them."""
    decayed = decay_mask(parameters)
    groups = [
        {
            "params": [p for name, p in parameters.items() if decayed[name] is side],
            "weight_decay": decay if side else 0.0,
        }
        for side in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPS, fused=True)
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
