"""One examination: gathers the findings, prints them, and says whether all is well."""

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Iterable

import torch

from hyla.doctor.checks import Check, run_checks
from hyla.doctor.installation import Extra, devices, extras, versions
from hyla.doctor.kernels import KernelFinding, kernel_findings

HEALTHY, UNHEALTHY = 0, 1
_CASE = 45  # columns of a kernel's case


def diagnose(*, as_json: bool = False) -> int:
    """Print versions, devices, which kernels run here, and a self-check; return the exit code."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if as_json:
        findings = {
            "versions": versions(device),
            "devices": devices(),
            "extras": [dataclasses.asdict(extra) for extra in extras()],
            "kernels": [dataclasses.asdict(finding) for finding in kernel_findings(device)],
        }
        checks = list(run_checks(device))
        healthy = all(check.passed for check in checks)
        findings |= {"checks": [dataclasses.asdict(c) for c in checks], "healthy": healthy}
        print(json.dumps(findings, indent=1))
    else:
        # Each section as soon as it is known: compiling the kernels takes a while.
        _print_versions(versions(device), devices())
        _print_extras(extras())
        _print_kernels(kernel_findings(device))
        healthy = _print_checks(run_checks(device))
    return HEALTHY if healthy else UNHEALTHY


def _print_versions(found: dict[str, str | None], present: list[str]) -> None:
    print("Versions and devices")
    for name, value in found.items():
        _row(name, value or "none")
    for name in present:
        _row("device", name)


def _print_extras(found: Iterable[Extra]) -> None:
    print("\nOptional parts")
    for extra in found:
        if extra.missing:
            missing = ", ".join(extra.missing)
            _row(extra.name, f"missing {missing}: {extra.install}  ({extra.purpose})")
        else:
            _row(extra.name, f"installed  ({extra.purpose})")


def _print_kernels(found: Iterable[KernelFinding]) -> None:
    print("\nFused kernels")
    for finding in found:
        answer = f"no: {finding.reason}" if finding.kernel is None else f"yes, by {finding.kernel}"
        _row(finding.case, answer, width=_CASE)
    print(
        "  Without a kernel, attention runs by PyTorch's own operations: slower, the same numbers."
    )


def _print_checks(checks: Iterable[Check]) -> bool:
    print("\nSelf-check")
    healthy = True
    for check in checks:
        verdict = "ok" if check.passed else "FAILED"
        _row(check.name, f"{verdict}: {check.detail} ({check.seconds:.1f} s)", width=_CASE)
        healthy &= check.passed
    print(
        "\nAll is well."
        if healthy
        else "\nSomething computes wrong numbers here: please report the lines above."
    )
    return healthy


def _row(name: str, text: str, *, width: int = 14) -> None:
    """Print a name and what is to say about it, wrapped to the terminal beside the name."""
    columns = max(shutil.get_terminal_size((100, 24)).columns, width + 40)
    lines = textwrap.wrap(text, columns - width - 3, break_long_words=False) or [""]
    print(f"  {name:<{width}} {lines[0]}", flush=True)
    for line in lines[1:]:
        print(f"  {'':<{width}} {line}", flush=True)
