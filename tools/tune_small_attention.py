"""Search for the fastest plan of each pass and shape of the small-head kernels, on one GPU."""

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from hyla.attention.kernels import small_head
from hyla.attention.kernels.plans.small import Plan, choose_plan
from hyla.benchmarks.clock import microseconds
from hyla.benchmarks.small_attention import DTYPES, SHAPES, Shape, call_of, check_device, draw
from hyla.training.devices import resolve_device


def candidates(shape: Shape) -> list[Plan]:
    """Return the plans worth a try: between 8 and 64 floats of each operand in a lane's tile."""
    sizes = [
        (lanes, rows)
        for lanes, rows in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4))
        if lanes <= shape.H and 8 <= math.ceil(shape.H / lanes) * shape.D * rows <= 64
    ]
    return [
        Plan(lanes=lanes, rows=rows, threads=threads, blocks=blocks, prefetch=prefetch)
        for (lanes, rows), (threads, blocks), prefetch in itertools.product(
            sizes, ((128, 1), (128, 3), (128, 4), (64, 1)), (False, True)
        )
    ]


def one_pass(pass_name: str, leaves: list[Tensor], plan: Plan) -> Callable[[], object]:
    """Return a call that runs one pass alone, with the bias handling that belongs to it."""
    call = call_of(*(leaf.detach() for leaf in leaves), scale=0.5)
    if pass_name == "forward":
        return partial(small_head.forward, call, plan=plan)
    upstream = torch.randn_like(call.q)
    if pass_name == "key":
        return partial(small_head.key_gradient, call, upstream, plan=plan)
    biased = call.bias is not None
    return partial(small_head.query_gradient, call, upstream, bias_gradient=biased, plan=plan)


def tune(best: int = 4) -> None:
    """Time every candidate plan for every pass and shape, and print the best few."""
    check_device(resolve_device("auto"))
    for shape, (dtype_name, dtype) in itertools.product(SHAPES, DTYPES.items()):
        if dtype != torch.float32 and shape is not SHAPES[0]:
            continue  # one shape tells whether bfloat16 wants other plans
        leaves = draw(shape, dtype)
        for pass_name in ("forward", "query", "key"):
            default = choose_plan(pass_name, leaves[0])
            plans = list(dict.fromkeys([default, *candidates(shape)]))
            calls = [one_pass(pass_name, leaves, plan) for plan in plans]
            with ThreadPoolExecutor() as pool:  # compiles
                list(pool.map(lambda call: call(), calls))
            torch.cuda.synchronize()
            times = [microseconds(call) for call in calls]
            print(f"{shape.name}, {dtype_name}, {pass_name}: default {times[0]:.1f} µs {default}")
            ranked = sorted(zip(times, plans, strict=True), key=lambda entry: entry[0])
            for time, plan in ranked[:best]:
                print(f"    {time:8.1f} µs  {plan}", flush=True)


if __name__ == "__main__":
    tune()
