"""`hyla train language`: a language model on a prepared corpus, alone or under torchrun."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.shared.options import (
    AttentionName,
    PrecisionName,
    ScaleName,
    check_max_seconds,
    check_writable,
    given,
    make_options,
    optional_fields,
    without_none,
)
from hyla.commands.shared.output import console, score, table
from hyla.commands.shared.tracking import open_sinks, say_if_too_late
from hyla.nn import TransformerConfig
from hyla.tasks.language import Corpus
from hyla.training import merge
from hyla.training.config import read_settings
from hyla.training.language import (
    Execution,
    LanguageConfig,
    LanguageEvaluation,
    language_config_from_tree,
    language_run_path,
    load_language_preset,
)
from hyla.training.language import (
    train_language as train_model,
)
from hyla.training.language.config import DERIVED_FROM_CORPUS
from hyla.training.language.training import check_execution
from hyla.training.run.ranks import Ranks

if TYPE_CHECKING:  # a class made at run time is no type to a type checker
    ModelOptions = object
    EvaluationOptions = object
else:
    # A causal decoder of tokens that no experts and no dropout are trained for; some others
    # are options of their own.
    _FIXED = ("inputs", "causal", "num_experts", "top_k", "attention_dropout")
    _WITHOUT = (*DERIVED_FROM_CORPUS, *_FIXED, "attention", "sequence_length", "backend")
    ModelOptions = make_options(
        "ModelOptions", optional_fields(TransformerConfig, without=_WITHOUT)
    )
    EvaluationOptions = make_options("EvaluationOptions", optional_fields(LanguageEvaluation))

_TRAINING = Group("Training", sort_key=1)
_EXECUTION = Group("How it is computed: the same numbers up to rounding", sort_key=2)
_RUN = Group("Where it runs", sort_key=3)
_MODEL = Group("Model", sort_key=4)
_EVALUATION = Group("Evaluation", sort_key=5)


@continued_after_ctrl_c()
def train_language(
    data: Path,
    /,
    *,
    scale: Annotated[ScaleName, Parameter(group=_TRAINING)] = "laptop",
    config: Annotated[Path | None, Parameter(group=_TRAINING)] = None,
    steps: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    batch_size: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    precision: Annotated[PrecisionName | None, Parameter(group=_TRAINING)] = None,
    log_every: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    seed: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    lr: Annotated[
        float | None, Parameter(name=("--lr", "--learning-rate"), group=_TRAINING)
    ] = None,
    weight_decay: Annotated[float | None, Parameter(group=_TRAINING)] = None,
    warmup_steps: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    strategy: Annotated[str, Parameter(group=_EXECUTION)] = "auto",
    micro_batch: Annotated[int | None, Parameter(group=_EXECUTION)] = None,
    recompute: Annotated[bool, Parameter(group=_EXECUTION, negative=())] = False,
    compile: Annotated[bool | None, Parameter(group=_EXECUTION)] = None,
    backend: Annotated[str, Parameter(group=_EXECUTION)] = "auto",
    root: Annotated[Path, Parameter(group=_RUN)] = Path("runs"),
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(group=_RUN)] = "auto",
    max_seconds: Annotated[float | None, Parameter(group=_RUN)] = None,
    tensorboard: Annotated[bool, Parameter(group=_RUN, negative=())] = False,
    wandb: Annotated[str | None, Parameter(group=_RUN)] = None,
    size: Annotated[str | None, Parameter(group=_MODEL)] = None,
    attention: Annotated[
        AttentionName | None, Parameter(name=("--attention", "--model.attention"), group=_MODEL)
    ] = None,
    sequence_length: Annotated[
        int | None, Parameter(name=("--sequence-length", "--model.sequence-length"), group=_MODEL)
    ] = None,
    model: Annotated[ModelOptions | None, Parameter(group=_MODEL)] = None,
    evaluation: Annotated[EvaluationOptions | None, Parameter(group=_EVALUATION)] = None,
) -> None:
    """Train a language model; what the command says of itself stands where it is registered.

    Parameters
    ----------
    data
        Folder of the corpus.
    scale
        smoke (seconds), laptop (minutes on two cores) or paper (Table A3, a million steps).
    config
        YAML file of settings over the preset, in its form; options here go over both.
    steps
        Optimisation steps.
    batch_size
        Sequences a step, over all processes together.
    precision
        float32, tf32 or bf16.
    log_every
        Steps between records of the training loss.
    seed
        Seed of the initialisation and of the order of the data.
    lr
        Peak learning rate.
    weight_decay
        Weight decay.
    warmup_steps
        Steps of linear warmup.
    strategy
        ddp (the model on every process), fsdp (a part of it on each) or auto (ddp).
    micro_batch
        Sequences that a process computes at once; gradients are accumulated over them.
    recompute
        Compute activations again in the backward pass, to save memory.
    compile
        Compile the model; by default on a GPU.
    backend
        What computes attention: auto, reference or fused.
    root
        Folder of the run directories.
    device
        auto takes the GPU if there is one.
    max_seconds
        Stop after this time, with a checkpoint.
    tensorboard
        Also write TensorBoard files, into the run directory.
    wandb
        Also send metrics to this Weights & Biases project.
    size
        nano, mini, paper, small, medium or large.
    attention
        hyla, softmax, linear, or another row of Table A1; hyla.silu has another φ, hyla.rms4 a
        normalised output. On text hyla_residual_minus_rmshead_plus_softmax.rms4 is level with
        softmax: the smaller scales take it if nothing is said.
    sequence_length
        Tokens of a sequence.
    """
    member = {
        "seed": seed,
        "learning_rate": lr,
        "weight_decay": weight_decay,
        "warmup_steps": warmup_steps,
    }
    options = {
        "size": size,
        "steps": steps,
        "batch_size": batch_size,
        "precision": precision,
        "log_every": log_every,
        "member": without_none(member),
        "model": given(model)
        | without_none({"attention": attention, "sequence_length": sequence_length}),
        "evaluation": given(evaluation),
    }
    with usage_errors():
        corpus = Corpus.open(data)
        tree = load_language_preset(scale)
        if config is not None:
            tree = merge(tree, read_settings(config, example="steps: 1000"))
        settings = language_config_from_tree(merge(tree, without_none(options)), corpus)
        execution = Execution(
            strategy=strategy,
            micro_batch=micro_batch,
            recompute=recompute,
            compile=compile,
            backend=backend,
        )
        ranks = Ranks(device)
        check_execution(settings, execution, ranks)
        check_max_seconds(max_seconds)
        check_writable(root=root)

    path = language_run_path(settings, root)
    if ranks.first:
        say_if_too_late(path, tensorboard=tensorboard, wandb_project=wandb)
    summary = train_model(
        settings,
        corpus,
        root=root,
        device=device,
        max_seconds=math.inf if max_seconds is None else max_seconds,
        execution=execution,
        sinks=partial(open_sinks, settings.to_tree(), tensorboard=tensorboard, wandb_project=wandb),
    )
    if ranks.first:
        _show(settings, summary, path)


def _show(config: LanguageConfig, summary: dict[str, Any], path: Path) -> None:
    (member,) = summary["members"]
    shown = table(
        f"language, {config.model.attention}: validation after {summary['tokens']:,} tokens",
        "loss",
        "perplexity",
        "bits per byte",
        "tokens/s",
        "parameters",
        "without embeddings",
    )
    shown.add_row(
        *(
            score(member["metrics"][f"validation/{name}"])
            for name in ("loss", "perplexity", "bits_per_byte")
        ),
        f"{summary['tokens_per_second']:,.0f}",
        f"{summary['parameters']:,}",
        f"{summary['parameters_without_embeddings']:,}",
    )
    out = console()
    out.print(shown)
    if member["diverged_at"] is not None:
        out.print(f"The loss was not finite at step {member['diverged_at']}; try a smaller --lr.")
    out.print(f"{summary['seconds']:.0f} s of training; run directory: {path}", soft_wrap=True)
