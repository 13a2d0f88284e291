"""The shared variables of one layer: how they are made, replaced, stored and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from dnnops.arguments import shown
from dnnops.dtypes import HOST_FLOAT_DTYPES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.layers.initializers import Initializer, generator

__all__ = ["Parameterized"]


class Parameterized:
    """The base class of `dnnops.layers.Layer`, which takes the same arguments.

    It knows no other layer.
    """

    def __init__(self, dtype: str | None = None, rng: Any = None):
        name = pytensor.config.floatX if dtype is None else dtype
        if name not in HOST_FLOAT_DTYPES:
            raise DnnTypeError(
                f"{self._name()}: dtype must be one of {', '.join(HOST_FLOAT_DTYPES)}, "
                f"got {shown(dtype)}"
            )
        self.dtype = str(name)
        self.rng = generator(rng)
        self._parameters: dict[str, SharedVariable] = {}
        self._buffers: dict[str, SharedVariable] = {}

    def _name(self) -> str:
        return type(self).__name__

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        initializer: Initializer,
        dtype: str | None = None,
    ) -> Any:
        """Make a shared variable that is trained, and the attribute `name` for it.

        Parameters
        ----------
        name : str
            Name of the attribute and of the variable.
        shape : tuple of int
            Static shape.
        initializer : callable
            Function of a generator and a shape that returns the initial value.
        dtype : str, optional
            Dtype, by default that of the layer.

        Returns
        -------
        SharedVariable

        Raises
        ------
        DnnTypeError
            If `initializer` is not callable.
        DnnValueError
            If `name` is not an identifier, or is that of another attribute or method, or if the
            initial value has another shape.
        """
        if not callable(initializer):
            raise DnnTypeError(
                f"{self._name()}: the initializer of {name} must be callable, "
                f"got {shown(initializer)}"
            )
        shape = tuple(shape)
        value = initializer(self.rng, shape)
        return self._add(self._parameters, name, value, shape, dtype or self.dtype)

    def buffer(self, name: str, value: Any, dtype: str | None = None) -> Any:
        """Make a shared variable that is stored but not trained; see :meth:`parameter`."""
        return self._add(self._buffers, name, value, np.shape(value), dtype or self.dtype)

    def _add(
        self,
        kind: dict[str, SharedVariable],
        name: str,
        value: Any,
        shape: tuple[int, ...],
        dtype: str,
    ) -> Any:
        if not name.isidentifier() or getattr(self, name, None) is not None:
            raise DnnValueError(f"{self._name()}: {name!r} cannot be the name of a parameter")
        array = np.asarray(value, dtype=dtype)
        if array.shape != shape:
            raise DnnValueError(
                f"{self._name()}: the initial value of {name} must have shape {shape}, "
                f"got {array.shape}"
            )
        variable = pytensor.shared(array, name=name, shape=shape)
        setattr(self, name, variable)
        kind[name] = variable
        return variable

    def __setattr__(self, name: str, value: Any) -> None:
        for kind in (vars(self).get("_parameters"), vars(self).get("_buffers")):
            if kind and name in kind:
                self._replace(kind, name, value)
        super().__setattr__(name, value)

    def _replace(self, kind: dict[str, SharedVariable], name: str, value: Any) -> None:
        """Register another variable, or None, that is assigned to a parameter."""
        old = kind[name]
        if value is None:
            del kind[name]
        elif isinstance(value, SharedVariable) and value.type.shape == old.type.shape:
            kind[name] = value
        else:
            raise DnnValueError(
                f"{self._name()}: {name} must be None or a shared variable of shape "
                f"{old.type.shape}, got {shown(value)}"
            )

    def draw_seed(self) -> int:
        """Return a new seed for a random layer."""
        return int(self.rng.integers(2**63))

    def own_parameters(self) -> dict[str, SharedVariable]:
        """Return the trained variables of this layer without its children, by name."""
        return dict(self._parameters)

    def state_entries(self) -> dict[str, SharedVariable]:
        """Return the parameters and buffers of this layer without its children, by name."""
        return {**self._parameters, **self._buffers}

    def own_state(self) -> dict[str, np.ndarray]:
        """Return copies of the values of :meth:`state_entries`, as they are stored."""
        return {name: np.array(v.get_value()) for name, v in self.state_entries().items()}

    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of :meth:`own_state`."""
        return {name: tuple(v.type.shape) for name, v in self.state_entries().items()}

    def state_dtype(self, name: str) -> str:
        """Return the dtype of an entry of :meth:`own_state`."""
        return self.state_entries()[name].type.dtype

    def set_own_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the values of :meth:`own_state`, whose shapes have been checked."""
        entries = self.state_entries()
        for name, value in state.items():
            entries[name].set_value(value.astype(entries[name].type.dtype))
