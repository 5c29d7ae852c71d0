"""The command `hyla`: names its subcommands and turns their errors into messages and exit codes.

Each subcommand is one function in a module of `hyla.commands`, imported when it is called: `hyla
--help` does not wait for PyTorch.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hyla import __version__, _plugins
from hyla.commands.shared.parsing import (
    check_whole_numbers,
    missing,
    unknown_option,
    unused_words,
)

_USAGE_ERROR = 2
_CTRL_C = 130
_NOBODY_READS = 1  # as where rich meets the closed pipe

_INTRO = """Attention as a hypernetwork: train, compare and take apart the paper's models.

Start with `hyla train fuzzy`: it trains a small HYLA transformer in a few minutes on a laptop.

Every command takes `--plugin FILE.py` for a task, an attention preset or a rule of your own;
plug-ins of installed packages, and those that the variable HYLA_PLUGINS names, need no option.
"""

# In the order of the help; a command's own help is the docstring of its function.
_COMMANDS = {
    "train": "Train models on a task: one, or a population that differs in seeds and settings.",
    "sweep": "Train every combination of a grid of settings, and choose the best fairly.",
    "reproduce": "Reproduce figures and tables of the paper, and set them beside its numbers.",
    "report": "Build the figures and the report again from what was measured.",
    "models": "Pack the trained models of Table A1 into a folder to take along.",
    "demo": "Show the paper's effect in minutes: HYLA against softmax and linear attention.",
    "data": "Prepare text for language models: tokenizer, token shards, manifest.",
    "generate": "Continue a text with a trained language model.",
    "export": "Write a trained model as a program that runs without hyla: torch.export or ONNX.",
    "latents": "Read, decode and swap latent codes, of a run or a pretrained language model.",
    "explore": "Explore models in the browser: solve puzzles beside them, read and swap codes.",
    "sraven": "SRAVEN: show an instance, export a dataset, audit it, score answers to variants.",
    # Not "fuzzy": the tab key would take the task after `hyla train` for this command.
    "fuzzy-logic": "Fuzzy logic: export a dataset.",
    "bench": "Measure speed on this machine, beside the authors' code.",
    "doctor": "Check this installation: versions, devices, kernels, and a self-check.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (by default this process's) and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        arguments, plugins = _split(arguments)
        if plugins:
            _plugins.ask_for(plugins)
            _plugins.load()
        code = _app(asked_for=arguments[0] if arguments else "")(arguments) or 0
        sys.stdout.flush()  # here, where a closed pipe is answered, and not at the very end
        return code
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except UnknownOptionError as error:
        message, code = unknown_option(error), _USAGE_ERROR
    except UnusedCliTokensError as error:
        message, code = unused_words(error), _USAGE_ERROR
    except MissingArgumentError as error:
        message, code = missing(error), _USAGE_ERROR
    except CycloptsError as error:
        message, code = str(error), _USAGE_ERROR
    except KeyboardInterrupt:  # where nothing had to be saved first, such as while importing
        message, code = "stopped", _CTRL_C
    except Exception as error:
        from hyla.commands.shared.exits import explanation

        explained = explanation(error)
        if explained is None:
            raise
        message, code = explained
    print(f"hyla: {message}", file=sys.stderr)
    return code


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a command, and the values of `--plugin` among them.

    The options of commands follow from what plug-ins register, which come first therefore.
    """
    rest, plugins, words, last = [], [], iter(arguments), ""
    for word in words:
        option, equals, value = word.partition("=")
        if option == "--plugin":
            last = value if equals else next(words, "-")
            if not last or (last.startswith("-") and not equals):
                raise CycloptsError("--plugin needs a file, as in --plugin mytask.py")
            plugins.append(last)
            continue
        if last and word.endswith(".py"):
            raise CycloptsError(
                f"--plugin takes one file: repeat it, as in --plugin {last} --plugin {word}"
            )
        rest.append(word)
        last = ""
    return rest, plugins


def _app(asked_for: str) -> App:
    app = App(
        name="hyla",
        help=_INTRO,
        version=__version__,
        # `--lr 1e-3 3e-4` instead of `--lr 1e-3 --lr 3e-4`; an empty list is never meant.
        default_parameter=Parameter(consume_multiple=1, negative_iterable=()),
        config=check_whole_numbers,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    for position, (name, summary) in enumerate(_COMMANDS.items()):
        module = name.replace("-", "_")
        app.command(
            f"hyla.commands.{module}:{module}",
            name=name,
            help=None if name == asked_for else summary,  # a summary would hide the docstring
            sort_key=position,
        )
    app.register_install_completion_command(
        help="Complete commands and options with the tab key in this shell, from its next start."
    )
    return app
