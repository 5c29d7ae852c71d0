"""How long the explorer's requests take, over HTTP on this machine, with the shipped models.

Every request is another one (another seed), so nothing is answered from memory; the first of a
kind, for which models are loaded and maps drawn, is not counted but given in a column of its own.
"""

import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import torch

MIN_REQUESTS, MAX_REQUESTS = 20, 1000
PUZZLES = 100  # permuted ones, and as many others


class Request(NamedTuple):
    """What is sent: a GET, or a POST if there is a body."""

    path: str
    body: dict[str, Any] | None = None


class Client:
    """One connection that is kept open, as a browser's."""

    def __init__(self, url: str):
        self._connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))

    def send(self, request: Request) -> Any:
        """Return the answer; anything but a success is an error."""
        body = None if request.body is None else json.dumps(request.body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request("GET" if body is None else "POST", request.path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{request.path}: {answer.status} {content.decode()}")
        return json.loads(content)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def measure(device: torch.device, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row per endpoint; the explorer computes on the CPU, whatever the device."""
    from hyla.explorer.gallery import open_gallery
    from hyla.explorer.runs import RunFolder
    from hyla.explorer.web.app import build_app
    from hyla.explorer.web.security import Access
    from hyla.explorer.web.server import serving

    app = build_app(open_gallery([]), RunFolder(Path("runs")), Access())
    with serving(app) as url:
        client = Client(url)
        for name, request in _requests(client).items():
            yield {"request": name, **_timed(client, request, seconds)}
        client.close()


def _requests(client: Client) -> dict[str, Callable[[int], Request]]:
    """What is asked, by name and number."""
    about = client.send(Request("/api/about"))
    model = next(one["id"] for one in about["models"] if one["task"] == "sraven")
    functions = [one["id"] for one in about["models"] if one["task"] == "fuzzy"]
    variables = about["fuzzy"]["variables"]

    def new(seed: int) -> Request:
        return Request(_url("instance", model=model, seed=seed, permuted=seed % 2 == 0))

    shown = [client.send(new(seed)) for seed in range(2 * PUZZLES)]

    def puzzle(number: int, *, permuted: bool) -> str:
        return [one["id"] for one in shown if one["permuted"] == permuted][number % PUZZLES]

    def of_puzzle(
        what: str, *, permuted: bool = False, **parameters: Any
    ) -> Callable[[int], Request]:
        return lambda number: Request(
            _url(what, id=puzzle(number, permuted=permuted), **parameters)
        )

    def swap(number: int) -> Request:
        body = {
            "model": model,
            "id": puzzle(number, permuted=False),
            "layers": [0, 1],
            "donor": {"rule": "constant"},
            "code": "instance",
        }
        return Request("/api/sraven/swap", body)

    def function(number: int) -> dict[str, Any]:
        return {
            "models": functions,
            "terms": [[1] * variables, [-1] * variables],
            "seed": number,
            "query": [number % 100 / 100] * variables,
        }

    return {
        "about": lambda number: Request("/api/about"),
        "instance": new,
        "answers, permuted": of_puzzle("answers", permuted=True, model=model),
        "answers, not permuted": of_puzzle("answers", model=model),
        "reveal": of_puzzle("reveal", permuted=True),
        "code": of_puzzle("code", model=model),
        "map": lambda number: Request(_url("map", model=model, layer=1)),
        "place": of_puzzle("place", model=model, layer=1),
        "swap": swap,
        "fuzzy predict": lambda number: Request("/api/fuzzy/predict", function(number)),
        "fuzzy slice": lambda number: Request(
            "/api/fuzzy/slice", function(number) | {"variable": 0}
        ),
        "runs": lambda number: Request("/api/runs"),
    }


def _url(what: str, **parameters: Any) -> str:
    return f"/api/sraven/{what}?{urlencode(parameters, quote_via=quote)}".replace("True", "true")


def _timed(
    client: Client, request: Callable[[int], Request], seconds: float
) -> dict[str, float | int]:
    """Return the milliseconds of the first request, and the median and 95th percentile of more.

    And the mean time of the processor, client included: what is left of a busy machine's figures.
    """
    first = _milliseconds(client, request(0))
    times: list[float] = []
    cpu = time.process_time()
    end = time.perf_counter() + seconds
    while len(times) < MIN_REQUESTS or (time.perf_counter() < end and len(times) < MAX_REQUESTS):
        times.append(_milliseconds(client, request(len(times) + 1)))
    return {
        "requests": len(times),
        "first_ms": first,
        "median_ms": statistics.median(times),
        "p95_ms": statistics.quantiles(times, n=20, method="inclusive")[-1],
        "cpu_ms": 1000 * (time.process_time() - cpu) / len(times),
    }


def _milliseconds(client: Client, request: Request) -> float:
    began = time.perf_counter()
    client.send(request)
    return 1000 * (time.perf_counter() - began)
