"""Examine cuDNN's attention: ``python -m tests.gpu.attention.attention_probe``.

For each of many configurations, print a line: cuDNN's plans forward and backward, the results'
errors as fractions of the tests' bounds, and the device time of a call. If a configuration fails,
its line has the reason, and the next ones still run. ``--times`` skips the comparison and uses
large operands. ``--launches`` only lists the nodes of a call's CUDA graph.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpu.library import cudnn_version
from tests.gpu.attention.attention_on_gpu import Data, Form, apply_all, errors, run_on_gpu
from tests.plans.described_device import describe


def small_forms() -> Iterator[Form]:
    """Yield forms that vary each property in turn."""
    base = Form(batch=2, heads=(4, 4), lengths=(128, 128), depths=(64, 64))
    yield base
    changes: list[dict[str, Any]] = [{"depths": (d, d)} for d in (8, 20, 32, 40, 80, 96, 128)]
    changes += [{"depths": d} for d in ((160, 160), (192, 128), (256, 256), (64, 128), (128, 32))]
    changes += [{"heads": (4, 2)}, {"heads": (4, 1)}, {"scale": 0.3}]
    changes += [{"lengths": n} for n in ((1, 1), (1, 200), (200, 1), (2, 2), (197, 197), (5, 1000))]
    changes += [{"layout": name} for name in ("heads_inside", "packed")]
    changes += [{"query_lengths": True}, {"key_lengths": True}]
    changes += [{"mask": kind} for kind in ("bool", "float")]
    changes += [{"mask": "bool", "mask_ones": ones} for ones in ((0, 1), (1, 2), (0, 1, 3))]
    changes += [{"mask": "float", "key_lengths": True, "query_lengths": True}]
    changes += [{"is_deterministic": True}, {"is_deterministic": True, "heads": (4, 2)}]
    for change in changes:
        for is_causal in (False, True):
            yield dataclasses.replace(base, is_causal=is_causal, **change)
    for change in changes[::4]:
        yield dataclasses.replace(base, dtype="bfloat16", is_causal=True, **change)


def large_forms() -> Iterator[Form]:
    """Return the benchmark's forms, as far as they differ for cuDNN."""
    for dtype in ("float16", "bfloat16"):
        for depth, heads in ((64, (16, 16)), (128, (16, 16)), (128, (32, 8)), (256, (8, 8))):
            for is_causal in (False, True):
                yield Form(dtype, 4, heads, (2048, 2048), (depth, depth), is_causal)
    yield Form(lengths=(2048, 2048), heads=(16, 16), key_lengths=True, query_lengths=True)
    yield Form(lengths=(2048, 2048), heads=(16, 16), layout="heads_inside")
    yield Form(lengths=(2048, 2048), heads=(16, 16), is_deterministic=True)
    yield Form(batch=64, lengths=(197, 197), heads=(12, 12))


def milliseconds(op: Any, operands: list[Any]) -> float:
    """Return the device time of a call without the host's cost, measured with a CUDA graph."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        # Memory for several results, because none can be allocated during capture.
        kept = [apply_all(op, *operands) for _ in range(3)]
        del kept
        stream.begin_capture()
        for _ in range(10):
            kept = apply_all(op, *operands)
        graph = stream.end_capture()
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        times = []
        for _ in range(5):
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
            stop.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, stop) / 10)
    del kept
    return float(np.median(times))


def launches(op: Any, operands: list[Any]) -> list[str]:
    """Return a line for each node of a call's CUDA graph."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        kept = [apply_all(op, *operands) for _ in range(2)]
        del kept
        stream.begin_capture()
        kept = apply_all(op, *operands)
        graph = stream.end_capture()
    stream.synchronize()
    written = graph.debug_dot_str(1)  # with all details of the nodes
    del kept
    labels = re.findall(r'label\s*=\s*"((?:[^"\\]|\\.)*)"', written, re.DOTALL)
    return [" ".join(label.split())[:400] for label in labels] or [written]


def report_launches() -> None:
    """Print the launches of plain attention, with and without statistics, and of its gradient."""
    for sizes in (
        {"batch": 64, "heads": (12, 12), "lengths": (197, 197)},
        {"batch": 4, "heads": (16, 16), "lengths": (1024, 1024)},
    ):
        for is_causal in (False, True):
            data = Data(Form(is_causal=is_causal, **sizes), 0)
            operands = data.on_device()
            forward = GpuDnnAttention(None, is_causal)
            results = apply_all(forward, *operands)
            given = [*operands, *results, results[0]]
            calls = {
                "forward": (forward, operands),
                "forward without statistics": (forward.with_optional_result(False), operands),
                "gradient": (GpuDnnAttentionGrad(None, is_causal), given),
            }
            for name, (op, arrays) in calls.items():
                print(f"{data.form}, {name}: {milliseconds(op, arrays):.5f} ms")
                for line in launches(op, arrays):
                    print(f"    {line}")


def plans(form: Form) -> str:
    """Return the plans forward and backward for an H200, which is described to cuDNN."""
    options: dict[str, Any] = {
        "dtype": form.dtype,
        "batch": form.batch,
        "heads": form.heads,
        "lengths": form.lengths,
        "depths": form.depths,
        "heads_inside": form.layout == "heads_inside",
        "is_causal": form.is_causal,
        "optional": form.optional,
    }
    found = (
        describe(**options),
        describe(gradient=True, deterministic=form.is_deterministic, **options),
    )
    return " | ".join(x.get("plan", "NO PLAN: " + x.get("reason", "")[:300]) for x in found)


def report(form: Form, compares: bool, shows_plans: bool) -> bool:
    """Print a form's line, and return whether its results are right."""
    words = ", ".join(
        f"{field.name}={getattr(form, field.name)}"
        for field in dataclasses.fields(form)
        if getattr(form, field.name) != field.default
    )
    print(f"{words or 'default'}:", flush=True)
    try:
        data = Data(form, 0)
        results = run_on_gpu(data)
        found = errors(data, results) if compares else {}
        operands = data.on_device()
        forward = GpuDnnAttention(form.scale, form.is_causal, form.optional)
        grad = GpuDnnAttentionGrad(
            form.scale, form.is_causal, form.optional, is_deterministic=form.is_deterministic
        )
        given = [*operands, results[0], results[1], results[0]]
        times = milliseconds(forward, operands), milliseconds(grad, given)
    except Exception as error:
        last = traceback.extract_tb(sys.exc_info()[2])[-1]
        print(f"  FAILED {type(error).__name__} ({last.name}): {str(error)[:1500]}")
        return False
    products = 4 * form.batch * form.heads[0] * form.lengths[0] * form.lengths[1]
    flops = products * form.depths[0] / (2 if form.is_causal else 1)
    print(
        f"  forward {times[0]:.4f} ms, {flops / times[0] / 1e9:.0f} TFLOP/s;"
        f" backward {times[1]:.4f} ms, {2.5 * flops / times[1] / 1e9:.0f} TFLOP/s"
    )
    if shows_plans:
        print(f"  {plans(form)}")
    wrong = {name: error for name, error in found.items() if not error <= 1}
    if found:
        print(
            f"  {'WRONG' if wrong else 'right'}: "
            + ", ".join(f"{n} {e:.3g}" for n, e in found.items())
        )
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", action="store_true", help="large operands, nothing compared")
    parser.add_argument("--plans", action="store_true", help="say which engines they are")
    parser.add_argument("--launches", action="store_true", help="list what a call launches")
    args = parser.parse_args()
    print(f"cuDNN {cudnn_version()}")
    if args.launches:
        report_launches()
        return 0
    forms = list(large_forms() if args.times else small_forms())
    good = sum(report(form, not args.times, args.plans) for form in forms)
    print(f"{good} of {len(forms)} as they should be")
    return 0 if good == len(forms) else 1


if __name__ == "__main__":
    sys.exit(main())
