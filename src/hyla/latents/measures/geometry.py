"""The shape of the latent space: how codes lie to each other, and to those of other operations.

Each function takes a `CodeTable` and returns a tidy table with a row for every layer (and more).
The codes of several pairs of an instance are joined into one vector.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from hyla._optional import required
from hyla.latents.measures.confidence import bootstrap_intervals
from hyla.latents.table import CodeTable

if TYPE_CHECKING:
    import pandas

_ROUNDING = 1e-5


def embedding_table(
    table: CodeTable, *, points: int = 2000, perplexity: float = 30.0, seed: int = 0
) -> "pandas.DataFrame":
    """Embed the codes of each layer in the plane by t-SNE (Fig. 2D, 5A-B, A2, A6, A7).

    The columns are `layer`, `x`, `y` and the table's labels. Of more than `points` instances, a
    random choice is taken: t-SNE of some thousand points takes minutes.
    """
    pandas = required("pandas")
    parts = []
    for layer, joined in _by_layer(table):
        chosen = joined.rows(_choice(len(joined), points, seed))
        x, y = embed(chosen.codes, perplexity=perplexity, seed=seed).T
        labels = {name: chosen[name] for name in chosen.labels}
        parts.append(pandas.DataFrame({"layer": layer, "x": x, "y": y, **labels}))
    return pandas.concat(parts, ignore_index=True)


def embed(
    codes: Float[np.ndarray, "N D"], *, perplexity: float = 30.0, seed: int = 0
) -> Float[np.ndarray, "N 2"]:
    """Return a t-SNE embedding; with few points, the perplexity is lowered to fit them.

    Codes that are all the same but for rounding lie at one point: t-SNE would show the rounding as
    structure, or crash.
    """
    if len(codes) < 3:
        raise ValueError(f"t-SNE needs at least 3 codes, got {len(codes)}")
    if _all_the_same(codes):
        return np.zeros((len(codes), 2), np.float32)
    tsne = required("sklearn.manifold").TSNE(
        perplexity=min(perplexity, (len(codes) - 1) / 3),
        init="pca" if min(codes.shape) > 1 else "random",
        random_state=seed,
    )
    return tsne.fit_transform(codes.astype(np.float32))


def mean_codes(table: CodeTable, label: str) -> "pandas.DataFrame":
    """Return the mean code of each value of a label (Fig. A8B), a row for each coordinate."""
    rows = []
    for layer, joined in _by_layer(table):
        for name, members in _groups(joined, label):
            for coordinate, value in enumerate(joined.codes[members].mean(axis=0)):
                rows.append(
                    {
                        "layer": layer,
                        label: name,
                        "coordinate": coordinate,
                        "value": float(value),
                        "instances": int(members.sum()),
                    }
                )
    return required("pandas").DataFrame(rows)


def sample_codes(table: CodeTable, label: str, *, per_value: int = 10) -> "pandas.DataFrame":
    """Return some codes of each value of a label (Fig. A8A), a row for each coordinate."""
    rows = []
    for layer, joined in _by_layer(table):
        for name, members in _groups(joined, label):
            indices = np.flatnonzero(members)
            for sample, index in enumerate(indices[_choice(len(indices), per_value, seed=0)]):
                rows += [
                    {
                        "layer": layer,
                        label: name,
                        "sample": sample,
                        "coordinate": coordinate,
                        "value": float(value),
                    }
                    for coordinate, value in enumerate(joined.codes[index])
                ]
    return required("pandas").DataFrame(rows)


def cosine_similarities(table: CodeTable, label: str) -> "pandas.DataFrame":
    """Return the cosine similarity of the mean codes of all values of a label (Fig. 5E, A8C)."""
    rows = []
    for layer, joined in _by_layer(table):
        names, members = zip(*_groups(joined, label), strict=True)
        means = np.stack([joined.codes[chosen].mean(axis=0) for chosen in members])
        means = means / np.linalg.norm(means, axis=1, keepdims=True).clip(min=1e-12)
        for first, similarities in zip(names, means @ means.T, strict=True):
            rows += [
                {"layer": layer, "first": first, "second": second, "similarity": float(value)}
                for second, value in zip(names, similarities, strict=True)
            ]
    return required("pandas").DataFrame(rows)


def distance_table(
    table: CodeTable, label: str, *, points: int = 500, resamples: int = 1000, seed: int = 0
) -> "pandas.DataFrame":
    """Return mean distances within and between values of a label, and their ratio.

    With 95 % intervals from resampling the instances, of which `points` are used. A ratio
    (between / within) of 1 means that the label says nothing about where a code lies.
    """
    rows = []
    for layer, joined in _by_layer(table):
        chosen = joined.rows(_choice(len(joined), points, seed))
        same = chosen[label][:, None] == chosen[label]
        if same.all() or not np.triu(same, 1).any():
            raise ValueError(
                f"distances need several values of {label}, and several codes of one of them"
            )
        other = ~np.eye(len(chosen), dtype=bool)
        kinds = [same & other, ~same]
        apart = _distances(chosen.codes) * (not _all_the_same(chosen.codes))
        sums = [np.where(kind, apart, 0) for kind in kinds]

        def statistics(times: np.ndarray, sums=sums, kinds=kinds) -> tuple[float, float, float]:
            within, between = (
                (times @ sum @ times) / (times @ kind @ times)
                for sum, kind in zip(sums, kinds, strict=True)
            )
            return within, between, between / within

        # Codes that are all the same have no ratio.
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")
            intervals = bootstrap_intervals(statistics, len(chosen), resamples=resamples, seed=seed)
        for name, interval in zip(("within", "between", "ratio"), intervals, strict=True):
            rows.append({"layer": layer, "statistic": name, **interval._asdict()})
    return required("pandas").DataFrame(rows)


def _by_layer(table: CodeTable) -> Iterator[tuple[int, CodeTable]]:
    for layer in table.layers:
        yield layer, table.where(layer=layer).joined_pairs()


def _groups(table: CodeTable, label: str) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the values of a label with the rows that have them."""
    for value in np.unique(table[label]):
        yield value.item(), table[label] == value


def _choice(size: int, wanted: int, seed: int) -> np.ndarray:
    """Return a random choice of indices, or all if there are no more than wanted."""
    return np.sort(np.random.default_rng(seed).permutation(size)[:wanted])


def _all_the_same(codes: Float[np.ndarray, "N D"]) -> bool:
    """Whether codes differ by no more than rounding, relative to the largest of them."""
    return bool(np.ptp(codes, axis=0).max() <= _ROUNDING * np.abs(codes).max())


def _distances(codes: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N N"]:
    codes = codes.astype(np.float64)
    squares = (codes**2).sum(axis=1)
    return np.sqrt((squares[:, None] + squares - 2 * codes @ codes.T).clip(min=0))
