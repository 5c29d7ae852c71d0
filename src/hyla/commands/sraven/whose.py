"""Whose answers a file holds: `predict` writes it into the file, and `submit` reads it there."""

from collections.abc import Mapping
from typing import Any

from hyla.explorer.packed import read_description, shipped_models
from hyla.lab.experiments.shared.panels import label_of
from hyla.results.runs import origin_of, read_run
from hyla.tasks.sraven.variants import Variant, variant_named

_BASELINES = {"solver": "Exact solver", "chance": "Chance"}


def whose_answers(who: str, member: int, variant: Variant) -> dict[str, Any]:
    """Return what is known of who answers a variant: the fields of an entry that are."""
    known: dict[str, Any] = {"variant": variant.name, "hash": variant.published["hash"]}
    shipped = shipped_models()
    if who in _BASELINES:
        known |= {"model": _BASELINES[who]}
    elif who in shipped:
        about, config = read_description(shipped[who])
        known |= _trained(about.config, 0, config.steps)
        devices = dict.fromkeys(start["device"] for start in about.provenance)
        known |= {"run": about.source, "device": "; ".join(devices), "note": "comes with hyla"}
    else:
        run = read_run(who)
        known |= _trained(run.config, member, run.checkpoint_step)
        known |= {"run": run.path.name, "device": origin_of(run)["device"]}
        if run.summary is not None:
            known |= {"seconds": run.summary["seconds"]}
        if len(run.members) > 1:  # the seconds are of all of them
            known |= {"note": f"one of {len(run.members)} models trained at once"}
    return {name: value for name, value in known.items() if value is not None}


def _trained(config: Mapping[str, Any], member: int, steps: int | None) -> dict[str, Any]:
    model = config["model"]
    name = [label_of(model["attention"]), f"{model['num_layers']} layers"]
    name += [f"width {model['width_factor']}"] * (model["width_factor"] != 1)
    name += ["mixture of experts"] * (model["feed_forward"] == "moe")
    return {
        "model": ", ".join(name),
        "seed": config["members"][member]["seed"],
        "trained_on": None if steps is None else steps * config["batch_size"],
    }


def answered_variant(asked: str | None, told: Mapping[str, Any]) -> Variant:
    """Return the variant that a file answers; a ValueError if it is not the one asked for."""
    name = asked or told.get("variant")
    if name is None:
        raise ValueError("say which variant is answered by --variant: the file does not")
    variant = variant_named(name)
    if told.get("variant", name) != name:
        raise ValueError(
            f"the file answers variant {told['variant']}, not {name}: score it with --variant "
            f"{told['variant']}, or answer {name}"
        )
    if told.get("hash", variant.published["hash"]) != variant.published["hash"]:
        raise ValueError(
            f"the file answers variant {name} as it was, and it is another now: answer it again"
        )
    return variant
