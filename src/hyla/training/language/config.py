"""What a language-model run trains: typed, hashable, and the same as a tree of plain values.

A `LanguageConfig` holds what decides a run's numbers; `Execution` how they are computed.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hyla._errors import check_choice, check_positive
from hyla.attention.validation import BACKENDS
from hyla.nn import TransformerConfig
from hyla.nn.decoders import decoder_config
from hyla.tasks.language import Corpus, CorpusError, Windows
from hyla.training.config import SCALES, build_settings, nested, read_preset, settings_by_name
from hyla.training.identity import own_preset, plain_tree, without_own_preset
from hyla.training.member import Member
from hyla.training.precision import check_precision

DERIVED_FROM_CORPUS = ("input_dim", "output_dim")
"""Settings of the model that follow from the corpus."""
DISTIL_STEPS = 100
"""Of a conversion, unless told otherwise and unless that is more than a quarter of the steps."""
STRATEGIES = ("auto", "ddp", "fsdp")


@dataclass(frozen=True, kw_only=True)
class LanguageEvaluation:
    """How often the validation text is scored, and how much of it."""

    every: int
    """Steps between evaluations."""
    sequences: int
    """Sequences of validation text scored during training, from its beginning."""
    final_sequences: int
    """Sequences scored at the end; all, if there are not that many."""

    def __post_init__(self):
        check_positive(**{f"evaluation.{name}": value for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """That a model begins as another run's, and how long its attention learns from that one's."""

    source: str
    """Fingerprint of the other run: which one, not where it lies."""
    distil_steps: int = DISTIL_STEPS
    """The first steps, in which attention alone is trained, layer by layer; 0 for none."""

    def __post_init__(self):
        if self.distil_steps < 0:
            raise ValueError(f"distil_steps must be at least 0, got {self.distil_steps}")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """A language model on a corpus."""

    corpus: str
    """Fingerprint of the corpus: which tokens, not where they lie."""
    model: TransformerConfig
    member: Member
    steps: int
    batch_size: int
    """Sequences a step, over all ranks and accumulated parts together."""
    evaluation: LanguageEvaluation
    log_every: int
    precision: str = "float32"
    conversion: Conversion | None = dataclasses.field(default=None, metadata={"later": True})
    """Of a model that does not begin from scratch."""

    def __post_init__(self):
        check_precision(self.precision)
        check_positive(steps=self.steps, batch_size=self.batch_size, log_every=self.log_every)
        model = self.model
        if model.inputs != "tokens" or not model.causal:
            raise ValueError("a language model needs inputs='tokens' and causal=True")
        if model.attention_dropout:
            raise ValueError("model.attention_dropout must be 0: language models train without it")
        if model.feed_forward == "moe":
            raise ValueError("model.feed_forward 'moe' is not trained here: use 'gelu' or 'swiglu'")
        if self.distil_steps >= self.steps:
            raise ValueError(
                f"{self.distil_steps} distil_steps leave none of {self.steps} steps to train on: "
                "take more steps, or distil in fewer"
            )

    @property
    def distil_steps(self) -> int:
        """How many of the steps, the first ones, distil."""
        return 0 if self.conversion is None else self.conversion.distil_steps

    @property
    def members(self) -> tuple[Member, ...]:
        """The one model, as a run of several has them."""
        return (self.member,)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that are predicted in a step."""
        return self.batch_size * self.model.sequence_length

    def to_tree(self) -> dict[str, Any]:
        """Return plain values that identify the run (and nothing that is derived)."""
        tree = plain_tree(self)
        for name in (*DERIVED_FROM_CORPUS, "backend"):
            del tree["model"][name]
        return {"task_name": "language", **tree, **own_preset(self.model.attention)}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed; the numbers are the same up to rounding."""

    strategy: str = "auto"
    """ddp (a whole model on every rank), as by default (auto), or fsdp (each rank holds a part)."""
    micro_batch: int | None = None
    """Sequences that a rank computes at once; by default its whole share of the batch."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    compile: bool | None = None
    """Compile the model; by default on a GPU."""
    backend: str = "auto"
    """What computes attention: auto, as by default, reference or fused."""

    def __post_init__(self):
        check_choice("strategy", self.strategy, STRATEGIES)
        check_choice("backend", self.backend, BACKENDS)
        if self.micro_batch is not None:
            check_positive(micro_batch=self.micro_batch)

    def accumulation(self, share: int) -> int:
        """Return into how many parts a rank's `share` of the batch is cut."""
        size = share if self.micro_batch is None else min(self.micro_batch, share)
        if share % size:
            raise ValueError(
                f"micro_batch {size} does not divide a rank's {share} sequences of a batch"
            )
        return share // size


def load_language_preset(scale: str) -> dict[str, Any]:
    """Return the tree of settings at a scale."""
    check_choice("scale", scale, SCALES)
    return read_preset("language", scale)


def language_config_from_tree(tree: Mapping[str, Any], corpus: Corpus) -> LanguageConfig:
    """Check a tree of plain values and build the config it describes, for a corpus."""
    tree = dict(tree)
    size = tree.pop("size")
    model = settings_by_name(tree.pop("model", {}), "model")
    for key in DERIVED_FROM_CORPUS:
        if key in model:
            raise ValueError(f"model.{key} follows from the corpus; leave it out")
    length = model.pop("sequence_length")
    shape = decoder_config(size, vocab_size=corpus.vocab_size, sequence_length=length)
    changed = dataclasses.asdict(shape) | _follow_embedding(model)
    if "conversion" in tree and isinstance(steps := tree.get("steps"), int):
        usual = {"distil_steps": min(DISTIL_STEPS, steps // 4)}
        tree["conversion"] = usual | settings_by_name(tree["conversion"], "conversion")
    config = _built(tree | {"corpus": corpus.fingerprint}, changed)
    check_corpus(config, corpus)
    return config


def setting_branch(setting: str) -> dict[str, Any]:
    """Return the tree that `a.b=value` stands for, the value read as YAML."""
    path, equals, value = setting.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {setting!r}")
    return nested(path, yaml.safe_load(value))


def language_config_of_run(tree: Mapping[str, Any], vocab_size: int) -> LanguageConfig:
    """Return the config whose `to_tree` a run directory holds, given its tokenizer's size."""
    tree = {name: value for name, value in tree.items() if name != "task_name"}
    derived = dict.fromkeys(DERIVED_FROM_CORPUS, vocab_size)
    model = settings_by_name(tree.pop("model", {}), "model") | derived
    return _built(tree, model)


def check_corpus(config: LanguageConfig, corpus: Corpus) -> None:
    """Raise if `corpus` is not the one that the config is for."""
    if corpus.fingerprint != config.corpus:
        raise CorpusError(
            f"{corpus.path} holds other tokens ({corpus.fingerprint[:12]}) than the run's corpus "
            f"({config.corpus[:12]})"
        )
    if corpus.vocab_size != config.model.input_dim:
        raise CorpusError(
            f"{corpus.path} has a vocabulary of {corpus.vocab_size}, the model of "
            f"{config.model.input_dim}"
        )
    for split in ("train", "validation"):
        Windows(corpus.tokens(split), config.model.sequence_length)  # raises if there is none


def _built(tree: dict[str, Any], model: dict[str, Any]) -> LanguageConfig:
    shape = build_settings(TransformerConfig, model, "model")
    parts: dict[str, Any] = {
        "model": shape,
        "member": build_settings(Member, tree.get("member", {}), "member"),
        "evaluation": build_settings(LanguageEvaluation, tree.get("evaluation", {}), "evaluation"),
    }
    if "conversion" in tree:
        parts["conversion"] = build_settings(Conversion, tree["conversion"], "conversion")
    return build_settings(LanguageConfig, without_own_preset(tree, shape.attention) | parts, "")


def _follow_embedding(model: dict[str, Any]) -> dict[str, Any]:
    """Let queries, keys and values be as wide as an embedding that was changed alone."""
    if "embed_dim" not in model:
        return model
    return {"qk_dim": model["embed_dim"], "v_dim": model["embed_dim"]} | model
