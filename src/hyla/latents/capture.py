"""Recording latent codes: of chosen query-key pairs, for every layer, from any transformer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from hyla.latents.observe import Observer, Site, UnsupportedModelError, observing
from hyla.latents.pairs import Pairs, check_pairs, choice_for, resolve_pairs
from hyla.latents.table import CodeTable, concatenate

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""One batch: the model's first argument, or its arguments by name."""


def record_codes(
    model: nn.Module,
    inputs: Inputs | Iterable[Inputs],
    *,
    pairs: Pairs = "self",
    layers: Iterable[int] | None = None,
    labels: Mapping[str, Any] | None = None,
    residual: bool = False,
    on_progress: Callable[[int], None] = lambda instances: None,
) -> CodeTable:
    """Run the model on the inputs and return the codes of the chosen pairs.

    Args:
        model: a `hyla.Transformer`, any module with `hyla.MultiHeadAttention` layers in it, or a
            transformers model, or one with `torch.nn.MultiheadAttention` layers. It is run in
            evaluation mode on its own device, by its own backend.
        inputs: a batch or several; a batch is a tensor, or a mapping of arguments. Positions that
            an `attention_mask` [B, T] among them rules out are left out of the table, in the layers
            whose sequences are of its length.
        pairs: which query-key pairs; see `hyla.latents.pairs`.
        layers: which layers; all by default.
        labels: columns to add, each with a value per instance (sequence), over all batches.
        residual: also record what each layer reads at the pairs' queries.
        on_progress: called after each batch with the number of its instances.
    """
    return concatenate(
        stream_codes(
            model,
            inputs,
            pairs=pairs,
            layers=layers,
            labels=labels,
            residual=residual,
            on_progress=on_progress,
        )
    )


def stream_codes(
    model: nn.Module,
    inputs: Inputs | Iterable[Inputs],
    *,
    pairs: Pairs = "self",
    layers: Iterable[int] | None = None,
    labels: Mapping[str, Any] | None = None,
    residual: bool = False,
    on_progress: Callable[[int], None] = lambda instances: None,
) -> Iterator[CodeTable]:
    """Yield the codes of one batch after the other, as `record_codes` returns those of all.

    `write_codes(stream_codes(...), "codes.parquet")` records more than memory would hold.
    """
    columns = {name: np.asarray(values) for name, values in (labels or {}).items()}
    recorded = 0
    for batch in batches(inputs):
        _check_batch(batch)
        seen = run_recorded(model, batch, pairs=pairs, layers=layers, residual=residual)[1]
        # As recorded: the input's first axis may be that of positions, or its images many windows.
        size = max(len(of_site.codes) for of_site in seen.values())
        for name, column in columns.items():
            if len(column) < recorded + size:
                raise ValueError(
                    f"labels[{name!r}] holds {len(column)} values for more instances than that"
                )
        masks = _token_masks(batch)
        parts = [_table(site, seen[site], masks[site.kind], recorded) for site in sorted(seen)]
        yield concatenate(parts).with_labels(**columns)
        recorded += size
        on_progress(size)


class LayerCodes(NamedTuple):
    """What one attention layer showed of one batch."""

    pairs: Int[Tensor, "P 2"]
    """The (query, key) positions, none negative."""
    lengths: tuple[int, int]
    """How many queries and keys there are."""
    codes: Float[Tensor, "B P H"]
    residual: Float[Tensor, "B P E"] | None
    """What the layer read at each pair's query."""


def run_recorded(
    model: nn.Module,
    batch: Inputs,
    *,
    pairs: Pairs = "self",
    layers: Iterable[int] | None = None,
    residual: bool = False,
) -> tuple[Any, dict[Site, LayerCodes]]:
    """Return what the model makes of a batch and the codes on the way, still on its device."""
    check_pairs(pairs)
    recorder = _Recorder(pairs, None if layers is None else set(layers), residual)
    with observing(model, recorder):
        result = run(model, batch)
    if not recorder.seen:
        raise UnsupportedModelError(
            f"nothing was recorded: no layer among {layers or 'all'} has pairs {pairs!r}"
        )
    return result, recorder.seen


def batches(inputs: Inputs | Iterable[Inputs]) -> Iterable[Inputs]:
    """Return one batch or several as several."""
    if isinstance(inputs, Tensor | Mapping):
        return [cast(Inputs, inputs)]
    if isinstance(inputs, str) or not isinstance(inputs, Iterable):
        raise _not_a_batch("inputs", inputs)
    return inputs


def _check_batch(batch: Any) -> None:
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            if not isinstance(value, Tensor):
                raise _not_a_batch(f"inputs[{name!r}]", value)
    elif not isinstance(batch, Tensor):
        raise _not_a_batch("a batch", batch)


def _not_a_batch(name: str, value: Any) -> TypeError:
    return TypeError(
        f"{name} is of type {type(value).__name__}: a batch is a tensor, or a mapping of names to "
        "tensors, as a tokenizer returns it with return_tensors='pt'"
    )


@torch.no_grad()
def run(model: nn.Module, batch: Inputs) -> Any:
    """Call the model in evaluation mode, on its device."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        if isinstance(batch, Tensor):
            return model(batch.to(device))
        return model(**{name: tensor.to(device) for name, tensor in batch.items()})
    finally:
        model.train(was_training)


class _Recorder(Observer):
    """Keeps the codes of one batch."""

    def __init__(self, pairs: Pairs, layers: set[int] | None, residual: bool):
        self.seen: dict[Site, LayerCodes] = {}
        self._choice = pairs
        self._layers = layers
        self._residual = residual
        self._pairs = torch.empty(0, 2, dtype=torch.int64)
        self._lengths = (0, 0)

    def pairs(self, site: Site, num_queries: int, num_keys: int) -> Tensor | None:
        choice = choice_for(self._choice, site.kind)
        if choice is None or (self._layers is not None and site.layer not in self._layers):
            return None
        self._lengths = (num_queries, num_keys)
        self._pairs = resolve_pairs(choice, queries=num_queries, keys=num_keys)
        return self._pairs

    def receive(self, site: Site, codes: Tensor, x: Tensor) -> None:
        residual = x[:, self._pairs[:, 0]] if self._residual else None
        self.seen[site] = LayerCodes(self._pairs, self._lengths, codes, residual)


_Masks: TypeAlias = dict[str, tuple[np.ndarray | None, np.ndarray | None]]
"""By kind of attention: which query and which key positions are tokens, not padding."""


def _token_masks(batch: Inputs) -> _Masks:
    own, decoder = (_token_mask(batch, f"{stack}attention_mask") for stack in ("", "decoder_"))
    return {
        "self": (own, own),
        "encoder": (own, own),
        "decoder": (decoder, decoder),
        "cross": (decoder, own),
    }


def _token_mask(batch: Inputs, name: str) -> np.ndarray | None:
    mask = None if isinstance(batch, Tensor) else batch.get(name)
    return mask.cpu().numpy().astype(bool) if mask is not None and mask.ndim == 2 else None


def _table(
    site: Site,
    seen: LayerCodes,
    masks: tuple[np.ndarray | None, np.ndarray | None],
    first_instance: int,
) -> CodeTable:
    B, P, _ = seen.codes.shape
    instance = np.arange(B).repeat(P)
    query, key = (np.tile(seen.pairs[:, side].numpy(), B) for side in (0, 1))
    table = CodeTable(
        codes=_rows(seen.codes),
        columns={
            "layer": np.full(B * P, site.layer),
            "kind": np.full(B * P, site.kind),
            "instance": first_instance + instance,
            "query": query,
            "key": key,
        },
        residual=None if seen.residual is None else _rows(seen.residual),
    )
    shown = np.ones(B * P, dtype=bool)
    for mask, position, length in zip(masks, (query, key), seen.lengths, strict=True):
        # A mask of another length is of another sequence: of a text beside the tokens of a picture,
        # or of frames that were put together since.
        if mask is not None and mask.shape == (B, length):
            shown &= mask[instance, position]
    return table.rows(shown)


def _rows(vectors: Float[Tensor, "B P D"]) -> Float32[np.ndarray, "N D"]:
    return vectors.flatten(0, 1).float().cpu().numpy()
