"""Graphs after rewriting are as ``tests/rewriting/golden`` has them.

``python -m tests.rewriting.test_golden --write`` replaces these files. Read the difference before
committing it: a refactoring has none.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytensor
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors

import dnnops.gpu.library
import dnnops.nnet
from dnnops.errors import DnnUnavailableError
from dnnops.modes import CudnnMode, DnnMode, OneDnnMode
from tests.differences import asked_to_write, assert_as_golden
from tests.rewriting.golden_functions import DTYPES, FUNCTIONS
from tests.rewriting.golden_text import (
    derivatives_text,
    graph_text,
    is_shown,
    registries_text,
    rewritten,
)

FOLDER = Path(__file__).parent / "golden"

#: The modes, by the names of their files. None of them needs a GPU to rewrite a graph.
MODES: dict[str, Callable[[], Any]] = {
    "onednn": OneDnnMode,
    # Every node with a lifter moves to the GPU.
    "cudnn": CudnnMode,
    # dnnops kernels and expressions take the place of cuDNN.
    "kernels": lambda: CudnnMode().excluding("cudnn"),
    # Only nodes that are worth a transfer move, and float16 stays float16 on the CPU.
    "dnn": DnnMode,
}
#: Functions that cuDNN runs in mode CUDNN; all others have the same graphs without it.
WITHOUT_CUDNN = (
    "conv2d", "pool_max", "pool_average", "local_response_normalization", "softmax_ops",
    "attention_masked_with_dropout", "lstm",
)  # fmt: skip


#: Derivatives of long expressions, which take 0.5 s to over 10 s.
SLOW = {
    "GpuDnnAttention": ("pushforward",),
    "GpuDnnAttentionGrad": ("pushforward",),
    "GpuTiledAttention": ("pushforward",),
    "GpuTiledAttentionGrad": ("pullback", "pushforward"),
    "GpuDnnRNNForward": ("pushforward",),
    "GpuDnnRNNBackward": ("pullback", "pushforward"),
}


@contextmanager
def _without_probing() -> Iterator[None]:
    """Rewrite as if the newest cuDNN worked, also where there is a GPU and another one."""
    flags: dict[str, Any] = {"dnn__enabled": "no_check", "floatX": "float32"}
    newest = patch.object(
        dnnops.gpu.library, "cudnn_version", side_effect=DnnUnavailableError("none")
    )
    with pytensor.config.change_flags(**flags), newest:
        yield


@pytest.fixture(autouse=True)
def without_probing() -> Iterator[None]:
    with _without_probing():
        yield


@cache
def _graph(mode: str, name: str, dtype: str) -> Any:
    return rewritten(*FUNCTIONS[name].build(dtype), _optimizer(mode))


@cache
def _optimizer(mode: str) -> Any:
    return MODES[mode]().optimizer


def _names(mode: str, dtype: str) -> list[str]:
    names = [name for name, function in FUNCTIONS.items() if dtype in function.dtypes]
    return [name for name in names if mode != "kernels" or name in WITHOUT_CUDNN]


def _nodes(outputs: list[Any]) -> list[Apply]:
    """Return the nodes of dnnops in a graph, operands first."""
    found = dict.fromkeys(x.owner for x in ancestors(outputs) if x.owner and is_shown(x.owner))
    return list(found)[::-1]


# -- the files -----------------------------------------------------------------------------


def graphs(mode: str, dtype: str) -> str:
    lines: list[str] = []
    for name in _names(mode, dtype):
        lines += [f"## {name}", *graph_text(_graph(mode, name, dtype).outputs)]
    return _joined(lines)


def derivatives() -> str:
    """Write the derivatives of the GPU Ops. CPU Ops inherit those of the abstract Ops."""
    nodes: dict[str, Apply] = {}
    for dtype in ("float32", "float16"):
        for name in _names("cudnn", dtype):
            for node in _nodes(_graph("cudnn", name, dtype).outputs):
                if type(node.op).__module__.startswith("dnnops.gpu."):
                    nodes.setdefault(type(node.op).__name__, node)
    lines: list[str] = []
    for name in sorted(nodes):
        lines += [f"## {name}", *derivatives_text(nodes[name], SLOW.get(name, ()))]
    return _joined(lines)


def registries() -> str:
    return _joined(registries_text(abstract_ops(), _abstract_nodes()))


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


FILES: dict[str, Callable[[], str]] = {
    **{
        f"{mode}_{dtype}": lambda mode=mode, dtype=dtype: graphs(mode, dtype)
        for mode in MODES
        for dtype in DTYPES
        if mode != "kernels" or dtype != "float64"
    },
    "derivatives": derivatives,
    "registries": registries,
}

# -- the abstract Ops ----------------------------------------------------------------------


def abstract_ops() -> list[type]:
    """Find the public Ops of `dnnops.nnet` that are not only bases of others there."""
    for module in pkgutil.walk_packages(dnnops.nnet.__path__, "dnnops.nnet."):
        importlib.import_module(module.name)
    found = {op for op in _subclasses(Op) if op.__module__.startswith("dnnops.nnet.")}
    bases = {base for op in found for base in op.__mro__[1:]}
    public = [op for op in found - bases if not op.__name__.startswith("_")]
    return sorted(public, key=lambda op: op.__name__)


def _subclasses(of: type) -> Iterator[type]:
    for subclass in of.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


@cache
def _abstract_nodes() -> list[Apply]:
    found: list[Apply] = []
    for function in FUNCTIONS.values():
        for dtype in function.dtypes:
            found += _nodes(function.build(dtype)[1])
    return found


def test_every_abstract_op_is_there():
    """A new Op needs a function in `golden_functions`."""
    there = {type(node.op) for node in _abstract_nodes()}
    assert [op.__name__ for op in abstract_ops() if op not in there] == []


# -- comparing -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_as_golden(name):
    assert_as_golden(FOLDER / f"{name}.txt", FILES[name](), "tests.rewriting.test_golden")


def main() -> None:
    asked_to_write()
    FOLDER.mkdir(exist_ok=True)
    with _without_probing():
        texts = {f"{name}.txt": make() for name, make in FILES.items()}
    for file in FOLDER.glob("*.txt"):
        file.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
