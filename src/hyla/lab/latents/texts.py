"""The latent codes of a pretrained language model, on texts: recorded, mapped, written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from hyla._errors import check_positive
from hyla._optional import required
from hyla.lab.latents.figures import drawings, write_drawings
from hyla.lab.latents.runs import ANALYSES, DIGITS
from hyla.latents.files import read_codes, write_codes
from hyla.latents.pairs import PAIR_NAMES, check_pairs
from hyla.latents.texts import shown_layers, text_tables
from hyla.results.csv_table import rows_of_frame
from hyla.results.origins import measured_with, put_rows
from hyla.results.runs import Row

MAX_TOKENS = 512


class Recorded(NamedTuple):
    """What was recorded, and where it is."""

    codes: int
    kinds: Sequence[str]
    """The kinds of attention that the model has."""
    path: Path


def analyse_texts(
    reference: str,
    texts: Sequence[str],
    out: Path,
    *,
    device: torch.device,
    decoder_texts: Sequence[str] | None = None,
    pairs: str = "self",
    max_tokens: int = MAX_TOKENS,
    say: Callable[[str], None] = lambda line: None,
    on_texts: Callable[[int], None] = lambda number: None,
    on_kind: Callable[[str], None] = lambda kind: None,
) -> Recorded:
    """Record the codes of the texts' tokens and draw them, all in a folder of the model's name.

    `say` is told what takes its time before anything is read, `on_texts` how many more have been
    read, and `on_kind` which kind of attention is drawn next.

    Raises:
        ModelUnavailableError: there is no such model, or it cannot be reached.
        UnsupportedModelError: its codes cannot be had.
        ValueError: the texts, or what is asked of them, make no sense.
    """
    check_positive(max_tokens=max_tokens)
    check_pairs(pairs)
    required("matplotlib")
    from hyla.integrations.transformers import register
    from hyla.integrations.transformers.codes.texts import load_pretrained, model_name, stream_texts

    register()  # models that are ours, or were saved with one of our attention functions
    model = load_pretrained(reference, device=device, say=say)
    name = model_name(reference)
    path = out / name / "codes.parquet"
    parts = stream_texts(
        model,
        texts,
        decoder_texts=decoder_texts,
        pairs=pairs,
        max_tokens=max_tokens,
        on_progress=on_texts,
    )
    write_codes(parts, path)
    codes = read_codes(path)
    if not len(codes):
        raise ValueError(
            f"the texts have no pairs {pairs!r}: give longer ones, or choose other --pairs "
            f"({', '.join(PAIR_NAMES)})"
        )
    kinds = sorted(set(codes["kind"].tolist()))
    drawn: set[str] = set()
    for kind in kinds:
        on_kind(kind)
        own = codes.where(kind=kind)
        tables = text_tables(own.where(layer=shown_layers(own.layers)))
        figures = {
            table: drawings(table, rows_of_frame(frame, digits=DIGITS), operation="token")
            for table, frame in tables.items()
        }
        title = f"Latent codes of {reference}: {kind} attention"
        write_drawings(figures, path.parent / kind, title=title, files_of=figures)
        drawn |= figures.keys()
    account: Row = {
        "model": name,
        "reference": reference,
        "pairs": pairs,
        "max_tokens": max_tokens,
        "texts": len(texts),
        "codes": len(codes),
        "kinds": " ".join(kinds),
        **measured_with(device),
    }
    rows = [{**account, "table": table} for table in sorted(drawn)]
    put_rows(rows, out / ANALYSES, of={"model": name})
    return Recorded(len(codes), kinds, path)
