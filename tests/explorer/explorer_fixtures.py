"""Small models to explore, with initial weights: what they answer is nonsense, but computed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient

from hyla.explorer.gallery import Exhibit, Gallery
from hyla.explorer.runs import RunFolder
from hyla.explorer.web.app import build_app
from hyla.explorer.web.security import Access
from hyla.nn import Transformer
from hyla.training import TrainConfig
from tiny_runs import SRAVEN, tiny_config, tiny_model, tiny_task

URL = "http://127.0.0.1:8420"


def config_of(task: str, **model: Any) -> TrainConfig:
    config = tiny_config(model=tiny_model(tiny_task(task), **model))
    return config if task == "fuzzy" else replace(config, task_name="sraven", task=SRAVEN)


def subject_of(task: str, *, id: str | None = None, seed: int = 0, **model: Any) -> Exhibit:
    config = config_of(task, **model)
    network = Transformer(config.model).eval()
    network.reset_parameters(torch.Generator().manual_seed(seed))
    return Exhibit(
        id=id or f"{task}-tiny",
        config=config,
        member=0,
        scores={"test": 0.5, "ood": 0.25},
        note="Made for tests.",
        load=lambda: network,
    )


def tiny_gallery() -> Gallery:
    return Gallery(
        [
            subject_of("sraven"),
            subject_of("sraven", id="sraven-softmax", seed=1, attention="softmax"),
            subject_of("fuzzy"),
            subject_of("fuzzy", id="fuzzy-linear", seed=1, attention="linear"),
        ]
    )


def client_of(
    gallery: Gallery, root: Path, access: Access | None = None, **options: Any
) -> TestClient:
    app = build_app(gallery, RunFolder(root), access or Access())
    return TestClient(app, base_url=URL, **options)
