"""P models of one shape, trained together.

The parameters of all members are one [P, N] matrix, and the model runs on views of it under
`vmap`. Every member has its own seed (initialisation, data, split), learning rate, weight decay
and warmup; it neither sees nor affects the others. One model is the case P = 1.

On a GPU the whole step (sample, forward, backward, update) is compiled, captured once as a CUDA
graph and replayed, unless `compile` is off. On a CPU it runs as it is, but for a kernel of our own
that computes HYLA of small heads where a C++ compiler is at hand and all members attend alike.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from hyla.attention import AttentionSpec, resolve_spec
from hyla.attention.dispatch import say_once
from hyla.attention.kernels.cpu.compiler import CompilerError, check_compiler
from hyla.nn import BranchScales, MultiHeadAttention, Transformer, TransformerConfig
from hyla.nn.scales import by_block, recorded_scales, scales_by_block
from hyla.tasks import Batch, Objective, Sampler, Task
from hyla.training.compiling import OPTIONS
from hyla.training.devices import keep_freed_memory
from hyla.training.member import Member
from hyla.training.optimizer import adamw_, decay_mask, scheduled_rate
from hyla.training.population.blocks import why_not_run, why_not_shaped, with_fused_blocks
from hyla.training.population.mixing import MIXED_OPTIONS, with_mixed_attention
from hyla.training.population.stacked_linear import with_stacked_linear_layers
from hyla.training.population.stacking import DropoutNoise, parameter_views, stacked_parameters
from hyla.training.precision import autocast, check_precision, matmul_precision

# Instances per member that are scored at once.
EVALUATION_BATCH = 512

# Steps of training from which a second of compiling on a CPU pays, if value networks have a hidden
# layer: linear ones are as fast without.
_WORTH_COMPILING = 1000


class Population:
    """Members of one shape on one task, their optimiser state, and how to step and score them."""

    def __init__(
        self,
        task: Task,
        model: TransformerConfig,
        members: Sequence[Member],
        *,
        total_steps: int,
        batch_size: int = 128,
        objective: Objective | None = None,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        compile: bool | None = None,
        fused_blocks: bool | None = None,
        attentions: Sequence[str | AttentionSpec] | None = None,
        beside: "Population | None" = None,
    ):
        """Initialise the members; an `objective` may take the place of the task's own.

        `attentions` are the members' own, one for each, in the place of the model's.

        `fused_blocks` has kernels compute around attention (`population.blocks`), on a Hopper GPU
        in the precisions tf32 and bf16. None: wherever they can, which is twice as fast; where one
        might expect them, and they cannot, `why_plain` says why.
        """
        check_precision(precision)
        self.task = task
        self.members = tuple(members)
        self.device = torch.device(device)
        self.precision = precision
        self.objective = task.objective if objective is None else objective
        self._compile = self.device.type == "cuda" if compile is None else compile
        self._seeds = [member.seed for member in self.members]
        self._total_steps = total_steps

        self._attentions = attentions or [model.attention] * len(members)
        if len(self._attentions) != len(members):
            raise ValueError(f"{len(self._attentions)} attentions for {len(members)} members")
        model = replace(model, attention=self._attentions[0])

        self._model, self.parameters = stacked_parameters(model, self._seeds, self.device)
        self._mixed = any(each != model.attention for each in self._attentions)
        if self._mixed:
            with_mixed_attention(self._model, self._attentions)
        if self.device.type == "cuda":
            with_stacked_linear_layers(self._model)
        else:
            keep_freed_memory()
        self.why_plain: str | None = None
        if fused_blocks is None:
            elsewhere, misshaped = why_not_run(self.device, precision), why_not_shaped(model)
            fused_blocks = elsewhere is None and misshaped is None
            self.why_plain = misshaped if elsewhere is None else None
        if fused_blocks:
            with_fused_blocks(self._model, self.device, precision)
        self._names = [name for name, _ in self._model.named_parameters()]
        self._views = parameter_views(self.parameters, self._model)
        self.first_moment = torch.zeros_like(self.parameters)
        self.second_moment = torch.zeros_like(self.parameters)
        self.step = self._zeros((), torch.int64)
        self.alive = self._zeros((), torch.bool).new_ones(len(members))
        self.diverged_at = self._zeros(len(members), torch.int64) - 1
        self.loss_sum = self._zeros(len(members))
        self.losses_summed = self._zeros(())

        self._rates = self._setting("learning_rate")
        self._decays = self._setting("weight_decay")
        self._warmups = self._setting("warmup_steps")
        self._decayed = torch.cat(
            [
                torch.full((self._model.get_parameter(name).numel(),), float(decayed))
                for name, decayed in decay_mask(dict(self._model.named_parameters())).items()
            ]
        ).to(self.device)

        self._sample = task.sampler(
            "train", seeds=self._seeds, batch_size=batch_size, device=self.device
        )
        self._dropout = (
            DropoutNoise(model, self._seeds, self.device) if model.attention_dropout else None
        )
        self._losses = self._compiled(self._population_losses)
        self._update = self._compiled(self._apply_update)
        self._draw = self._compiled(self._draw_batch)
        self._score = self._compiled(self._score_batch)
        self._evaluation_samplers: dict[tuple[str, int], Sampler] = {}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._beside = beside
        has_hidden_layer = resolve_spec(model.attention).value in ("hidden", "residual")
        worth_it = has_hidden_layer and not self._mixed and total_steps >= _WORTH_COMPILING
        if self.device.type == "cpu" and worth_it:
            self._take_kernels()

    def _take_kernels(self) -> None:
        """Have kernels compute attention, if they can: a batch tells, without `compile`."""
        layers = [part for part in self._model.modules() if isinstance(part, MultiHeadAttention)]
        layers = [layer for layer in layers if layer.backend == "auto"]
        if not layers:
            return
        for layer in layers:
            layer.backend = "fused"
        try:
            check_compiler()
            with torch.no_grad():
                self._population_losses(self._views, *self._draw_batch())
            return
        except CompilerError as error:
            say_once(str(error))
        except ValueError:  # by which a kernel refuses
            pass
        for layer in layers:
            layer.backend = "auto"

    # --- training -------------------------------------------------------------------------------

    def prepare(self, splits: Sequence[str] = ()) -> None:
        """Compile and take all memory before the first step. Changes no numbers.

        `splits` are those to be evaluated later.
        """
        if self.device.type != "cuda" or not self._compile or self._graph is not None:
            return
        for split in splits:
            self.evaluate(split, EVALUATION_BATCH)
        self._model.train()
        with matmul_precision(self.precision):
            self._capture()

    def train(self, steps: int) -> None:
        """Take `steps` optimisation steps."""
        self.prepare()
        self._model.train()
        take_step = self._train_step if self._graph is None else self._graph.replay
        with matmul_precision(self.precision):
            for _ in range(steps):
                take_step()

    def mean_losses(self) -> Float[Tensor, " P"]:
        """Mean training loss of each member since the last call; NaN if it has diverged."""
        mean = self.loss_sum / self.losses_summed.clamp(min=1)
        mean = mean.masked_fill(~self.alive, torch.nan)
        self.loss_sum.zero_()
        self.losses_summed.zero_()
        return mean

    def _train_step(self) -> None:
        batch, noise = self._draw()
        losses = self._losses(self._views, batch, noise)
        gradients = torch.autograd.grad(losses.sum(), self._views)
        self._update(losses.detach(), gradients)

    def _draw_batch(self) -> tuple[Batch, Tensor | None]:
        noise = None if self._dropout is None else self._dropout(self.step)
        return self._sample(self.step), noise

    def _population_losses(
        self, views: list[Tensor], batch: Batch, noise: Tensor | None
    ) -> Float[Tensor, " P"]:
        def loss(views: list[Tensor], batch: Batch, noise: Tensor | None) -> Tensor:
            return self.objective.loss(self._logits(views, batch, noise), batch)

        return torch.vmap(loss, in_dims=(0, 0, None if noise is None else 0))(views, batch, noise)

    def _logits(self, views: list[Tensor], batch: Batch, noise: Tensor | None) -> Tensor:
        parameters = dict(zip(self._names, views, strict=True))
        with autocast(self.precision, self.device):
            return functional_call(
                self._model,
                parameters,
                (batch.inputs,),
                {"dropout_noise": noise, "last": self.task.num_queries},
            )

    @torch.no_grad()
    def _apply_update(self, losses: Tensor, gradients: Sequence[Tensor]) -> None:
        self.loss_sum.add_(losses)
        self.losses_summed.add_(1)
        rate = scheduled_rate(
            self.step, peak=self._rates, warmup=self._warmups, total=self._total_steps
        )
        # A member that diverges keeps its last finite parameters and is never updated again.
        alive = adamw_(
            self.parameters,
            self.first_moment,
            self.second_moment,
            torch.cat([gradient.flatten(1) for gradient in gradients], dim=1),
            step=self.step,
            rate=rate,
            weight_decay=self._decays,
            decayed=self._decayed,
            alive=self.alive & losses.isfinite(),
        )
        self.diverged_at.copy_(torch.where(self.alive & ~alive, self.step, self.diverged_at))
        self.alive.copy_(alive)
        self.step.add_(1)

    def _capture(self) -> None:
        """Record one step as a CUDA graph, without taking it."""
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        # Populations that take turns can work in the same memory.
        neighbour = None if self._beside is None else self._beside._graph
        pool = None if neighbour is None else neighbour.pool()
        stream = _side_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # compiles, and lets the allocator settle
                self._train_step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            self._train_step()
        self.load_state(before)
        self._graph = graph
        torch.cuda.empty_cache()  # what the rehearsal took; the graph has memory of its own

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(
        self, split: str, instances: int, *, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, Float[Tensor, " P"]]:
        """Metrics of each member on the first `instances` of a split (rounded up to batches)."""
        size = min(instances, EVALUATION_BATCH)
        if (split, size) not in self._evaluation_samplers:
            self._evaluation_samplers[split, size] = self.task.sampler(
                split, seeds=self._seeds, batch_size=size, device=self.device
            )
        sample = self._evaluation_samplers[split, size]
        totals: dict[str, Tensor] = {}
        self._model.eval()
        with torch.no_grad(), matmul_precision(self.precision):
            for index in range(-(-instances // size)):
                before_batch()
                for name, value in self._score(self._views, sample(index)).items():
                    totals[name] = totals[name] + value if name in totals else value
        return self.objective.finish(totals)

    def _score_batch(self, views: list[Tensor], batch: Batch) -> dict[str, Tensor]:
        def score(views: list[Tensor], batch: Batch) -> dict[str, Tensor]:
            return self.objective.sums(self._logits(views, batch, None), batch)

        return torch.vmap(score)(views, batch)

    def branch_scales(self, instances: int) -> list[list[BranchScales]]:
        """Scales in each member's blocks on the first `instances` of its next training batch."""

        def measure(views: list[Tensor], inputs: Tensor) -> Tensor:
            parameters = dict(zip(self._names, views, strict=True))
            with autocast(self.precision, self.device), recorded_scales(self._model) as recorded:
                functional_call(self._model, parameters, (inputs,))
            return by_block(recorded)

        inputs = self._sample(self.step).inputs[:, :instances]
        self._model.eval()  # dropout is no part of a branch's scale, and would draw noise
        with torch.no_grad(), matmul_precision(self.precision):
            return [scales_by_block(member) for member in torch.vmap(measure)(self._views, inputs)]

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint has to hold, by name; parameters carry the model's names."""
        state = {
            "step": self.step,
            "alive": self.alive,
            "diverged_at": self.diverged_at,
            "loss_sum": self.loss_sum,
            "losses_summed": self.losses_summed,
        }
        for kind, matrix in (
            ("parameters", self.parameters),
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
        ):
            for name, view in zip(self._names, parameter_views(matrix, self._model), strict=True):
                state[f"{kind}/{name}"] = view.detach()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state()`."""
        own = self.state()
        if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in state.items()}:
            raise ValueError("the state belongs to models of another shape, or to another version")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def member_model(self, index: int) -> Transformer:
        """Return member `index` as an ordinary model, with parameters of its own."""
        config = replace(self._model.config, attention=self._attentions[index])
        model = Transformer(config).to(self.device)
        parameters = zip(self._names, self._views, strict=True)
        model.load_state_dict({name: view[index] for name, view in parameters})
        return model

    def _compiled(self, function: Callable) -> Callable:
        if not self._compile:
            return function
        own = MIXED_OPTIONS if self._mixed and self.device.type == "cpu" else {}
        return torch.compile(function, fullgraph=True, dynamic=False, options=OPTIONS | own)

    def _zeros(self, shape, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _setting(self, name: str) -> Tensor:
        values = [float(getattr(member, name)) for member in self.members]
        return torch.tensor(values, device=self.device)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs are rehearsed and recorded.

    One for all: cuBLAS keeps a workspace for each stream that it has seen, for good. The graphs use
    it, so nobody may clear it (`torch._C._cuda_clearCublasWorkspaces`).
    """
    return torch.cuda.Stream(device)
