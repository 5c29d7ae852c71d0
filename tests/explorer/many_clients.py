"""Many clients at once, each with a connection of its own, as fast as they are answered."""

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

PAUSE_AFTER_REFUSAL = 1.0  # as the answer's Retry-After asks for


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run to the end in a thread of its own: a browser's test may have left a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


@dataclass
class Outcome:
    """What became of all requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    answered: list[float] = field(default_factory=list)
    """Seconds until each answer but refusals."""
    refused: list[float] = field(default_factory=list)
    """Seconds until each 503."""

    def __str__(self) -> str:
        lines = [f"answers by status: {dict(self.statuses)}"]
        for name, times in (("answered", self.answered), ("refused", self.refused)):
            if len(times) > 1:
                lines.append(
                    f"{name}: median {statistics.median(times):.3f} s, "
                    f"p99 {percentile_99(times):.3f} s, longest {max(times):.3f} s"
                )
        return "\n".join(lines)


def percentile_99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[-1]


def requests_of(about: dict, runs: list[str]) -> Callable[[random.Random], str]:
    """What visitors of the page ask for, drawn at random; nothing is answered from memory."""
    model = next(one["id"] for one in about["models"] if one["task"] == "sraven")

    def draw(chance: random.Random) -> str:
        seed = chance.randrange(10**6)
        return chance.choice(
            [
                "/api/about",
                "/api/runs",
                f"/api/sraven/instance?{urlencode({'model': model, 'seed': seed})}",
                f"/api/curves?{urlencode({'run': chance.choice(runs)})}",
                "/static/plotly.css",
                "/",
            ]
        )

    return draw


async def besiege(
    url: str, draw: Callable[[random.Random], str], *, clients: int, seconds: float
) -> Outcome:
    outcome = Outcome()
    end = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(_client(url, draw, random.Random(number), end, outcome))
    return outcome


async def _client(
    url: str, draw: Callable[[random.Random], str], chance: random.Random, end: float, to: Outcome
) -> None:
    while time.monotonic() < end:
        began = time.monotonic()
        status = (await get(url, draw(chance)))[0]
        elapsed = time.monotonic() - began
        to.statuses[status] += 1
        (to.refused if status == 503 else to.answered).append(elapsed)
        if status == 503:
            await asyncio.sleep(PAUSE_AFTER_REFUSAL)


async def get(url: str, path: str) -> tuple[int, bytes]:
    """Return status and body of a request on a new connection."""
    host = urlsplit(url).netloc
    reader, writer = await asyncio.open_connection(*host.split(":"))
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.read()
    finally:
        writer.close()
    header, _, body = answer.partition(b"\r\n\r\n")
    return int(header.split(b" ")[1]), body


async def get_json(url: str, path: str) -> dict:
    return json.loads((await get(url, path))[1])
