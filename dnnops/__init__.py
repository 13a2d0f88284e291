"""Neural-network Ops for PyTensor, on cuDNN where there is a GPU and on oneDNN everywhere.

Importing this package registers its flags, rewrites and modes with PyTensor. It compiles, loads and
probes nothing.
"""

from __future__ import annotations

from dnnops.config import quiet_unknown_flag_warnings, register_flags

with quiet_unknown_flag_warnings():
    import pytensor  # noqa: F401
register_flags()

__version__ = "0.1.0"

import dnnops.rewriting.softmax_grad  # noqa: E402
import dnnops.rewriting.to_onednn  # noqa: E402
from dnnops import nnet  # noqa: E402
