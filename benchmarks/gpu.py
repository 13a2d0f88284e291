"""Compare dnnops on one GPU with bare cuDNN and PyTorch: ``python -m benchmarks.gpu``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.cpu import growth
from benchmarks.harness import Session, check_agreement, measure
from benchmarks.networks import DIRECTIONS
from benchmarks.report import Row, draw_growth, draw_times
from benchmarks.runner import Part, main

DEVICE = "cuda"
#: Microseconds that a thunk may take in addition to the bare call.
THUNK_OVER_BARE_US = 3.0
#: Change of memory in MiB that counts as none; the driver's bookkeeping grows in such steps.
FLAT_MIB = {
    "resident_mib": 2.0,
    "pool_used_mib": 0.0,
    "pool_total_mib": 0.0,
    "device_used_mib": 2.0,
}


def environment(threads: int) -> dict[str, str]:
    """Give every library the same number of threads on the host."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def environment_beside_jax(threads: int) -> dict[str, str]:
    """Let JAX leave memory to the others, and run its kernels in order."""
    return {
        **environment(threads),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
    }


# -- the cost of a call on the host ----------------------------------------------------------


def thunk_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: chains of small convolutions through each of cuDNN's APIs."""
    sizes = {"batch": 1, "channels": 8, "filters": 8, "size": 8, "kernel": 3}
    sizes |= {"stride": 1, "pad": 1, "groups": 1}
    return [
        {
            "kind": "chain",
            "case": f"1x8x8x8, 8 filters 3x3, {words}",
            "algo": algo,
            "chain": 20,
            **sizes,
        }
        for algo, words in (("small", "legacy API"), ("guess_once", "graph API"))
    ]


def measure_thunk(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time one convolution of a chain on the host: dnnops, cuDNN with the same plan, PyTorch."""
    ours = session.worker("dnnops_gpu").open(case)
    plan = ours.facts()
    tasks = {
        "dnnops": ours,
        "cudnn": session.worker("cudnn_gpu").open({**case, **plan}),
        "torch": session.worker("torch_gpu").open(case),
    }
    check_agreement({name: task.results() for name, task in tasks.items()}, tolerance=1e-4)
    measurement = measure(tasks, session.settings)
    for task in tasks.values():
        task.close()
    return [
        {
            "case": case["case"],
            "algo": case["algo"],
            "api": plan["api"],
            "plan": plan["plan"],
            **measurement.medians("us"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


def thunk_misses(rows: Sequence[Row]) -> list[str]:
    """Return a message for each row above its limit."""
    found = []
    for row in rows:
        over = row["dnnops_us"] - row["cudnn_us"]
        if over > THUNK_OVER_BARE_US:
            found.append(
                f"{row['case']}: {over:.1f} us over the bare call; at most {THUNK_OVER_BARE_US:g}"
            )
        if row["algo"] == "guess_once":
            if row["api"] != "graph":
                found.append(f"{row['case']}: the plan {row['plan']} is of the {row['api']} API")
            if row["dnnops_us"] > row["torch_us"]:
                found.append(
                    f"{row['case']}: {row['dnnops_us']:.1f} us, PyTorch {row['torch_us']:.1f} us"
                )
    return found


# -- the demo --------------------------------------------------------------------------------


def demo_cases(session: Session) -> list[dict[str, Any]]:
    """Return the case: the demo's network."""
    return [{"kind": "demo", "case": "training step of the demo", "seed": 0, "device": DEVICE}]


def measure_demo(session: Session, case: dict[str, Any]) -> list[Row]:
    """Check that the demo's network trains as on the CPU and uses cuDNN, and time its steps."""
    worker = session.worker("dnnops_gpu")
    seed, steps = case["seed"], 20
    losses = {
        device: {"losses": worker.call("demo_losses", device, seed, steps)}
        for device in (case["device"], "cpu")
    }
    check_agreement(losses, tolerance=1e-3, each=True)
    on_device, on_cpu = (of["losses"] for of in losses.values())
    ops = worker.call("demo_ops", case["device"], seed)

    ours = worker.open(case)
    tasks = {"dnnops": ours, "torch": session.worker("torch_gpu").open({**case, **ours.facts()})}
    # At 0, as in the empty borders of the images at first, the gradient of PyTorch's ReLU is 0 and
    # that of PyTensor's maximum is 1, so the losses drift apart a little.
    check_agreement({name: task.results() for name, task in tasks.items()}, 1e-2, each=True)
    measurement = measure(tasks, session.settings)
    return [
        {
            "case": case["case"],
            "ops": ", ".join(f"{name} x{count}" for name, count in sorted(ops.items())),
            "compared_steps": steps,
            "loss_at_first": float(on_device[0]),
            "loss_at_last": float(on_device[-1]),
            "loss_at_last_on_cpu": float(on_cpu[-1]),
            "largest_difference": float(max(abs(on_device - on_cpu) / on_cpu)),
            **measurement.medians("ms"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


# -- memory ----------------------------------------------------------------------------------


def memory_cases(session: Session) -> list[dict[str, Any]]:
    """Return the case: many calls of a small compiled function."""
    calls = [100, 200, 300] if session.small else [100, 300, 1000, 3000, 10000]
    return [{"case": "small network, mode CUDNN", "calls": calls}]


def measure_memory(session: Session, case: dict[str, Any]) -> list[Row]:
    """Measure the memory of a process that has only this function."""
    points = session.worker("dnnops_gpu", "memory").call("memory", DEVICE, case["calls"])
    return [{"case": case["case"], **point} for point in points]


# -- single convolutions ---------------------------------------------------------------------

# channels, filters, size, kernel, pad
CONVOLUTIONS = ((128, 128, 28, 3, 1), (64, 256, 56, 1, 0))


def convolution_cases(session: Session) -> list[dict[str, Any]]:
    """Return the cases: convolutions and their gradients, in two dtypes and both memory formats."""
    cases = []
    for (channels, filters, size, kernel, pad), dtype, memory_format, direction in product(
        CONVOLUTIONS, ("float32", "float16"), ("contiguous", "channels_last"), DIRECTIONS
    ):
        words = (
            f"{channels} to {filters}, {size}x{size}, {kernel}x{kernel}",
            dtype,
            memory_format,
            direction,
        )
        case = {"kind": "convolution", "case": ", ".join(words).replace("_", " ")}
        case |= {"algo": "guess_once", "dtype": dtype, "memory_format": memory_format}
        sizes = {"channels": channels, "filters": filters, "size": size, "kernel": kernel}
        sizes |= {"stride": 1, "pad": pad, "groups": 1, "batch": 2 if session.small else 64}
        cases.append({**case, **sizes, "direction": direction})
    return cases


def measure_convolution(session: Session, case: dict[str, Any]) -> list[Row]:
    """Time one convolution, or one of its gradients, on the device."""
    tasks = {
        "dnnops": session.worker("dnnops_gpu").open(case),
        "torch": session.worker("torch_gpu").open(case),
    }
    tolerance = {"float32": 1e-4, "float16": 4e-3}[case["dtype"]]
    check_agreement({name: task.results() for name, task in tasks.items()}, tolerance)
    # There are many cases, and event times are steady.
    measurement = measure(tasks, replace(session.settings, turn_s=session.settings.turn_s / 4))
    plan = tasks["dnnops"].facts()["plan"]
    for task in tasks.values():
        task.close()
    return [
        {
            "case": case["case"],
            "algo": case["algo"],
            "batch": case["batch"],
            "plan": plan,
            **measurement.medians("us"),
            "spread_pct": measurement.spread_pct(),
        }
    ]


PARTS = (
    Part(
        "thunk",
        "gpu_thunk",
        "What a convolution costs the host",
        thunk_cases,
        measure_thunk,
        thunk_misses,
        draw_times,
    ),
    Part("demo", "gpu_demo", "The demo's network on the GPU", demo_cases, measure_demo),
    Part(
        "memory",
        "gpu_memory",
        "Memory over many calls on the GPU",
        memory_cases,
        measure_memory,
        lambda rows: growth(rows, FLAT_MIB),
        draw_growth,
    ),
    Part(
        "convolution",
        "gpu_convolution",
        "Single convolutions on the GPU",
        convolution_cases,
        measure_convolution,
    ),
)

if __name__ == "__main__":
    sys.exit(
        main("Measure dnnops on one GPU, beside cuDNN itself and PyTorch.", PARTS, environment)
    )
