"""Conversions for PyTensor's PyTorch linker.

Importing this package registers the conversions, and imports PyTorch.
"""

import dnnops.link.pytorch.attention
import dnnops.link.pytorch.conv
import dnnops.link.pytorch.ctc
import dnnops.link.pytorch.elementwise
import dnnops.link.pytorch.pool
import dnnops.link.pytorch.rnn  # noqa: F401
