"""The geometry of a language model's codes: tokens in the place of operations."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hyla.latents.measures.geometry import cosine_similarities, distance_table, embedding_table
from hyla.latents.table import CodeTable

if TYPE_CHECKING:
    import pandas

OTHER = "(other)"
"""What stands for a token that is too rare to have a colour."""

_MOST_LAYERS = 6
_MOST_TOKENS = 11


def shown_layers(layers: Sequence[int]) -> list[int]:
    """Return a few layers, from the first to the last."""
    chosen = np.linspace(0, len(layers) - 1, min(_MOST_LAYERS, len(layers)))
    return [layers[round(i)] for i in chosen]


def text_tables(table: CodeTable) -> dict[str, "pandas.DataFrame"]:
    """Return the tables of one kind of attention, with a point for every pair of tokens.

    Similarities and distances are those of the tokens that occur most often.
    """
    table = frequent_tokens(table.separate_pairs())
    table = table.with_columns(position=table["query"])
    named = table.rows(table["token"] != OTHER)
    tables = {"embedding": embedding_table(table)}
    if len(named):
        tables["similarity"] = cosine_similarities(named, "token")
    if len(np.unique(named["token"])) > 1:
        tables["distances"] = distance_table(named, "token")
    return tables


def frequent_tokens(table: CodeTable) -> CodeTable:
    """Call all but the most frequent tokens other, so that each has a colour of its own."""
    names = ("token", "key_token")
    one_layer = table["layer"] == table["layer"].min()
    queries, keys = (Counter(table[name][one_layer].tolist()) for name in names)
    kept = {token for token, count in (queries | keys).most_common(_MOST_TOKENS) if count > 1}
    return table.with_columns(
        **{
            name: np.array([t if t in kept else OTHER for t in table[name].tolist()])
            for name in names
        }
    )
