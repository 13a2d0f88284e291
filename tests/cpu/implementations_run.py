"""Run Ops on oneDNN for random ordinary shapes.

``python -m tests.cpu.implementations_run SEED COUNT`` runs COUNT of them. With the environment
variable ``ONEDNN_VERBOSE=profile_exec``, oneDNN prints each primitive that it runs, with the name
of its implementation. `test_implementations` reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.cpu.pool import OneDnnAveragePoolGrad, OneDnnPool
from dnnops.cpu.rnn import OneDnnRNNBackward, OneDnnRNNForward
from tests.nnet.rnn.rnn_cases import RNNCase
from tests.oracle import ConvCase, PoolCase

Rng = np.random.Generator


def run(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run an Op without making a variable of each operand."""
    node = op.make_node(*(a.astype(a.dtype) for a in arrays))
    storage: list[list] = [[None] for _ in node.outputs]
    op.perform(node, list(arrays), storage)
    return [cell[0] for cell in storage]


def in_some_format(rng: Rng, x: np.ndarray) -> np.ndarray:
    """Return the image as it is, or with its channels last in memory."""
    if rng.integers(3):
        return x
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


def sizes(rng: Rng, ndim: int, least: int) -> list[int]:
    """Return spatial sizes, of which several are often 1."""
    drawn = rng.integers(least, (64, 24, 10)[ndim - 1] + 1, ndim)
    return [least if rng.random() < 0.2 else int(size) for size in drawn]


def channels(rng: Rng) -> int:
    return int(rng.choice([1, 2, 3, 4, 8, 16, 17, 32, 64]))


def pool(rng: Rng) -> None:
    ndim = int(rng.integers(1, 4))
    window = rng.integers(1, 4, ndim)
    pad = rng.integers(0, (window + 1) // 2)
    shape = [sizes(rng, 1, int(w))[0] for w in window]
    case = PoolCase(
        img_shape=(int(rng.choice([1, 2, 5])), channels(rng), *shape),
        ws=tuple(map(int, window)),
        stride=tuple(int(rng.choice([1, 2, w])) for w in window),
        pad=tuple(map(int, pad)),
        ignore_border=True,
        mode=str(rng.choice(["average_inc_pad", "average_exc_pad"])),
        seed=int(rng.integers(2**31)),
    )
    x, gz, _ = (in_some_format(rng, a) if a.ndim > 2 else a for a in case.arrays("float32"))
    params = (case.ndim, case.mode, case.ignore_border)
    run(OneDnnPool(*params), x, *case.vectors)
    run(OneDnnAveragePoolGrad(*params), x, gz, *case.vectors)


def conv(rng: Rng) -> None:
    ndim = int(rng.integers(1, 4))
    kernel = tuple(int(k) for k in rng.choice([1, 2, 3, 5], ndim, p=[0.4, 0.1, 0.4, 0.1]))
    dilation = tuple(int(d) for d in rng.choice([1, 2], ndim, p=[0.8, 0.2]))
    groups = int(rng.choice([1, 1, 1, 2, 4]))
    least = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    shape = [sizes(rng, ndim, n)[0] for n in least]
    inner = channels(rng)
    case = ConvCase(
        img_shape=(int(rng.choice([1, 2, 5])), groups * inner, *shape),
        kern_shape=(groups * channels(rng), inner, *kernel),
        border_mode=str(rng.choice(["valid", "half"])),
        subsample=tuple(int(s) for s in rng.choice([1, 2], ndim, p=[0.7, 0.3])),
        filter_flip=bool(rng.integers(2)),
        filter_dilation=dilation,
        num_groups=groups,
        seed=int(rng.integers(2**31)),
    )
    img, kern, top = case.arrays("float32")
    img, top = in_some_format(rng, img), in_some_format(rng, top)
    run(OneDnnConv(**case.params), img, kern)
    run(OneDnnConvGradInputs(**case.params), kern, top, np.array(case.img_shape[2:]))
    run(OneDnnConvGradWeights(**case.params), img, top, np.array(case.kern_shape[2:]))


def rnn(rng: Rng) -> None:
    mode = str(rng.choice(["lstm", "gru", "rnn_tanh"]))
    steps, batch, features, hidden = (int(rng.choice([1, 2, 7, 16, 33])) for _ in range(4))
    case = RNNCase(
        mode, hidden, 1, bool(rng.integers(2)), False, 0, 0.0, False, steps, batch, features, seed=1
    )
    operands = case.operands("float32")
    results = run(OneDnnRNNForward(**case.network), *operands)
    tops = [np.ones_like(r) for r in results[:-1]]
    run(OneDnnRNNBackward(**case.network), *operands, results[0], results[-1], *tops)


KINDS: tuple[Callable[[Rng], None], ...] = (pool, pool, conv, conv, rnn)


def main(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(count):
        # Between the lines of oneDNN, so that a failure names the case.
        kind = KINDS[number % len(KINDS)]
        print(f"case {number}: {kind.__name__}", flush=True)
        kind(rng)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
