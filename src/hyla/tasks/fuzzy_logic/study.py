"""The study of fuzzy logic: which function is asked for at the query point."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hyla.tasks.fuzzy_logic.task import FuzzyLogic, evaluate, term_name, term_negations
from hyla.tasks.study import Specimens, Study, as_numpy

_FIXED_CONTEXT = ("test_fixed_context", "ood_fixed_context")


class FuzzyStudy(Study):
    """The query point of a fuzzy logic function. An operation is a whole function.

    The codes are those of the query attending to itself, and they are read at one query point for
    all functions: a code is of the function *and* the point. The paper's text has it the other way
    round, the context's points fixed and the query varying; decoding does both. Swaps need
    different query points: at one point, a function's value is the donor's own answer.
    """

    known, unseen = "test_fixed_query", "ood_fixed_query"
    operation = "function"
    decoding_metric = "f1"
    continuous = True
    tolerance = 0.05
    """Predictions that differ by less are the same."""

    def __init__(self, task: FuzzyLogic):
        self.task = task
        config = task.config
        self.pairs = {
            "self": [(-1, -1)],
            "all keys": [(-1, key) for key in range(task.sequence_length)],
        }
        terms = tuple(term_name(t, config.num_variables) for t in range(config.num_known_terms))
        self._functions = torch.tensor(
            list(itertools.combinations(range(len(terms)), config.num_terms))
        )
        self.operations = tuple(
            " ∨ ".join(terms[t] for t in function) for function in self._functions.tolist()
        )
        slots = {f"term {i + 1}": terms for i in range(config.num_terms)}
        self.classes = {**slots, "terms": terms}

    @property
    def decoded(self) -> Sequence[tuple[str, str]]:
        """One query for all; as the paper's text has it, one context for all."""
        return ((self.known, self.unseen), _FIXED_CONTEXT)

    @property
    def swapped(self) -> tuple[str, str]:
        """Different queries, in one context."""
        return _FIXED_CONTEXT

    def sample(
        self,
        split: str,
        *,
        seed: int,
        instances: int,
        index: int = 0,
        device: torch.device | str = "cpu",
    ) -> Specimens:
        """Functions with what their terms are, in ascending order, and which terms occur."""
        batch = self.task.batch(split, seed=seed, index=index, batch_size=instances, device=device)
        is_function = (batch.labels.unsqueeze(1) == self._functions.to(device)).all(dim=-1)
        functions = is_function.int().argmax(dim=-1)
        answers = batch.targets[:, -1]
        slots = {
            f"term {i + 1}": as_numpy(terms) for i, terms in enumerate(batch.labels.unbind(dim=1))
        }
        occurs = F.one_hot(batch.labels, self.task.config.num_known_terms).sum(dim=1)
        return Specimens(
            inputs=batch.inputs,
            operations=functions,
            answers=answers,
            labels={
                "function": np.array(self.operations)[as_numpy(functions)],
                **{name: np.array(self.classes[name])[terms] for name, terms in slots.items()},
                "target": as_numpy(answers),
            },
            decodable={**slots, "terms": as_numpy(occurs)},
            predictors={
                "inputs": as_numpy(batch.inputs.flatten(1)),
                "target": as_numpy(answers.unsqueeze(-1)),
            },
        )

    def prescribed(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """The values of other functions at the query points."""
        return self._values(recipients.inputs, operations)[:, -1]

    def counterfactuals(
        self, recipients: Specimens, operations: Int64[Tensor, " N"]
    ) -> Float[Tensor, "N T F"]:
        """The same points with the values of other functions."""
        inputs = recipients.inputs.clone()
        inputs[:, :-1, -1] = self._values(inputs, operations)[:, :-1]
        return inputs

    def predictions(self, logits: Float[Tensor, "N T 1"]) -> Float[Tensor, " N"]:
        """The output of the last token."""
        return logits[:, -1, 0]

    def agree(
        self, predictions: Float[Tensor, "*#any"], values: Float[Tensor, "*#any"]
    ) -> Bool[Tensor, "*any"]:
        """Equality within the tolerance."""
        return (predictions - values).abs() <= self.tolerance

    def _values(self, inputs: Tensor, operations: Tensor) -> Float[Tensor, "N T"]:
        negations = term_negations(self.task.config.num_variables, device=inputs.device)
        terms = self._functions.to(inputs.device)[operations]
        return evaluate(negations[terms], inputs[..., :-1].transpose(1, 2))
