"""The linkers that run Ops on the CPU, as arguments of ``parametrize``."""

from __future__ import annotations

import pytest

__all__ = ["EVERY_LINKER", "LINKERS"]

#: Numba compiles for seconds what PyTensor's C linker compiles in one. All Ops are given to it by
#: one function, `dnnops.cpu.numba_dispatch`: convolution, pooling and softmax stand for them,
#: and the others are left to the slow tests.
EVERY_LINKER = pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
LINKERS = pytest.mark.parametrize(
    "mode",
    [pytest.param("CVM", id="CVM"), pytest.param(None, id="default", marks=pytest.mark.slow)],
)
