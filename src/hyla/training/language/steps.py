"""The optimisation steps of a language model: it, its optimiser, and the order of its data."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hyla.nn import BranchScales
from hyla.nn.decoders import count_parameters
from hyla.nn.scales import by_block, recorded_scales, scales_by_block
from hyla.tasks.language import TrainingOrder, Windows
from hyla.tasks.language.corpus import Tokens
from hyla.training.devices import keep_freed_memory
from hyla.training.language.config import Execution, LanguageConfig
from hyla.training.language.conversion import Distillation, Source
from hyla.training.language.evaluation import Validation
from hyla.training.language.model import ParallelModel
from hyla.training.language.throughput import peak_flops, utilisation
from hyla.training.optimizer import BETAS, EPS, decay_mask, scheduled_rate
from hyla.training.precision import autocast
from hyla.training.run.ranks import Ranks
from hyla.training.run.trainee import Trainee


class Steps(Trainee):
    """Takes the steps of a run, each of which is a function of the state and its number."""

    headline = "validation/loss"

    def __init__(
        self,
        config: LanguageConfig,
        tokens: Tokens,
        execution: Execution,
        ranks: Ranks,
        *,
        validation: Validation | None = None,
        source: Source | None = None,
        say: Callable[[str], None] = lambda message: None,
    ):
        """Train on `tokens`; only `evaluate` needs a `validation`, only a conversion a `source`."""
        self.config = config
        self.ranks = ranks
        self._validation, self._say = validation, say
        self._number = 0
        if ranks.device.type == "cpu":
            keep_freed_memory()
        self._source = source
        self._distillation: Distillation | None = None
        initial = {} if source is None else source.parameters()
        self.model = ParallelModel(
            config.model, config.member.seed, execution, ranks, initial=initial
        )
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
        self._diverged_at = torch.tensor(-1, device=ranks.device)
        self._size = count_parameters(self.model.transformer)
        say(f"{config.model.attention}: {self._size}")

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self._number

    def prepare(self) -> None:
        """Compile and take all memory before the first step. Changes no numbers."""
        if not self.model.compiled:
            return
        self._say("compiling")
        tokens = self._batch()[: self.micro_batch]
        with self.model.accumulating(last=True):
            with autocast(self.config.precision, self.ranks.device):
                loss = self.model(tokens)
            loss.backward()
        self._optimizer.zero_grad(set_to_none=True)
        self.losses(tokens)

    def train(self, steps: int) -> None:
        """Take `steps` steps."""
        for _ in range(steps):
            self.take()

    def take(self) -> None:
        """Take the next step; on a GPU, without waiting for it."""
        if 0 < self._number == self.config.distil_steps:
            self._end_distillation()
        loss_of = self._distil if self._distilling else self.model
        self._set_learning_rate()
        parts = self._batch().chunk(self._accumulation)
        for i, tokens in enumerate(parts, 1):
            with self.model.accumulating(last=i == len(parts)):
                with autocast(self.config.precision, self.ranks.device):
                    loss = loss_of(tokens) / len(parts)
                loss.backward()
            self._loss_sum += loss.detach()
        # On the device, as nothing here waits for it.
        diverged = ~self._loss_sum.isfinite() & (self._diverged_at < 0)
        self._diverged_at.masked_fill_(diverged, self._number)
        if self._distilling:
            self._average_gradients()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses_summed += 1
        self._number += 1

    @torch.no_grad()
    def losses(self, tokens: Tensor) -> Tensor:
        """Return the sums of the losses of each sequence, as training computes them."""
        with autocast(self.config.precision, self.ranks.device):
            return self.model(tokens)

    def evaluate(self, *, final: bool, before_batch: Callable[[], None]) -> dict[str, list[float]]:
        """Return how well the validation text is predicted."""
        assert self._validation is not None
        settings = self.config.evaluation
        found = self._validation.metrics(
            self.losses,
            settings.final_sequences if final else settings.sequences,
            batch_size=self.micro_batch,
            before_batch=before_batch,
        )
        return {f"validation/{name}": [value] for name, value in found.items()}

    def branch_scales(self, instances: int) -> list[list[BranchScales]]:
        """Return the scales in each block on some of this rank's next batch.

        They call the whole model, as the parts of one that is sharded are gathered for that alone.
        """
        tokens = self._batch()[: min(instances, self.micro_batch)]
        with (
            torch.compiler.set_stance("force_eager"),  # what looks inside is not to be compiled
            recorded_scales(self.model.transformer) as recorded,
        ):
            self.losses(tokens)
        return [scales_by_block(by_block(recorded))]

    @property
    def has_unlogged_losses(self) -> bool:
        """Whether a step was taken since `mean_losses` was last called."""
        return self._losses_summed > 0

    def mean_losses(self) -> list[float]:
        """Return the mean loss of the steps since the last call, over all ranks."""
        total, count = self._losses()
        self._loss_sum.zero_()
        self._losses_summed = 0
        return [total / max(1, count)]

    def diverged_at(self) -> list[int | None]:
        """Return after how many steps the loss was not finite, on any rank."""
        number = int(self._diverged_at)
        # The earliest is the one before which most steps lie.
        last = self.config.steps
        (left,) = self.ranks.largest(0 if number < 0 else last + 1 - number)
        return [last + 1 - left if left else None]

    def hopeless(self) -> bool:
        """Return whether the loss was not finite: no parameter is, then."""
        return self.diverged_at() != [None]

    # --- records --------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """Return the tokens that were predicted so far."""
        return {"tokens": self._number * self.config.tokens_per_step}

    def speed(self, steps: int, seconds: float) -> dict[str, list[float]]:
        """Return tokens a second and, where the device's peak is known, its utilisation."""
        rate = steps * self.config.tokens_per_step / seconds
        peak = peak_flops(self.ranks.device, self.config.precision)
        mfu = utilisation(self.config.model, rate / self.ranks.size, peak)
        if self._number - steps < self.config.distil_steps:  # other products than a training step's
            mfu = None
        return {"tokens_per_second": [rate]} | ({} if mfu is None else {"mfu": [mfu]})

    def summary(self, training_seconds: float) -> dict[str, Any]:
        """Return the speed over all, and the size of the model."""
        return {
            "tokens_per_second": self.progress()["tokens"] / max(training_seconds, 1e-9),
            "parameters": self._size.total,
            "parameters_without_embeddings": self._size.without_embeddings,
        }

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

    def meta(self) -> dict[str, Any]:
        """Return what else it has to hold; a sum of losses that is not finite is None."""
        total, count = self._losses()
        losses = [total if math.isfinite(total) else None, count]
        return {"losses": losses, "diverged_at": self.diverged_at()[0]}

    def resume(self, step: int, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on after `step`, whose `tensors` were read in."""
        self._number = step
        taken = step if self._distilling else step - self.config.distil_steps
        for moments in self._optimizer.state.values():
            moments["step"].fill_(taken)
        total, self._losses_summed = meta["losses"]
        self._loss_sum.fill_(math.nan if total is None else total)
        diverged = meta["diverged_at"]
        if diverged is None and total is None:  # an earlier version noted it at the next record
            diverged = step - 1
        self._diverged_at.fill_(-1 if diverged is None else diverged)

    def close(self) -> None:
        """Let go of the ranks' process group."""
        self.model.release()

    def _losses(self) -> tuple[float, int]:
        return float(self.ranks.sum(self._loss_sum)) / self.ranks.size, self._losses_summed

    # --- conversion -----------------------------------------------------------------------------

    @property
    def _distilling(self) -> bool:
        return self._number < self.config.distil_steps

    def _distil(self, tokens: Tensor) -> Tensor:
        if self._distillation is None:
            assert self._source is not None
            teacher = self._source.model(self.ranks.device)
            self._distillation = Distillation(teacher, self.model.transformer)
        return self._distillation(tokens)

    def _average_gradients(self) -> None:
        """Do what the replicas do of themselves where the whole model is called."""
        for parameter in self.model.parameters.values():
            if parameter.grad is not None:
                parameter.grad = self.ranks.sum(parameter.grad) / self.ranks.size

    def _end_distillation(self) -> None:
        """Forget the old model, the moments, and losses that are of another kind."""
        self._distillation = None
        for moments in self._optimizer.state.values():
            for tensor in moments.values():
                tensor.zero_()
        self._loss_sum.zero_()
        self._losses_summed = 0

    def _set_learning_rate(self) -> None:
        member, distil_steps = self.config.member, self.config.distil_steps
        # Either part has a schedule of its own; what was trained before needs no warmup to distil.
        begin, end = (0, distil_steps) if self._distilling else (distil_steps, self.config.steps)
        rate = scheduled_rate(
            torch.tensor(self._number - begin),
            peak=torch.tensor([member.learning_rate], dtype=torch.float64),
            warmup=torch.tensor(
                [0 if self._distilling else member.warmup_steps], dtype=torch.float64
            ),
            total=end - begin,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = float(rate)

    def _batch(self) -> Tensor:
        share = self._order.batch(self._number, rank=self.ranks.rank, ranks=self.ranks.size)
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
