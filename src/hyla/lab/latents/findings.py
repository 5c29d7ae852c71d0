"""What the tables of a model's codes say, in a few sentences: the top of its page."""

from collections.abc import Iterator, Mapping, Sequence

from hyla.lab.experiments.shared.code_panels import chosen
from hyla.lab.latents.summary import best_layers, swapped_everywhere
from hyla.latents.measures.confidence import Interval, wilson_interval
from hyla.results.runs import Row
from hyla.tasks.study import Study

LEAD = (
    "A code is what attention's scores of one query and one key are across the heads: as many "
    "numbers as there are heads, which configure what is computed of the key for the query. This "
    "page asks whether the codes of a trained model say which operation it performs (maps, "
    "distances, decoding), and whether it performs another one when it is given another code "
    "(swaps, heads). Colours of signed numbers: blue is above zero, orange below."
)
_NONE_SOLVED = "the model solves none of the instances, so that no answer can stay or follow"


def findings(tables: Mapping[str, Sequence[Row]], study: Study, pairs: str) -> list[str]:
    """Return a sentence for each question that the tables of a model answer."""
    asked = (
        ("decoding", lambda rows: _decoded(rows, study, pairs)),
        ("distances", lambda rows: _apart(rows, study)),
        ("swaps", lambda rows: _swapped(chosen(rows, pairs=pairs))),
        ("heads", _most_needed_head),
    )
    return [text for name, tell in asked if tables.get(name) for text in tell(tables[name])]


def _decoded(rows: Sequence[Row], study: Study, pairs: str) -> Iterator[str]:
    """Of what is decoded last, of several labels all at once, beside everything else that tells."""
    found = list(best_layers(rows, study, pairs))
    metric = study.decoding_metric
    code = next((one for one in reversed(found) if one.predictor == "code"), None)
    if code is None or code.layer is None:
        return
    others = [one for one in found if one.label == code.label and one is not code]
    text = (
        f"Decoding: the code tells the {code.label} of unseen compositions with "
        f"{'F1' if metric == 'f1' else metric} {getattr(code, metric):.2f} at layer "
        f"{code.layer + 1}, its best"
    )
    if others:
        best = max(others, key=lambda one: getattr(one, metric))
        beside = ", ".join(f"{one.predictor} {getattr(one, metric):.2f}" for one in others)
        instances = min(row["instances"] for row in rows)
        # A mean F1 varies about as a share of the instances does, where no class is rare.
        own, other = (
            wilson_interval(round(getattr(one, metric) * instances), instances)
            for one in (code, best)
        )
        _, compared = _compared(own, other, f"{best.predictor}, the best of the rest ({beside})")
        text += f", {compared}"
    yield f"{text}."


def _apart(rows: Sequence[Row], study: Study) -> Iterator[str]:
    ratios = [row for row in chosen(rows, statistic="ratio") if row["value"] is not None]
    if ratios:
        most = max(ratios, key=lambda row: row["value"])
        yield (
            f"Geometry: codes of different {study.operation}s are {most['value']:.2f} times as far "
            f"apart as codes of one, at layer {most['layer'] + 1}, where that is most; 1 would be "
            "no structure."
        )


def _swapped(rows: Sequence[Row]) -> Iterator[str]:
    by_code = {row["code"]: row for row in swapped_everywhere(rows)} if rows else {}
    donor, same, control = map(by_code.get, ("donor", "same operation", "permuted heads"))
    if donor is None:
        return
    if donor.get("donor_rate") is None:
        yield f"Swaps: {_NONE_SOLVED}."
        return
    text = (
        "Swaps: given the codes of an instance with another operation in all layers, "
        f"{donor['donor_rate']:.2f} of the answers follow that operation"
    )
    if control is not None and control.get("donor_rate") is not None:
        permuted = f"with its heads permuted ({control['donor_rate']:.2f})"
        carried, compared = _compared(_rate(donor, "donor"), _rate(control, "donor"), permuted)
        text += f", {compared}: the code alone "
        text += "carries an operation over, in part" if carried else "is not shown to carry it over"
    yield f"{text}."
    if same is not None and same.get("stay_rate") is not None:
        another = f"with another operation's ({donor['stay_rate']:.2f})"
        matters, compared = _compared(_rate(same, "stay"), _rate(donor, "stay"), another)
        yield (
            f"Control: given those of another instance with the same operation, "
            f"{same['stay_rate']:.2f} stay right, {compared}: which operation a code is of "
            f"{'matters' if matters else 'is not shown to matter'}."
        )


def _rate(row: Row, counted: str) -> Interval:
    return Interval(*(row[f"{counted}_{part}"] for part in ("rate", "low", "high")))


def _compared(one: Interval, other: Interval, than: str) -> tuple[bool, str]:
    """Say whether one is above the other, and how they compare: by intervals, never by values."""
    if one.low > other.high:
        return True, f"more than {than}"
    if one.high < other.low:
        return False, f"less than {than}"
    return False, f"not clearly more than {than} at this number of instances"


def _most_needed_head(rows: Sequence[Row]) -> Iterator[str]:
    """Which head, taken out alone, costs most, on average over the operations."""
    stay: dict[tuple[int, int], list[float]] = {}
    for row in chosen(rows, code="zero"):
        if row.get("stay_rate") is not None:
            stay.setdefault((row["layer"], row["head"]), []).append(row["stay_rate"])
    if stay:
        (layer, head), rates = min(stay.items(), key=lambda one: sum(one[1]) / len(one[1]))
        yield (
            f"Heads: most depends on head {head} of layer {layer + 1}; without it alone "
            f"{sum(rates) / len(rates):.2f} of the answers stay."
        )
    elif rows:
        yield f"Heads: {_NONE_SOLVED}."
