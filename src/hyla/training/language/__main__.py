"""`python -m hyla.training.language`: training where the command line's packages are missing.

`hyla train language` is the comfortable way. This one needs PyTorch, NumPy and YAML, and takes any
setting as NAME=VALUE: GPU machines often have no more.
"""

import argparse
import math
import sys
from pathlib import Path

from hyla.tasks.language import Corpus
from hyla.training import Interrupted, merge
from hyla.training.config import SCALES
from hyla.training.devices import ModelTooLargeError
from hyla.training.language.config import (
    STRATEGIES,
    Execution,
    language_config_from_tree,
    load_language_preset,
    setting_branch,
)
from hyla.training.language.conversion import Source
from hyla.training.language.training import check_execution, language_run_path, train_language
from hyla.training.run.errors import CheckpointError, NoRunError, RunDirectoryError
from hyla.training.run.ranks import Ranks

_TRY_AGAIN = 75  # EX_TEMPFAIL: stopped with a checkpoint, and the same command continues


def main() -> int:
    """Train and return the exit code.

    0 finished, 75 stopped with a checkpoint, 2 wrong usage, 1 anything else.
    """
    parser = argparse.ArgumentParser(prog="python -m hyla.training.language", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of a prepared corpus")
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings, as in model.attention=softmax steps=2000 member.learning_rate=0.003",
    )
    parser.add_argument("--from", dest="source", type=Path, help="run to begin from")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-seconds", type=float, default=math.inf)
    parser.add_argument("--strategy", choices=STRATEGIES, default="auto")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    try:
        corpus = Corpus.open(arguments.data)
        tree = load_language_preset(arguments.scale)
        source = None if arguments.source is None else Source.open(arguments.source, corpus)
        tree = merge(tree, {} if source is None else source.settings())
        for setting in arguments.set:
            tree = merge(tree, setting_branch(setting))
        config = language_config_from_tree(tree, corpus)
        execution = Execution(
            strategy=arguments.strategy,
            micro_batch=arguments.micro_batch,
            recompute=arguments.recompute,
            compile=arguments.compile,
            backend=arguments.backend,
        )
        check_execution(config, execution, Ranks(arguments.device))
        if source is not None:
            source.check(config)
    except (ValueError, NoRunError) as error:
        parser.error(str(error))
    except RunDirectoryError as error:  # that of --from, damaged
        print(error, file=sys.stderr)
        return 1
    try:
        summary = train_language(
            config,
            corpus,
            root=arguments.root,
            device=arguments.device,
            max_seconds=arguments.max_seconds,
            execution=execution,
            source=source,
        )
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return _TRY_AGAIN
    except (RunDirectoryError, CheckpointError, ModelTooLargeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{language_run_path(config, arguments.root)}: {summary['members'][0]['metrics']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
