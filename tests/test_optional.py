"""Whoever lacks an optional library is told which, and how to get it."""

import pytest

from hyla._optional import MissingLibraryError, needed, required


def test_a_library_that_is_missing_is_named():
    with pytest.raises(MissingLibraryError, match=r"^nowhere_at_all is not installed: pip install"):
        required("nowhere_at_all")


@pytest.mark.parametrize("name", [None, "half"])
def test_a_library_that_is_there_but_broken_says_what_it_said(name):
    said = r"^a symbol is undefined: .*hyla\[figures\]"
    with pytest.raises(MissingLibraryError, match=said), needed("figures"):
        raise ImportError("a symbol is undefined", name=name)


def test_what_was_told_further_in_stays():
    said, further_in = r"^Parquet needs it: .*hyla\[tables\]", needed("tables", "Parquet needs it")
    with pytest.raises(MissingLibraryError, match=said), needed("explorer"), further_in:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
