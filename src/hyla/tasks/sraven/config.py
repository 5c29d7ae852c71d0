"""The size of the SRAVEN task."""

from __future__ import annotations

from dataclasses import dataclass, field

from hyla import _plugins
from hyla._errors import nearest
from hyla.tasks.base import check_combinable, check_positive
from hyla.tasks.sraven.rules import PAPER_RULES, RULES

DISTRACTOR, BLANK = "distractor", "blank"
"""Stand for the rule of a feature that follows none: its values are random, or not shown."""


@dataclass(frozen=True, kw_only=True)
class SravenConfig:
    """Size, rules and split of SRAVEN; the defaults are the paper's."""

    num_features: int = 4
    """M: features that follow a rule."""
    num_values: int = 8
    """K: an integer lies in [0, K)."""
    grid_size: int = 3
    """G: rows and columns of the grid."""
    rules: tuple[str, ...] = PAPER_RULES
    """Names of the rules, from `RULES`; labels are indices into them."""
    held_out_fraction: float = field(default=0.25, metadata={"shape": False})
    """Share of the rule combinations that training never shows."""
    unambiguous: bool = False
    """Reject instances whose context allows several answers (see `SravenSampler`)."""
    num_distractors: int = field(default=0, metadata={"later": True})
    """D: further features, of random values, that follow no rule; they are never scored."""
    split_seed: int | None = field(default=None, metadata={"later": True, "shape": False})
    """Seed of the split into combinations; if not given, each model's own seed."""
    train_features: tuple[int, ...] = field(default=(), metadata={"later": True})
    """How many features training shows, if always fewer than M: the others are blank, and all
    combinations of M rules are OOD."""

    @property
    def all_scored(self) -> bool:
        """Whether all integers of a query panel count: there are no distractors and no blanks."""
        return not self.num_distractors and not self.train_features

    @property
    def panel_size(self) -> int:
        """Integers in a panel: one for each feature, distractors included."""
        return self.num_features + self.num_distractors

    @property
    def distractor_label(self) -> int:
        """What stands for the rule of a feature that has none: the number after the last rule."""
        return len(self.rules)

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the labels of features stand for: the rules, and none."""
        return (*self.rules, BLANK if self.train_features else DISTRACTOR)

    def __post_init__(self) -> None:
        check_combinable(num_features=self.num_features)
        check_positive(num_values=self.num_values, grid_size=self.grid_size)
        if self.grid_size < 2:
            raise ValueError(f"grid_size must be at least 2, got {self.grid_size}")
        if self.num_values < 2:
            raise ValueError(
                "num_values must be at least 2, because of one value there is nothing to predict, "
                f"got {self.num_values}"
            )
        if not RULES.keys() >= set(self.rules):
            _plugins.load()
        for name in self.rules:
            if name not in RULES:
                raise _plugins.PluginError(
                    f"rules: {name!r} is not one of {', '.join(RULES)}{nearest(name, RULES)}; the "
                    "plug-in that registers one of your own is named by --plugin FILE.py"
                )
            if RULES[name].count(self.num_values, self.grid_size) == 0:
                raise ValueError(
                    f"rules: {name} cannot fill a grid of size {self.grid_size} with "
                    f"{self.num_values} values; raise num_values, or name the rules without it"
                )
        if len(set(self.rules)) != len(self.rules) or not self.rules:
            raise ValueError(f"rules must be a non-empty set of names, got {self.rules}")
        if self.num_distractors < 0:
            raise ValueError(f"num_distractors must not be negative, got {self.num_distractors}")
        if self.unambiguous:
            self.refuse_distractors("unambiguous=True")
        if self.train_features:
            self._check_train_features()

    def _check_train_features(self) -> None:
        self.refuse_distractors("train_features")
        if self.unambiguous:
            raise ValueError(
                "unambiguous=True does not work with train_features: whether an instance with "
                "blanks has one answer is not known"
            )
        for number in self.train_features:
            if not 0 < number < self.num_features:
                raise ValueError(
                    "train_features must lie between 1 and num_features - 1 = "
                    f"{self.num_features - 1}, got {number}"
                )

    def refuse_distractors(self, what: str) -> None:
        """Raise a ValueError if there are distractors; `what` needs readings, and has none then."""
        if self.num_distractors:
            raise ValueError(
                f"{what} does not work with distractors: a reading would also have to say which "
                f"positions follow no rule; set num_distractors to 0, got {self.num_distractors}"
            )
