"""Models, populations and runs small enough to train for a hundred steps within a second."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from hyla.nn import Transformer, TransformerConfig
from hyla.tasks import FuzzyLogic, FuzzyLogicConfig, Sraven, SravenConfig, Task
from hyla.training import Evaluation, Member, Population, TrainConfig

FUZZY = FuzzyLogicConfig(num_variables=3, sequence_length=6, held_out_fraction=0.3)
SRAVEN = SravenConfig(num_features=2, num_values=4)


def tiny_task(name: str) -> Task:
    return FuzzyLogic(FUZZY) if name == "fuzzy" else Sraven(SRAVEN)


def tiny_model(task: Task, **changes: Any) -> TransformerConfig:
    sizes: dict[str, Any] = {
        "embed_dim": 8,
        "qk_dim": 4,
        "v_dim": 4,
        "mlp_dim": 8,
        "num_heads": 2,
        "num_layers": 2,
    }
    return TransformerConfig(
        input_dim=task.input_dim,
        output_dim=task.output_dim,
        sequence_length=task.sequence_length,
        **(sizes | changes),
    )


def tiny_transformer(**changes: Any) -> Transformer:
    """A network of no task, ready to be looked into."""
    sizes: dict[str, Any] = {
        "input_dim": 5,
        "output_dim": 3,
        "sequence_length": 7,
        "embed_dim": 8,
        "qk_dim": 8,
        "v_dim": 8,
        "mlp_dim": 8,
        "num_heads": 4,
        "num_layers": 2,
    }
    return Transformer(TransformerConfig(**(sizes | changes))).eval()


def tiny_population(
    task: str,
    members: list[Member],
    *,
    total_steps: int = 100,
    batch_size: int = 8,
    model: dict[str, Any] | None = None,
    **options: Any,
) -> Population:
    built = tiny_task(task)
    return Population(
        built,
        tiny_model(built, **(model or {})),
        members,
        total_steps=total_steps,
        batch_size=batch_size,
        **options,
    )


def different_members(count: int) -> list[Member]:
    """Members that share nothing: seed, learning rate, decay and warmup all differ."""
    return [
        Member(
            seed=100 + i,
            learning_rate=1e-3 * (1 + 0.5 * i),
            weight_decay=0.05 * i,
            warmup_steps=3 * i,
        )
        for i in range(count)
    ]


def tiny_config(**changes: Any) -> TrainConfig:
    """A run of 24 steps with records at 5, 8, 10, 15, 16, 20 and 24."""
    task = tiny_task("fuzzy")
    config = TrainConfig(
        task_name="fuzzy",
        task=FUZZY,
        model=tiny_model(task, num_layers=1, attention_dropout=0.1),
        members=tuple(different_members(2)),
        steps=24,
        batch_size=4,
        evaluation=Evaluation(splits=("test", "ood"), every=8, instances=8, final_instances=16),
        log_every=5,
    )
    return replace(config, **changes)


def short_config() -> TrainConfig:
    """A run of 10 steps with records at 3, 4, 6, 8, 9 and 10."""
    evaluation = Evaluation(splits=("test", "ood"), every=4, instances=8, final_instances=8)
    return tiny_config(steps=10, log_every=3, evaluation=evaluation)


def run_path(root: Path) -> Path:
    """The only run under `root`."""
    (path,) = root.iterdir()
    return path


def records(root: Path) -> list[dict[str, Any]]:
    """The metrics of the only run under `root`, without the clock."""
    lines = (run_path(root) / "metrics.jsonl").read_text().splitlines()
    found = [record for record in map(json.loads, lines) if "branch_scales" not in record]
    for record in found:
        assert record.pop("seconds") >= 0
    return found


def scale_records(root: Path) -> list[dict[str, Any]]:
    """What the only run under `root` logged on its branches; once, if all is well."""
    lines = (run_path(root) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "branch_scales" in record]


def final_tensors(root: Path) -> dict[str, Tensor]:
    """The newest checkpoint of the only run under `root`."""
    return safetensors.torch.load_file(max(run_path(root).glob("checkpoint-*.safetensors")))


def assert_same_run(root: Path, reference: Path) -> None:
    """Records, summary and final weights of the only runs under both, bit for bit."""
    assert records(root) == records(reference)
    assert len(scale_records(root)) == 1
    assert scale_records(root) == scale_records(reference)
    summaries = [json.loads((run_path(r) / "finished.json").read_text()) for r in (root, reference)]
    for summary in summaries:
        assert summary.pop("seconds") >= summary.pop("training_seconds") >= 0
    assert summaries[0] == summaries[1]
    got, want = final_tensors(root), final_tensors(reference)
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert tensor.equal(got[name]), name
