"""A mark on everything that torch.compile keeps on disk, so that no code of other sources is found.

torch finds kept code by its graph, and the graph does not say what an operator of ours does in its
gradient: changed there, it would go on with the old one.
"""

import functools
import hashlib
from pathlib import Path

import torch


def tag_compiled_code() -> None:
    """Let what this process compiles be found by processes with the same sources of hyla alone.

    For modules that register operators.
    """
    tag = torch.compiler.config.cache_key_tag
    if _own_tag() not in tag:
        torch.compiler.config.cache_key_tag = f"{tag} {_own_tag()}".strip()


@functools.cache
def _own_tag() -> str:
    package = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.read_bytes())
    return f"hyla-{found.hexdigest()[:12]}"
