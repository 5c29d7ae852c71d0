"""`hyla train language`: a language model on a prepared corpus, alone or under torchrun."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from hyla.commands.shared.exits import continued_after_ctrl_c, usage_errors
from hyla.commands.shared.options import (
    AttentionName,
    given,
    make_options,
    optional_fields,
    without_none,
)
from hyla.commands.shared.output import Screen, score, table
from hyla.commands.shared.training import RunOptions, TrainingOptions
from hyla.nn import TransformerConfig
from hyla.tasks.language import Corpus
from hyla.training import merge
from hyla.training.language import (
    Execution,
    LanguageConfig,
    LanguageEvaluation,
    Source,
    language_config_from_tree,
    language_run_path,
    load_language_preset,
)
from hyla.training.language import train_language as train_model
from hyla.training.language.config import DERIVED_FROM_CORPUS
from hyla.training.language.training import check_execution
from hyla.training.run.ranks import Ranks

if TYPE_CHECKING:  # a class made at run time is no type to a type checker
    ModelOptions = object
    EvaluationOptions = object
    ExecutionOptions = object
else:
    # A causal decoder of tokens that no experts and no dropout are trained for; some others
    # are options of their own.
    _FIXED = ("inputs", "causal", "num_experts", "top_k", "attention_dropout")
    _WITHOUT = (*DERIVED_FROM_CORPUS, *_FIXED, "attention", "sequence_length", "backend")
    ModelOptions = make_options(
        "ModelOptions", optional_fields(TransformerConfig, without=_WITHOUT)
    )
    EvaluationOptions = make_options("EvaluationOptions", optional_fields(LanguageEvaluation))
    ExecutionOptions = make_options("ExecutionOptions", optional_fields(Execution))

_TRAINING = Group("Training", sort_key=1)
_EXECUTION = Group("How it is computed: the same numbers up to rounding", sort_key=2)
_RUN = Group("Where it runs", sort_key=3)
_MODEL = Group("Model", sort_key=4)
_CONVERSION = Group("From another attention", sort_key=5)
_EVALUATION = Group("Evaluation", sort_key=6)
_USUAL, _HERE = TrainingOptions(), RunOptions()


@continued_after_ctrl_c()
def train_language(
    data: Path,
    /,
    *,
    training: Annotated[TrainingOptions, Parameter(name="*", group=_TRAINING)] = _USUAL,
    seed: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    lr: Annotated[
        float | None, Parameter(name=("--lr", "--learning-rate"), group=_TRAINING)
    ] = None,
    weight_decay: Annotated[float | None, Parameter(group=_TRAINING)] = None,
    warmup_steps: Annotated[int | None, Parameter(group=_TRAINING)] = None,
    computing: Annotated[ExecutionOptions | None, Parameter(name="*", group=_EXECUTION)] = None,
    run: Annotated[RunOptions, Parameter(name="*", group=_RUN)] = _HERE,
    size: Annotated[str | None, Parameter(group=_MODEL)] = None,
    attention: Annotated[
        AttentionName | None, Parameter(name=("--attention", "--model.attention"), group=_MODEL)
    ] = None,
    source: Annotated[Path | None, Parameter(name="--from", group=_CONVERSION)] = None,
    distil_steps: Annotated[int | None, Parameter(group=_CONVERSION)] = None,
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
    seed
        Seed of the initialisation and of the order of the data.
    lr
        Peak learning rate.
    weight_decay
        Weight decay.
    warmup_steps
        Steps of linear warmup.
    size
        nano, mini, paper, small, medium or large.
    attention
        hyla, softmax, linear, or another row of Table A1; hyla.silu has another φ, hyla.rms4 a
        normalised output. On text hyla_residual_minus_rmshead_plus_softmax.rms4 is level with
        softmax: the smaller scales take it if nothing is said.
    source
        Begin as the model of this finished run, with another attention. It says the shape.
    distil_steps
        The first steps, in which each attention layer learns to give what that run's layer does
        and nothing else is trained; 100 if nothing is said, and at most a quarter of the steps.
    sequence_length
        Tokens of a sequence.
    """
    member = {
        "seed": seed,
        "learning_rate": lr,
        "weight_decay": weight_decay,
        "warmup_steps": warmup_steps,
    }
    options = training.settings() | {
        "size": size,
        "member": without_none(member),
        "model": given(model)
        | without_none({"attention": attention, "sequence_length": sequence_length}),
        "evaluation": given(evaluation),
    }
    if distil_steps is not None:
        options["conversion"] = {"distil_steps": distil_steps}
    with usage_errors():
        corpus = Corpus.open(data)
        preset = load_language_preset(training.scale)
        begun = None if source is None else Source.open(source, corpus)
        if begun is not None:
            preset = merge(preset, begun.settings())
            if size is not None:
                raise ValueError(f"leave out --size: the model has the shape of {source}")
        elif distil_steps is not None:
            raise ValueError("--distil-steps needs --from RUN, the run to learn from")
        tree = training.over(preset)
        settings = language_config_from_tree(merge(tree, without_none(options)), corpus)
        execution = Execution(**given(computing))
        ranks = Ranks(run.device)
        check_execution(settings, execution, ranks)
        if begun is not None:
            begun.check(settings)
        run.check()
        path = language_run_path(settings, run.root)

    if ranks.first:
        run.say_if_too_late(path)
    arguments = run.arguments(settings.to_tree())
    summary = train_model(settings, corpus, execution=execution, source=begun, **arguments)
    if ranks.first:
        _show(settings, summary, path)


def _show(config: LanguageConfig, summary: dict[str, Any], path: Path) -> None:
    (member,) = summary["members"]
    scores = ("loss", "perplexity", "bits_per_byte")
    numbers = {
        **{
            name.replace("_", " "): score(member["metrics"][f"validation/{name}"])
            for name in scores
        },
        "tokens/s": f"{summary['tokens_per_second']:,.0f}",
        "parameters": f"{summary['parameters']:,}",
        "without embeddings": f"{summary['parameters_without_embeddings']:,}",
    }
    title = f"language, {config.model.attention}: validation after {summary['tokens']:,} tokens"
    screen = Screen()
    screen.print(table(title, *numbers, rows=[numbers.values()]))
    if member["diverged_at"] is not None:
        screen.say(f"The loss was not finite at step {member['diverged_at']}; try a smaller --lr.")
    screen.say(f"{summary['seconds']:.0f} s of training; run directory: {path}")
