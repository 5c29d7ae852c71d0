"""Exports hold what the tensors hold, say what they are, and never destroy anything else."""

import json

import pytest
import torch

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from hyla import __version__  # noqa: E402
from hyla.tasks import parquet_folder  # noqa: E402
from hyla.tasks.parquet_folder import export  # noqa: E402
from hyla.tasks.sraven import Solver, Sraven, SravenConfig  # noqa: E402
from hyla.tasks.sraven.faces.export import SravenExport  # noqa: E402
from hyla.tasks.sraven.generator import left_ambiguous  # noqa: E402
from hyla.tasks.sraven.problem import Problems  # noqa: E402
from hyla.tasks.sraven.variants import variant_named  # noqa: E402


def settings(**changes) -> SravenExport:
    defaults = {"config": SravenConfig(), "splits": ("test", "ood"), "instances": 25, "seed": 3}
    return SravenExport(**{**defaults, "shard_size": 10, **changes})


@pytest.mark.parametrize("split", ["test", "ood_unpermuted"])
def test_rows_are_the_instances_of_their_address(tmp_path, split: str):
    config = SravenConfig(num_features=3, num_values=5)
    files = export(tmp_path / "out", settings(config=config, splits=(split,)))
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    assert [row["index"] for row in rows] == list(range(25))
    problems = Problems(config, split, seed=3)
    for row in rows:
        problem = problems[row["index"]]
        *context, query = (list(panel) for line in problem.panels for panel in line)
        assert row["context"] == context
        assert row["query"] == query
        assert tuple(row["rules"]) == problem.rules
        assert row["permutations"] == [list(order) for order in problem.permutations]
        assert (row["split"], row["seed"]) == (split, 3)


def test_labels_are_the_solver_s(tmp_path):
    [path] = export(tmp_path, settings(splits=("ood",), instances=60, shard_size=64))
    rows = parquet.read_table(path).to_pylist()
    panels = Sraven(SravenConfig()).sampler("ood", seeds=[3], batch_size=60).instances(0).panels[0]
    solution = Solver(SravenConfig())(panels)
    assert any(row["ambiguous"] for row in rows)
    for number, row in enumerate(rows):
        answers = {tuple(answer.panel): answer.probability for answer in solution.answers(number)}
        assert row["num_answers"] == len(answers)
        assert row["ambiguous"] == (len(answers) > 1)
        assert row["query_posterior"] == pytest.approx(answers[tuple(row["query"])])
        assert row["map_posterior"] == pytest.approx(max(answers.values()))
        assert answers[tuple(row["map_answer"])] == pytest.approx(row["map_posterior"])


def test_shards_and_their_schema(tmp_path):
    files = export(tmp_path / "out", settings(labels=False))
    assert [str(path.relative_to(tmp_path / "out")) for path in files[:3]] == [
        f"data/test-0000{number}-of-00003.parquet" for number in range(3)
    ]
    assert [parquet.read_metadata(path).num_rows for path in files] == [10, 10, 5] * 2
    schema = parquet.read_schema(files[0])
    assert schema.field("context").type == pa.list_(pa.list_(pa.int8(), 4), 8)
    assert "ambiguous" not in schema.names
    about = json.loads(schema.metadata[b"hyla.sraven"])
    assert about["config"]["num_features"] == 4
    assert about["manifest_hash"] == Sraven(SravenConfig()).manifest(3).hash
    assert about["hyla_version"] == __version__


def test_size_of_shards_changes_nothing(tmp_path):
    small = export(tmp_path / "small", settings(splits=("train",), labels=False, shard_size=7))
    [large] = export(tmp_path / "large", settings(splits=("train",), labels=False, shard_size=99))
    joined = pa.concat_tables(map(parquet.read_table, small))
    assert joined.equals(parquet.read_table(large))


def test_the_datasheet_describes_every_column_and_split(tmp_path):
    for labels in (False, True):
        [path, *_] = export(tmp_path, settings(labels=labels))
        page = (tmp_path / "README.md").read_text()
        for name in parquet.read_schema(path).names:
            assert f"| `{name}` |" in page
        assert "path: data/ood-*.parquet" in page
        assert "248" in page
        assert "Ambiguity" in page
        assert ("map_answer" in page) == labels


def test_the_datasheet_names_the_variant_and_both_seeds(tmp_path):
    variant = variant_named("paper-split1")
    export(tmp_path, settings(config=variant.config, labels=False))
    page = (tmp_path / "README.md").read_text()
    assert "variant `paper-split1`: combinations divided by split seed 1, instances from" in page
    assert "of the split's combinations" not in page
    assert json.loads((tmp_path / "export.json").read_text())["variant"] == "paper-split1"
    export(tmp_path, settings(labels=False))
    page = (tmp_path / "README.md").read_text()
    assert f"By hyla {__version__}, from seed 3." in page
    assert "seed of the instances and of the split's combinations" in page


@pytest.mark.filterwarnings("ignore:.*stay ambiguous")
def test_the_datasheet_says_what_the_unambiguous_mode_leaves(tmp_path):
    config = SravenConfig(num_values=3, unambiguous=True)
    splits = ("train", "ood", "test_unpermuted")
    export(tmp_path, settings(config=config, splits=splits, labels=False))
    page = (tmp_path / "README.md").read_text()
    expected = json.loads((tmp_path / "export.json").read_text())["expected_ambiguous"]
    assert expected == {
        split: left_ambiguous(config, permuted="unpermuted" not in split) for split in splits
    }
    assert expected["train"] > 0.05
    for split, share in expected.items():
        assert f"`{split}`: {100 * share:.2g} %" in page
    assert "and rare" not in page


def test_the_summary_lists_combinations_and_files(tmp_path):
    files = export(tmp_path / "out", settings(labels=False))
    summary = json.loads((tmp_path / "out" / "export.json").read_text())
    assert [tmp_path / "out" / name for name in summary["files"]] == files
    sides = Sraven(SravenConfig()).manifest(3).sides
    assert {name: len(side) for name, side in summary["combinations"].items()} == {
        name: len(side) for name, side in sides.items()
    }


def test_an_earlier_export_is_replaced_whole(tmp_path):
    export(tmp_path / "out", settings(labels=False))
    [only] = export(tmp_path / "out", settings(splits=("ood",), labels=False, shard_size=99))
    assert list((tmp_path / "out" / "data").iterdir()) == [only]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("also_an_export", [False, True])
def test_nothing_else_is_overwritten(tmp_path, also_an_export: bool):
    out = tmp_path / "out"
    out.mkdir()
    if also_an_export:
        export(out, settings(labels=False))
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds 'thesis.tex', which no export wrote"):
        export(out, settings(labels=False))
    assert (out / "thesis.tex").read_text() == "years of work"


def test_a_file_in_the_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        export(tmp_path / "out", settings())


def test_a_failure_leaves_nothing_behind_and_the_old_in_place(tmp_path, monkeypatch):
    files = export(tmp_path / "out", settings(labels=False))

    def fail(*arguments):
        raise RuntimeError("power cut")

    monkeypatch.setattr(parquet_folder, "_put_in_place", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        export(tmp_path / "out", settings(labels=False))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert all(path.exists() for path in files)


def test_progress_adds_up(tmp_path):
    counts = []
    export(tmp_path, settings(labels=False), on_progress=counts.append)
    assert sum(counts) == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": ("odd",)}, "did you mean 'ood'"),
        ({"splits": ()}, "non-empty"),
        ({"splits": ("ood", "ood")}, "non-empty set"),
        ({"instances": 0}, "instances must be at least 1"),
        ({"shard_size": 40_000}, "multiple of 32768"),
        ({"instances": 2**33}, "4294967296 instances"),
        ({"config": SravenConfig(num_values=200)}, "up to 128 values"),
        ({"config": SravenConfig(held_out_fraction=1.5)}, "leaves the training side empty"),
    ],
)
def test_settings_that_make_no_sense(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_datasets_can_load_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    files = export(tmp_path / "out", settings())
    data_files = {"ood": [str(path) for path in files if path.name.startswith("ood-")]}
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("parquet", data_files=data_files, cache_dir=cache)
    problem = Problems(SravenConfig(), "ood", seed=3)[20]
    assert len(loaded["ood"]) == 25
    assert loaded["ood"][20]["query"] == list(problem.answer)
    by_card = datasets.load_dataset(str(tmp_path / "out"), cache_dir=cache)
    assert set(by_card) == {"test", "ood"}
    tensors = loaded["ood"].with_format("torch")[:8]["context"]
    assert torch.as_tensor(tensors).shape == (8, 8, 4)
