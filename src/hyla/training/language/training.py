"""`train_language(config, corpus)`: a language model from wherever its run stands to its end."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hyla.tasks.language import Corpus
from hyla.tasks.language.shards import TOKENIZER
from hyla.training.backends import check_fused
from hyla.training.devices import ModelTooLargeError
from hyla.training.language.config import Execution, LanguageConfig, check_corpus
from hyla.training.language.conversion import Source
from hyla.training.language.evaluation import Validation
from hyla.training.language.steps import Steps
from hyla.training.precision import matmul_precision
from hyla.training.run.checkpoints.sharded import ShardedCheckpoints
from hyla.training.run.directory import RunDirectory
from hyla.training.run.held import OpenSinks, run_path
from hyla.training.run.loop import runs_to_the_end
from hyla.training.run.ranks import Ranks

DEFAULT_EXECUTION = Execution()
language_run_path = run_path


def train_language(
    config: LanguageConfig,
    corpus: Corpus,
    *,
    root: Path | str = "runs",
    device: torch.device | str = "auto",
    max_seconds: float = math.inf,
    execution: Execution = DEFAULT_EXECUTION,
    source: Source | None = None,
    sinks: OpenSinks = lambda path, names: (),
) -> dict[str, Any]:
    """Start or continue the run of `config` under `root` and return its summary.

    Under torchrun, every process calls this with the same arguments. A finished run is not trained
    again. Raises `Interrupted` after a signal or `max_seconds`, with a checkpoint saved: the same
    call continues from it, on this or another number of ranks. A config with a `conversion` needs
    the `source` that the model begins from.
    """
    check_corpus(config, corpus)
    if source is not None:
        source.check(config)
    elif config.conversion is not None:
        raise ValueError("the model begins from another run: give it as the source")
    ranks = Ranks(device)
    check_execution(config, execution, ranks)

    def build(run: RunDirectory | None, say: Callable[[str], None]) -> Steps:
        def keep_tokenizer() -> None:  # the run can then do without the corpus
            assert run is not None
            run.keep(TOKENIZER, corpus.tokenizer_path.read_bytes())

        ranks.on_first(keep_tokenizer)
        length = config.model.sequence_length
        validation = Validation(corpus, sequence_length=length, ranks=ranks)
        tokens = corpus.tokens("train")
        return Steps(
            config, tokens, execution, ranks, validation=validation, source=source, say=say
        )

    try:
        with matmul_precision(config.precision):
            (summary,) = runs_to_the_end(
                [config],
                build,
                ShardedCheckpoints,
                root=root,
                ranks=ranks,
                max_seconds=max_seconds,
                sinks=sinks,
            )
            return summary
    except torch.cuda.OutOfMemoryError as error:
        raise ModelTooLargeError(
            "The GPU's memory is full: use a smaller micro_batch, recompute, or strategy "
            "'fsdp' on several GPUs. Run the same command with one of these to continue."
        ) from error


def check_execution(config: LanguageConfig, execution: Execution, ranks: Ranks) -> None:
    """Raise a ValueError if these ranks cannot compute the run in this way."""
    if config.batch_size % ranks.size:
        raise ValueError(
            f"batch_size {config.batch_size} does not divide among {ranks.size} ranks; "
            f"use a multiple of {ranks.size}"
        )
    execution.accumulation(config.batch_size // ranks.size)
    if execution.strategy == "fsdp" and not ranks.launched:
        raise ValueError("strategy 'fsdp' needs torchrun, as in `torchrun --nproc-per-node 2 ...`")
    if execution.strategy == "fsdp" and config.distil_steps:
        raise ValueError("strategy 'fsdp' cannot distil: use 'ddp', or 0 distil_steps")
    if execution.backend == "fused":
        model, precision = config.model, config.precision
        check_fused(model, model.sequence_length, device=ranks.device, precision=precision)
