"""Write constraints.txt anew: every package that pip would install into a fresh environment.

    make constraints                            the newest versions that fit together
    python tools/pin.py -c constraints.txt      those pinned already, and what came to them

Nothing is installed; arguments are pip's.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# These belong to torch's build: the CPU's has none, and each CUDA its own.
_OF_TORCH = ("nvidia-", "cuda-", "triton")
_OUR_OWN = "nvidia-cuda-nvrtc"  # which tests compile with, beside a torch for the CPU, too


def main(arguments: list[str]) -> None:
    """Ask pip, and keep what the file says at its head."""
    head = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("#")]
    versions = resolved(arguments)
    pins = [f"{name}=={version}" for name, version in sorted(versions.items())]
    CONSTRAINTS.write_text("\n".join([*head, *pins]) + "\n")
    print(f"{CONSTRAINTS.name}: {len(pins)} packages")


def resolved(arguments: list[str]) -> dict[str, str]:
    """Return the version of each package, by its normalised name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        whole = ["--ignore-installed", "--report", str(report), f"{CONSTRAINTS.parent}[dev]"]
        subprocess.run([*pip, *whole, *arguments], check=True)
        installs = json.loads(report.read_text())["install"]
    packages = (package["metadata"] for package in installs)
    versions = {normalised(one["name"]): one["version"].partition("+")[0] for one in packages}
    return {
        name: version
        for name, version in versions.items()
        if name != "hyla" and not belongs_to_torch(name)
    }


def belongs_to_torch(name: str) -> bool:
    """Say whether a package comes with a build of torch, and its version from there."""
    return name.startswith(_OF_TORCH) and name != _OUR_OWN


def normalised(name: str) -> str:
    """Return the one spelling of a package's name that all others stand for."""
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main(sys.argv[1:])
