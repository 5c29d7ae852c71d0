"""Write the kernels as a package of the Hugging Face kernels format: Python, CUDA and C++ sources.

    make kernel-package                            dist/hyla-attention
    python tools/kernel_package.py FOLDER

There is no build step: the sources are compiled where they run, by NVRTC or, on a CPU, by its C++
compiler. A package may be loaded from anywhere, several versions in one process, so it imports
itself relatively, registers its operators under a name that is its own, and takes nothing but torch
and the standard library.
"""

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "hyla"
NAME = "hyla-attention"
VERSION = 1
BACKENDS = ("cpu", "cuda")

# What goes into the package, and what each part is called there.
PARTS = {
    "attention": "attention",
    "_compiler_tag.py": "_compiler_tag.py",
    "_errors.py": "_errors.py",
    "_files.py": "_files.py",
    "integrations/hub_kernel.py": "interface.py",
    "integrations/transformers/arguments.py": "arguments.py",
    "integrations/transformers/additive.py": "additive.py",
}
MODULES = {
    "hyla.integrations.hub_kernel": "interface",
    "hyla.integrations.transformers.arguments": "arguments",
    "hyla.integrations.transformers.additive": "additive",
    "jaxtyping": "_shapes",
}

WRITTEN = {
    "__init__.py": '''"""Attention as a hypernetwork: HYLA and its family, with fused kernels."""

from .interface import *  # noqa: F403
''',
    "_plugins.py": '''"""Presets of one's own are registered with hyla itself, and not here."""


class PluginError(ValueError):
    """A name that nothing registers."""


def load():
    """Find nothing."""
''',
    "_shapes.py": '''"""Annotations of shapes, which say what they say to readers alone."""

from torch import Tensor


class Float:
    """A tensor of floating-point numbers."""

    def __class_getitem__(cls, shape):
        return Tensor


Int = Float
''',
    f"{NAME.replace('-', '_')}/__init__.py": '''"""The same, for older versions of kernels."""

from ..interface import *  # noqa: F403
''',
}

CARD = f"""---
license: mit
tags: [kernels]
---
# {NAME}

HYLA and the rest of its attention family, with fused kernels for NVIDIA GPUs that are compiled
when they are first used (NVRTC comes with torch). Elsewhere the same numbers come from PyTorch's
own operations, or with `backend="fused"` and heads up to 16 in float32 from a kernel that the
machine's C++ compiler makes. In a model of transformers:
`attn_implementation="OWNER/{NAME}"`, and the config's field `hyla_attention` names the member of
the family.
"""


def main(folder: Path) -> None:
    """Write the package, in the place of an earlier one."""
    if folder.exists():
        refuse_foreign(folder)
        shutil.rmtree(folder)
    files = sources()
    version = hashlib.sha256("".join(f"{k}\n{v}" for k, v in files.items()).encode()).hexdigest()
    for backend in BACKENDS:
        own = f"_{NAME.replace('-', '_')}_{backend}_{version[:7]}"
        metadata = {
            "name": NAME,
            "id": own,
            "version": VERSION,
            "license": "MIT",
            "python-depends": [],
            "backend": {"type": backend},
        }
        written = files | {"metadata.json": json.dumps(metadata, indent=2) + "\n"}
        for name, text in written.items():
            path = folder / "build" / f"torch-{backend}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace('"hyla::', f'"{own}::'), encoding="utf-8")
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    print(f"{folder}: {len(files)} files for {' and '.join(BACKENDS)}")


def refuse_foreign(folder: Path) -> None:
    """Raise a ValueError unless all that would be deleted was written here."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; the package needs a folder of its own")
    variants = [folder / "build" / f"torch-{backend}" for backend in BACKENDS]
    top = {*folder.iterdir()} - {folder / "build", folder / "README.md"}
    inside = {*(folder / "build").glob("*")} - {*variants}
    ours = all((path / "metadata.json").is_file() for path in variants)
    if top or inside or (any(folder.iterdir()) and not ours):
        raise ValueError(f"{folder} holds other things than a package: name a new folder")


def sources() -> dict[str, str]:
    """Return the files of a variant, by their names."""
    files = dict(WRITTEN)
    for part, name in PARTS.items():
        origin = SOURCE / part
        for path in sorted(origin.rglob("*")) if origin.is_dir() else [origin]:
            if path.is_file() and "__pycache__" not in path.parts:
                inside = Path(name, path.relative_to(origin)).as_posix().removesuffix("/.")
                text = path.read_text(encoding="utf-8")
                files[inside] = relative(text, inside) if path.suffix == ".py" else text
    return files


def relative(text: str, name: str) -> str:
    """Let a module import the others of the package from where it is."""
    up = "." * len(Path(name).parts)

    def moved(found: re.Match) -> str:
        indent, module = found.groups()
        inside = MODULES.get(module, module.removeprefix("hyla").removeprefix("."))
        return f"{indent}from {up}{inside} import"

    return re.sub(
        r"^( *)from (hyla(?:\.[\w.]+)?|jaxtyping) import", moved, text, flags=re.MULTILINE
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write; an earlier package is replaced")
    try:
        main(parser.parse_args().folder)
    except ValueError as error:
        parser.error(str(error))
