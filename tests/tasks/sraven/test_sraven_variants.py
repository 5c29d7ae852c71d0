"""Named variants: a name fixes everything, and goes on meaning what it meant."""

import dataclasses
import json

import pytest
import torch

from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven.variants import INSTANCES, VARIANTS, Variant, variant_named


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_name_means_what_it_meant(name):
    """The hash is over settings, combinations and instances."""
    assert variant_named(name).measure() == variant_named(name).published


def test_every_variant_is_published_under_a_hash_of_its_own():
    hashes = {variant.published["hash"] for variant in VARIANTS.values()}
    assert len(hashes) == len(VARIANTS)
    for variant in VARIANTS.values():
        ceiling = variant.published["ceiling"]
        assert (ceiling is None) == (variant.config.num_distractors > 0)
        assert ceiling is None or 0.8 < ceiling <= 1
        assert variant.config.split_seed is not None


def test_the_evaluation_instances_are_those_of_the_sampler():
    variant = variant_named("paper")
    got = variant.evaluation()
    assert got.panels.shape == (INSTANCES, 3, 3, 4)
    want = Sraven(SravenConfig()).sampler("ood", seeds=[0], batch_size=64).instances(700)
    assert torch.equal(got.panels[700 * 64 : 701 * 64], want.panels[0])


@pytest.mark.parametrize(
    "change", [{"num_values": 9}, {"split_seed": 1}, {"held_out_fraction": 0.26}]
)
def test_any_change_changes_the_manifest(change):
    variant = variant_named("paper")
    other = Variant(name="paper", summary="", config=dataclasses.replace(variant.config, **change))
    assert json.dumps(other.manifest()) != json.dumps(variant.manifest())


@pytest.mark.parametrize(
    ("name", "trained", "held_out"),
    [("trained90", 297, 33), ("trained25", 83, 247), ("trained1", 4, 326)],
)
def test_the_shares_are_those_of_their_names(name, trained, held_out):
    sides = variant_named(name).task.manifest(0).sides
    assert (len(sides["train"]), len(sides["ood"])) == (trained, held_out)
    assert {rule for combination in sides["train"] for rule in combination} == set(range(8))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'trained90'\?.*choose from paper"):
        variant_named("trained9")
