"""SRAVEN under names that fix everything, so that two numbers of one name can be compared.

A variant is a `SravenConfig` with a split seed, and the first 51,200 instances of its split `ood`
at seed 0 to evaluate on. What it fixed when it was published stands in ``variants.json``: a hash of
its settings, combinations and instances, and the ceiling on these instances.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch

from hyla._errors import check_choice
from hyla.tasks.base import without_defaults
from hyla.tasks.sraven.config import SravenConfig
from hyla.tasks.sraven.generator import Instances
from hyla.tasks.sraven.solver.ambiguity import ambiguous_by_definition
from hyla.tasks.sraven.solver.exact import Solver
from hyla.tasks.sraven.task import Sraven

INSTANCES = 51_200
"""Evaluation instances of every variant: as many as the paper's."""
SPLIT, SEED = "ood", 0
"""Where they come from."""
_BATCH = 4096
_TRAINING_HASHED = 4096  # the first instances of the training split


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A name and what it stands for."""

    name: str
    summary: str
    """What is asked, in one sentence."""
    config: SravenConfig
    note: str = ""
    """What to mind when its numbers are set beside others."""

    @property
    def task(self) -> Sraven:
        """The task itself."""
        return Sraven(self.config)

    def evaluation(self) -> Instances:
        """The instances that models are compared on, in their order."""
        return _first_instances(self.task, SPLIT, INSTANCES)

    def manifest(self) -> dict[str, Any]:
        """All that the name fixes, for JSON; `measure` hashes this."""
        sides = self.task.manifest(SEED)
        return {
            "variant": self.name,
            "settings": without_defaults(self.config),
            "combinations": {name: len(side) for name, side in sides.sides.items()},
            "combinations_sha256": sides.hash,
            "evaluation": {"split": SPLIT, "seed": SEED, "instances": INSTANCES},
            "evaluation_sha256": _digest(self.evaluation()),
            "training_sha256": _digest(_first_instances(self.task, "train", _TRAINING_HASHED)),
        }

    def measure(self) -> dict[str, Any]:
        """Hash, ceiling and ambiguity, computed anew; `published` has them at once."""
        manifest = json.dumps(self.manifest(), sort_keys=True)
        return {"hash": hashlib.sha256(manifest.encode()).hexdigest()} | self._solved()

    def _solved(self) -> dict[str, Any]:
        best = self.task.ceiling(SPLIT, seed=SEED, instances=INSTANCES)
        if best is None:
            return {"ceiling": None, "ceiling_se": None, "ambiguous": None}
        ambiguous = ambiguous_by_definition(Solver(self.config)(self.evaluation().panels))
        return {
            # Rounded, so that every machine finds the same.
            "ceiling": round(float(best.mean()), 6),
            "ceiling_se": round(float(best.std()) / len(best) ** 0.5, 6),
            "ambiguous": round(float(ambiguous.double().mean()), 6),
        }

    @property
    def published(self) -> dict[str, Any]:
        """What `measure` gave when the variant was published."""
        return _published()[self.name]


def _paper(*, split_seed: int = 0, **settings: Any) -> SravenConfig:
    return SravenConfig(split_seed=split_seed, **settings)


_LATENT_SEARCH = (
    "After the settings of work on gradient search in latent space (ICLR 2026), as far as we know "
    "them: the share of combinations that is trained. Which combinations these are, how many "
    "instances and seeds there were, and whether columns were permuted is not known to us; here "
    "they are permuted, and `variants.json` fixes the rest."
)

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="paper",
            summary="Four features, eight rules; a quarter of the 330 combinations is held out.",
            config=_paper(),
        ),
        *(
            Variant(
                name=f"paper-split{seed}",
                summary=f"The same with another quarter held out: that of split seed {seed}.",
                config=_paper(split_seed=seed),
                note="How much a score owes to the combinations that happen to be held out.",
            )
            for seed in (1, 2)
        ),
        Variant(
            name="unambiguous",
            summary="The paper's, of instances whose context allows one answer only.",
            config=_paper(unambiguous=True),
            note="Ambiguous draws are replaced, in training too: the ceiling is 100 %.",
        ),
        Variant(
            name="trained90",
            summary="297 of the 330 combinations are trained, 33 are held out.",
            config=_paper(held_out_fraction=0.1),
            note=_LATENT_SEARCH,
        ),
        Variant(
            name="trained25",
            summary="83 of the 330 combinations are trained, 247 are held out.",
            config=_paper(held_out_fraction=0.75),
            note="Three quarters are held out where the paper holds out one; all eight rules are "
            "trained.",
        ),
        Variant(
            name="trained1",
            summary="4 of the 330 combinations are trained, 326 are held out.",
            config=_paper(held_out_fraction=0.99),
            note=f"The four (1.2 %) show all eight rules. {_LATENT_SEARCH}",
        ),
        *(
            Variant(
                name=f"features{number}",
                summary=f"The paper's with {number} features instead of four.",
                config=_paper(num_features=number),
            )
            for number in (3, 5, 6)
        ),
        Variant(
            name="distractors",
            summary="The paper's, among two further features that follow no rule.",
            config=_paper(num_distractors=2),
            note="Six integers a panel; those of distractors are not scored. The solver knows no "
            "distractors, so there is no ceiling.",
        ),
        Variant(
            name="longer",
            summary="Training shows two or three features, evaluation four.",
            config=_paper(train_features=(2, 3)),
            note="Panels always have four positions. In training one or two of the features are "
            "blank (zero tokens, not scored) and take part in the permutations like the others, so "
            "that every position is trained: only how many features there are at once is new. "
            "All 36 + 120 combinations of two or three rules are trained, all 330 of four are "
            "evaluated.",
        ),
    )
}


def variant_named(name: str) -> Variant:
    """The variant of a name; a ValueError says which there are."""
    check_choice("variant", name, VARIANTS)
    return VARIANTS[name]


@functools.cache
def _published() -> dict[str, dict[str, Any]]:
    return json.loads(resources.files("hyla.tasks.sraven").joinpath("variants.json").read_text())


def _first_instances(task: Sraven, split: str, number: int) -> Instances:
    sampler = task.sampler(split, seeds=[SEED], batch_size=min(number, _BATCH))
    batches = [sampler.instances(i) for i in range(-(-number // sampler.batch_size))]
    fields = zip(*batches, strict=True)
    return Instances(*(torch.cat(field, dim=1)[0, :number] for field in fields))


def _digest(instances: Instances) -> str:
    """The SHA-256 of instances as bytes: panels, rules and permutations, one after the other."""
    content = hashlib.sha256()
    for field in instances:
        content.update(field.to(torch.int8).contiguous().numpy().tobytes())
    return content.hexdigest()
