"""Conversions for PyTensor's JAX linker.

Importing this package registers the conversions, and imports JAX.
"""

import dnnops.link.jax.conv
import dnnops.link.jax.ctc
import dnnops.link.jax.elementwise
import dnnops.link.jax.pool
import dnnops.link.jax.rnn  # noqa: F401
from dnnops.link.jax.shared_values import give_arrays_to_other_linkers

give_arrays_to_other_linkers()
