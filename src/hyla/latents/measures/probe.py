"""Decoding: can a linear classifier tell the operation from the latent code?

A probe is trained on compositions that the network was trained on and scored on unseen ones (Fig.
2B, 5F). That it succeeds says little by itself, since the operation may be as easy to read
elsewhere. The controls say what the code adds: a probe with shuffled labels, one of the raw inputs,
of the answer, of the codes of an untrained network, and of the residual stream that the layer
reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import nn

from hyla._optional import required
from hyla.latents.capture import record_codes
from hyla.tasks.study import Specimens, Study

if TYPE_CHECKING:
    import pandas

INSTANCES = 4096
_BATCH = 1024


def decoding_table(
    model: nn.Module,
    study: Study,
    *,
    seed: int,
    untrained: nn.Module | None = None,
    pairs: Sequence[str] | None = None,
    instances: int = INSTANCES,
) -> "pandas.DataFrame":
    """Decode everything decodable from everything that it could be decoded from.

    The probes are trained on `instances` of a known split of the study and scored on as many others
    of it, and of the unseen split beside it (`Study.decoded`). There is a row for each predictor,
    set of pairs, layer, label, split, metric and class; `class` is "all" for accuracy and for the
    mean F1 over classes. With an `untrained` network of the same shape, its codes are one of the
    controls.
    """
    device = next(model.parameters()).device
    draw = {"seed": seed, "instances": instances, "device": device}
    rows = []
    for known, unseen in study.decoded:
        train = study.sample(known, index=0, **draw)
        tests = {
            known: study.sample(known, index=1, **draw),
            unseen: study.sample(unseen, index=0, **draw),
        }
        for predictor in _predictors(model, untrained, study, pairs, (train, *tests.values())):
            rows += _probed(predictor, study, train, tests, seed)
    return required("pandas").DataFrame(rows)


def _probed(
    predictor: "_Predictor",
    study: Study,
    train: Specimens,
    tests: Mapping[str, Specimens],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Decode all labels from one predictor."""
    train_features, *test_features = predictor.features
    for label, classes in study.classes.items():
        labels = train.decodable[label]
        if predictor.name == "shuffled labels":
            labels = np.random.default_rng(seed).permutation(labels)
        probe = fit_probe(train_features, labels)
        for (split, test), features in zip(tests.items(), test_features, strict=True):
            where = {
                "predictor": predictor.name,
                "pairs": predictor.pairs,
                "layer": predictor.layer,
                "label": label,
                "split": split,
                "instances": len(test),
            }
            for score in probe_scores(probe(features), test.decodable[label], classes):
                yield {**where, **score}


class _Predictor(NamedTuple):
    """What labels may be decoded from, as features of the training and all test instances."""

    name: str
    pairs: str | None
    layer: int | None
    features: Sequence[Float[np.ndarray, "N D"]]


def _predictors(
    model: nn.Module,
    untrained: nn.Module | None,
    study: Study,
    pairs: Sequence[str] | None,
    sets: Sequence[Specimens],
) -> Iterator[_Predictor]:
    known = [{name: of.predictors[name] for name in ("inputs", "target")} for of in sets]
    for name in ("inputs", "target"):
        yield _Predictor(name, None, None, [of[name] for of in known])
    both = [np.concatenate([of["inputs"], of["target"]], axis=1) for of in known]
    yield _Predictor("inputs and target", None, None, both)

    chosen = list(study.pairs) if pairs is None else pairs
    for name in chosen:
        codes = [_codes_by_layer(model, study, name, of) for of in sets]
        for layer in codes[0]:
            features = [of[layer] for of in codes]
            yield _Predictor("code", name, layer, features)
            yield _Predictor("shuffled labels", name, layer, features)
        if untrained is not None:
            codes = [_codes_by_layer(untrained, study, name, of) for of in sets]
            for layer in codes[0]:
                yield _Predictor("untrained network", name, layer, [of[layer] for of in codes])

    streams = [_codes_by_layer(model, study, chosen[0], of, residual=True) for of in sets]
    for layer in streams[0]:
        yield _Predictor("residual stream", None, layer, [of[layer] for of in streams])


def _codes_by_layer(
    model: nn.Module, study: Study, pairs: str, specimens: Specimens, *, residual: bool = False
) -> dict[int, Float[np.ndarray, "N D"]]:
    """Return the codes of the pairs, joined; or what the layers read at the pairs' query."""
    table = record_codes(
        model, specimens.inputs.split(_BATCH), pairs=study.pairs[pairs], residual=residual
    )
    by_layer = {}
    for layer in table.layers:
        joined = table.where(layer=layer).joined_pairs()
        by_layer[layer] = joined.residual if residual else joined.codes
    return by_layer


def fit_probe(
    features: Float[np.ndarray, "N D"], labels: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Fit logistic regressions to standardised features; return what they predict.

    `labels` are classes [N], or 0 and 1 for each of several [N, classes].
    """
    if labels.ndim == 2:
        probes = [fit_probe(features, column) for column in labels.T]
        return lambda new: np.stack([probe(new) for probe in probes], axis=1)
    if len(np.unique(labels)) == 1:
        return lambda new: np.full(len(new), labels[0])
    pipeline = required("sklearn.pipeline").make_pipeline(
        required("sklearn.preprocessing").StandardScaler(),
        required("sklearn.linear_model").LogisticRegression(max_iter=5000),
    )
    return pipeline.fit(features, labels).predict


def probe_scores(
    predictions: np.ndarray, labels: np.ndarray, classes: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return accuracy, the F1 score of each class that occurs, and their mean.

    For several labels at once, accuracy is the share of instances with all of them right.
    """
    right = predictions == labels
    accuracy = right.mean() if labels.ndim == 1 else right.all(axis=1).mean()
    scores: list[Mapping[str, Any]] = [
        {"metric": "accuracy", "class": "all", "value": float(accuracy)}
    ]
    values = []
    for number, name in enumerate(classes):
        if labels.ndim == 1:
            predicted, actual = predictions == number, labels == number
        else:
            predicted, actual = predictions[:, number] == 1, labels[:, number] == 1
        if actual.any():
            f1 = 2 * (predicted & actual).sum() / (predicted.sum() + actual.sum())
            values.append(f1)
            scores.append({"metric": "f1", "class": name, "value": float(f1)})
    return [*scores, {"metric": "f1", "class": "all", "value": float(np.mean(values))}]
