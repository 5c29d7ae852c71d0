"""The wording that errors of all parts share."""

import pytest

from hyla._errors import nearest


@pytest.mark.parametrize(
    ("name", "options", "meant"),
    [
        ("srave", ["fuzzy", "sraven"], " (did you mean 'sraven'?)"),
        ("SRAVEN", ["fuzzy", "sraven"], " (did you mean 'sraven'?)"),
        (None, ["none", "all"], " (did you mean 'none'?)"),
        ("xyz", ["fuzzy", "sraven"], ""),
        ("", ["", "fuzzy"], ""),
        ("fuzzy", [], ""),
    ],
)
def test_the_option_that_was_meant_is_named(name, options, meant):
    assert nearest(name, options) == meant
