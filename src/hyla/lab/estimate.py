"""How long the training of a population will take, before it starts.

A step of P models takes about ``latency + P · work``: the first part is the same however small the
models are, the second grows with them. Both were measured with the paper's models (`hyla bench
train`, results/bench); other shapes are scaled by their arithmetic. An estimate, right within a
factor of two or so where nothing else keeps the device busy. The clocks of earlier runs are not
asked: most ran beside others, with the engine of their day. Evaluations between the steps,
measuring and the report are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from hyla.attention.kernels import ELSEWHERE
from hyla.training import TrainConfig, config_from_tree, load_preset
from hyla.training.backends import fused_path


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a step with the paper's HYLA model."""

    start_up: float
    """Compiling and capturing, once per population."""
    latency: float
    """For each step, whatever the population."""
    work: float
    """For each step and model."""
    relative: Mapping[str, float]
    """Work of other rows of Table A1 over HYLA's; 1 for those that are not named."""
    without_kernel: float = 1.0
    """The same, of those that no fused kernel knows where HYLA has one."""


# H200, tf32, P = 12 and 24 (results/bench/train-cuda.json); float32 from the clocks in results/lab.
# Of what has no kernel only the deep value network was timed, before HYLA's became as fast as now:
# its factor stands for all. CPU: two cores, P = 1 (results/bench/train-cpu.json), its latency from
# runs at smoke scale, and the rows of Table A1 timed in turn on one core. With the kernel of long
# training all take what HYLA takes, within a quarter, but the deep one, which it does not know.
SPEEDS = {
    ("cuda", "fuzzy"): Speed(
        start_up=24, latency=0.25e-3, work=0.036e-3, relative={}, without_kernel=3.0
    ),
    ("cuda", "sraven"): Speed(
        start_up=39,
        latency=0.45e-3,
        work=0.146e-3,
        relative={"softmax": 1.1, "linear": 0.93},
        without_kernel=3.0,
    ),
    ("cpu", "fuzzy"): Speed(
        start_up=0.1,
        latency=4e-3,
        work=21e-3,
        relative={"hyla_deep": 1.6},
    ),
    ("cpu", "sraven"): Speed(
        start_up=0.1,
        latency=6e-3,
        work=82e-3,
        relative={"hyla_deep": 2.6},
    ),
}
# Tokens a second of language models on the H200: the paper's decoder, 256 sequences of 512, bf16
# (results/bench/language-cuda.json; of the last one its run's, in results/lab/paper/fig6.csv).
LANGUAGE_SPEEDS = {
    "softmax": 1.613e6,
    "linear": 1.458e6,
    "hyla": 1.339e6,
    "hyla_residual_minus_rmshead_plus_softmax": 0.804e6,
}
# Of float32 (plain blocks, timed before attention's backward was one walk), against tf32 with fused
# ones, on the H200: SRAVEN of twelve and fuzzy logic of three models.
_FLOAT32 = {"fuzzy": 4.6, "sraven": 3.9}
_LIKE_OTHERS = "sraven"  # what a task that was not timed is taken to be, up to its arithmetic


class Needed(NamedTuple):
    """Models that are still to be trained, and the estimated seconds of one GPU for them."""

    models: int
    seconds: float


def seconds_for(
    config: TrainConfig, *, device: str, done: int = 0, among: int | None = None
) -> float:
    """Return the estimated seconds of the population from step `done` to its end.

    `device` is cuda or cpu. Where it trains as a part of `among` models, its part of the time.
    """
    timed = config.task_name if config.task_name in _FLOAT32 else _LIKE_OTHERS
    speed = SPEEDS[device, timed]
    steps = config.steps - done
    base = config_from_tree(load_preset(timed, "paper"))
    # What attention takes more or less than HYLA's, experts do not take again.
    usual = 1.0 if _has_kernel(config) else speed.without_kernel
    more = speed.relative.get(_as_expensive(str(config.model.attention)), usual) - 1
    arithmetic = _arithmetic(config) + more * _arithmetic(config, experts=1)
    work = speed.work * arithmetic / _arithmetic(base)
    latency = speed.latency * config.model.num_layers / base.model.num_layers
    if device == "cuda" and config.precision == "float32":
        work, latency = (part * _FLOAT32[timed] for part in (work, latency))
    models = len(config.members)
    part = models / (among or models)
    return part * (speed.start_up + steps * latency) + steps * models * work


def language_seconds(tokens: Mapping[str, int]) -> float:
    """Return the estimated seconds of a GPU for language models: tokens by attention."""
    return sum(number / LANGUAGE_SPEEDS[_as_expensive(name)] for name, number in tokens.items())


def _as_expensive(attention: str) -> str:
    """Return the preset that takes as long: another output costs next to nothing."""
    return attention.partition(".")[0]


def _has_kernel(config: TrainConfig) -> bool:
    """Whether a GPU would compute the model's attention by something fused."""
    path = fused_path(config.model, config.build_task().sequence_length, device="meta")
    return not isinstance(path, str) or path.startswith(ELSEWHERE)


def _arithmetic(config: TrainConfig, *, experts: int | None = None) -> float:
    """Return multiply-adds of a training step, up to a common factor."""
    model, width = config.model, config.model.width_factor
    tokens = config.build_task().sequence_length
    embed, code = width * model.embed_dim, width * (model.qk_dim + model.v_dim)
    feed_forward = 2 * embed * width * model.mlp_dim
    if model.feed_forward == "moe":
        feed_forward *= model.num_experts if experts is None else experts
    projected = (1 + model.key_heads / model.num_heads) * code
    per_token = embed * projected + feed_forward + tokens * code
    return config.batch_size * tokens * model.num_layers * per_token


def in_words(seconds: float) -> str:
    """A duration, rounded: 0:02:10, 1.5 days, 2,690 days."""
    days = seconds / timedelta(days=1).total_seconds()
    if days < 1:
        return str(timedelta(seconds=round(seconds)))
    return f"{days:,.{1 if days < 10 else 0}f} days"
