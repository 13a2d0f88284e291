"""What optimizers return: the updates of a training step, with their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from dnnops.arguments import number, shown
from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.gpuarray import GpuArrayType
from dnnops.gpuarray import shared as shared_on_gpu
from dnnops.optim.schedules import Schedule

__all__ = ["Rate", "Step", "Updates", "clip_by_norm"]

#: A learning rate: a number, a shared or symbolic scalar, or a schedule.
Rate = float | Variable | Schedule


class Updates(dict[SharedVariable, Any]):
    """New values of shared variables, for the argument `updates` of `pytensor.function`.

    ``updates | net.updates()`` adds the running averages of a network.

    Attributes
    ----------
    state : dict of str to SharedVariable
        The optimizer's own variables by name.
    """

    def __init__(self, *pairs: Any):
        super().__init__(*pairs)
        self.state: dict[str, SharedVariable] = {}

    def __or__(self, other: Any) -> Updates:  # type: ignore[override]
        joined = Updates({**self, **other})
        joined.state = {**self.state, **getattr(other, "state", {})}
        return joined

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
            If `state` is not a mapping.
        DnnValueError
            If names or shapes differ. The message lists all of them, and nothing has been changed.
        """
        where = "Updates.load_state_dict"
        if not isinstance(state, Mapping):
            raise DnnTypeError(f"{where}: state must be a mapping, got {shown(state)}")
        arrays = {name: np.asarray(value) for name, value in state.items()}
        wanted = {name: np.shape(v.get_value()) for name, v in self.state.items()}
        wrong = [f"{name} is missing" for name in wanted if name not in arrays]
        wrong += [f"{name} is unknown" for name in arrays if name not in wanted]
        wrong += [
            f"{name} has shape {arrays[name].shape}, expected {shape}"
            for name, shape in wanted.items()
            if name in arrays and arrays[name].shape != shape
        ]
        if wrong:
            raise DnnValueError("\n  ".join([f"{where}: the state does not fit:", *wrong]))
        for name, variable in self.state.items():
            variable.set_value(arrays[name].astype(variable.type.dtype))


class Step:
    """What the optimizers share: parameters, gradients, the rate, and the variables of a state.

    Parameters
    ----------
    where : str
        Name of the optimizer, for error messages.
    loss : scalar variable or sequence of variables
        Loss, or the gradients with respect to `parameters`.
    parameters : Layer, mapping of str to shared variable, or sequence of shared variables
    rate : number, scalar variable or schedule
        Learning rate.

    Attributes
    ----------
    parameters : dict of str to SharedVariable
    gradients : list of Variable
    rate : float or Variable
    updates : Updates
    """

    def __init__(self, where: str, loss: Any, parameters: Any, rate: Any):
        self.where = where
        self.parameters = _named(where, parameters)
        self.gradients = _gradients(where, loss, list(self.parameters.values()))
        self.updates = Updates()
        self._count: Any = None
        if callable(rate) and not isinstance(rate, Variable):
            rate = rate(self.count())
        elif not isinstance(rate, Variable):
            rate = number(where, "learning_rate", rate, 0.0)
        elif rate.type.ndim:
            raise DnnTypeError(f"{where}: learning_rate must be a scalar, got {rate.type}")
        self.rate = rate

    def count(self) -> Any:
        """Return the number of steps before this one, a float64 scalar."""
        if self._count is None:
            self._count = pytensor.shared(np.array(0, dtype="int64"), name="step")
            self.updates.state["step"] = self._count
            self.updates[self._count] = self._count + np.int64(1)
        return self._count.astype("float64")

    def slot(self, kind: str, name: str) -> SharedVariable:
        """Make a variable of zeros with the shape of a parameter, such as its momentum."""
        like = self.parameters[name]
        current = like.get_value(borrow=True, return_internal_type=True)
        value = np.zeros(current.shape, numpy_dtype(like.type.dtype))
        options: dict[str, Any] = {"name": f"{kind}.{name}", "shape": like.type.shape}
        if isinstance(like.type, GpuArrayType):
            made: Any = shared_on_gpu(value, device=like.type.device, **options)
        else:
            made = pytensor.shared(value, **options)
        self.updates.state[f"{kind}.{name}"] = made
        return made

    def number(self, x: Any, like: Any) -> Any:
        """Return a number or a scalar variable in the dtype of another variable."""
        if isinstance(x, Variable):
            return pt.cast(x, like.type.dtype)
        return np.asarray(x, dtype=numpy_dtype(like.type.dtype))

    def set(self, variable: SharedVariable, value: Any) -> None:
        """Add the update of a variable."""
        self.updates[variable] = value


def _named(where: str, parameters: Any) -> dict[str, SharedVariable]:
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
    for name, parameter in parameters.items():
        if not isinstance(parameter, SharedVariable):
            raise DnnTypeError(
                f"{where}: parameter {name} must be a shared variable, got {shown(parameter)}"
            )
    if len(set(parameters.values())) != len(parameters):
        raise DnnValueError(f"{where}: a parameter is given twice")
    return dict(parameters)


def _gradients(where: str, loss: Any, parameters: list[SharedVariable]) -> list[Any]:
    """Return the gradients of a loss, or those that were given."""
    if isinstance(loss, Variable):
        if loss.type.ndim:
            raise DnnTypeError(
                f"{where}: the loss must be a scalar, got {loss.type}; take its mean or sum"
            )
        gradients: Any = pytensor.grad(loss, parameters)
        return list(gradients)
    if not isinstance(loss, Sequence):
        raise DnnTypeError(
            f"{where}: the first argument must be a loss or a sequence of gradients, "
            f"got {shown(loss)}"
        )
    if len(loss) != len(parameters):
        raise DnnValueError(f"{where}: got {len(loss)} gradients for {len(parameters)} parameters")
    return list(loss)


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
        The gradients, multiplied by ``min(1, max_norm / norm)``.

    Raises
    ------
    DnnTypeError
        If `gradients` is not a list or a tuple, or `max_norm` is not a number.
    DnnValueError
        If `max_norm` is negative or not finite.

    References
    ----------
    Pascanu, Mikolov and Bengio, On the Difficulty of Training Recurrent Neural Networks (2013).
    """
    where = "clip_by_norm"
    if not isinstance(gradients, (list, tuple)):
        raise DnnTypeError(f"{where}: gradients must be a list, got {shown(gradients)}")
    if not isinstance(max_norm, Variable):
        max_norm = number(where, "max_norm", max_norm, 0.0)
    if not gradients:
        return []
    wide = "float64" if any(g.type.dtype == "float64" for g in gradients) else "float32"
    norm = pt.sqrt(sum((pt.cast(g, wide) ** 2).sum() for g in gradients))
    limit = pt.cast(max_norm, wide)
    # A norm of zero divides nothing.
    factor = pt.switch(norm > limit, limit / pt.maximum(norm, limit), np.ones((), wide))
    return [g * pt.cast(factor, g.type.dtype) for g in gradients]
