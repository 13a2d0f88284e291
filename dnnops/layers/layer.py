"""The base class of layers: parameters, buffers, modes and stored states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from dnnops.arguments import host_array, shown, switch
from dnnops.dtypes import HOST_FLOAT_DTYPES
from dnnops.errors import DnnTypeError, DnnValueError, DnnWarning
from dnnops.hints import explained
from dnnops.layers import places, saving
from dnnops.layers.initializers import Initializer, generator
from dnnops.layers.streams import Streams, generators_in, split_name
from dnnops.nnet.streams import recording

__all__ = ["Layer"]


class Layer:
    """A part of a network, with its parameters.

    A subclass calls ``super().__init__()``, makes its parameters with :meth:`parameter` and
    :meth:`buffer`, and defines ``forward``, which takes and returns symbolic variables. Attributes
    that are layers become its children, and so do layers in attributes that are lists, tuples or
    dicts. Another shared variable may be assigned to a parameter, so that two layers share it;
    None removes it.

    Parameters
    ----------
    dtype : str, optional
        Dtype of the parameters: 'float16', 'float32' or 'float64'. The default is PyTensor's flag
        ``floatX``.
    rng : numpy.random.Generator or int, optional
        Source of the initial values, or its seed. By default, all layers share one generator, which
        `dnnops.layers.seed` seeds.

    Raises
    ------
    DnnTypeError
        If `dtype` or `rng` is invalid.

    Attributes
    ----------
    training : bool
        Whether the layer computes what training needs: dropout, and normalization with the
        statistics of the batch. It is read when the layer is called. See :meth:`train`.
    library : {'abstract', 'cudnn', 'onednn'}
        Library that runs the layer; 'abstract' leaves the choice to the mode. See
        `dnnops.layers.convert`.
    dtype : str
        Dtype of the parameters.
    rng : numpy.random.Generator
        Source of initial values and of seeds.

    Examples
    --------
    >>> class Block(Layer):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.first, self.second = Linear(size, size), Linear(size, size)
    ...
    ...     def forward(self, x):
    ...         return x + self.second(nnet.relu(self.first(x)))
    """

    #: Whether `dnnops.layers.convert` changes the layer.
    convertible: ClassVar[bool] = False
    #: Whether inputs must have the dtype of the parameters. Others would be computed in float64.
    takes_own_dtype: ClassVar[bool] = False

    def __init__(self, dtype: str | None = None, rng: Any = None):
        name = pytensor.config.floatX if dtype is None else dtype
        if name not in HOST_FLOAT_DTYPES:
            raise DnnTypeError(
                f"{self._name()}: dtype must be one of {', '.join(HOST_FLOAT_DTYPES)}, "
                f"got {shown(dtype)}"
            )
        self.dtype = str(name)
        self.training = True
        self.library = "abstract"
        self._place: Callable[[list[Any], list[Any]], list[Any]] | None = None
        self.rng = generator(rng)
        self._parameters: dict[str, SharedVariable] = {}
        self._buffers: dict[str, SharedVariable] = {}
        self._updates: dict[SharedVariable, Variable] = {}
        self._streams = Streams()

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = explained(cls.__init__)  # type: ignore[method-assign]

    def _name(self) -> str:
        return type(self).__name__

    def forward(self, *inputs: Any) -> Any:
        """Return the symbolic result of the layer for symbolic inputs."""
        raise NotImplementedError(f"{self._name()} defines no forward")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call :meth:`forward`.

        Raises
        ------
        DnnTypeError
            If the layer is one of dnnops with parameters, and an input is of another dtype.
        """
        with places.inside(self, f"{self._name()}{self.describe()}", self._place_in) as call:
            found = self._called(inputs, options)
            results = found if isinstance(found, tuple) else (found,)
            call.mark(results, (*inputs, *options.values()))
        return found

    def _place_in(self, around: Any) -> str | None:
        """Return the name of this layer among the children of another one."""
        if not isinstance(around, Layer):
            return None
        return next((name for name, child in around.children() if child is self), None)

    def _called(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Check the inputs, and return the result in the layer's library."""
        if self.takes_own_dtype and self._parameters:
            for x in inputs:
                dtype = getattr(getattr(x, "type", None), "dtype", self.dtype)
                if dtype in HOST_FLOAT_DTYPES and dtype != self.dtype:
                    raise DnnTypeError(
                        f"{self._name()}: the input has dtype {dtype}, but the layer has "
                        f"{self.dtype}; make the layer with dtype={dtype!r}, or set the flag floatX"
                    )
        # New averages of earlier calls depend on the inputs of those, and are converted already.
        earlier = list(self._updates.values())
        with recording() as streams:
            found = self.forward(*inputs, **options)
        self._streams.add(self._name(), [*streams, *generators_in(vars(self).values())])
        if self._place is None:
            return found
        outputs = list(found) if isinstance(found, tuple) else [found]
        given = [x for x in (*inputs, *options.values(), *earlier) if isinstance(x, Variable)]
        placed = self._place([*outputs, *self._updates.values()], given)
        self._updates = dict(zip(self._updates, placed[len(outputs) :], strict=True))
        return tuple(placed[: len(outputs)]) if isinstance(found, tuple) else placed[0]

    def set_library(
        self, library: str, place: Callable[[list[Any], list[Any]], list[Any]] | None
    ) -> None:
        """Let later calls build nodes of a library; `dnnops.layers.convert` calls this.

        Parameters
        ----------
        library : {'abstract', 'cudnn', 'onednn'}
            What is printed before the name; 'abstract' is printed as ``nn``.
        place : callable
            Function of outputs and inputs that returns the outputs, computed by the library.
        """
        self.library = library
        self._place = None if library == "abstract" else place

    # Parameters

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

    def __getstate__(self) -> dict[str, Any]:
        # New running averages are variables of a graph.
        return {**vars(self), "_updates": {}}

    @property
    def is_random(self) -> bool:
        """Whether calls in training draw random numbers."""
        return bool(self._streams)

    def draw_seed(self) -> int:
        """Return a new seed for a random layer."""
        return int(self.rng.integers(2**63))

    def children(self) -> Iterator[tuple[str, Layer]]:
        """Yield the names and layers that this layer consists of.

        The entries of a list have the names ``list.0``, ``list.1`` and so on.
        """
        for name, value in vars(self).items():
            yield from _layers_in(name, value)

    def modules(self) -> Iterator[tuple[str, Layer]]:
        """Yield this layer with an empty name, and all layers within it; each only once."""
        seen: set[int] = set()
        waiting: list[tuple[str, Layer]] = [("", self)]
        while waiting:
            prefix, layer = waiting.pop(0)
            if id(layer) in seen:
                continue
            seen.add(id(layer))
            yield prefix, layer
            dot = f"{prefix}." if prefix else ""
            waiting[:0] = [(dot + name, child) for name, child in layer.children()]

    def aliases(self) -> dict[str, str]:
        """Return the first prefix of layers that occur more than once, by each other prefix.

        PyTorch's states have the entries of such a layer under all of its names.
        """
        first: dict[int, str] = {}
        found: dict[str, str] = {}

        def visit(prefix: str, layer: Layer, above: tuple[int, ...]) -> None:
            if id(layer) in above:
                return
            known = first.setdefault(id(layer), prefix)
            if known != prefix:
                found[prefix] = known
            for name, child in layer.children():
                visit(f"{prefix}{name}.", child, (*above, id(layer)))

        visit("", self, ())
        return found

    def named_parameters(self) -> dict[str, SharedVariable]:
        """Return the trained shared variables by dotted name, those of all children included.

        A variable that several layers share has the first of its names.
        """
        found: dict[str, SharedVariable] = {}
        seen: set[SharedVariable] = set()
        for prefix, layer in self.modules():
            for name, value in layer._parameters.items():
                if value not in seen:
                    seen.add(value)
                    found[f"{prefix}.{name}" if prefix else name] = value
        return found

    def parameters(self) -> list[SharedVariable]:
        """Return the trained shared variables, in the order of :meth:`named_parameters`."""
        return list(self.named_parameters().values())

    # Modes

    def train(self, mode: bool = True) -> Self:
        """Set whether later calls compute what training needs; return the layer."""
        flag = switch(self._name(), "mode", mode)
        for _, layer in self.modules():
            layer.training = flag
            layer._updates = {}
        return self

    def eval(self) -> Self:
        """Let later calls compute what inference needs; return the layer."""
        return self.train(False)

    def updates(self) -> dict[SharedVariable, Variable]:
        """Return the new running averages of all calls since the latest :meth:`train`.

        A compiled training step applies them beside the updates of the parameters. A layer that was
        called twice updates its averages with both batches. After :meth:`eval`, there are none, but
        states that a recurrent layer remembers are replaced then, too.
        """
        found: dict[SharedVariable, Variable] = {}
        for _, layer in self.modules():
            found |= layer._updates
        return found

    def current(self, buffer: SharedVariable) -> Variable:
        """Return the value of a buffer after the updates of earlier calls."""
        return self._updates.get(buffer, buffer)

    def set_updates(self, updates: dict[SharedVariable, Variable]) -> None:
        """Add to what :meth:`updates` returns; ``forward`` calls this."""
        self._updates = {
            buffer: new.astype(buffer.type.dtype)  # type: ignore[attr-defined]
            for buffer, new in {**self._updates, **updates}.items()
        }

    # States

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

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters, buffers and states of random streams by dotted name.

        Names and shapes of parameters and buffers are those of PyTorch's layers. Each call of a
        layer in training that draws random numbers, for dropout, makes a stream, and
        ``random_state.0`` is the state of that of the first call.
        """
        return {
            f"{prefix}.{name}" if prefix else name: value
            for prefix, layer in self.modules()
            for name, value in (layer.own_state() | layer._streams.named_states()).items()
        }

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Set parameters, buffers and random streams to the values of :meth:`state_dict`.

        A state of a random stream that the network does not have yet waits for the call that makes
        it. If `strict` is True and the network is in training, a `DnnWarning` names the layers
        with dropout for which the values have no such state, such as those of PyTorch. Their random
        numbers then differ from those of the run that saved the values.

        Parameters
        ----------
        state : mapping of str to array_like
            Values by dotted name. They are cast to the dtype of the layer.
        strict : bool
            Whether missing and unknown names are errors. Wrong shapes always are.

        Raises
        ------
        DnnTypeError
            If `state` is not a mapping, or a value is not an array of numbers.
        DnnValueError
            If names are missing or unknown, shapes differ, or numbers exceed the dtype of the
            layer. The message lists all of them, and nothing has been changed.

        Notes
        -----
        A layer that occurs several times has one name here, and all of its names in PyTorch's
        states; values under the others are accepted if they are equal.
        """
        where = f"{self._name()}.load_state_dict"
        if not isinstance(state, Mapping):
            raise DnnTypeError(f"{where}: state must be a mapping, got {shown(state)}")
        arrays = {name: host_array(where, name, value) for name, value in state.items()}
        wanted: dict[str, tuple[Layer, str, tuple[int, ...]]] = {}
        for prefix, layer in self.modules():
            for name, shape in layer.own_shapes().items():
                wanted[f"{prefix}.{name}" if prefix else name] = layer, name, shape
        arrays = self._without_aliases(arrays)
        layers = dict(self.modules())
        drawn: dict[str, dict[int, np.ndarray]] = {}
        wrong = []
        for name in list(arrays):
            prefix, number = split_name(name)
            if number is not None and prefix in layers:
                drawn.setdefault(prefix, {})[number] = arrays.pop(name)
                if problem := layers[prefix]._streams.problem(number, drawn[prefix][number]):
                    wrong.append(f"{name} {problem}")
        wrong += [
            f"{name} has shape {arrays[name].shape}, expected {shape}"
            for name, (_, _, shape) in wanted.items()
            if name in arrays and arrays[name].shape != shape
        ]
        wrong += [
            f"{name} has numbers that {layer.state_dtype(own)} cannot represent"
            for name, (layer, own, _) in wanted.items()
            if name in arrays and _overflows(arrays[name], layer.state_dtype(own))
        ]
        if switch(where, "strict", strict):
            wrong += [f"{name} is missing" for name in wanted if name not in arrays]
            wrong += [f"{name} is unknown" for name in arrays if name not in wanted]
        if wrong:
            raise DnnValueError("\n  ".join([f"{where}: the state does not fit:", *wrong]))
        parts: dict[int, tuple[Layer, dict[str, np.ndarray]]] = {}
        for name, (layer, own_name, _) in wanted.items():
            if name in arrays:
                parts.setdefault(id(layer), (layer, {}))[1][own_name] = arrays[name]
        for layer, values in parts.values():
            layer.set_own_state(values)
        for prefix, states in drawn.items():
            layers[prefix]._streams.set(states)
        others = [prefix for prefix, layer in layers.items() if layer.is_random and layer.training]
        if strict and (others := [prefix for prefix in others if prefix not in drawn]):
            warnings.warn(
                f"{where}: there are no states of the random streams of layers {', '.join(others)},"
                " whose dropout draws other numbers than in the run that saved the others",
                DnnWarning,
                stacklevel=2,
            )

    def _without_aliases(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the state with first names in the place of others with the same values."""
        kept = dict(arrays)
        aliases = self.aliases()
        for name, value in arrays.items():
            for alias, prefix in aliases.items():
                if not name.startswith(alias):
                    continue
                own = prefix + name.removeprefix(alias)
                if own not in kept:
                    kept[own] = kept.pop(name)
                elif own != name and np.array_equal(kept[own], value, equal_nan=True):
                    kept.pop(name, None)
        return kept

    def save(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to a file in the safetensors format.

        A former file is replaced only when the new one is complete and on the disk, so that it is
        kept if writing fails. Its mode and owner stay, and so do links. `path` may also be a pipe,
        or a descriptor such as ``/dev/stdout``.

        Raises
        ------
        DnnValueError
            If `path` is a folder, a device or a socket.
        OSError
            If the file cannot be written.
        """
        saving.save(path, self.state_dict())

    def load(self, path: str | Path, strict: bool = True) -> None:
        """Read a file written by :meth:`save`, or another safetensors file with these names.

        Raises
        ------
        OSError
            If the file cannot be read.
        DnnValueError
            If the file is damaged, or as for :meth:`load_state_dict`. Nothing has been changed.
        """
        self.load_state_dict(saving.load(path), strict)

    # Text

    def describe(self) -> str:
        """Return what is printed after the name, such as ``(3 -> 96, 11x11, 3,3)``."""
        return ""

    def prefix(self) -> str:
        """Return what is printed before the name: ``nn``, or the library of a converted layer."""
        return "nn" if self.library == "abstract" else self.library

    def __repr__(self) -> str:
        return f"{self.prefix()}.{self._name()}{self.describe()}"


def _overflows(value: np.ndarray, dtype: str) -> bool:
    """Return whether a cast to a floating-point dtype makes finite numbers infinite."""
    if np.dtype(dtype).kind != "f" or value.dtype.kind not in "iuf":
        return False
    largest = np.finfo(dtype).max
    return bool((np.isfinite(value) & (np.abs(value) > largest)).any())


def _layers_in(name: str, value: Any) -> Iterator[tuple[str, Layer]]:
    """Yield the layers in the value of an attribute, with their names."""
    if isinstance(value, Layer):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from _layers_in(f"{name}.{number}", entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _layers_in(f"{name}.{key}", entry)
