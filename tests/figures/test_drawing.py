"""Figures that can be read: nothing covers data, names do not touch, a name has one colour."""

import dataclasses
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex

import hyla
from hyla._colours import BLUE, GREEN, VERMILION
from hyla.figures.draw_plotly import figure_html, write_page
from hyla.figures.drawing import (
    METHOD_COLOURS,
    PALETTE,
    SIGNED_COLOURS,
    Bars,
    Figure,
    Heatmap,
    Level,
    Lines,
    Panel,
    Points,
    Series,
)
from hyla.lab.experiments.shared.code_panels import clouds
from hyla.lab.experiments.shared.latent_panels import codes_figure, seeds_in
from hyla.lab.registry import load
from hyla.results.conditions import Conditions
from hyla.results.runs import Row
from hyla.results.tables import Results
from hyla.tasks.sraven.faces.rendering import FEATURE_COLOURS
from hyla.tasks.sraven.faces.shapes import DARKEST

PAGE = Path(hyla.__file__).parent / "explorer" / "page"
EXPLORERS = PAGE / "js" / "palette.js"
RULES = ("constant", "progression+1", "addition", "distribute_three")


def results(rows: Sequence[Row]) -> Results:
    return Results(conditions=Conditions(scale="paper"), cells=[], rows=rows, ceilings={})


def codes(layers: dict[str, int], labels: Sequence[str] = RULES, seeds: int = 3) -> list[Row]:
    """The best model of each method, embedded, and the distances of all its seeds."""
    shown = [
        {"what": "embedding", "attention": method, "seed": 1, "layer": layer, "x": i, "y": layer}
        | {"rule": label, "target": float(i)}
        for method, depth in layers.items()
        for layer in range(depth)
        for i, label in enumerate(labels)
    ]
    return shown + [
        {"what": "clusters", "attention": method, "seed": seed}
        for method in layers
        for seed in range(seeds)
    ]


def full_bars(names: Sequence[str]) -> Bars:
    heights = [1.0] * len(names)
    return Bars(
        title="full",
        y_label="R²",
        x=names,
        series=[Series(name=f"bar {i}", y=heights, colour=PALETTE[i]) for i in range(3)],
        levels=[Level(name="best possible", y=1.0)],
        y_range=(0, 1),
    )


def lines(x: Sequence[Any]) -> Lines:
    one = Series(name="line", y=[0.5] * len(x), colour=PALETTE[0])
    return Lines(title="line", x_label="x", y_label="y", x=x, series=[one])


def heatmap(rows: Sequence[str], columns: int) -> Heatmap:
    return Heatmap(
        title="map",
        values=[[0.0] * columns for _ in rows],
        rows=rows,
        columns=[str(i) for i in range(columns)],
        label="score",
        value_range=(0, 1),
    )


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch):
    """Draw panels to files and return the canvas as it was saved."""
    from hyla.figures.draw_matplotlib import write_figure

    close = pyplot.close
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)

    def draw(figure: Figure) -> Any:
        for file in write_figure(figure, tmp_path / "figure"):
            assert file.stat().st_size > 0
        return kept[-1]

    yield draw
    for canvas in kept:
        close(canvas)


def tick_boxes(axis: Any) -> list[Any]:
    return [label.get_window_extent() for label in axis.get_xticklabels()]


@pytest.mark.parametrize(
    "panels",
    [
        [[full_bars(["a", "b"])]],
        [[full_bars([f"a long name {i}" for i in range(5)]), heatmap(["a"], 3)]],
        [[full_bars(["a"]), full_bars(["b"])], [full_bars(["c"])]],
    ],
    ids=["one", "beside a map", "rows"],
)
def test_the_legend_is_beside_the_panels_and_there_once(drawn, panels: list[list[Panel]]):
    canvas = drawn(Figure(panels=panels))
    assert not any(axis.get_legend() for axis in canvas.axes)
    [legend] = canvas.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["bar 0", "bar 1", "bar 2", "best possible"]
    box = legend.get_window_extent()
    assert not any(box.overlaps(axis.get_tightbbox()) for axis in canvas.axes if axis.axison)


@pytest.mark.parametrize(
    "panel",
    [
        heatmap(["a rule", "another rule"], 32),
        lines([1, 2, 4, 8, 16, 32, 64, 65]),
        lines(["1", "2", "3"]),
        lines(range(5_000, 160_000, 5_000)),
        full_bars(["ReLU", "GELU", "SiLU", "tanh", "id"]),
    ],
    ids=["many columns", "powers of two", "layers", "steps", "short"],
)
def test_names_do_not_touch(drawn, panel: Panel):
    boxes = tick_boxes(drawn(Figure(panels=[[panel]])).axes[0])
    assert len(boxes) >= 3
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_layers_keep_their_names_however_many_there_are(drawn):
    names = [str(layer) for layer in range(1, 17)]
    axis = drawn(Figure(panels=[[lines(names)]])).axes[0]
    assert {label.get_text() for label in axis.get_xticklabels()} <= set(names)


def test_large_numbers_of_steps_are_written_out(drawn):
    axis = drawn(Figure(panels=[[lines(range(100_000, 3_000_000, 100_000))]])).axes[0]
    assert "1,000,000" in {label.get_text() for label in axis.get_xticklabels()}


def test_names_too_long_for_their_places_are_turned(drawn):
    canvas = drawn(Figure(panels=[[full_bars(["softmax", "softmax, then RMSHead", "none"])]]))
    assert {label.get_rotation() for label in canvas.axes[0].get_xticklabels()} == {30}


def test_a_figure_grows_with_its_panels(drawn):
    one, many = Figure(panels=[[lines([1, 2])]]), Figure(panels=[[lines([1, 2])] * 4] * 3)
    (width, height), size = (drawn(figure).get_size_inches() for figure in (one, many))
    assert tuple(size) == pytest.approx((4 * width, 3 * height))


def test_long_names_of_rows_leave_room_for_the_map(drawn):
    canvas = drawn(
        Figure(panels=[[heatmap(["Linear attention + nonlinear value network, seed 0"], 5)]])
    )
    inches = canvas.axes[0].get_window_extent().width / canvas.dpi
    assert inches > 1


def test_maps_of_one_range_share_a_scale(drawn):
    canvas = drawn(Figure(panels=[[heatmap(["a"], 3)] * 3]))
    assert len(canvas.axes) == 4


def test_names_that_panels_share_are_said_once(drawn):
    """Beside the first panel of a row, and below the last of a column."""
    named = dataclasses.replace(heatmap(["a", "b"], 3), y_label="rule", x_label="head")
    other = dataclasses.replace(named, rows=["c", "d"])
    panels: list[list[Panel]] = [[named, named], [named, other]]
    axes = drawn(Figure(panels=panels)).axes

    def shown(labels: list[Any]) -> bool:
        return any(label.get_visible() and label.get_text() for label in labels)

    beside = [(shown(axis.get_yticklabels()), axis.get_ylabel()) for axis in axes[:4]]
    assert beside == [(True, "rule"), (False, ""), (True, "rule"), (True, "rule")]
    below = [(shown(axis.get_xticklabels()), axis.get_xlabel()) for axis in axes[:4]]
    assert below == [(False, "")] * 2 + [(True, "head")] * 2
    page = figure_html(Figure(panels=panels))
    assert page.count('"text":"rule"') == 3
    assert page.count('"text":"head"') == 2
    beside_each_other = figure_html(Figure(panels=[[lines([1, 2])] * 3]))
    assert beside_each_other.count('"title":{"text":"y"}') == 1


def test_titles_do_not_touch(drawn):
    panel = dataclasses.replace(
        heatmap(["a rule of a long name"], 3), title="Softmax attention: donor, same operands"
    )
    below = dataclasses.replace(panel, title="donor", columns=["1", "2", "3", "4"])
    canvas = drawn(Figure(panels=[[panel] * 3, [below] * 3]))
    boxes = [axis.title.get_window_extent() for axis in canvas.axes[:3]]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_numbers_can_be_read_on_their_cells(drawn):
    values = dataclasses.replace(heatmap(["a"], 2), values=[[0.0, 1.0]])  # dark violet, yellow
    texts = drawn(Figure(panels=[[values]])).axes[0].texts
    assert [text.get_color() for text in texts] == ["white", "black"]


def test_every_model_of_a_long_table_has_its_numbers(drawn):
    """Table A1: three seeds of fourteen rows, by five families of rules."""
    panel = heatmap([f"Linear attention + RMSHead, seed {i}" for i in range(42)], 5)
    axis = drawn(Figure(panels=[[panel]])).axes[0]
    assert [text.get_text() for text in axis.texts] == ["0.00"] * 42 * 5
    boxes = [text.get_window_extent() for text in axis.texts]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert len(tick_boxes(axis)) == 5
    assert not heatmap(["a rule", "", "", ""], 5).numbered  # no room: rows without a name are thin
    assert not heatmap(["a rule"] * 4, 32).numbered


def test_numbers_have_the_same_digits_and_counts_have_none(drawn):
    shares = dataclasses.replace(heatmap(["a"], 3), values=[[0.5, 0.093, 1.0]])
    counts = dataclasses.replace(shares, values=[[3, 0, 12]])
    for panel, shown, template in (
        (shares, ["0.50", "0.09", "1.00"], "%{z:.2f}"),
        (counts, ["3", "0", "12"], "%{z:.0f}"),
    ):
        figure = Figure(panels=[[panel]])
        assert [text.get_text() for text in drawn(figure).axes[0].texts] == shown
        assert f'"texttemplate":"{template}"' in figure_html(figure)


def test_the_page_says_which_colour_is_which_number():
    def scales(panels: list[list[Panel]]) -> int:
        return figure_html(Figure(panels=panels)).count('"title":{"text":"score","side":"right"}')

    cloud = Points(title="by target", x=[0], y=[0], values=[1.0], label="score", value_range=(0, 2))
    by_class = dataclasses.replace(cloud, values=["a"], class_colours={"a": PALETTE[0]})
    one = heatmap(["a"], 3)
    assert scales([[one, one, one]]) == 1  # the same range
    assert scales([[one], [cloud, by_class]]) == 2
    assert scales([[by_class, lines([1, 2])]]) == 0


def test_zero_is_the_middle_of_a_signed_map(drawn):
    panel = dataclasses.replace(heatmap(["a"], 3), values=[[-1, 3, 0]], value_range=None)
    signed = dataclasses.replace(panel, signed=True, x_label="head")
    assert panel.scale is None
    assert signed.scale == (-3, 3)
    axis = drawn(Figure(panels=[[signed]])).axes[0]
    assert axis.images[0].get_clim() == (-3, 3)
    assert axis.get_xlabel() == "head"
    page = figure_html(Figure(panels=[[signed]]))
    assert '"cmin":-3,"cmax":3' in page
    assert '"text":"head"' in page


def test_intervals_reach_as_far_as_they_do_on_each_side(drawn):
    line = Series(name="line", y=[0.5, 0.6], errors=[(0.1, 0.2), (0.3, 0.4)], colour=PALETTE[0])
    panel = dataclasses.replace(lines(["1", "2"]), series=[line])
    axis = drawn(Figure(panels=[[panel]])).axes[0]
    [[first, second]] = [bars.get_segments() for bars in axis.collections]
    assert first[:, 1].tolist() == pytest.approx([0.4, 0.7])
    assert second[:, 1].tolist() == pytest.approx([0.3, 1.0])
    page = figure_html(Figure(panels=[[panel]]))
    assert '"array":[0.2,0.4],"arrayminus":[0.1,0.3]' in page


def test_a_page_says_what_came_out_and_leads_to_its_parts(tmp_path):
    parts = [(name, Figure(panels=[[lines(["1", "2"])]])) for name in ("a", "b", "c")]
    path = tmp_path / "page.html"
    write_page(path, "Codes", parts, lead=["What one sees."], findings=["R > 0", "D < 1"])
    page = path.read_text()
    findings, lead, contents, first = map(
        page.index,
        ("<li>R &gt; 0</li>", "What one sees.", "aria-label='Contents'", "<h2 id='part-0'>"),
    )
    assert findings < lead < contents < first
    assert all(f"<a href='#part-{i}'>" in page for i in range(3))
    assert "prefers-color-scheme: dark" in page


def test_a_page_stands_alone_and_says_what_each_point_is(tmp_path):
    cloud = Points(title="codes", x=[0], y=[1], values=[2.0], label="x", notes=["rule: <a>\nx: 2"])
    write_page(tmp_path / "page.html", "Codes of <m>", [("Embedded", Figure(panels=[[cloud]]))])
    page = (tmp_path / "page.html").read_text()
    assert "<h1>Codes of &lt;m&gt;</h1>" in page
    assert "<h2 id='part-0'>Embedded</h2>" in page
    assert "aria-label='Contents'" not in page
    assert "rule: &lt;a&gt;\\u003cbr\\u003ex: 2" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)


def test_ticks_of_the_page_are_where_something_was_measured():
    assert '"tickvals":[16,32,64,96]' in figure_html(Figure(panels=[[lines([16, 32, 64, 96])]]))
    assert '"type":"category"' in figure_html(Figure(panels=[[lines(["1", "2"])]]))
    assert "tickvals" not in figure_html(Figure(panels=[[lines(range(100))]]))  # of a training


def test_any_colour_that_matplotlib_knows_is_drawn_on_the_page():
    def coloured(colour: str) -> Lines:
        (series,) = lines([1, 2]).series[:1]
        return dataclasses.replace(
            lines([1, 2]), series=[dataclasses.replace(series, colour=colour)]
        )

    assert '"color":"#1f77b4"' in figure_html(Figure(panels=[[coloured("tab:blue")]]))
    assert '"color":"#808080"' in figure_html(Figure(panels=[[coloured("0.5")]]))
    assert '"color":"#0072B2"' in figure_html(Figure(panels=[[coloured("#0072B2")]]))


def test_panels_keep_their_width_on_a_narrow_screen():
    assert figure_html(Figure(panels=[[lines([1, 2])] * 3])).startswith(
        "<div style='min-width: 960px'>"
    )


def test_a_map_of_nothing_is_drawn_on_the_page():
    assert "heatmap" in figure_html(Figure(panels=[[heatmap(["a", "b"], 0), heatmap([], 0)]]))


def test_the_toolbar_of_the_page_has_no_ground_of_its_own():
    """Plotly derives one from the paper's, which is a black that is not there."""
    drawn = figure_html(Figure(panels=[[lines([1, 2])]]))
    assert re.search(r'"modebar":\{[^}]*"bgcolor":"rgba\(0,0,0,0\)"', drawn)


def test_rows_of_the_same_name_stay_apart_on_the_page():
    page = figure_html(Figure(panels=[[heatmap(["a", "", "b", ""], 2)]]))
    assert '"tickvals":[0,2],"ticktext":["a","b"]' in page
    assert '"y":[' not in page


def as_points(panel) -> Points:
    assert isinstance(panel, Points)
    return panel


@pytest.mark.parametrize(
    ("layers", "widths"),
    [
        ({"hyla": 2, "softmax": 2, "linear": 2}, [6]),
        ({"hyla": 4, "softmax": 4, "linear": 4}, [4, 4, 4]),
        ({"softmax": 16}, [6, 6, 4]),
    ],
)
def test_rows_of_codes_stay_narrow_and_methods_whole(layers, widths):
    figure = codes_figure({"rule": "rule"}, all_layers=True)(results(codes(layers)))
    assert figure is not None
    assert [len(row) for row in figure.panels] == widths


def test_classes_and_numbers_have_the_same_colours_in_all_panels():
    # The methods were shown different instances: one has a rule that the other has not.
    rows = codes({"hyla": 1}, RULES[:3]) + codes({"softmax": 1}, RULES[1:])
    rows += [{**row, "target": 9.0} for row in codes({"linear": 1}, RULES[:1])]
    colours = {"rule": "rule", "target": "target value"}
    figure = codes_figure(colours, all_layers=False)(results(rows))
    assert figure is not None
    by_rule, by_target = ([as_points(panel) for panel in row] for row in figure.panels)
    assert [panel.class_colours for panel in by_rule] == [
        dict(zip(RULES, PALETTE, strict=False))
    ] * 3
    assert [panel.value_range for panel in by_target] == [(0.0, 9.0)] * 3


def test_labels_with_few_classes_have_colours_beside_one_with_many():
    """Of fuzzy logic: functions are too many beside their terms, which keep their colours."""
    rows = [
        {"layer": 0, "x": i, "y": i, "function": f"f{i}", "term": f"t{i % 6}"}
        for i in range(len(PALETTE) - 5)
    ]
    [[functions], [terms]] = clouds({"": rows}, {"function": "function", "term": "term"})
    assert not functions.class_colours
    assert list(terms.class_colours) == [f"t{i}" for i in range(6)]


def test_many_classes_are_coloured_by_number():
    names = [f"function {i:02}" for i in range(len(PALETTE) + 1)]
    figure = codes_figure({"rule": "rule"}, all_layers=True)(results(codes({"hyla": 1}, names)))
    assert figure is not None
    [[panel]] = [[as_points(panel) for panel in row] for row in figure.panels]
    assert not panel.class_colours
    assert panel.values == list(range(len(names)))


# --- captions ---------------------------------------------------------------------------------


def test_captions_count_the_models():
    every = [
        {"attention": method, "seed": seed} for method in ("hyla", "linear") for seed in (0, 1)
    ]
    assert seeds_in(every) == "2 seeds of each method"
    assert seeds_in(every[:3]) == "2 seeds of HYLA, 1 seed of Linear attention"
    assert seeds_in(every[:1] * 2) == "1 seed of HYLA"


def decoded(split: str, label: str) -> list[Row]:
    what = {"metric": "f1", "label": label, "split": split, "value": 0.5}
    return [
        {**what, "attention": method, "seed": seed, "predictor": predictor, "layer": 0}
        for method in ("hyla", "softmax", "linear")
        for predictor in ("code", "shuffled labels")
        for seed in range(3)
    ]


similar = [
    {"what": "similarity", "attention": "hyla", "seed": seed, "layer": 3, "similarity": 0.5}
    | {"first": "addition", "second": "subtraction"}
    for seed in range(3)
]
swapped = [
    {"what": "matrix", "attention": "hyla", "seed": seed, "code": "donor", "instances": 20}
    | {"recipient": "addition", "donor": "subtraction", "donor_rate": 0.5}
    for seed in range(3)
]


@pytest.mark.parametrize(
    ("name", "rows", "count"),
    [
        ("fig2b", decoded("ood_fixed_query", "terms"), "3 seeds of each method"),
        ("fig5f", decoded("ood_unpermuted", "rule"), "3 seeds of each method"),
        ("fig5b", codes({"hyla": 2, "linear": 2}), "3 seeds of each method: HYLA seed 1, Linear"),
        ("figA6", codes({"hyla": 2}), "3 seeds of HYLA: HYLA seed 1."),
        ("fig5e", similar, "Mean over 3 seeds of HYLA."),
        ("codeswap", swapped, "averaged over those of 3 seeds of HYLA"),
    ],
)
def test_figures_of_codes_say_of_how_many_models_they_are(name: str, rows: list[Row], count: str):
    figure = load(name).figure(results(rows))
    assert figure is not None
    assert count in figure.note


def test_a_code_has_its_methods_colour_beside_its_controls():
    figure = load("fig5f").figure(results(decoded("ood_unpermuted", "rule")))
    assert figure is not None
    [panels] = figure.panels
    together, *alone = (one.series for one in panels if isinstance(one, Lines))
    assert [series[0] for series in alone] == list(together)


def test_signs_have_one_rule_everywhere(drawn):
    """Orange below zero, blue above, in files and on pages; the explorer says the same."""
    signed = Heatmap(
        title="", rows=["a"], columns=["1", "2"], values=[[-1.0, 1.0]], label="x", signed=True
    )
    figure = Figure(panels=[[signed]])
    image = drawn(figure).axes[0].images[0]
    colours = [to_hex(image.cmap(image.norm(value))) for value in (-1, 1)]
    assert colours == [SIGNED_COLOURS[0].lower(), SIGNED_COLOURS[2].lower()]
    assert '"#D55E00"],[0.5,"#FFFFFF"],[1.0,"#0072B2"]' in figure_html(figure)
    assert f'bounded < 0 ? "{SIGNED_COLOURS[0]}" : "{SIGNED_COLOURS[2]}"' in EXPLORERS.read_text()


def test_the_explorer_has_the_colours_of_figures_and_drawings():
    constants = re.findall(r"const ([A-Z]+) = ([^;]*);", EXPLORERS.read_text())
    lists = {name: re.findall(r"#\w+", text) for name, text in constants}
    assert lists["FEATURES"] == list(FEATURE_COLOURS)
    assert lists["ATTENTION"] == list(METHOD_COLOURS.values())
    assert lists["SERIES"][:6] == list(PALETTE[:6])
    panels = dict(
        re.findall(r'const ([A-Z]+) = "(#\w+)";', (PAGE / "js" / "panels.js").read_text())
    )
    assert panels == {"DARKEST": DARKEST, "HAND": VERMILION}
    style = (PAGE / "style.css").read_text()
    light = dict(re.findall(r"--(\w+): light-dark\((#\w+),", style))
    expected = {"blue": BLUE, "orange": VERMILION, "green": GREEN}
    assert {name: light[name].upper() for name in expected} == expected
