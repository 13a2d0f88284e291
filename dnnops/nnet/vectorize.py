"""Vectorization of pooling, normalization and others for ``vectorize_graph``.

By default, PyTensor loops over the extra axes in Python and runs the Ops in NumPy. The functions in
this module instead merge the extra axes into the batch, so that a single library call remains. In a
batch normalization, the extra axes become further axes with separate statistics; if numbers such as
epsilon have extra axes, a loop calls the library for each entry.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedGrad
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.nnet.entries import each_entry
from dnnops.nnet.extra_axes import into_batch, of_one_entry, sizes, with_extra_axes
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.norm.batchnorm_base import BatchNormBase
from dnnops.nnet.norm.window_base import WindowNormBase, WindowSum
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool, PoolBase

__all__ = [
    "vectorize_activation",
    "vectorize_batchnorm",
    "vectorize_ctc",
    "vectorize_disconnected",
    "vectorize_pool",
    "vectorize_window_norm",
]

NORMALIZATIONS = (BatchNormTrain, BatchNormTrainGrad, BatchNormInference)
POOLING = (Pool, MaxPoolGrad, AveragePoolGrad, MaxPoolGradGrad)


@_vectorize_node.register(PoolBase)
def vectorize_pool(op: PoolBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of pooling or its gradient into the batch."""
    count = len(op.operands)
    if type(op) not in POOLING:
        return vectorize_node_fallback(op, node, *inputs)
    data = list(inputs[:count])
    where = type(op).__name__
    vectors = [
        of_one_entry(where, "a window's size, stride or padding", v, 1) for v in inputs[count:]
    ]
    core = op.ndim + 2
    if all(x.type.ndim == core for x in data):
        return op.make_node(*data, *vectors)
    extra, data = with_extra_axes(data, core)
    out: Any = op(*(into_batch(x, extra) for x in data), *vectors)
    return [out.reshape((*extra, sizes(data[0])[-core], *sizes(out)[1:]))]


@_vectorize_node.register(CTC)
def vectorize_ctc(op: CTC, node: Apply, *inputs: Any) -> Any:
    """Vectorize the CTC loss by merging extra axes into the batch, which is the second axis."""
    cores = [x.type.ndim for x in node.inputs]
    if all(x.type.ndim == core for x, core in zip(inputs, cores, strict=True)):
        return op.make_node(*inputs)
    extra, (activations, *rest) = with_extra_axes(inputs, *cores)
    steps, batch, classes = sizes(activations)[-3:]
    sequences = pt.moveaxis(activations, -3, 0).reshape((steps, prod(extra) * batch, classes))
    outputs: list[Any] = op.make_node(sequences, *(into_batch(x, extra) for x in rest)).outputs
    vectorized = [outputs[0].reshape((*extra, batch))]
    for gradients in outputs[1:]:
        spread = gradients.reshape((steps, *extra, batch, classes))
        vectorized.append(pt.moveaxis(spread, 0, -3))
    return vectorized


@_vectorize_node.register(Activation)
@_vectorize_node.register(ActivationGrad)
def vectorize_activation(op: Activation | ActivationGrad, node: Apply, *inputs: Any) -> Any:
    """Vectorize an activation or its gradient, both of which are elementwise."""
    _, spread = with_extra_axes(inputs, *(x.type.ndim for x in node.inputs))
    return op.make_node(*spread)


@_vectorize_node.register(DisconnectedGrad)
def vectorize_disconnected(op: DisconnectedGrad, node: Apply, x: Any) -> Any:
    """Vectorize the identity that ends gradients, which PyTensor loops over."""
    return op.make_node(x)


@_vectorize_node.register(WindowNormBase)
@_vectorize_node.register(WindowSum)
def vectorize_window_norm(op: WindowNormBase | WindowSum, node: Apply, *inputs: Any) -> Any:
    """Vectorize local response or divisive normalization by merging extra axes into the batch."""
    core = node.inputs[0].type.ndim
    if all(x.type.ndim == core for x in inputs):
        return op.make_node(*inputs)
    extra, data = with_extra_axes(inputs, *(core for _ in inputs))
    outputs: list[Any] = op.make_node(*(into_batch(x, extra) for x in data)).outputs
    batch = sizes(data[0])[-core]
    return [out.reshape((*extra, batch, *sizes(out)[1:])) for out in outputs]


@_vectorize_node.register(BatchNormBase)
def vectorize_batchnorm(op: BatchNormBase, node: Apply, *inputs: Any) -> Any:
    """Vectorize batch normalization or its gradient, with separate statistics for extra axes."""
    named = dict(zip(op.operands, inputs, strict=True))
    core = node.inputs[0].type.ndim
    if type(op) not in NORMALIZATIONS:
        return vectorize_node_fallback(op, node, *inputs)
    if any(named[name].type.ndim for name in op.scalars):
        return each_entry(op.make_node, inputs, [x.type.ndim for x in node.inputs])
    arrays = {name: x for name, x in named.items() if name not in op.scalars}
    extra, spread = with_extra_axes(list(arrays.values()), *(core for _ in arrays))
    if not extra:
        return op.make_node(*inputs)
    # Place the extra axes next to the axes with separate statistics: libraries need these adjacent.
    lead, place = len(extra), next((i for i in range(core) if i not in op.axes), 0)
    order = [*range(lead, lead + place), *range(lead), *range(lead + place, lead + core)]
    back = [order.index(i) for i in range(lead + core)]
    named |= {name: x.dimshuffle(order) for name, x in zip(arrays, spread, strict=True)}
    parameters = {name: getattr(op, name) for name in op.__props__}
    parameters["axes"] = tuple(back[axis + lead] for axis in op.axes)
    whole: Any = type(op)(**parameters).make_node(*named.values())
    return [out.dimshuffle(back) for out in whole.outputs]
