"""One's own task, attention preset and rule: of an installed package, and of a file."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from hyla import _plugins

PLUGIN = Path(__file__).parent / "helpers" / "own_plugin.py"
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


def test_an_error_in_the_preset_of_a_plugin_names_its_file_and_line(tmp_path: Path):
    (tmp_path / "bent.py").write_text(
        "from hyla.attention import AttentionSpec, register_attention\n"
        "def phi(hidden):\n"
        "    raise RuntimeError('bent')\n"
        "spec = AttentionSpec(normalisation='rms_head', value='hidden', phi=phi)\n"
        "register_attention('mine', spec)\n"
    )
    code = "from hyla.cli import main; main(['train', 'fuzzy', '--attention', 'mine'])"
    done = run(code, tmp_path, HYLA_PLUGINS=str(tmp_path / "bent.py"))
    assert f"RuntimeError: bent ({tmp_path / 'bent.py'}, line 3)" in done.stderr


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
    report = 'import hyla.cli; hyla.cli.main(["report", "results/smoke"])'
    without = run(report, tmp_path).stdout
    assert "smoke: 4 models are left out, for they are of no figure that is known here" in without
