"""Schemathesis: what the OpenAPI document allows, and what it does not, is answered well."""

from pathlib import Path

import pytest
import schemathesis
from explorer_fixtures import tiny_gallery
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode

from hyla.explorer import codes
from hyla.explorer.puzzles import new_puzzle
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access

HEADERS = {"host": "127.0.0.1:8420"}
GALLERY = tiny_gallery()
# Names of models and puzzles cannot be guessed; with these, requests come to something.
THERE = {
    "model": "sraven-tiny",
    "models": ["fuzzy-tiny"],
    "id": new_puzzle(GALLERY["sraven-tiny"], seed=1, split="seen", permuted=False, rules=None).id,
}
app = build_app(GALLERY, RunFolder(Path("no such folder")), Access())
schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HEADERS)


@pytest.fixture(autouse=True, scope="module")
def _few_instances():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "INSTANCES", 32)
        yield


@schema.parametrize()
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)
def test_nothing_is_found(case):
    if case.meta.generation.mode is GenerationMode.POSITIVE:
        for part in (case.query, case.body):
            if isinstance(part, dict):
                part.update((name, value) for name, value in THERE.items() if name in part)
    case.call_and_validate(headers=HEADERS)
