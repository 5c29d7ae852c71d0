"""`hyla sraven variants`: the names under which models are compared."""

import dataclasses
import json
from typing import Annotated, Any

from cyclopts import Parameter

from hyla.commands.shared.exits import FAILURE, usage_errors
from hyla.commands.shared.output import Screen, table
from hyla.tasks.sraven.variants import SEED, VARIANTS, Variant, variant_named

_FEW = 20
"""So many combinations can be listed."""


def variants(
    name: str | None = None,
    /,
    *,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """List the named variants: what each asks, its hash, and the best accuracy possible.

    A name fixes features, values, rules, permutation, the combinations that train, and the 51,200
    instances to evaluate on. The hash is over all of these. `hyla train sraven --variant NAME`
    trains on one, `hyla sraven export OUT --variant NAME` writes its instances, `hyla sraven
    submit FILE --variant NAME` scores answers to them.

    Parameters
    ----------
    name
        One variant, with all that there is to say about it.
    measure
        Compute hashes and ceilings anew, and exit with 1 where they are not those published.
    as_json
        Print hashes, ceilings and shares of ambiguous instances as JSON.
    """
    with usage_errors():
        chosen = list(VARIANTS.values()) if name is None else [variant_named(name)]
    facts = {v.name: v.measure() if measure else v.published for v in chosen}
    changed = [v.name for v in chosen if measure and facts[v.name] != v.published]
    screen = Screen()
    if as_json:
        print(json.dumps(facts, indent=1))
        return FAILURE if changed else 0
    shown = table("", "variant", "hash", "ceiling (%)", "what it asks", numeric=("ceiling (%)",))
    for one in chosen:
        known = facts[one.name]
        ceiling = "-" if known["ceiling"] is None else f"{100 * known['ceiling']:.2f}"
        shown.add_row(one.name, known["hash"][:12], ceiling, one.summary)
    screen.print(shown)
    if name is not None:
        screen.print(f"\n{chosen[0].note}\n" if chosen[0].note else "")
        print(json.dumps(_everything(chosen[0]), indent=1))
    for each in changed:
        screen.say(f"{each} is not what was published under this name")
    return FAILURE if changed else 0


def _everything(variant: Variant) -> dict[str, Any]:
    """Return all that the name fixes: the manifest, and what is at a default, which it leaves out.

    The hash is over the manifest as it is: defaults must not come into it.
    """
    manifest = variant.manifest()
    settings = dataclasses.asdict(variant.config)
    trained = variant.task.manifest(SEED).sides["train"]
    if len(trained) <= _FEW:
        rules = variant.config.rules
        manifest["trained_combinations"] = [", ".join(rules[i] for i in each) for each in trained]
    return manifest | {
        "settings": settings,
        "permutation": "each column shows its features in an order of its own, drawn anew for "
        "every instance",
    }
