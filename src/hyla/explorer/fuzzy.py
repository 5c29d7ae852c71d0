"""Fuzzy logic: a function that a person draws, shown to models as examples."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hyla.explorer.gallery import Exhibit, Gallery
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import RefusedError
from hyla.tasks.fuzzy_logic import evaluate, term_name

GRID = 101
"""Points of a slice."""


class _Function(NamedTuple):
    subjects: list[Exhibit]
    terms: list[int]
    """Indices as those of the task: bit i says whether variable i is negated."""
    negations: Tensor
    """[K, L]"""
    context: Tensor
    """Points [T - 1, L]."""
    query: Tensor
    """[L]"""

    def values(self, points: Tensor) -> Tensor:
        """Return the function's values at points [n, L]."""
        return evaluate(self.negations, points.T)

    @torch.no_grad()
    def predictions(self, queries: Tensor) -> dict[str, list[float]]:
        """Return what each model says of queries [n, L], in one batch."""
        examples = torch.cat([self.context, self.values(self.context).unsqueeze(-1)], dim=-1)
        asked = torch.nn.functional.pad(queries, (0, 1)).unsqueeze(1)  # their values are hidden
        inputs = torch.cat([examples.expand(len(queries), -1, -1), asked], dim=1)
        found = {}
        for subject in self.subjects:
            with subject.lent() as model:
                logits = model(inputs, last=1)
            assert isinstance(logits, Tensor)
            found[subject.id] = subject.finite(logits[:, -1, 0]).tolist()
        return found


def predict(gallery: Gallery, request: schemas.FunctionRequest) -> schemas.FunctionPrediction:
    """Return the function and the models' predictions at the query."""
    function = _function(gallery, request)
    values = function.values(function.context).tolist()
    predictions = function.predictions(function.query.unsqueeze(0))
    variables = len(request.query)
    return schemas.FunctionPrediction(
        name=" ∨ ".join(term_name(term, variables) for term in function.terms),
        context=[
            schemas.Example(x=point, y=value)
            for point, value in zip(function.context.tolist(), values, strict=True)
        ],
        target=float(function.values(function.query.unsqueeze(0))),
        predictions={model: values[0] for model, values in predictions.items()},
        seen={subject.id: _seen(subject, function.terms) for subject in function.subjects},
    )


def slice_along(gallery: Gallery, request: schemas.SliceRequest) -> schemas.FunctionSlice:
    """Return the same along one variable, from 0 to 1."""
    function = _function(gallery, request)
    if request.variable >= len(request.query):
        raise RefusedError(
            f"there are {len(request.query)} variables, counted from 0; got {request.variable}"
        )
    grid = torch.linspace(0, 1, GRID)
    queries = function.query.repeat(GRID, 1)
    queries[:, request.variable] = grid
    return schemas.FunctionSlice(
        grid=grid.tolist(),
        target=function.values(queries).tolist(),
        predictions=function.predictions(queries),
    )


def _function(gallery: Gallery, request: schemas.FunctionRequest) -> _Function:
    subjects = [gallery[model] for model in dict.fromkeys(request.models)]
    first = subjects[0]
    config = first.fuzzy.config
    for subject in subjects[1:]:
        if subject.fuzzy and subject.shape != first.shape:
            raise RefusedError(f"{subject.id} and {first.id} learned functions of different sizes")
    wrong = {len(part) for part in (request.query, *request.terms)} - {config.num_variables}
    if wrong:
        raise RefusedError(
            f"functions here have {config.num_variables} variables, got {wrong.pop()}"
        )
    # The points of an instance of the task; its function is another.
    instance = first.fuzzy.batch("test", seed=0, index=request.seed, batch_size=1)
    negated = [[sign < 0 for sign in term] for term in request.terms]
    return _Function(
        subjects=subjects,
        terms=[sum(negation << i for i, negation in enumerate(term)) for term in negated],
        negations=torch.tensor(negated, dtype=torch.float32),
        context=instance.inputs[0, :-1, :-1],
        query=torch.tensor(request.query, dtype=torch.float32),
    )


def _seen(subject: Exhibit, terms: Sequence[int]) -> schemas.Familiarity:
    """Whether training showed a model this function, or only its terms."""
    config = subject.fuzzy.config
    combination = tuple(sorted(set(terms)))
    if len(combination) != config.num_terms:
        return "other"
    if combination[-1] >= config.num_known_terms:
        return "unknown term"
    sides = subject.fuzzy.manifest(subject.seed).sides
    return "seen" if combination in sides["train"] else "held-out"
