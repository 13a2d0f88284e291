"""The base class of layers: calls, children, modes and stored states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from dnnops.arguments import switch
from dnnops.dtypes import HOST_FLOAT_DTYPES
from dnnops.errors import DnnTypeError, DnnWarning
from dnnops.hints import explained
from dnnops.layers import places, saving, states, tree
from dnnops.layers.parameters import Parameterized
from dnnops.layers.streams import Streams, generators_in, is_stream
from dnnops.nnet.streams import recording

__all__ = ["Layer"]

#: How the modules of dnnops' own layers begin.
_PACKAGE = f"{__name__.rpartition('.')[0]}."


class Layer(Parameterized):
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
        super().__init__(dtype, rng)
        self.training = True
        self.library = "abstract"
        self._place: Callable[[list[Any], list[Any]], list[Any]] | None = None
        self._updates: dict[SharedVariable, Variable] = {}
        self._streams = Streams()

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = explained(cls.__init__)  # type: ignore[method-assign]

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
            with recording() as streams:
                found = self._called(inputs, options)
            variables = call.variables(found, (inputs, options))
            call.mark(variables)
            streams += [*generators_in(vars(self).values()), *self._drawn_from(variables)]
            self._streams.add(self._name(), streams)
        return found

    def _drawn_from(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return the random streams among variables that no layer within this one saves."""
        found = [variable for variable in variables if is_stream(variable)]
        if not found:
            return []
        inner = [layer for _, layer in self.modules() if layer is not self]
        return [stream for stream in found if not any(stream in x._streams for x in inner)]

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
        found = self.forward(*inputs, **options)
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

    def __getstate__(self) -> dict[str, Any]:
        # New running averages are variables of a graph.
        return {**vars(self), "_updates": {}}

    @property
    def is_random(self) -> bool:
        """Whether calls in training draw random numbers."""
        return bool(self._streams)

    @property
    def may_draw(self) -> bool:
        """Whether later calls could make random streams: in a ``forward`` or a function of a user.

        A layer of dnnops without dropout makes none, so it cannot load the state of one.
        """
        if self.is_random or not type(self).__module__.startswith(_PACKAGE):
            return True
        values = [value for name, value in vars(self).items() if name != "_place"]
        entries = [x for value in values for x in (value if isinstance(value, list) else [value])]
        functions = (x for x in entries if callable(x) and not isinstance(x, (Layer, Variable)))
        return any(functions) or any(generators_in(values))

    def children(self) -> Iterator[tuple[str, Layer]]:
        """Yield the names and layers that this layer consists of.

        The entries of a list have the names ``list.0``, ``list.1`` and so on.
        """
        for name, value in vars(self).items():
            yield from tree.layers_in(Layer, name, value)

    def modules(self) -> Iterator[tuple[str, Layer]]:
        """Yield this layer with an empty name, and all layers within it; each only once."""
        yield from tree.modules(self)

    def aliases(self) -> dict[str, str]:
        """Return the first prefix of layers that occur more than once, by each other prefix.

        PyTorch's states have the entries of such a layer under all of its names.
        """
        return tree.aliases(self)

    def named_parameters(self) -> dict[str, SharedVariable]:
        """Return the trained shared variables by dotted name, those of all children included.

        A variable that several layers share has the first of its names.
        """
        found: dict[str, SharedVariable] = {}
        seen: set[SharedVariable] = set()
        for prefix, layer in self.modules():
            for name, value in layer.own_parameters().items():
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
        it, if the layer can draw random numbers: it has dropout, or a function or ``forward`` that
        is not of dnnops. Other states of streams are unknown names. If `strict` is True and the
        network is in training, a `DnnWarning` names the layers with dropout for which the values
        have no such state, such as those of PyTorch. Their random numbers then differ from those
        of the run that saved the values.

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
        layers = dict(self.modules())
        owners: dict[str, tuple[Layer, str]] = {}
        entries: dict[str, states.Entry] = {}
        for prefix, layer in layers.items():
            for own_name, shape in layer.own_shapes().items():
                name = f"{prefix}.{own_name}" if prefix else own_name
                owners[name] = layer, own_name
                entries[name] = states.Entry(shape, layer.state_dtype(own_name))
        streams = {prefix: x._streams for prefix, x in layers.items() if x.may_draw}
        arrays, drawn = states.fitted(where, state, strict, entries, streams, self.aliases())
        parts: dict[int, tuple[Layer, dict[str, np.ndarray]]] = {}
        for name, (layer, own_name) in owners.items():
            if name in arrays:
                parts.setdefault(id(layer), (layer, {}))[1][own_name] = arrays[name]
        for layer, values in parts.values():
            layer.set_own_state(values)
        for prefix, found in drawn.items():
            layers[prefix]._streams.set(found)
        others = [prefix for prefix, layer in layers.items() if layer.is_random and layer.training]
        if strict and (others := [prefix for prefix in others if prefix not in drawn]):
            warnings.warn(
                f"{where}: there are no states of the random streams of layers {', '.join(others)},"
                " whose dropout draws other numbers than in the run that saved the others",
                DnnWarning,
                stacklevel=2,
            )

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


# __init_subclass__ does it for subclasses.
Layer.__init__ = explained(Layer.__init__)  # type: ignore[method-assign]
