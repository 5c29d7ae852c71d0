"""One's own task, attention preset and rule: of an installed package, and of a file."""

import dataclasses
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import yaml

from hyla import _plugins
from hyla.attention import AttentionSpec, register_attention, resolve_spec
from hyla.attention.spec import PRESETS
from hyla.cli import main
from hyla.lab.registry import load, register_experiment
from hyla.tasks import FuzzyLogic, Sraven, Task, register_task, task_class, task_names
from hyla.tasks.sraven.rules import RULES, rule
from hyla.training import config_from_tree, load_preset
from tiny_runs import tiny_config

PLUGIN = Path(__file__).with_name("own_plugin.py")
SOURCE = Path(__file__).parent.parent / "src"


def run(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run Python in a process of its own: what plug-ins register stays for good."""
    path = os.pathsep.join([*variables.pop("path", "").split(), str(SOURCE)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::UserWarning", "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
    )


def installed(folder: Path, **entry_points: str) -> Path:
    """A folder like site-packages, in which a package with these plug-ins was installed."""
    about = folder / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[hyla.plugins]", *lines, ""]))
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("")
    (folder / "my_package" / "plugin.py").write_text(PLUGIN.read_text())
    return folder


def test_a_task_of_an_installed_package_is_trained_by_its_name(tmp_path: Path):
    packages = installed(tmp_path / "site-packages", mine="my_package.plugin")
    done = run(
        """
        from hyla.cli import main
        from hyla.results import load_model, read_runs

        arguments = ["train", "sums", "--scale", "smoke", "--attention", "unit.silu"]
        assert main([*arguments, "--max-seconds", "1e-6"]) == 75
        assert main(arguments) == 0  # continues
        [run] = read_runs("runs")
        assert main(arguments) == 0  # is not trained again
        assert run.summary == read_runs("runs")[0].summary
        assert "test/share_right" in run.summary["members"][0]["metrics"]
        model, config = load_model(run.path)
        assert model.config.attention == "unit.silu"
        assert config.task.numbers == 5
        # Added later: it leaves the run its name.
        assert "offset" not in run.config["task"]
        assert main(["train", "sums", "--scale", "smoke", "--task.offset", "1"]) == 0
        assert len(read_runs("runs")) == 2
        assert main(["train", "sums", "--task.num-terms", "1"]) == 2
        assert main(["train", "--help"]) == 0
        """,
        tmp_path,
        path=str(packages),
    )
    assert done.returncode == 0, done.stderr
    assert "sums: How many numbers there are. (default: smoke 5, laptop 7, paper 7)" in done.stdout
    assert "--task.num-terms is a setting of the task fuzzy, not of sums" in done.stderr


def test_a_package_that_cannot_be_imported_stops_nobody_else(tmp_path: Path):
    packages = installed(tmp_path / "site-packages", broken="no_such_module:Task")
    done = run(
        """
        from hyla.cli import main
        assert main(["train", "fuzzy", "--scale", "smoke", "--steps", "1"]) == 0
        """,
        tmp_path,
        path=str(packages),
    )
    assert done.returncode == 0, done.stderr
    assert "the plug-in broken (no_such_module:Task) is left out" in done.stderr


def test_a_file_is_a_plugin_for_every_command(tmp_path: Path):
    (tmp_path / "mine.py").write_text(f"import neighbour\n{PLUGIN.read_text()}")
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "json.py").write_text("")  # the name of another module
    grid = {"task": "sums", "scale": "smoke", "grid": {"model.attention": ["unit", "linear"]}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    done = run(
        """
        import os, pickle, sys
        from hyla.cli import main

        assert main(["train", "sums"]) == 2
        assert main(["train", "sums", "--plugin"]) == 2
        assert main(["train", "sums", "--plugin", "mine.py", "neighbour.py"]) == 2
        assert main(["train", "sums", "--plugin", "missing.py"]) == 2
        del os.environ["HYLA_PLUGINS"]
        assert main(["train", "sums", "--plugin", "sub/json.py"]) == 2
        del os.environ["HYLA_PLUGINS"]
        assert main(["train", "sums", "--plugin", "no_such.module"]) == 2
        del os.environ["HYLA_PLUGINS"]
        assert main(["sweep", "grid.yaml", "--plugin", "mine.py"]) == 0
        assert main(["train", "summs", "--plugin=mine.py"]) == 2
        rules = ("--task.rules", "constant", "addition", "subtraction", "bracket")
        assert main(["train", "sraven", "--scale", "smoke", "--steps", "1", *rules]) == 0
        [run] = [run for run in os.listdir("runs") if run.startswith("sums-unit")]
        assert main(["latents", f"runs/{run}"]) == 2

        from hyla.training import config_from_tree, load_preset
        with open("config", "wb") as file:
            pickle.dump(config_from_tree(load_preset("sums", "smoke")), file)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "2 models in results" in done.stdout
    messages = [line for line in done.stderr.splitlines() if line.startswith("hyla: ")]
    for message, expected in zip(
        messages,
        [
            "task 'sums' is unknown; choose from fuzzy, sraven, recall, language, or add --plugin",
            "--plugin needs a file",
            "repeat it, as in --plugin mine.py --plugin neighbour.py",
            f"there is no plug-in {tmp_path / 'missing.py'}",
            "has the name of another module, json: rename it",
            "there is no module 'no_such' for the plug-in 'no_such.module'",
            "(did you mean 'sums'?); choose from fuzzy, sraven, recall, sums, language",
            "there is no study of Sums",
        ],
        strict=True,
    ):
        assert expected in message
    # A job of a cluster finds the file by the variable, which it inherits.
    read = "import pickle; print(pickle.load(open('config', 'rb')).task)"
    elsewhere = run(read, tmp_path, HYLA_PLUGINS=str(tmp_path / "mine.py"))
    assert elsewhere.stdout == "SumsConfig(numbers=5, offset=0)\n", elsewhere.stderr
    unknown = run("import hyla.results as r; r.load_model(r.read_runs('runs')[-1].path)", tmp_path)
    assert "RunDirectoryError" in unknown.stderr
    assert "or name the plug-in that registers it" in unknown.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\nimport no_such_library\n", ", line 2: ModuleNotFoundError: No module named 'no_such"),
        ("def task(:\n", r": SyntaxError: .*faulty_plugin.py, line 1"),
        (
            "from hyla.tasks import register_task\nregister_task('a.b')(int)",
            ", line 2: ValueError: a task cannot be called",
        ),
    ],
)
def test_an_error_in_a_plugin_names_its_file_and_line(tmp_path, monkeypatch, source, message):
    (tmp_path / "faulty_plugin.py").write_text(source)
    monkeypatch.setenv(_plugins.VARIABLE, str(tmp_path / "faulty_plugin.py"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for _ in range(2):  # also when it is asked for again
        with pytest.raises(
            _plugins.PluginError, match=f"faulty_plugin.py cannot be loaded{message}"
        ):
            _plugins.load()


def test_a_task_that_was_changed_is_trained_anew(tmp_path: Path):
    """An old result does not answer for it, and its old run is found again once it is as before."""
    plugin, old = tmp_path / "mine.py", PLUGIN.read_text()

    def train(source: str, then: str = "") -> subprocess.CompletedProcess:
        plugin.write_text(source)
        code = (
            "from hyla.cli import main\nassert main(['train', 'sums', '--scale', 'smoke']) == 0\n"
        )
        return run(code + then, tmp_path, HYLA_PLUGINS=str(plugin), PYTHONDONTWRITEBYTECODE="1")

    count = "from hyla.results import read_runs; print('runs:', len(read_runs('runs')))"
    assert "runs: 1" in train(old, count).stdout
    commented = old.replace("sums = (pairs", "# Sums of pairs.\n        sums = (pairs")
    assert "runs: 1" in train(commented, count).stdout
    changed = old.replace("self.config.offset) %", "self.config.offset + 1) %")
    assert changed != old
    assert "runs: 2" in train(changed, count).stdout
    assert "runs: 2" in train(old, count).stdout
    load = "from hyla.results import *; [load_model(run.path) for run in read_runs('runs')]"
    assert (
        "the task 'sums' is not the one that this run was trained with" in train(old, load).stderr
    )


def test_a_preset_means_the_same_in_every_process(tmp_path: Path):
    code = """
    from hyla.attention import AttentionSpec, register_attention
    from hyla.training.identity import own_preset

    class Bent:
        def __init__(self, slope): self.slope = slope
        def phi(self, hidden): return hidden.relu() + self.slope * hidden

    bent = Bent(0.1)
    def closure(hidden): return bent.phi(hidden)
    for name, phi in {"method": bent.phi, "closure": closure, "other": Bent(0.2).phi}.items():
        register_attention(name, AttentionSpec(normalisation="rms_head", value="deep", phi=phi))
        print(own_preset(name)["own_preset"])
    """
    first, second = (run(code, tmp_path, PYTHONHASHSEED=seed) for seed in "12")
    assert first.stdout == second.stdout, first.stderr
    method, closure, other = first.stdout.split()
    assert method == closure != other


def test_a_figure_of_ones_own_task(tmp_path: Path):
    """In bars and as a table, as those of the paper's tasks."""
    figure = """
    from hyla.lab.experiment import Experiment
    from hyla.lab.experiments.shared.variants import variant_figure, variant_table
    from hyla.lab.grids import sweep
    from hyla.lab.registry import register_experiment

    def name(cell):
        return cell.config.model.attention

    register_experiment(Experiment(
        name="adding",
        title="Adding",
        shows="Sums.",
        sweeps=lambda scale: [
            sweep(task, scale, grid={"model.attention": ["unit", "linear"]}, steps=3)
            for task in ("sums", "recall")
        ],
        figure=lambda results: variant_figure(results, name),
        table=lambda results: variant_table(results, name),
    ))
    """
    (tmp_path / "mine.py").write_text(PLUGIN.read_text() + textwrap.dedent(figure))
    done = run(
        """
        from hyla.cli import main
        from hyla.lab.report.sections import build
        from pathlib import Path

        arguments = ["--plugin", "mine.py", "--scale", "smoke", "--seeds", "1", "--no-search"]
        assert main(["reproduce", "adding", *arguments]) == 0
        [section] = build(Path("results/smoke"))
        panels = section.figure.panels[0]
        print([(panel.title, panel.y_label, list(panel.x)) for panel in panels])
        print([row[:2] for row in section.table.rows])
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "[('sums', 'share right', ['unit', 'linear']), "
        "('associative recall', 'accuracy', ['unit', 'linear'])]",
        "[['sums', 'unit'], ['sums', 'linear'], ['associative recall', 'unit'], "
        "['associative recall', 'linear']]",
    ]
    assert (tmp_path / "results/smoke/smoke/figures/adding.png").exists()


# --- names --------------------------------------------------------------------------------------


def test_the_papers_tasks_are_registered_like_any_other():
    assert task_names() == ("fuzzy", "sraven", "recall")
    assert task_class("fuzzy") is FuzzyLogic
    assert task_class("sraven") is Sraven
    assert register_task("fuzzy")(FuzzyLogic) is FuzzyLogic


@pytest.mark.parametrize("name", ["language", "my task", "", "-x", "a/b", "a.b"])
def test_a_name_that_no_run_directory_or_command_could_have(name):
    with pytest.raises(ValueError, match="a task cannot be called"):
        register_task(name)(FuzzyLogic)


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="'Fig-2C' is a name of hyla itself"):
        register_experiment(dataclasses.replace(load("phi"), name="Fig-2C"))
    with pytest.raises(ValueError, match=r"there is a task 'fuzzy' already, hyla\.tasks\.fuzzy"):
        register_task("fuzzy")(Sraven)
    with pytest.raises(ValueError, match="'hyla' is a preset of hyla itself"):
        register_attention("hyla", resolve_spec("softmax"))
    with pytest.raises(ValueError, match="there is a rule 'constant' already"):
        rule("constant", inverse=RULES["constant"].inverse, count=RULES["constant"].count)(
            lambda draws: draws.free
        )


def test_settings_are_a_dataclass():
    class Unsettled(FuzzyLogic):
        config_class = dict

    with pytest.raises(ValueError, match=r"Unsettled\.config_class must be a dataclass"):
        register_task("unsettled")(Unsettled)


class Unscored:
    loss = sums = finish = staticmethod(lambda *args: None)


def test_a_task_has_an_objective():
    aimless = type("Aimless", (FuzzyLogic,), {"objective": Task.objective})
    headless = type("Headless", (FuzzyLogic,), {"objective": Unscored()})
    with pytest.raises(ValueError, match="Aimless has no objective: give the class an `objective`"):
        register_task("aimless")(aimless)
    with pytest.raises(ValueError, match=r"objective of Headless has no headline: add what hyla\."):
        register_task("headless")(headless)
    assert not {"aimless", "headless"} & set(task_names())


def test_an_objective_that_depends_on_settings_is_looked_at_before_training(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "objective", property(lambda task: Unscored()))
    with pytest.raises(ValueError, match="the objective of FuzzyLogic has no headline"):
        tiny_config()


@pytest.mark.parametrize(
    ("has", "scored", "headline"),
    [
        (("train", "test"), ("test",), "test"),
        (("train", "validation"), ("validation",), "validation"),
        (("train", "ood", "validation", "other"), ("validation", "ood"), "ood"),
    ],
)
def test_what_a_task_has_is_scored(monkeypatch, has, scored, headline):
    monkeypatch.setattr(FuzzyLogic, "presets", {})
    monkeypatch.setattr(FuzzyLogic, "splits", has)
    evaluation = config_from_tree(load_preset("fuzzy", "smoke")).evaluation
    assert (evaluation.splits, evaluation.headline) == (scored, headline)


def test_splits_that_a_task_needs(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {})
    monkeypatch.setattr(FuzzyLogic, "splits", ("train", "other"))
    with pytest.raises(ValueError, match="say which to score of train, other; fuzzy has none of "):
        config_from_tree(load_preset("fuzzy", "smoke"))
    monkeypatch.setattr(FuzzyLogic, "splits", ("test",))
    with pytest.raises(ValueError, match="fuzzy has no split 'train' to train on"):
        config_from_tree(load_preset("fuzzy", "smoke"))


def test_presets_name_their_scales(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {"labtop": {"steps": 1}})
    with pytest.raises(ValueError, match=r"fuzzy: 'labtop' is no scale \(did you mean 'laptop'"):
        load_preset("fuzzy", "smoke")


def test_presets_go_over_those_of_any_task(monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "presets", {"smoke": {"steps": 7}})
    config = config_from_tree(load_preset("fuzzy", "smoke"))
    assert (config.steps, config.batch_size) == (7, 16)
    assert config.task == FuzzyLogic.config_class()


def test_a_config_is_pickled_by_the_name_of_its_task():
    config = tiny_config()
    stored = pickle.dumps(config)
    assert b"FuzzyLogicConfig" not in stored
    assert pickle.loads(stored) == config


# --- attention presets --------------------------------------------------------------------------


def test_a_preset_of_ones_own_goes_wherever_a_name_goes(monkeypatch):
    monkeypatch.setattr("hyla.attention.spec._PRESETS", dict(PRESETS))
    monkeypatch.setattr("hyla.attention.spec.PRESETS", sys.modules["hyla.attention.spec"]._PRESETS)
    spec = AttentionSpec(normalisation=("softmax", "rms_head"), value="hidden", phi="tanh")
    register_attention("mine", spec)
    assert resolve_spec("mine") == spec
    assert resolve_spec("mine.silu.rms4").phi == "silu"
    with pytest.raises(ValueError, match=r"did you mean 'mine'\?"):
        resolve_spec("minne")


@pytest.mark.parametrize("name", ["mine.silu", "", "my own"])
def test_a_preset_has_a_name_without_dots(name):
    with pytest.raises(ValueError, match="a preset cannot be called"):
        register_attention(name, resolve_spec("hyla"))


def test_a_preset_keeps_its_meaning(monkeypatch):
    monkeypatch.setattr("hyla.attention.spec._PRESETS", dict(PRESETS))
    register_attention("mine", PRESETS["hyla"])
    register_attention("mine", PRESETS["hyla"])  # a module that is imported again
    with pytest.raises(ValueError, match="already the name of another spec"):
        register_attention("mine", PRESETS["softmax"])


def test_a_preset_that_no_run_could_be_named_by_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PRESETS, "mine", dataclasses.replace(PRESETS["hyla"], phi=torch.sqrt))
    arguments = ["train", "fuzzy", "--scale", "smoke", "--attention", "mine"]
    assert main([*arguments, "--root", str(tmp_path)]) == 2
    assert "the preset 'mine' cannot be identified" in capsys.readouterr().err


@pytest.mark.parametrize("name", [["fuzzy"], {"fuzzy": 1}, None, 3])
def test_what_is_no_name_is_no_task(name):
    with pytest.raises(ValueError, match="is unknown"):
        task_class(name)


def test_a_preset_is_a_spec():
    with pytest.raises(ValueError, match="must be an AttentionSpec, got str"):
        register_attention("mine", "hyla")  # pyright: ignore[reportArgumentType]
