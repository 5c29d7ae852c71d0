"""The functions that the YAML files of this folder name: instances as questions, and scores."""

from dataclasses import fields
from typing import Any

from datasets import Dataset

from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven.faces.prompts import parse_answer, score_answer, to_answer, to_prompt
from hyla.tasks.sraven.problem import Problem, Problems


def instances(
    *, num_instances: int = 500, split_seed: int = 0, explain_rules: bool = True, **metadata: Any
) -> dict[str, Dataset]:
    """Return questions of rule combinations that training shows (train, test) and does not (ood).

    `split_seed` says which are held out. `metadata` are fields of `SravenConfig`, as JSON has them;
    what else lm-evaluation-harness hands over, such as the model's arguments, is left alone.
    """
    known = {one.name for one in fields(SravenConfig)}
    given = {name: value for name, value in metadata.items() if name in known}
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value
    config = SravenConfig(**given)
    if config.train_features:
        raise ValueError(
            "train_features leaves positions of train and test blank, and a question has no words "
            "for those: ask without it"
        )

    def questions(split: str) -> Dataset:
        problems = Problems(config, split, seed=split_seed)
        asked = (_question(problems[i], explain_rules) for i in range(num_instances))
        return Dataset.from_list(list(asked))

    return {split: questions(split) for split in ("train", "test", "ood")}


def _question(problem: Problem, explain_rules: bool) -> dict[str, Any]:
    question = to_prompt(
        problem.panels,
        config=problem.config,
        permuted=problem.permuted,
        explain_rules=explain_rules,
    )
    answer = to_answer(problem.answer)
    return {"question": question, "answer": answer, "scored": list(problem.scored)}


def answer(doc: dict[str, Any]) -> str:
    """Return what an example replies; of a template, the harness would make a list."""
    return doc["answer"]


def scores(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Score a reply by the last panel in it: whole, and the share of its integers."""
    target = parse_answer(doc["answer"], len(doc["scored"]))
    assert target is not None  # as `instances` has written it
    score = {"scored": doc["scored"]}
    return {
        "panel_right": score_answer(results[0], target, **score),
        "integers_right": score_answer(results[0], target, partial_credit=True, **score),
    }
