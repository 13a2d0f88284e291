"""Matrix products on the device, computed by cuBLASLt, or by cuBLAS through CuPy without it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Constant

from dnnops.arguments import one_of, switch
from dnnops.config import flag_value
from dnnops.errors import DnnValueError
from dnnops.gpuarray.op import MirrorOp, is_on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dnnops.gpuarray.prepared.call import PreparedCall


@contextmanager
def _precision(allow_tf32: bool) -> Iterator[None]:
    """Set whether cuBLAS may round the operands of float32 products to TF32."""
    from cupy._core import _routines_linalg as linalg

    previous = linalg.get_compute_type("float32")
    if (previous == linalg.COMPUTE_TYPE_TF32) == allow_tf32:
        yield
        return
    wanted = linalg.COMPUTE_TYPE_TF32 if allow_tf32 else linalg.COMPUTE_TYPE_DEFAULT
    linalg.set_compute_type("float32", wanted)
    try:
        yield
    finally:
        linalg.set_compute_type("float32", previous)


def product_algo(where: str, algo: str | None) -> str:
    """Return how a matrix product's algorithm is selected: as given, or as the flags say."""
    if algo is not None:
        return one_of(where, "algo", algo, ("guess_once", "time_once"))
    is_timed = flag_value("dnn.matmul.algo") == "time_once" and not flag_value("dnn.deterministic")
    return "time_once" if is_timed else "guess_once"


def product_settings(allow_tf32: bool, algo: str) -> int:
    """Return the settings of a matrix product for C code: a sum of ``dnnops_product_setting``."""
    return allow_tf32 | (algo == "time_once") << 1 | flag_value("dnn.verbose") << 2


class _Product(MirrorOp):
    """A matrix product.

    Parameters
    ----------
    host_op : Op
    allow_tf32 : bool, optional
        Whether float32 operands may be rounded to TF32. Defaults to the flag
        ``dnn.allow_tf32``.
    algo : {'guess_once', 'time_once'}, optional
        How cuBLASLt's algorithm is selected. Defaults to the flag ``dnn.matmul.algo``, or to
        'guess_once' if ``dnn.deterministic`` is set.
    """

    __props__: ClassVar[tuple[str, ...]] = ("host_op", "allow_tf32", "algo")

    def __init__(self, host_op: Any, allow_tf32: bool | None = None, algo: str | None = None):
        super().__init__(host_op)
        if allow_tf32 is None:
            allow_tf32 = getattr(config, "dnn__allow_tf32", False)
        self.allow_tf32 = switch(type(self).__name__, "allow_tf32", allow_tf32)
        self.algo = product_algo(type(self).__name__, algo)

    @property
    def settings(self) -> int:
        """Settings of the product for C code."""
        return product_settings(self.allow_tf32, self.algo)

    def product(self, x: Any, y: Any) -> Any:
        """Multiply two matrices, or a matrix and a vector, or two vectors."""
        if x.shape[-1] != y.shape[0]:
            raise DnnValueError(f"{self}: shapes {x.shape} and {y.shape} cannot be multiplied")
        products = _products(x, y)
        if products:
            import cupy

            rows, columns = x.shape[: x.ndim - 1], y.shape[1:]
            out = cupy.empty((*rows, *columns), x.dtype)
            rows, columns = rows or (1,), columns or (1,)
            products.multiply(
                x.reshape(*rows, x.shape[-1]),
                y.reshape(y.shape[0], *columns),
                out.reshape(*rows, *columns),
                settings=self.settings,
            )
            return out
        with _precision(self.allow_tf32):
            return x.dot(y)

    def __str__(self) -> str:
        tf32 = "TF32" if self.allow_tf32 else ""
        return f"{type(self).__name__}{{{tf32}}}" if tf32 else type(self).__name__

    def number_operands(self, node: Apply) -> frozenset[int]:
        """Return the indices of factors on the host that may change, as learning rates do.

        cuBLAS reads factors on the host. Those on the device are applied by a kernel of their own.
        """
        return frozenset(
            i
            for i, x in enumerate(node.inputs)
            if not is_on_device(x) and not isinstance(x, Constant)
        )

    def factor(self, node: Apply, place: int, value: Any) -> Any:
        """Return a factor of a prepared call: a constant, or where an operand is, if it may change.

        It is an `Address` if the factor is on the device.
        """
        from dnnops.gpuarray.prepared.builder import number_at

        x = node.inputs[place]
        if isinstance(x, Constant) and not is_on_device(x):
            return float(value)
        return number_at(node, place, value)

    def scaled_sum(self, node: Apply, inputs: Any, shape: tuple[int, ...]) -> PreparedCall | None:
        """Prepare ``beta * z + alpha * dot(x, y)`` for operands ``z, alpha, x, y, beta``.

        `y` is a matrix or a vector.
        """
        from dnnops.gpuarray.copying import add_copy
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Address, Result
        from dnnops.gpuarray.products.calls import ProductFactors, add_product, has_contiguous_side
        from dnnops.gpuarray.products.scaled import scaled_afterwards

        x = inputs[2]
        alpha, beta = self.factor(node, 1, inputs[1]), self.factor(node, 4, inputs[4])
        if isinstance(alpha, Address) or isinstance(beta, Address):
            factors = [(node.inputs[place].type.dtype, at) for place, at in ((1, alpha), (4, beta))]
            return scaled_afterwards(inputs, factors, self.settings, self.host_op.inplace)
        call = CallBuilder(inputs)
        out, result = call.operand(0), Result(0)
        if not self.host_op.inplace:
            # A factor that may change may also become 0, with which the copy is ignored.
            out = call.new(shape, x.dtype) if beta == 0 else add_copy(call, x.dtype, out, shape)
            result = Result(out.address.place)
        right = call.operand(3)
        if len(shape) == 1:
            right, out = right.as_column(), out.as_column()
        if not has_contiguous_side(out):
            return None
        factors = ProductFactors(alpha, beta, self.settings)
        add_product(call, x.dtype, call.operand(2), right, out, factors)
        return call.call(result)


class GpuDot(_Product):
    """`Dot`, `Dot22` and `Dot22Scalar`: the product of matrices and vectors."""

    def prepare(self, node: Apply, x: Any, y: Any, *factor: Any) -> PreparedCall | None:
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Address, Result
        from dnnops.gpuarray.prepared.placed import Placed
        from dnnops.gpuarray.products.scaled import add_scaled_sum

        if not (products := _products(x, y)) or x.shape[-1] != y.shape[0]:
            return None
        if 0 in (*x.shape, *y.shape):
            return None
        call = CallBuilder((x, y, *factor))
        rows, columns = x.shape[: x.ndim - 1], y.shape[1:]
        out = call.new((*rows, *columns), x.dtype)
        left, right = call.operand(0), call.operand(1)
        if not rows:
            left = left.with_axes_before(2)
        if not columns:
            right = right.as_column()
        target = Placed.new((*(rows or (1,)), *(columns or (1,))), x.dtype, out.address.place)
        alpha = self.factor(node, 2, factor[0]) if factor else 1.0
        is_late = isinstance(alpha, Address)
        factors = products.ProductFactors(1.0 if is_late else alpha, settings=self.settings)
        products.add_product(call, x.dtype, left, right, target, factors)
        if is_late:
            add_scaled_sum(call, x.dtype.name, out, (node.inputs[2].type.dtype, alpha), [out])
        return call.call(Result(out.address.place))

    def compute(self, node: Apply, x: Any, y: Any, *factor: Any) -> Any:
        result = self.product(x, y)
        if factor:
            result *= _scalar(factor[0])
        return result


class GpuBatchedDot(_Product):
    """`BatchedDot` and `Blockwise` matrix products: batched over leading dimensions."""

    def prepare(self, node: Apply, x: Any, y: Any) -> PreparedCall | None:
        from dnnops.gpuarray.prepared.builder import CallBuilder
        from dnnops.gpuarray.prepared.call import Result

        self._check(node, x.shape, y.shape)
        if not (products := _products(x, y)) or 0 in (*x.shape, *y.shape):
            return None
        call = CallBuilder((x, y))
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        out = call.new((*batch, x.shape[-2], y.shape[-1]), x.dtype)
        factors = products.ProductFactors(settings=self.settings)
        products.add_product(call, x.dtype, call.operand(0), call.operand(1), out, factors)
        return call.call(Result(out.address.place))

    def compute(self, node: Apply, x: Any, y: Any) -> Any:
        import cupy

        self._check(node, x.shape, y.shape)
        if products := _products(x, y):
            batch = cupy.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            out = cupy.empty((*batch, x.shape[-2], y.shape[-1]), x.dtype)
            products.multiply(x, y, out, settings=self.settings)
            return out
        with _precision(self.allow_tf32):
            if x.dtype == "bfloat16":
                # CuPy 14 has no batched product of bfloat16 matrices.
                return cupy.matmul(x.astype("float32"), y.astype("float32")).astype(x.dtype)
            return cupy.matmul(x, y)

    def _check(self, node: Apply, x: tuple[int, ...], y: tuple[int, ...]) -> None:
        batch = [v.type.broadcastable[:-2] for v in node.inputs]
        fits = x[-1] == y[-2] and all(
            m == n or (one_x and m == 1) or (one_y and n == 1)
            for m, n, one_x, one_y in zip(x[:-2], y[:-2], *batch, strict=True)
        )
        if not fits:
            raise DnnValueError(f"{self}: shapes {x} and {y} cannot be multiplied")


class GpuGemm(_Product):
    """`Gemm` on the device: ``beta * z + alpha * dot(x, y)``, in place like the host Op.

    ``alpha`` and ``beta`` are host scalars or 0-d device arrays.
    """

    inplace_parameter = "inplace"

    def prepare(
        self, node: Apply, z: Any, alpha: Any, x: Any, y: Any, beta: Any
    ) -> PreparedCall | None:
        shape = (x.shape[0], y.shape[1])
        if not _products(x, y, z):
            return None
        if x.shape[1] != y.shape[0] or z.shape != shape or 0 in (*shape, x.shape[1]):
            return None
        return self.scaled_sum(node, (z, alpha, x, y, beta), shape)

    def compute(self, node: Apply, z: Any, alpha: Any, x: Any, y: Any, beta: Any) -> Any:
        from cupy import cublas

        shape = (x.shape[0], y.shape[1])
        if x.shape[1] != y.shape[0] or not _fills(z.shape, shape, node.inputs[0]):
            raise DnnValueError(
                f"{self}: cannot add z of shape {z.shape} to the product of shapes {x.shape} and"
                f" {y.shape}"
            )
        alpha, beta = _scalar(alpha), _scalar(beta)
        out = _target(z, shape, self.host_op.inplace)
        numbers = isinstance(alpha, np.generic) and isinstance(beta, np.generic)
        products = _products(x, y, out) if numbers else None
        if products and products.has_contiguous_side(out):
            products.multiply(x, y, out, float(alpha), float(beta), self.settings)
            return out
        if x.dtype.char not in "fd" or self.allow_tf32 or 0 in (*shape, x.shape[1]):
            # cuBLAS's plain gemm supports neither 16-bit floats nor TF32. Empty products go
            # this way too, so that their result doesn't depend on cuBLAS.
            return _accumulate(out, beta, self.product(x, y) * alpha)
        return cublas.gemm("N", "N", x, y, out=out, alpha=alpha, beta=beta)

    def __str__(self) -> str:
        return f"GpuGemm{{{'inplace' if self.host_op.inplace else 'no_inplace'}}}"


class GpuGemv(_Product):
    """`Gemv` on the device: ``beta * y + alpha * dot(A, x)``."""

    inplace_parameter = "inplace"

    def prepare(
        self,
        node: Apply,
        y: Any,
        alpha: Any,
        A: Any,  # noqa: N803
        x: Any,
        beta: Any,
    ) -> PreparedCall | None:
        shape = (A.shape[0],)
        if not _products(A, x, y):
            return None
        if A.shape[1] != x.shape[0] or y.shape != shape or 0 in A.shape:
            return None
        return self.scaled_sum(node, (y, alpha, A, x, beta), shape)

    def compute(self, node: Apply, y: Any, alpha: Any, A: Any, x: Any, beta: Any) -> Any:  # noqa: N803
        shape = (A.shape[0],)
        if not _fills(y.shape, shape, node.inputs[0]):
            raise DnnValueError(f"{self}: y of shape {y.shape} doesn't match A of shape {A.shape}")
        product = self.product(A, x)
        product *= _scalar(alpha)
        return _accumulate(_target(y, shape, self.host_op.inplace), _scalar(beta), product)


class GpuGer(_Product):
    """`Ger` on the device: ``A + alpha * outer(x, y)``."""

    inplace_parameter = "destructive"

    def prepare(self, node: Apply, A: Any, alpha: Any, x: Any, y: Any) -> PreparedCall | None:  # noqa: N803
        from dnnops.gpuarray.prepared.builder import CallBuilder, number_at
        from dnnops.gpuarray.prepared.call import Result
        from dnnops.gpuarray.products.scaled import add_scaled_sum

        if A.shape != (*x.shape, *y.shape) or not A.size:
            return None
        call = CallBuilder((A, alpha, x, y))
        z = call.operand(0)
        out = z if self.host_op.destructive else call.new(A.shape, A.dtype)
        scale = node.inputs[1].type.dtype, number_at(node, 1, alpha)
        one: Any = (A.dtype.name, np.ones((), A.dtype))
        arrays = [call.operand(2).as_column(), call.operand(3).with_axes_before(2)]
        if not add_scaled_sum(call, A.dtype.name, out, scale, arrays, (one, z)):
            return None
        return call.call(Result(out.address.place))

    def compute(self, node: Apply, A: Any, alpha: Any, x: Any, y: Any) -> Any:  # noqa: N803
        if A.shape != (*x.shape, *y.shape):
            raise DnnValueError(
                f"{self}: A of shape {A.shape} doesn't match the outer product of x of shape"
                f" {x.shape} and y of shape {y.shape}"
            )
        out = _target(A, A.shape, self.host_op.destructive)
        out += (x * _scalar(alpha))[:, None] * y[None, :]
        return out


def _products(*arrays: Any) -> Any:
    """Return the module that calls cuBLASLt, or None if it cannot multiply the arrays."""
    # Not imported with this module, since most processes multiply nothing on a device.
    from dnnops.gpuarray.products import calls

    same = len({array.dtype for array in arrays}) == 1
    return calls if same and calls.products_available() else None


def _scalar(value: Any) -> Any:
    """Convert a 0-d host array to a NumPy scalar; return a device array unchanged."""
    import cupy

    return value if isinstance(value, cupy.ndarray) else value[()]


def _accumulate(out: Any, beta: Any, product: Any) -> Any:
    """Compute ``out = beta * out + product``; if `beta` is 0, ignore `out`, as BLAS does."""
    if isinstance(beta, np.generic) and beta == 0:
        out[...] = product
    else:
        out *= beta
        out += product
    return out


def _fills(have: tuple[int, ...], want: tuple[int, ...], variable: Any) -> bool:
    ones = variable.type.broadcastable
    return all(h == w or (one and h == 1) for h, w, one in zip(have, want, ones, strict=True))


def _target(z: Any, shape: tuple[int, ...], inplace: bool) -> Any:
    """Return the array to write the result to: `z` itself or a copy."""
    import cupy

    if z.shape != shape:
        return cupy.ascontiguousarray(cupy.broadcast_to(z, shape))
    return z if inplace else z.copy()
