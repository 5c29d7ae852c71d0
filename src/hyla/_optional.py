"""Libraries that only some parts need: whoever lacks one is told how to get it."""

from importlib import import_module
from typing import Any

from hyla._errors import install_command


class MissingLibraryError(ImportError, ValueError):
    """An optional library is not installed; the message says how to get it."""


class needed:  # noqa: N801 - a statement, as in `with needed("tables", "Parquet needs pyarrow"):`
    """Around the imports of an optional library: raises an error that names its extra.

    `why` says what needs which library; without it, the library that is missing is named.
    """

    def __init__(
        self, extra: str, why: str = "", *, raises: type[Exception] = MissingLibraryError
    ) -> None:
        self._extra, self._why, self._raises = extra, why, raises

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # One that was told already, further in, names the extra that is missing there.
        if isinstance(error, ImportError) and not isinstance(error, MissingLibraryError):
            absent = isinstance(error, ModuleNotFoundError) and error.name
            why = self._why or (f"{error.name} is not installed" if absent else str(error))
            raise self._raises(f"{why}: {install_command(self._extra)}") from error


def required(module: str) -> Any:
    """Import a module of a library that analyses of codes need."""
    with needed("latents"):
        return import_module(module)
