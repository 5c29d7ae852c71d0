"""The latent codes of puzzles: of a query-key pair, beside the mean codes of all rules."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from hyla.explorer.gallery import Exhibit, study_pairs
from hyla.explorer.memo import Memo
from hyla.explorer.puzzles import Puzzle
from hyla.explorer.web import schemas
from hyla.explorer.web.refusals import NotThereError, RefusedError
from hyla.latents.capture import run_recorded
from hyla.latents.measures.geometry import embed
from hyla.tasks.base import Batch

INSTANCES = 320
"""What rules' mean codes and maps are made of: half known combinations of rules, half held out."""
_NEIGHBOURS = 5
_KEPT_MAPS = 64
_KEPT_RECORDINGS = 16
# One map at a time: each takes a core for seconds, and the limit of threads below is the process's.
_EMBEDDING = threading.Lock()

PairList = tuple[tuple[int, int], ...]


class Recording(NamedTuple):
    """What a model shows of instances: their codes at some pairs, and its answers."""

    codes: Tensor
    """[layers, N, pairs, heads]"""
    predictions: Tensor
    """[N, M]"""

    @property
    def joined(self) -> Tensor:
        """The codes of an instance's pairs as one vector [layers, N, pairs · heads]."""
        return self.codes.flatten(2)


class Atlas:
    """Instances without permuted columns, and what a model makes of them."""

    def __init__(self, subject: Exhibit):
        self.subject = subject
        task, self._features = subject.sraven, subject.sraven.num_queries
        sides = [
            task.batch(split, seed=subject.seed, index=0, batch_size=INSTANCES // 2)
            for split in ("test_unpermuted", "ood_unpermuted")
        ]
        self.instances = Batch(*(torch.cat(fields) for fields in zip(*sides, strict=True)))
        self._recordings: Memo[Recording] = Memo(_KEPT_RECORDINGS)
        self._maps: Memo[np.ndarray] = Memo(_KEPT_MAPS)

    def recording(self, pairs: PairList) -> Recording:
        """Return the codes of all instances at these pairs."""
        return self._recordings.get(pairs, lambda: record(self.subject, self.instances[0], pairs))

    def codes(self, puzzle: Puzzle, pairs: PairList) -> schemas.Codes:
        """Return a puzzle's codes at these pairs, and the rules whose mean codes are alike."""
        own = record(self.subject, puzzle.inputs, pairs)
        return schemas.Codes(
            pairs=list(pairs),
            rule=puzzle.rule_at(pairs[0][0]),
            layers=[
                schemas.LayerCode(
                    layer=layer,
                    codes=own.codes[layer, 0].tolist(),
                    nearest=self._nearest(own.joined[layer, 0], self.means(layer, pairs)),
                )
                for layer in range(len(own.codes))
            ],
        )

    def map(self, layer: int, pairs: PairList) -> schemas.Map:
        """Return the t-SNE map of a layer's codes."""
        places = self._places(layer, pairs)
        rules, targets = self._labels(pairs), self._of_feature(self.instances.targets, pairs)
        directions = torch.nn.functional.normalize(self.means(layer, pairs), dim=-1)
        names = self.subject.sraven.config.rules
        return schemas.Map(
            points=[
                schemas.Point(x=x, y=y, rule=names[rule], target=target, split=split)
                for (x, y), rule, target, split in zip(
                    places.tolist(), rules.tolist(), targets.tolist(), self._splits(), strict=True
                )
            ],
            rules=list(names),
            cosine=(directions @ directions.T).tolist(),
            pairs=list(pairs),
        )

    def place(self, layer: int, puzzle: Puzzle, pairs: PairList) -> schemas.Place:
        """Return where a puzzle's code lies on the map: among its nearest neighbours.

        t-SNE places no new points; the mean of the neighbours' places, each weighted by one over
        its distance in the space of codes, is close to where it would have put this one.
        """
        places = self._places(layer, pairs)
        own = record(self.subject, puzzle.inputs, pairs).joined[layer, 0]
        distances = (self.recording(pairs).joined[layer] - own).norm(dim=-1)
        nearest = distances.topk(_NEIGHBOURS, largest=False)
        weights = 1 / nearest.values.clamp(min=1e-6)
        x, y = np.average(places[nearest.indices.numpy()], axis=0, weights=weights.numpy())
        return schemas.Place(x=float(x), y=float(y))

    def means(self, layer: int, pairs: PairList) -> Tensor:
        """Return the mean code of each rule [rules, pairs · heads]; 0 for a rule that none has."""
        joined = self.recording(pairs).joined
        if layer >= len(joined):
            raise NotThereError(f"{self.subject.id} has {len(joined)} layers, counted from 0")
        return rule_means(joined[layer], self._labels(pairs), len(self.subject.study.operations))

    def _places(self, layer: int, pairs: PairList) -> np.ndarray:
        self.means(layer, pairs)  # raises if there is no such layer
        codes = self.recording(pairs).joined[layer].numpy()
        return self._maps.get((layer, pairs), lambda: _embedded(codes))

    def _nearest(self, code: Tensor, means: Tensor) -> list[schemas.Similarity]:
        cosines = torch.nn.functional.cosine_similarity(means, code.unsqueeze(0), dim=-1)
        names = self.subject.sraven.config.rules
        found = [
            schemas.Similarity(rule=name, cosine=cosine)
            for name, cosine in zip(names, cosines.tolist(), strict=True)
        ]
        return sorted(found, key=lambda one: -one.cosine)

    def _labels(self, pairs: PairList) -> Tensor:
        return self._of_feature(self.instances.labels, pairs)

    def _of_feature(self, columns: Tensor, pairs: PairList) -> Tensor:
        """Pick the column of the feature that the query shows: columns are not permuted here."""
        return columns[:, pairs[0][0] % self._features]

    def _splits(self) -> list[schemas.Split]:
        half = range(len(self.instances.inputs) // 2)
        return [*("seen" for _ in half), *("held-out" for _ in half)]


def _embedded(codes: np.ndarray) -> np.ndarray:
    if np.allclose(codes, codes[:1]):  # as where queries and keys of a first layer are all alike
        return np.zeros((len(codes), 2))
    # Threads that wait for each other all the time are slower than one wherever cores are busy.
    with _EMBEDDING, threadpool_limits(1, user_api="openmp"):
        return embed(codes).astype(np.float64)


def pairs_of(subject: Exhibit, query: int | None, key: int | None) -> PairList:
    """Return one pair, or the study's if none is given."""
    if query is None and key is None:
        _ = subject.sraven  # raises if there is no row in its task
        return tuple(study_pairs(subject))
    if query is None or key is None:
        raise RefusedError("give both query and key, or neither for the pairs of the study")
    length = subject.sraven.sequence_length
    if max(query, key) >= length:
        raise RefusedError(f"a puzzle has {length} tokens, counted from 0; got {max(query, key)}")
    return ((query, key),)


def record(subject: Exhibit, inputs: Tensor, pairs: Sequence[tuple[int, int]]) -> Recording:
    """Run a model and return its codes at these pairs, and its answers."""
    with subject.lent() as model:
        logits, seen = run_recorded(model, inputs, pairs=pairs)
    return Recording(
        codes=subject.finite(torch.stack([seen[site].codes for site in sorted(seen)])),
        predictions=subject.finite(logits[:, -subject.task.num_queries :]).argmax(dim=-1),
    )


def rule_means(codes: Tensor, rules: Tensor, num_rules: int) -> Tensor:
    """Return the mean [num_rules, ...] of the codes of each rule."""
    members = torch.nn.functional.one_hot(rules, num_rules).float()
    counts = members.sum(dim=0).clamp(min=1)
    return (members.T @ codes.flatten(1)).div(counts.unsqueeze(-1)).view(-1, *codes.shape[1:])
