"""The page that comes with an export of SRAVEN: what it is, how it was made, what to mind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyla.tasks.base import Manifest
from hyla.tasks.parquet_folder import columns_of_page, head_of_page, pa

_SPLITS_IN_WORDS = {
    "train": "combinations of the training side",
    "validation": "new instances of the training side's combinations, to choose settings by",
    "test": "new instances of the training side's combinations",
    "ood": "combinations that training never shows",
    "test_unpermuted": "as `test`, with the features in the same order in all columns",
    "ood_unpermuted": "as `ood`, with the features in the same order in all columns",
}


def datasheet(
    description: Mapping[str, Any],
    schema: pa.Schema,
    column_docs: Mapping[str, str],
    manifest: Manifest,
) -> str:
    """The datasheet as Markdown; its head tells `datasets.load_dataset` where the splits are."""
    config = description["config"]
    size, num_features, num_values, num_distractors = (
        config[name] for name in ("grid_size", "num_features", "num_values", "num_distractors")
    )
    panel_size = num_features + num_distractors
    splits = description["splits"]
    sides = {name: len(combinations) for name, combinations in manifest.sides.items()}
    distractors = _DISTRACTORS.format(number=num_distractors) if num_distractors else ""
    distractors += _BLANKS if config["train_features"] else ""
    limits = "\n".join(
        [
            _ambiguity(description),
            _LABELLED if description["labels"] else _UNLABELLED,
        ]
    )
    return f"""{head_of_page("SRAVEN", splits)}

# SRAVEN: symbolic Raven matrices

## What it is

Abstract reasoning problems after Raven's progressive matrices, from the paper "Attention as a
Hypernetwork". An instance is a grid of {size} × {size} panels; a panel is {panel_size} integers
in [0, {num_values}). Each of {num_features} features follows one rule along every row, and each
column shows the features in an order of its own, the same for all its rows. The last panel is to
be predicted from the others; a prediction is right if all its integers are.{distractors}

## How it was generated

{_origin(description)} No person and no collected data is involved. Every instance is a pure
function of these settings and (split, seed, index): the same three give the same instance as a
tensor, in this table, as a prompt and as a picture.

Rules: {", ".join(config["rules"])}; arithmetic is modulo {num_values}. The multiset of rules is
drawn uniformly from those of the split and laid onto the features in random order.

## Splits

{description["instances_per_split"]:,} instances each. The split is compositional: of the
{sum(sides.values())} multisets of rules, training shows {sides["train"]}; {sides["ood"]} are held
out. The SHA-256 of the two lists is `{description["manifest_hash"]}`; the lists are in
`export.json`.

{chr(10).join(f"- `{split}`: {_SPLITS_IN_WORDS[split]}" for split in splits)}

## Columns

{columns_of_page(schema, column_docs)}

The configuration and the hash are also in the metadata of each file's schema, under `hyla.sraven`.

```python
import datasets

problems = datasets.load_dataset("parquet", data_files="data/{splits[0]}-*.parquet")
```

## Known limits

{limits}
- Instances are drawn independently: the same grid can occur twice, and, rarely, in two splits.
- The panels are symbols. Nothing here tests seeing.

## Licence

MIT, as hyla.
"""


def _origin(description: Mapping[str, Any]) -> str:
    seed, split_seed = description["seed"], description["config"]["split_seed"]
    variant, origin = description.get("variant"), f"By hyla {description['hyla_version']}"
    if variant is not None:
        origin += f", with the settings of variant `{variant}`"
    if split_seed is None:
        return f"{origin}, from seed {seed}."
    return f"{origin}: combinations divided by split seed {split_seed}, instances from seed {seed}."


def _ambiguity(description: Mapping[str, Any]) -> str:
    if not description["config"]["unambiguous"]:
        return _AMBIGUITY
    shares = description["expected_ambiguous"].items()
    return _AMBIGUITY_REJECTED + "".join(
        f"\n  - `{split}`: {100 * left:.2g} %" for split, left in shares
    )


_DISTRACTORS = """

Among the features are {number} distractors: they follow no rule, all their values are random. What
is predicted for them does not count."""

_BLANKS = """

Instances of the training side show fewer features than `ood`: the others are blank in all panels,
and what is predicted for them does not count."""

_AMBIGUITY = """\
- **Ambiguity.** Some contexts fit several readings (choices of rules and of which positions belong
  together) that prescribe different last panels; `query` is then one of several defensible
  answers, and no model can be right always."""

_AMBIGUITY_REJECTED = """\
- **Ambiguity.** Contexts that fit several readings (choices of rules and of which positions belong
  together) with different last panels were rejected and drawn again, a limited number of times. An
  instance that stayed ambiguous through all draws is kept. The share of these to expect, from the
  estimate that the number of draws follows from:"""

_LABELLED = """\
- `ambiguous` marks the instances whose readings disagree about the last panel. Probabilities are
  those of a reader who knows the generator but not the split: all multisets of rules are equally
  likely to that reader. Who knows which multisets a split holds can exclude some readings, and be
  right more often than `map_posterior` says; `hyla sraven audit` measures both."""

_UNLABELLED = """\
- This export was made without the labels that mark ambiguous instances (`hyla sraven export
  --labels` adds them)."""
