"""All functions of `dnnops.dnn` that build graphs, with operands for a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt

from dnnops import dnn
from dnnops.gpuarray.op import is_on_device

__all__ = ["FUNCTIONS", "DnnFunction"]


@dataclass(frozen=True)
class DnnFunction:
    """A function of device variables, and the shapes of its operands.

    Attributes
    ----------
    name : str
    make : callable
        Returns a variable or a sequence of variables.
    shapes : tuple of tuple of int
    positive : tuple of int
        Indices of operands that have to be positive.
    dtype : str
        Dtype of the computation: float64, unless cuDNN supports only float32.
    second : str
        Message of the error for a second derivative; empty if there is none.
    lacks_pushforward : bool
        Whether PyTensor has no pushforward for an Op in the gradient.
    """

    name: str
    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    positive: tuple[int, ...] = ()
    dtype: str = "float64"
    second: str = ""
    lacks_pushforward: bool = False

    def points(self, seed: int = 0) -> list[np.ndarray]:
        """Return values of the operands."""
        rng = np.random.default_rng(seed)
        drawn = [rng.standard_normal(shape) for shape in self.shapes]
        return [abs(x) + 0.5 if i in self.positive else x for i, x in enumerate(drawn)]

    def outputs(self, *operands: Any) -> list[Any]:
        """Return the device variables that the function computes from variables."""
        found = self.make(*(x if is_on_device(x) else pt.cast(x, self.dtype) for x in operands))
        return list(found) if isinstance(found, list | tuple) else [found]

    def flat(self, *operands: Any) -> Any:
        """Return all results in one host vector."""
        return pt.concatenate([pt.as_tensor_variable(z).flatten() for z in self.outputs(*operands)])


_IMAGE, _PARAMETER = (2, 3, 5, 4), (1, 3, 1, 1)
_RNN = dnn.RNNBlock("float64", 2, 1, "gru")


def _ctc(activations: Any) -> Any:
    return dnn.dnn_ctc(activations, np.array([[1, 2], [2, 1]]), np.array([5, 4]))


def _add(a: Any, c: Any) -> Any:
    return dnn.dnn_add(pt.specify_broadcastable(pt.as_tensor_variable(a), 0, 2, 3), c, 0.5, 2.0)


FUNCTIONS = (
    DnnFunction("dnn_conv", dnn.dnn_conv, (_IMAGE, (2, 3, 3, 2))),
    DnnFunction("dnn_conv3d", dnn.dnn_conv3d, ((2, 2, 4, 3, 4), (2, 2, 2, 2, 2))),
    DnnFunction(
        "dnn_gradweight",
        lambda x, g: dnn.dnn_gradweight(x, g, (2, 3, 3, 2)),
        (_IMAGE, (2, 2, 3, 3)),
    ),
    DnnFunction(
        "dnn_gradweight3d",
        lambda x, g: dnn.dnn_gradweight3d(x, g, (2, 2, 2, 2, 2)),
        ((2, 2, 4, 3, 4), (2, 2, 3, 2, 3)),
    ),
    DnnFunction(
        "dnn_gradinput",
        lambda w, g: dnn.dnn_gradinput(w, g, _IMAGE),
        ((2, 3, 3, 2), (2, 2, 3, 3)),
    ),
    DnnFunction(
        "dnn_gradinput3d",
        lambda w, g: dnn.dnn_gradinput3d(w, g, (2, 2, 4, 3, 4)),
        ((2, 2, 2, 2, 2), (2, 2, 3, 2, 3)),
    ),
    DnnFunction("dnn_pool", lambda x: dnn.dnn_pool(x, (2, 2), (2, 1), pad=(1, 0)), (_IMAGE,)),
    DnnFunction(
        "dnn_pool, average",
        lambda x: dnn.dnn_pool(x, (2, 2), (2, 1), "average_exc_pad", (1, 0)),
        (_IMAGE,),
    ),
    DnnFunction(
        "dnn_batch_normalization_train",
        lambda x, g, b: dnn.dnn_batch_normalization_train(x, g, b, "spatial"),
        (_IMAGE, _PARAMETER, _PARAMETER),
    ),
    DnnFunction(
        "dnn_batch_normalization_train, running",
        lambda x, g, b, m, v: dnn.dnn_batch_normalization_train(
            x, g, b, "per-activation", running_mean=m, running_var=v
        ),
        ((6, 3), *((1, 3),) * 4),
        positive=(4,),
    ),
    DnnFunction(
        "dnn_batch_normalization_test",
        lambda *operands: dnn.dnn_batch_normalization_test(*operands, "spatial"),
        (_IMAGE, *(_PARAMETER,) * 4),
        positive=(4,),
    ),
    DnnFunction(
        "dnn_batch_normalization_test, per activation",
        dnn.dnn_batch_normalization_test,
        ((2, 3, 2, 2, 2), *((1, 3, 2, 2, 2),) * 4),
        positive=(4,),
    ),
    DnnFunction("dnn_ctc", _ctc, ((5, 2, 4),), dtype="float32", second="CTC has no second"),
    *(
        DnnFunction(
            f"dnn_activation, {mode}",
            lambda x, mode=mode, coef=coef: dnn.dnn_activation(x, mode, coef),
            (_IMAGE,),
        )
        for mode, coef in (("relu", 0), ("clipped_relu", 0.7), ("tanh", 0), ("swish", 1.5))
    ),
    DnnFunction("dropout", lambda x: dnn.dropout(x, 0.4), (_IMAGE,)),
    DnnFunction("dnn_add", _add, (_PARAMETER, _IMAGE)),
    DnnFunction("dnn_transform", lambda x: dnn.dnn_transform(x, alpha=3.0), (_IMAGE,)),
    DnnFunction("dnn_lrn", lambda x: dnn.dnn_lrn(x, 3, 0.5), (_IMAGE,)),
    DnnFunction(
        "dnn_divisive_normalization",
        lambda x: dnn.dnn_divisive_normalization(x, n=3, alpha=0.5),
        (_IMAGE,),
    ),
    DnnFunction(
        "dnn_divisive_normalization, means",
        lambda x, means: dnn.dnn_divisive_normalization(x, means, n=3, alpha=0.5),
        (_IMAGE, _IMAGE),
    ),
    *(
        DnnFunction(
            f"dnn_reduction, {name}",
            lambda x, name=name: dnn.dnn_reduction(x, name, 1),
            (_IMAGE,),
            lacks_pushforward=name == "maximum",
            second="2nd derivatives of `product" if name == "mul" else "",
        )
        for name in ("add", "mul", "maximum", "norm2")
    ),
    DnnFunction(
        "dnn_spatialtf",
        lambda x, theta: dnn.dnn_spatialtf(x, theta * 0.1 + np.eye(2, 3) * 0.6),
        (_IMAGE, (2, 2, 3)),
    ),
    DnnFunction(
        "RNNBlock",
        _RNN.apply,
        ((_RNN.get_param_size((2, 3)),), (2, 2, 3), (1, 2, 2)),
    ),
)
