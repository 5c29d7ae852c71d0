"""Where the time of a training step goes, by part: what docs/engine.md quotes.

    python tools/profile_step.py --task sraven --members 12 --precision tf32 [--blocks plain]

On a GPU the kernels of replayed steps are counted, on a CPU the operators. A part is told by the
names of its kernels, which the compiler makes of what it fused; the first that fits counts.
"""

import argparse
import re
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from hyla.benchmarks.training import build
from hyla.benchmarks.training_cases import Case
from hyla.training.devices import resolve_device

PARTS = {
    "attention": r"small_head|large_head|fused_attention",
    "fused blocks": r"^block_|hyla::block",
    "products": r"gemm|cutlass|xmma|nvjet|cublas|splitk|bmm|addmm|aten::mm|stacked_product",
    "layer norm": r"layer_norm",
    "GELU": r"gelu|tanh",
    "sums": r"triton_(red|per)|reduce|aten::sum",
    "optimiser": r"sqrt|lerp|adam",
}


def time_by_part(times: dict[str, float]) -> dict[str, float]:
    """Add up the times of kernels, by their names."""
    found = defaultdict(float)
    for name, time in times.items():
        fits = (part for part, names in PARTS.items() if re.search(names, name, re.IGNORECASE))
        found[next(fits, "the rest")] += time
    return found


def _longest_first(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])


def kernel_times(case: Case, device: torch.device, steps: int) -> dict[str, float]:
    """Return the microseconds of a step that each kernel takes, or each operator of a CPU."""
    population = build(case, device)
    population.train(3)
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as watched:
        population.train(steps)
        if on_gpu:
            torch.cuda.synchronize(device)
    times: dict[str, float] = {}
    for event in watched.key_averages():
        if on_gpu and event.device_type.name != "CUDA":
            continue
        time = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        times[event.key] = time / steps
    return times


def main() -> None:
    """Print the parts, and the kernels that take most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sraven")
    parser.add_argument("--attention", default="hyla")
    parser.add_argument("--members", type=int, default=12)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--variant", default="", help="such as 'width 2'")
    parser.add_argument("--blocks", default="", choices=["", "plain"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="auto")
    given = vars(parser.parse_args())
    device, steps = resolve_device(given.pop("device")), given.pop("steps")
    times = kernel_times(Case(**given), device, steps)
    total = sum(times.values())
    for part, time in _longest_first(time_by_part(times)):
        print(f"{part:14} {time:9.1f} µs  {100 * time / total:5.1f} %")
    print(f"{'a step':14} {total:9.1f} µs")
    for name, time in _longest_first(times)[:25]:
        print(f"{time:9.1f} µs  {name[:110]}")


if __name__ == "__main__":
    main()
