"""Who answers SRAVEN: models of runs, those that come with hyla, and those who need no training."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hyla._errors import check_choice
from hyla.explorer.packed import read_description, read_weights, shipped_models
from hyla.nn import Transformer
from hyla.results.runs import load_model, origin_of, read_run
from hyla.tasks.sraven.variants import Variant
from hyla.training import TrainConfig

_BASELINES = {"solver": "Exact solver", "chance": "Chance"}


def load_answerer(
    who: str, member: int, device: torch.device, others: Iterable[str] = ()
) -> tuple[Transformer, TrainConfig, int]:
    """A model by its run directory, or by its name; with its config and its seed.

    A name of none is a ValueError that lists the names, and `others`, which the caller knows.
    """
    shipped = shipped_models()
    if who in shipped:
        refuse_member(who, member)
        _, config = read_description(shipped[who])
        model = read_weights(shipped[who], config).to(device)
    else:
        if Path(who).name == who and not Path(who).exists():  # a name, and no folder's
            ours = [n for n in shipped if read_description(shipped[n])[1].task_name == "sraven"]
            check_choice("model", who, [*ours, *others], ", or give a run directory")
        model, config = load_model(who, member, device=device)
    return model, config, config.members[member].seed


def refuse_member(who: str, member: int) -> None:
    """Raise a ValueError where another model is asked for than the one there is."""
    if member != 0:
        raise ValueError(f"{who} is a single model: --member {member} is for runs of several")


def whose_answers(
    who: str, member: int, variant: Variant, *, label: Callable[[str], str]
) -> dict[str, Any]:
    """Return what is known of who answers a variant: the fields of an entry that are.

    `label` says what an attention preset is called.
    """
    known: dict[str, Any] = {"variant": variant.name, "hash": variant.published["hash"]}
    shipped = shipped_models()
    if who in _BASELINES:
        known |= {"model": _BASELINES[who]}
    elif who in shipped:
        about, config = read_description(shipped[who])
        known |= _trained(about.config, 0, config.steps, label)
        devices = dict.fromkeys(start["device"] for start in about.provenance)
        known |= {"run": about.source, "device": "; ".join(devices), "seconds": about.seconds}
        known |= {"note": "; ".join(["comes with hyla", *_company(about.models)])}
    else:
        run = read_run(who)
        known |= _trained(run.config, member, run.checkpoint_step, label)
        known |= {"run": run.path.name, "device": origin_of(run)["device"]}
        if run.summary is not None:
            known |= {"seconds": run.summary["seconds"]}
        known |= {"note": "; ".join(_company(run.trained_at_once)) or None}
    return {name: value for name, value in known.items() if value is not None}


def _company(models: int) -> list[str]:
    """Return the note on a model that trained with others: its seconds are those of all of them."""
    return [f"one of {models} models trained at once"] * (models > 1)


def _trained(
    config: Mapping[str, Any], member: int, steps: int | None, label: Callable[[str], str]
) -> dict[str, Any]:
    model = config["model"]
    name = [label(model["attention"]), f"{model['num_layers']} layers"]
    name += [f"width {model['width_factor']}"] * (model["width_factor"] != 1)
    name += ["mixture of experts"] * (model["feed_forward"] == "moe")
    return {
        "model": ", ".join(name),
        "seed": config["members"][member]["seed"],
        "trained_on": None if steps is None else steps * config["batch_size"],
    }
