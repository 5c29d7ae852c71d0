"""`hyla doctor init`: the scales of a model's branches before any training."""

import dataclasses
import json as json_format
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from cyclopts import Parameter
from torch import Tensor

from hyla.attention.spec import RECOMMENDED
from hyla.commands.shared.exits import usage_errors
from hyla.commands.shared.options import AttentionName, ScaleName, TaskName, check_task
from hyla.commands.shared.output import console, table
from hyla.nn import BranchScales, Transformer, TransformerConfig, branch_scales
from hyla.nn.decoders import decoder_config
from hyla.nn.scales import MOST_TIMES_THE_STREAM
from hyla.tasks.language import Corpus, TrainingOrder, Windows
from hyla.tasks.language.tokenizer import VOCAB_SIZE
from hyla.training import config_from_tree, load_preset, merge
from hyla.training.devices import resolve_device
from hyla.training.language import language_config_from_tree, load_language_preset
from hyla.training.run.branches import INSTANCES, warning

# What the paper compares, and what is recommended.
_ATTENTIONS = ("softmax", "linear", "hyla", RECOMMENDED)
_SEQUENCES = 4  # of a language model: thousands of tokens, and a large model need not take minutes
_MARK = "!"


class _Start(NamedTuple):
    """A model before its first step, and a batch for it."""

    model: TransformerConfig
    seed: int
    batch: Tensor


def doctor_init(
    task: TaskName,
    /,
    *,
    scale: ScaleName = "laptop",
    attention: Annotated[list[AttentionName] | None, Parameter(show_choices=False)] = None,
    size: str | None = None,
    data: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Print the scales; what the command says of itself stands where it is registered.

    Parameters
    ----------
    task
        fuzzy, sraven, recall, language, or a plug-in's.
    scale
        smoke, laptop or paper, as for `hyla train`.
    attention
        hyla, softmax, linear, or other rows of Table A1; by default those three and the
        one that is recommended.
    size
        language: nano, mini, paper, small, medium or large.
    data
        language: folder of a corpus to take the batch from, instead of random tokens.
    json
        Print one JSON object instead.
    """
    with usage_errors():
        check_task(task)
        if task != "language" and (size is not None or data is not None):
            raise ValueError(f"--size and --data are settings of the task language, not of {task}")
        starts = {
            name: _of_language(scale, name, size, data)
            if task == "language"
            else _of_task(task, scale, name)
            for name in attention or _ATTENTIONS
        }
    found = {name: _measure(start) for name, start in starts.items()}
    if json:
        print(json_format.dumps(_as_tree(task, scale, found), indent=1))
    else:
        _show(task, scale, found)


def _of_task(task: str, scale: str, attention: str) -> _Start:
    config = config_from_tree(merge(load_preset(task, scale), {"model": {"attention": attention}}))
    seed = config.members[0].seed
    size = min(INSTANCES, config.batch_size)
    batch = config.build_task().batch("train", seed=seed, index=0, batch_size=size)
    return _Start(config.model, seed, batch.inputs)


def _of_language(scale: str, attention: str, size: str | None, data: Path | None) -> _Start:
    changes: dict[str, Any] = {"model": {"attention": attention}}
    tree = merge(load_language_preset(scale), changes | ({} if size is None else {"size": size}))
    seed = tree["member"]["seed"]
    if data is None:
        model = decoder_config(tree["size"], vocab_size=VOCAB_SIZE, **tree["model"])
        shape = (_SEQUENCES, model.sequence_length)
        drawn = torch.randint(VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))
        return _Start(model, seed, drawn)
    corpus = Corpus.open(data)
    config = language_config_from_tree(tree, corpus)
    windows = Windows(corpus.tokens("train"), config.model.sequence_length)
    tokens = TrainingOrder(windows, batch_size=config.batch_size, seed=seed).batch(0)
    return _Start(config.model, seed, torch.from_numpy(tokens[:_SEQUENCES, :-1]))


def _measure(start: _Start) -> list[BranchScales]:
    device = resolve_device("auto")
    model = Transformer(start.model)
    model.reset_parameters(torch.Generator().manual_seed(start.seed))
    return branch_scales(model.to(device).eval(), start.batch.to(device))


def _as_tree(task: str, scale: str, found: dict[str, list[BranchScales]]) -> dict[str, Any]:
    return {
        "task": task,
        "scale": scale,
        "most_times_the_stream": MOST_TIMES_THE_STREAM,
        "attention": {
            name: {
                "blocks": [
                    dataclasses.asdict(block)
                    | {
                        "attention_ratio": block.attention_ratio,
                        "feed_forward_ratio": block.feed_forward_ratio,
                    }
                    for block in blocks
                ],
                "warning": warning(blocks, attention=name),
            }
            for name, blocks in found.items()
        },
    }


def _show(task: str, scale: str, found: dict[str, list[BranchScales]]) -> None:
    columns = ("block", "stream", "attention", "times", "stream", "feed-forward", "times")
    shown = table(
        f"{task}, {scale}: standard deviations at the start; {_MARK} more than "
        f"{MOST_TIMES_THE_STREAM:g} times the stream",
        "model",
        *columns,
        numeric=columns,
    )
    for name, blocks in found.items():
        for number, block in enumerate(blocks, 1):
            shown.add_row(
                name if number == 1 else "",
                str(number),
                f"{block.stream:.3g}",
                f"{block.attention:.3g}",
                _times(block.attention_ratio),
                f"{block.between:.3g}",
                f"{block.feed_forward:.3g}",
                _times(block.feed_forward_ratio),
            )
    out = console()
    out.print(shown)
    for name, blocks in found.items():
        out.print(f"{name}: {_verdict(name, blocks)}", soft_wrap=True, highlight=False)


def _verdict(name: str, blocks: list[BranchScales]) -> str:
    largest = max(max(block.attention_ratio, block.feed_forward_ratio) for block in blocks)
    if largest <= MOST_TIMES_THE_STREAM:
        return f"no branch is more than {MOST_TIMES_THE_STREAM:g} times the stream that it joins"
    return warning(blocks, attention=name) or (
        "what is marked is a small stream rather than a large branch, as where embeddings start "
        "small: there is nothing to do"
    )


def _times(ratio: float) -> str:
    mark = _MARK if ratio > MOST_TIMES_THE_STREAM else " "
    return f"{ratio:.2f} {mark}" if ratio < 10 else f"{ratio:.0f} {mark}"
