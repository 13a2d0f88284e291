"""What optimizers return: the updates of a training step, with their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedInputError
from pytensor.graph.basic import Variable

from dnnops.arguments import host_array, number, shown
from dnnops.dtypes import FLOAT_DTYPES
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray import shared as shared_on_gpu
from dnnops.optim.schedules import Schedule

__all__ = ["Rate", "Step", "Updates", "clip_by_norm"]

#: A learning rate: a number, a shared or symbolic scalar, or a schedule.
Rate = float | Variable | Schedule


class Updates(dict[SharedVariable, Any]):
    """New values of shared variables, for the argument `updates` of `pytensor.function`.

    ``updates | net.updates()`` adds the running averages of a network, and ``updates | others`` the
    step of another optimizer, for other parameters.

    Attributes
    ----------
    state : dict of str to SharedVariable
        The optimizer's own variables by name.
    """

    def __init__(self, *pairs: Any):
        super().__init__(*pairs)
        self.state: dict[str, SharedVariable] = {}

    def __or__(self, other: Any) -> Updates:  # type: ignore[override]
        """Join updates.

        Raises
        ------
        DnnValueError
            If both update the same variable, or have states of the same name. The argument `name`
            of an optimizer makes its names different.
        """
        if not isinstance(other, Mapping):
            return NotImplemented
        twice = [str(variable) for variable in other if variable in self]
        state = getattr(other, "state", {})
        same = sorted(name for name in state if name in self.state)
        if twice or same:
            what = f"update the same variables: {twice}" if twice else f"have states named {same}"
            raise DnnValueError(
                f"Updates: both sides {what}; give one optimizer a name to tell states apart"
            )
        joined = Updates({**self, **other})
        joined.state = {**self.state, **state}
        return joined

    def __ror__(self, other: Any) -> Updates:  # type: ignore[override]
        return Updates(other) | self if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Updates:  # type: ignore[override, misc]
        return self | other

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the values of `state` by name, to store beside those of the network."""
        return {name: np.array(variable.get_value()) for name, variable in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the variables of `state`.

        Parameters
        ----------
        state : mapping of str to array_like
            What :meth:`state_dict` returned.

        Raises
        ------
        DnnTypeError
            If `state` is not a mapping, or a value is not an array of numbers.
        DnnValueError
            If names or shapes differ, or a number of steps is not an integer. The message lists all
            of them, and nothing has been changed.
        """
        where = "Updates.load_state_dict"
        if not isinstance(state, Mapping):
            raise DnnTypeError(f"{where}: state must be a mapping, got {shown(state)}")
        arrays = {name: host_array(where, name, value) for name, value in state.items()}
        wanted = {name: _value(v).shape for name, v in self.state.items()}
        wrong = [f"{name} is missing" for name in wanted if name not in arrays]
        wrong += [f"{name} is unknown" for name in arrays if name not in wanted]
        wrong += [
            f"{name} has shape {arrays[name].shape}, expected {shape}"
            for name, shape in wanted.items()
            if name in arrays and arrays[name].shape != shape
        ]
        if not wrong:
            new = {name: arrays[name].astype(v.type.dtype) for name, v in self.state.items()}
            wrong = [
                f"{name} must be an integer, got {arrays[name]}"
                for name, value in new.items()
                if value.dtype.kind in "iu" and (value != arrays[name]).any()
            ]
        if wrong:
            raise DnnValueError("\n  ".join([f"{where}: the state does not fit:", *wrong]))
        for name, variable in self.state.items():
            variable.set_value(new[name])


class Step:
    """What the optimizers share: parameters, gradients, the rate, and the variables of a state.

    16-bit parameters are updated in float32, with a state in float32: their numbers have too few
    digits and too small a range for squares of gradients.

    Parameters
    ----------
    where : str
        Name of the optimizer, for error messages.
    loss : scalar variable or sequence of variables
        Loss, or the gradients with respect to `parameters`.
    parameters : Layer, mapping of str to shared variable, or sequence of shared variables
    rate : number, scalar variable or schedule
        Learning rate.
    name : str
        What the names of states begin with.

    Attributes
    ----------
    parameters : dict of str to SharedVariable
    gradients : list of Variable
        In the dtype of the computation.
    rate : float or Variable
    updates : Updates
    """

    def __init__(self, where: str, loss: Any, parameters: Any, rate: Any, name: str):
        self.where = where
        if not isinstance(name, str):
            raise DnnTypeError(f"{where}: name must be a string, got {shown(name)}")
        self.prefix = f"{name}." if name else ""
        self.parameters = _named(where, parameters)
        found = _gradients(where, loss, self.parameters)
        self.gradients = [self.wide(g) for g in found]
        self.updates = Updates()
        self._count: Any = None
        if callable(rate) and not isinstance(rate, Variable):
            rate = rate(self.count())
        if not isinstance(rate, Variable):
            rate = number(where, "learning_rate", rate, 0.0)
        elif rate.type.ndim:
            raise DnnTypeError(f"{where}: learning_rate must be a scalar, got {rate.type}")
        self.rate = rate

    def count(self) -> Any:
        """Return the number of steps before this one, a float64 scalar."""
        if self._count is None:
            self._count = pytensor.shared(np.array(0, dtype="int64"), name="step")
            self.updates.state[f"{self.prefix}step"] = self._count
            self.updates[self._count] = self._count + np.int64(1)
        return self._count.astype("float64")

    def slot(self, kind: str, name: str) -> SharedVariable:
        """Make a variable of zeros with the shape of a parameter, such as its momentum."""
        like = self.parameters[name]
        value = np.zeros(_value(like).shape, _computed_in(like))
        full = f"{self.prefix}{kind}.{name}"
        options: dict[str, Any] = {"name": full, "shape": like.type.shape}
        if isinstance(like.type, GpuArrayType):
            made: Any = shared_on_gpu(value, device=like.type.device, **options)
        else:
            made = pytensor.shared(value, **options)
        self.updates.state[full] = made
        return made

    def wide(self, x: Any) -> Any:
        """Return a parameter or a gradient in the dtype of the computation."""
        dtype = _computed_in(x)
        return x if dtype == x.type.dtype else pt.as_tensor_variable(x).astype(dtype)

    def number(self, x: Any, like: Any) -> Any:
        """Return a number or a scalar variable in the dtype in which `like` is updated."""
        if isinstance(x, Variable):
            return pt.cast(x, _computed_in(like))
        return np.asarray(x, dtype=_computed_in(like))

    def set(self, variable: SharedVariable, value: Any) -> None:
        """Add the update of a variable."""
        dtype = variable.type.dtype
        if value.type.dtype != dtype and dtype != "bfloat16":  # types round to bfloat16
            value = value.astype(dtype)
        self.updates[variable] = value


def _value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable where it is, without a copy."""
    return variable.get_value(borrow=True, return_internal_type=True)


def _computed_in(x: Any) -> str:
    """Return the dtype in which a parameter is updated."""
    return "float64" if x.type.dtype == "float64" else "float32"


def _named(where: str, parameters: Any) -> dict[str, Any]:
    """Return parameters by name; those of a sequence are numbered."""
    if hasattr(parameters, "named_parameters"):
        parameters = parameters.named_parameters()
    if not isinstance(parameters, Mapping):
        if not isinstance(parameters, Sequence):
            raise DnnTypeError(
                f"{where}: parameters must be a layer, a mapping or a sequence of shared "
                f"variables, got {shown(parameters)}"
            )
        parameters = {str(number): p for number, p in enumerate(parameters)}
    if not parameters:
        raise DnnValueError(f"{where}: there are no parameters")
    for name, parameter in parameters.items():
        dtype = getattr(getattr(parameter, "type", None), "dtype", None)
        if not isinstance(parameter, SharedVariable) or dtype not in FLOAT_DTYPES:
            raise DnnTypeError(
                f"{where}: parameter {name} must be a shared variable of floats, "
                f"got {shown(parameter)}"
            )
    if len(set(parameters.values())) != len(parameters):
        raise DnnValueError(f"{where}: a parameter is given twice")
    return dict(parameters)


def _gradients(where: str, loss: Any, parameters: dict[str, Any]) -> list[Any]:
    """Return the gradients of a loss, or those that were given."""
    if isinstance(loss, Variable):
        if getattr(loss.type, "ndim", None) != 0:
            raise DnnTypeError(
                f"{where}: the loss must be a scalar, got {loss.type}; take its mean or sum"
            )
        variables = list(parameters.values())
        try:
            gradients: Any = pytensor.grad(loss, variables)
        except DisconnectedInputError as error:
            raise DnnValueError(_unused(where, loss, parameters)) from error
        return list(gradients)
    if not isinstance(loss, Sequence):
        raise DnnTypeError(
            f"{where}: the first argument must be a loss or a sequence of gradients, "
            f"got {shown(loss)}"
        )
    if len(loss) != len(parameters):
        raise DnnValueError(f"{where}: got {len(loss)} gradients for {len(parameters)} parameters")
    for (name, parameter), gradient in zip(parameters.items(), loss, strict=True):
        found = getattr(getattr(gradient, "type", None), "ndim", None)
        if found != parameter.type.ndim:
            raise DnnTypeError(
                f"{where}: the gradient of parameter {name} must be a variable of "
                f"{parameter.type.ndim} dimensions, got {shown(gradient)}"
            )
    return list(loss)


def _unused(where: str, loss: Any, parameters: dict[str, Any]) -> str:
    """Return an error message that names the parameters without a gradient."""
    variables: Any = list(parameters.values())
    found: Any = pytensor.grad(
        loss, variables, disconnected_inputs="ignore", return_disconnected="none"
    )
    names = [name for name, g in zip(parameters, found, strict=True) if g is None]
    return (
        f"{where}: the loss does not depend on {', '.join(names)} of the parameters, so that they "
        "have no gradients; use them, or leave them out"
    )


def clip_by_norm(gradients: list[Any] | tuple[Any, ...], max_norm: Any) -> list[Any]:
    """Scale gradients so that the norm of all their elements is at most `max_norm`.

    Parameters
    ----------
    gradients : list or tuple of variables
    max_norm : number or scalar variable
        Largest norm.

    Returns
    -------
    list of Variable
        The gradients, multiplied by ``min(1, max_norm / norm)``. If an element is NaN, all are; if
        the sum of squares overflows, they are 0.

    Raises
    ------
    DnnTypeError
        If `gradients` is not a list or a tuple of variables, or `max_norm` is not a number.
    DnnValueError
        If `max_norm` is negative or not finite.

    References
    ----------
    Pascanu, Mikolov and Bengio, On the Difficulty of Training Recurrent Neural Networks (2013).
    """
    where = "clip_by_norm"
    if not isinstance(gradients, (list, tuple)) or not all(
        isinstance(g, Variable) for g in gradients
    ):
        raise DnnTypeError(
            f"{where}: gradients must be a list of variables, got {shown(gradients)}"
        )
    if not isinstance(max_norm, Variable):
        max_norm = number(where, "max_norm", max_norm, 0.0)
    elif max_norm.type.ndim:
        raise DnnTypeError(f"{where}: max_norm must be a scalar, got {max_norm.type}")
    if not gradients:
        return []
    wide = "float64" if any(g.type.dtype == "float64" for g in gradients) else "float32"
    norm = pt.sqrt(sum(pt.sqr(pt.cast(g, wide)).sum() for g in gradients))
    limit = pt.cast(max_norm, wide)
    # Not `norm > limit`, which is false for NaN. Whatever is not over the limit is not divided.
    factor = pt.switch(norm <= limit, np.ones((), wide), limit / norm)
    return [g * pt.cast(factor, g.type.dtype) for g in gradients]
