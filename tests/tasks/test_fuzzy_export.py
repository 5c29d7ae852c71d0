"""Exports of fuzzy logic hold what the tensors hold, and say what they are."""

import json

import pytest
import torch

pytest.importorskip("pyarrow")
from pyarrow import parquet

from hyla.cli import main
from hyla.commands.shared.exits import USAGE
from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, fuzzy_dataset
from hyla.tasks.fuzzy_logic.export import FuzzyExport
from hyla.tasks.fuzzy_logic.task import term_name
from hyla.tasks.parquet_folder import export


def settings(**changes) -> FuzzyExport:
    defaults = {"config": FuzzyLogicConfig(num_variables=3, sequence_length=6), "seed": 3}
    defaults |= {"splits": ("test", "ood"), "instances": 25, "shard_size": 10}
    return FuzzyExport(**{**defaults, **changes})


@pytest.mark.parametrize("split", ["train", "ood_fixed_query", "unknown_terms"])
def test_rows_are_the_instances_of_their_address(tmp_path, split: str):
    files = export(tmp_path / "out", settings(splits=(split,)))
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    assert [row["index"] for row in rows] == list(range(25))
    dataset = fuzzy_dataset(split, settings().config, seed=3)
    for row in rows:
        tokens, values, terms = dataset[row["index"]]
        torch.testing.assert_close(torch.tensor(row["examples"]), tokens[:-1])
        torch.testing.assert_close(torch.tensor(row["query"]), tokens[-1, :-1])
        assert row["value"] == values[-1].item()
        assert row["terms"] == [term_name(term, 3) for term in terms.tolist()]
        assert (row["split"], row["seed"]) == (split, 3)


def test_files_and_the_datasheet_say_what_they_hold(tmp_path):
    files = export(tmp_path, settings())
    assert [path.name for path in files[:3]] == [
        f"test-0000{number}-of-00003.parquet" for number in range(3)
    ]
    columns = parquet.read_schema(files[0])
    about = json.loads(columns.metadata[b"hyla.fuzzy"])
    manifest = FuzzyLogic(settings().config).manifest(3)
    assert about["manifest_hash"] == manifest.hash
    page = (tmp_path / "README.md").read_text()
    assert all(f"| `{name}` |" in page for name in columns.names)
    assert f"training shows {len(manifest.sides['train'])}" in page
    summary = json.loads((tmp_path / "export.json").read_text())
    assert [tmp_path / name for name in summary["files"]] == files
    assert len(summary["combinations"]["ood"]) == len(manifest.sides["ood"])


def test_the_summary_says_which_terms_the_numbers_of_its_combinations_are(tmp_path):
    files = export(tmp_path, settings())
    summary = json.loads((tmp_path / "export.json").read_text())
    assert summary["terms"] == [term_name(term, 3) for term in range(8)]
    listed = {
        side: {
            tuple(summary["terms"][term] for term in combination) for combination in combinations
        }
        for side, combinations in summary["combinations"].items()
    }
    for file in files:
        for row in parquet.read_table(file).to_pylist():
            side = {"test": "train", "ood": "ood"}[row["split"]]
            assert tuple(row["terms"]) in listed[side]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            FuzzyLogicConfig(),
            "12 of the 16 terms are known, and of their 66 combinations of 2, training shows 20; "
            "46 are held out. Combinations of the other 4, 6 in number, are the split "
            "`unknown_terms`.",
        ),
        (
            FuzzyLogicConfig(num_variables=3, num_terms=3, held_out_fraction=0.5),
            "6 of the 8 terms are known, and of their 20 combinations of 3, training shows 10; 10 "
            "are held out. The other 2 occur nowhere: too few for a combination.",
        ),
    ],
    ids=["the paper's", "too few unknown terms"],
)
def test_the_datasheet_counts_known_and_unknown_terms(config, said):
    assert said in " ".join(settings(config=config).page().split())


def test_an_export_of_another_task_is_not_replaced(tmp_path, capsys):
    export(tmp_path, settings())
    assert main(["sraven", "export", str(tmp_path), "--instances", "5"]) == USAGE
    assert "an export of another format, hyla-fuzzy-export-1" in capsys.readouterr().err


def test_datasets_can_load_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    export(tmp_path / "out", settings())
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"test", "ood"}
    assert len(loaded["ood"]) == 25


def test_the_command_writes_it_and_refuses_what_makes_no_sense(tmp_path, capsys):
    out = str(tmp_path / "out")
    command = ["fuzzy-logic", "export", out, "--instances", "50"]
    assert main([*command, "--task.num-variables", "3"]) == 0
    assert "50 instances of each of train, test, ood" in capsys.readouterr().out
    for wrong, reason in (
        (("--split", "odd"), "did you mean 'ood'"),
        (("--task.held-out-fraction", "1.5"), "leaves the training side empty"),
        (("--task.num-variables", "40"), "choose fewer"),
    ):
        assert main([*command, *wrong]) == USAGE
        shown = capsys.readouterr().err
        assert reason in shown
        assert shown.count("\n") == 1
