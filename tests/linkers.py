"""The linkers that run Ops on the CPU, as arguments of ``parametrize``."""

from __future__ import annotations

import pytest

__all__ = ["EVERY_LINKER", "LINKERS"]

#: Numba takes seconds to compile what PyTensor's C linker compiles in one. A single function,
#: `dnnops.link.numba_dispatch`, registers all Ops with it, so convolution, pooling and softmax
#: stand for the others, which only the slow tests cover.
EVERY_LINKER = pytest.mark.parametrize("mode", ["CVM", None], ids=["CVM", "default"])
LINKERS = pytest.mark.parametrize(
    "mode",
    [pytest.param("CVM", id="CVM"), pytest.param(None, id="default", marks=pytest.mark.slow)],
)
