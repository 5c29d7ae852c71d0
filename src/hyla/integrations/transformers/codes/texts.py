"""Pretrained language models: loading them, and recording the codes of their tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from hyla.latents.adapters import ModelUnavailableError
from hyla.latents.capture import record_codes
from hyla.latents.pairs import Pairs
from hyla.latents.table import CodeTable

_BATCH = 8  # texts that are run together


class Pretrained(NamedTuple):
    """A model and the tokenizer that goes with it."""

    model: Any
    tokenizer: Any


def load_pretrained(
    reference: str,
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> Pretrained:
    """Load a model from a folder, or by its name on the Hugging Face hub, which `say` is told.

    Raises:
        ModelUnavailableError: there is none, or it cannot be reached.
    """
    local = Path(reference).expanduser()
    if local.exists() and not (local / "config.json").is_file():
        raise ModelUnavailableError(
            f"{reference} holds no config.json: give the folder that a model was saved to with "
            "save_pretrained"
        )
    looks_like_path = reference.startswith((".", "/", "~")) or reference.count("/") > 1
    if looks_like_path and not local.exists():
        raise ModelUnavailableError(f"{reference} does not exist: there is no model to load")
    if not local.exists():
        say(f"{reference} is no folder here: asking the Hugging Face hub for it")
    source = str(local) if local.exists() else reference
    try:
        model = AutoModel.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        if local.exists():
            raise ModelUnavailableError(f"{reference} cannot be loaded: {reason}") from error
        raise ModelUnavailableError(
            f"{reference} is neither a folder nor a model that could be had from the Hugging Face "
            f"hub ({reason}). Without a network, load the model where there is one, save it with "
            "save_pretrained, and give the folder."
        ) from error
    return Pretrained(model.to(device).eval(), _load_tokenizer(source, reference))


def _load_tokenizer(source: str, reference: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise _no_tokenizer(reference, " ".join(str(error).split())) from error
    # Without files, some classes make a tokenizer all the same.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise _no_tokenizer(reference, "there are none: it would take every word for unknown")
    return tokenizer


def _no_tokenizer(reference: str, reason: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"{reference} has no tokenizer that can be loaded: its files (tokenizer.json, or what the "
        f"tokenizer's save_pretrained writes) have to be beside the model. ({reason})"
    )


def model_name(reference: str) -> str:
    """Return a name for files: that of the model's folder, or its name on the hub."""
    local = Path(reference).expanduser()
    return local.resolve().name if local.exists() else reference.replace("/", "--")


def stream_texts(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    decoder_texts: Sequence[str] | None = None,
    pairs: Pairs = "self",
    max_tokens: int = 512,
    on_progress: Callable[[int], None] = lambda texts: None,
) -> Iterator[CodeTable]:
    """Yield the codes of the texts' tokens, batch by batch, with columns `token` and `key_token`.

    The decoder of an encoder-decoder reads `decoder_texts`, or else the texts again, after the
    token that decoding starts with. Texts of one length are run together, so nothing is padded.
    """
    model, tokenizer = pretrained
    ids = [_ids(tokenizer, text, max_tokens) for text in texts]
    decoder_ids: list[list[int] | None] = [None] * len(ids)
    if model.config.is_encoder_decoder:
        again = texts if decoder_texts is None else decoder_texts
        if len(again) != len(texts):
            raise ValueError(f"there are {len(texts)} texts and {len(again)} for the decoder")
        start = _first_decoder_token(model)
        decoder_ids = [[start, *_ids(tokenizer, text, max_tokens - 1)] for text in again]
    elif decoder_texts is not None:
        raise ValueError(f"{type(model).__name__} has no decoder beside its encoder to read texts")

    for members in _batches(ids, decoder_ids):
        inputs: dict[str, Tensor] = {"input_ids": torch.tensor([ids[i] for i in members])}
        if decoder_ids[members[0]] is not None:
            inputs["decoder_input_ids"] = torch.tensor([decoder_ids[i] for i in members])
        table = record_codes(model, inputs, pairs=pairs)
        yield _with_tokens(table, inputs, np.array(members), tokenizer)
        on_progress(len(members))


def _ids(tokenizer: Any, text: str, max_tokens: int) -> list[int]:
    found = tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
    if not found:
        raise ValueError(f"the text {text!r} has no tokens")
    return found


def _first_decoder_token(model: Any) -> int:
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(model.config, name, None)
        if token is not None:
            return token
    raise ValueError(f"{type(model).__name__} does not say which token its decoder starts with")


def _batches(
    ids: Sequence[list[int]], decoder_ids: Sequence[list[int] | None]
) -> Iterator[list[int]]:
    """Yield the numbers of texts that have the same lengths."""
    by_length: dict[tuple[int, int], list[int]] = {}
    for i, (own, decoder) in enumerate(zip(ids, decoder_ids, strict=True)):
        by_length.setdefault((len(own), len(decoder or ())), []).append(i)
    for members in by_length.values():
        for start in range(0, len(members), _BATCH):
            yield members[start : start + _BATCH]


def _with_tokens(
    table: CodeTable, inputs: Mapping[str, Tensor], texts: np.ndarray, tokenizer: Any
) -> CodeTable:
    """Add the tokens at query and key, and number the instances as the texts are."""
    read = {
        name: np.array([tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()], dtype=str)
        for name, ids in inputs.items()
    }
    own, decoder = read["input_ids"], read.get("decoder_input_ids", read["input_ids"])
    of_decoder = np.isin(table["kind"], ["decoder", "cross"])
    return table.with_columns(
        instance=texts[table["instance"]],
        token=_picked(own, decoder, of_decoder, table["instance"], table["query"]),
        key_token=_picked(
            own, decoder, table["kind"] == "decoder", table["instance"], table["key"]
        ),
    )


def _picked(
    own: np.ndarray,
    decoder: np.ndarray,
    of_decoder: np.ndarray,
    instance: np.ndarray,
    position: np.ndarray,
) -> np.ndarray:
    picked = np.empty(len(instance), dtype=np.promote_types(own.dtype, decoder.dtype))
    for tokens, rows in ((own, ~of_decoder), (decoder, of_decoder)):
        picked[rows] = tokens[instance[rows], position[rows]]
    return picked
