"""Whether Ops' C modules and programs of kernels compile, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.basic import CLinker

from dnnops.cudnn.kernels import kernel_source


def check_module(out: Any) -> None:
    """Compile the C module of the node that computes a variable."""
    inputs = [x for x in dict.fromkeys(out.owner.inputs) if not isinstance(x, Constant)]
    graph = FunctionGraph(inputs, list(out.owner.outputs), clone=True)
    assert callable(CLinker().accept(graph).compile_cmodule().instantiate)


def compile_program(program: str, *options: str) -> None:
    """Compile a program of `dnnops.cudnn.kernels` for an H200 by NVRTC."""
    from cupy.cuda import nvrtc

    made = nvrtc.createProgram(kernel_source(program), f"{program}.cu", (), ())
    try:
        nvrtc.compileProgram(made, ("-arch=sm_90", *options))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(made))
    finally:
        nvrtc.destroyProgram(made)
