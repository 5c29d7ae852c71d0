"""Figure 3: what SRAVEN is."""

from hyla.figures.drawing import PALETTE, Bars, Figure, Heatmap, Series
from hyla.lab.claims import Claim, constructed
from hyla.lab.experiment import Experiment
from hyla.lab.measuring import Measurement, Measuring
from hyla.results.runs import Row
from hyla.results.tables import Results
from hyla.tasks import Sraven, SravenConfig
from hyla.tasks.sraven.problem import Problem, Problems

_SIDES = ("train", "ood")


def _measure(measuring: Measuring) -> list[Row]:
    """Draw one instance, and count on which side of the split each rule's combinations are."""
    config = SravenConfig()
    problem = Problems(config, "train", seed=0)[0]
    rows: list[Row] = []
    for view, features in (("by feature", True), ("as shown", False)):
        for i in range(config.num_features):
            for number, value in enumerate(_values(problem, i, by_feature=features), start=1):
                name = problem.rules[i] if features else f"position {i + 1}"
                rows.append(
                    {"view": view, "row": f"{i + 1}: {name}", "panel": number, "value": value}
                )
    sides = Sraven(config).manifest(0).sides
    for side in _SIDES:
        for rule, name in enumerate(config.rules):
            count = sum(rule in combination for combination in sides[side])
            rows.append({"view": "split", "row": name, "panel": side, "value": count})
    total = [{"view": "combinations", "row": s, "panel": s, "value": len(sides[s])} for s in _SIDES]
    return rows + total


def _values(problem: Problem, index: int, *, by_feature: bool) -> list[int]:
    if by_feature:
        return [value for row in problem.rows(index) for value in row]
    return [panel[index] for row in problem.panels for panel in row]


def _figure(results: Results) -> Figure | None:
    if not results.rows:
        return None

    def grid(view: str, title: str) -> Heatmap:
        own = [row for row in results.rows if row["view"] == view]
        names = list(dict.fromkeys(row["row"] for row in own))
        return Heatmap(
            title=title,
            values=[[row["value"] for row in own if row["row"] == name] for name in names],
            rows=names,
            columns=[*map(str, range(1, 9)), "query"],
            label="value",
        )

    split = [row for row in results.rows if row["view"] == "split"]
    rules = list(dict.fromkeys(row["row"] for row in split))
    sides = [
        Series(
            name={"train": "in training", "ood": "held out"}[side],
            y=[row["value"] for row in split if row["panel"] == side],
            colour=PALETTE[i],
        )
        for i, side in enumerate(_SIDES)
    ]
    panels = [
        grid("by feature", "A: a rule for each feature"),
        grid("as shown", "B: what the model sees"),
        Bars(title="combinations with each rule", y_label="combinations", x=rules, series=sides),
    ]
    note = (
        "Nine panels of M = 4 integers, row by row. Each column shows the features in an order of "
        "its own: finding which belong together is the hard part. `hyla sraven show` draws more."
    )
    return Figure(panels=[panels], note=note)


def _claims(results: Results) -> list[Claim]:
    counts = {row["row"]: row["value"] for row in results.rows if row["view"] == "combinations"}
    if not counts:
        return []
    part = counts["ood"] / sum(counts.values())
    numbers = f"{counts['ood']} of {sum(counts.values())} combinations ({part:.1%})"
    return [constructed("A quarter of the rule combinations is held out.", numbers)]


EXPERIMENT = Experiment(
    name="fig3",
    title="Figure 3: the SRAVEN task",
    shows="An instance by its rules and as a model sees it, and the split of the combinations.",
    measurement=Measurement(name="fig3", measure=_measure),
    figure=_figure,
    claims=_claims,
)
