"""What `hyla` adds to the way cyclopts reads a command line."""

import typing
from collections.abc import Iterator
from typing import Any

from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hyla._errors import nearest

_OF_ATTENTION = ("phi", "normalisation", "value", "output")
"""Fields of an `AttentionSpec`, which are no options: the name of the attention says them."""


def check_whole_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raise an error for `--steps 1.5`, of which cyclopts would make 2 without a word."""
    for argument in arguments:
        kinds = set(_kinds(argument.hint))
        if int not in kinds or float in kinds or str in kinds:
            continue
        for token in argument.tokens:
            if "." in token.value and not _is_whole(token.value):
                raise CoercionError(argument=argument, token=token, target_type=int)


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the types that stand in an annotation, however deep."""
    parts = typing.get_args(hint)
    if not parts:
        yield hint
    for part in parts:
        yield from _kinds(part)


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:  # cyclopts says what is wrong with it
        return True


def unknown_option(error: UnknownOptionError) -> str:
    """Say which option comes closest to one that there is not, of those that take a value."""
    option = (error.token.keyword or error.token.value).partition("=")[0]
    if _last_part(option) in _OF_ATTENTION:
        return (
            f"there is no option {option}: it is part of the attention's name, as in --attention "
            "hyla.silu (another φ) or --attention hyla.rms4 (a normalised output)"
        )
    taken = (argument for argument in error.argument_collection if not argument.children)
    names = [name for argument in taken for name in argument.names if name.startswith("-")]
    # That both begin with --model. makes no option another's misspelling.
    alike = [name for name in names if nearest(_last_part(option), [_last_part(name)])]
    return f"there is no option {option}{nearest(option, alike) or _see_help(error)}"


def _last_part(option: str) -> str:
    return option.rpartition(".")[2].lstrip("-")


def unused_words(error: UnusedCliTokensError) -> str:
    """Say which subcommand comes closest to a word that is none."""
    words = error.unused_tokens or ["it"]
    commands = [name for name in error.app or () if not name.startswith("-")]
    meant = nearest(words[0], commands)
    return f"{words[0]!r} has no meaning here{meant or _see_help(error)}"


def missing(error: MissingArgumentError) -> str:
    """Say which argument or value is missing, and what the help says to write for it."""
    argument = error.argument
    assert argument is not None
    if argument.children:
        return f"{error.keyword} has parts, such as {argument.children[0].name}{_see_help(error)}"
    if error.keyword is not None:
        return f"{error.keyword} needs {_kind_of(argument)}: {_help_on(argument, error)}"
    for word in error.unused_tokens or ():  # it may have been given, misspelt
        option = word.partition("=")[0]
        if option.startswith("-") and (meant := nearest(option, argument.names)):
            return f"there is no option {option}{meant}"
    return f"{_command(error)} needs {argument.name}: {_help_on(argument, error)}"


def _kind_of(argument: Argument) -> str:
    kinds = set(_kinds(argument.hint))
    return "a number" if float in kinds else "a whole number" if int in kinds else "a value"


def _help_on(argument: Argument, error: CycloptsError) -> str:
    """Return an argument's choices, or what the help says of it."""
    assert error.app is not None
    # Once more: parsing a command line leaves docstrings unread.
    explained = error.app.assemble_argument_collection(parse_docstring=True)
    [text] = [each.parameter.help or "" for each in explained if each.name == argument.name]
    if choices := argument.get_choices():
        text = f"one of {', '.join(choices)}"
    text = " ".join(text.split()).partition(" (default")[0]
    return text.rstrip(".") + _see_help(error)


def _see_help(error: CycloptsError) -> str:
    return f"; see {_command(error)} --help"


def _command(error: CycloptsError) -> str:
    return " ".join(["hyla", *(error.command_chain or ())])
