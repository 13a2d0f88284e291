"""Products of two matrices on the GPU, and the views of them that other nodes read."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, Shape_i

from dnnops.dtypes import FLOAT_DTYPES
from dnnops.gpuarray.basic import GpuDimShuffle, GpuReshape
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.products.blas import GpuDot, GpuGemm
from dnnops.gpuarray.transfer import GpuCast, GpuFromHost, HostFromGpu, cast

__all__ = ["MatrixProduct", "is_product"]


def is_product(node: Apply) -> bool:
    """Return whether a node multiplies two matrices, or adds their product to a third."""
    data = list(node.inputs)
    if isinstance(node.op, GpuGemm):
        z, alpha, x, y, beta = node.inputs
        if node.op.destroy_map or not (_is_one(alpha) and _is_one(beta)):
            return False
        data = [z, x, y]
        if z.type.broadcastable != node.outputs[0].type.broadcastable:
            return False
    elif not isinstance(node.op, GpuDot) or len(data) != 2:
        return False
    dtypes = {x.type.dtype for x in (*data, *node.outputs)}
    return len(dtypes) == 1 and dtypes <= set(FLOAT_DTYPES) and all(x.type.ndim == 2 for x in data)


def _is_one(x: Any) -> bool:
    if not isinstance(x, Constant):
        return False
    return float(np.asarray(x.host_data if is_on_device(x) else x.data).item()) == 1


class MatrixProduct:
    """A product of matrices, and the view of it that its users read.

    Parameters
    ----------
    fgraph : FunctionGraph
    node : Apply
        Node for which `is_product` is true.

    Attributes
    ----------
    x, w, addend : Variable
        Operands; `addend` may be None.
    view : Apply or None
        The reshape of the product, if that is its only user. It keeps the columns.
    result : Variable
        What users read: the product or its view.
    """

    def __init__(self, fgraph: FunctionGraph, node: Apply):
        self.node, self.op = node, node.op
        self.addend: Any = None
        if isinstance(node.op, GpuGemm):
            self.addend, _, self.x, self.w, _ = node.inputs
        else:
            self.x, self.w = node.inputs
        self.result: Any = node.outputs[0]
        self.view: Apply | None = None
        users = fgraph.clients[self.result]
        if len(users) == 1 and _keeps_columns(users[0][0], self.w):
            self.view = users[0][0]
            self.result = self.view.outputs[0]

    def viewed(self, x: Any) -> Any:
        """Return a matrix of the product's shape in the shape that users read."""
        if self.view is None:
            return x
        return self.view.op.make_node(x, *self.view.inputs[1:]).outputs[0]

    def as_matrix(self, x: Any) -> Any:
        """Return an array of the shape that users read as a matrix."""
        if x.type.ndim == 2:
            return x
        columns = self.w.type.shape[1]
        if columns:
            sizes: Any = np.array([-1, columns])
        else:
            sizes = MakeVector("int64")(Shape_i(0)(self.x), Shape_i(1)(self.w))
        return GpuReshape(Reshape(2)).make_node(x, sizes).outputs[0]

    def as_vector(self, x: Any) -> Any:
        """Return a bias, of which all axes but the last have length 1, as a vector."""
        node = x.owner
        if node is not None and isinstance(node.op, GpuDimShuffle):
            order = node.op.host_op.new_order
            if order == ("x",) * (len(order) - 1) + (0,) and node.inputs[0].type.ndim == 1:
                x = node.inputs[0]
        if x.type.ndim > 1:
            op = DimShuffle(input_ndim=x.type.ndim, new_order=[x.type.ndim - 1])
            x = GpuDimShuffle(op).make_node(x).outputs[0]
        return cast(x, self.w.type.dtype)


def _keeps_columns(node: Apply, w: Any) -> bool:
    """Return whether a node reshapes a product with `w` and keeps its last axis."""
    if not isinstance(node.op, GpuReshape) or node.outputs[0].type.ndim < 2:
        return False
    columns, last = w.type.shape[1], node.outputs[0].type.shape[-1]
    if columns is not None and last is not None:
        return columns == last
    sizes = node.inputs[1].owner
    if sizes is None or not isinstance(sizes.op, MakeVector):
        return False
    size = sizes.inputs[-1].owner
    if size is None or not isinstance(size.op, Shape_i):
        return False
    of = (_origin(size.inputs[0]), size.op.i)
    return of in ((_origin(w), 1), (node.inputs[0], 1))


def _origin(x: Any) -> Any:
    """Return the variable of which `x` is a copy, on another device or in another dtype."""
    while x.owner is not None and isinstance(x.owner.op, GpuFromHost | HostFromGpu | GpuCast):
        (x,) = x.owner.inputs
    return x
