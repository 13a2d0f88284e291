"""`GpuDnnConvActivation`: checks and derivatives without a GPU, and results on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.gpu.algorithms import last_plan
from dnnops.gpu.fused.conv_activation import ACTIVATIONS, GpuDnnConvActivation
from dnnops.gpuarray.transfer import as_gpuarray_variable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.activation.op import ACTIVATION_MODES, Activation
from tests.emulation import host_graphs
from tests.gpu.conv.convolutions import in_dtype, operands, reference
from tests.gpu.device import DTYPES, apply_op, check, host, make_node, on_gpu, poison
from tests.oracle import PERFORM_MODE, RELATIVE_ERROR, assert_close, conv_cases, fuzz, run_op

COEFS = {"clipped_relu": 0.75, "elu": 0.5, "swish": 1.5}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def device(*shape: int | None, dtype: str = "float32") -> Any:
    return GpuArrayType(dtype, shape)()


# -- without a GPU ----------------------------------------------------------------------------


def test_activations_are_those_of_the_abstract_op():
    assert set(ACTIVATIONS) == {"identity", *ACTIVATION_MODES}


def test_shapes():
    x, w = device(None, 3, 8, 8), device(5, 3, 3, 3)
    b, z = device(1, 5, 1, 1), device(4, None, None, None)
    op = GpuDnnConvActivation("relu", bias=True, addend=True)
    out = op(x, w, 1.0, b, z)
    assert out.type.shape == (4, 5, 6, 6)
    assert out.type.dtype == "float32"
    assert op(x, w, 1.0, b.astype("float32"), z).type.shape == (4, 5, 6, 6)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GpuDnnConvActivation("softplus"), DnnValueError, "activation must be one of"),
        (lambda: GpuDnnConvActivation("relu", 1.0), DnnValueError, "no coefficient"),
        (lambda: GpuDnnConvActivation("identity", 1.0), DnnValueError, "no coefficient"),
        (lambda: GpuDnnConvActivation("clipped_relu", -1.0), DnnValueError, "positive"),
        (lambda: GpuDnnConvActivation(bias="yes"), DnnTypeError, "bias"),
    ],
)
def test_bad_parameters(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_bad_operands():
    x, w, b, z = device(2, 3, 8, 8), device(5, 3, 3, 3), device(1, 5, 1, 1), device(2, 5, 6, 6)
    op = GpuDnnConvActivation("relu", bias=True, addend=True)
    with pytest.raises(DnnTypeError, match="expected the operands img, kerns, alpha, bias, addend"):
        op.make_node(x, w, 1.0, b)
    with pytest.raises(DnnTypeError, match="must both have dtype float32 or float32"):
        op.make_node(x, w, 1.0, device(1, 5, 1, 1, dtype="float64"), z)
    with pytest.raises(DnnTypeError, match="bias must have 4 dimensions"):
        op.make_node(x, w, 1.0, device(5), z)
    with pytest.raises(DnnTypeError, match="addend must have 4 dimensions and dtype float32"):
        op.make_node(x, w, 1.0, b, device(2, 5, 6, 6, dtype="float16"))
    with pytest.raises(DnnValueError, match="bias"):
        op.make_node(x, w, 1.0, device(1, 4, 1, 1), z)
    with pytest.raises(DnnValueError, match="addend"):
        op.make_node(x, w, 1.0, b, device(2, 5, 6, 7))
    with pytest.raises(DnnNotSupportedError, match="differs before and after"):
        op.replace(border_mode=((0, 1), (0, 0))).make_node(x, w, 1.0, b, z)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives(name):
    """They are those of the expressions."""
    rng = np.random.default_rng(5)
    shapes = ((2, 2, 4, 4), (3, 2, 3, 3), (1, 3, 1, 1), (1, 3, 1, 1), (2, 3, 2, 2))
    given = [pt.tensor(dtype="float64", shape=s) for s in shapes]
    on_device = [as_gpuarray_variable(x) for x in given]
    coef = COEFS.get(name, 0.0)
    op = GpuDnnConvActivation(name, coef, scale=True, bias=True, addend=True)
    out = op(*on_device[:2], 2.0, *on_device[2:])
    x, w, scale, bias, addend = given
    z = 2 * nnet.conv2d(x, w) * scale + addend + bias
    expected = z if name == "identity" else Activation(name, coef)(z)
    by_op = pytensor.grad(pt.as_tensor_variable(out).sum(), given)
    by_expression = pytensor.grad(expected.sum(), given)
    found = host_graphs.on_host([out, *by_op])
    f = pytensor.function(given, [*found, expected, *by_expression], mode=PERFORM_MODE)
    results = f(*(rng.standard_normal(s) / 4 for s in shapes))
    for got, wanted in zip(results[:6], results[6:], strict=True):
        assert_close(got, wanted, bound=1e-12)


# -- on a GPU ---------------------------------------------------------------------------------


class Case:
    """A convolution with an epilogue, its operands and its result."""

    def __init__(self, conv: Any, dtype: str, name: str, parts: int, seed: int):
        rng = np.random.default_rng(seed)
        self.dtype, self.name, self.coef = dtype, name, COEFS.get(name, 0.0)
        self.parts = [p for i, p in enumerate(("scale", "bias", "addend")) if parts >> i & 1]
        self.img, self.kern = in_dtype(operands(conv, 0), dtype)
        plain = reference(conv, 0, (self.img, self.kern))
        vector = (1, plain.shape[1], *(1,) * (plain.ndim - 2))
        shapes = {"scale": vector, "bias": vector, "addend": plain.shape}
        drawn = (rng.standard_normal(shapes[p]) for p in self.parts)
        self.given = dict(zip(self.parts, in_dtype(tuple(drawn), dtype), strict=True))
        z = plain * self.given.get("scale", 1) + self.given.get("addend", 0)
        z = z + self.given.get("bias", 0)
        self.expected = z if name == "identity" else run_op(Activation(name, self.coef), z)
        self.params = conv.params
        self.magnitude = float(np.abs(plain).max(initial=0))

    def op(self, **options: Any) -> Any:
        parts = dict.fromkeys(self.parts, True)
        return GpuDnnConvActivation(self.name, self.coef, **parts, **self.params, **options)

    def arrays(self, memory_format: str) -> list[Any]:
        images = {"addend": memory_format}
        rest = [on_gpu(a, self.dtype, images.get(p, "contiguous")) for p, a in self.given.items()]
        first = [on_gpu(self.img, self.dtype, memory_format), on_gpu(self.kern, self.dtype)]
        return [*first, 1.0, *rest]

    def check(self, out: Any) -> None:
        # A plan without the epilogue rounds its result before the epilogue, which may cancel.
        scale = max(self.magnitude, float(np.abs(self.expected).max(initial=0)), 1e-30)
        error = np.abs(host(out) - self.expected).max(initial=0)
        assert error <= 8 * RELATIVE_ERROR[self.dtype] * scale
        check(out, self.expected, self.dtype, bound=4 * RELATIVE_ERROR[self.dtype])


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stored_plans")
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@every_dtype
@fuzz(
    max_examples=40,
    conv=conv_cases(max_channels=9, max_size=9, max_kernel=4, border_modes=("half", "ints")),
    name=st.sampled_from(ACTIVATIONS),
    parts=st.integers(0, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_random(dtype, memory_format, conv, name, parts, seed):
    case = Case(conv, dtype, name, parts, seed)
    poison()
    case.check(apply_op(case.op(memory_format=memory_format), *case.arrays(memory_format)))


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stored_plans")
@fuzz(
    max_examples=15,
    conv=conv_cases(max_channels=3, max_size=3, border_modes=("half",), empty=True),
    parts=st.integers(0, 7),
)
def test_empty(conv, parts):
    """An empty sum is zero, but has an epilogue."""
    case = Case(conv, "float32", "elu", parts, 1)
    case.check(apply_op(case.op(), *case.arrays("contiguous")))


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stored_plans")
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("parts", [2, 3, 6])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_plan(dtype, flip, parts, memory_format):
    """Plans with the epilogue in the convolution, and with a kernel of its own, agree."""
    import cupy

    from dnnops.plans.gpu import PlanList
    from tests.gpu.conv.convolutions import large_case

    conv = large_case(
        img_shape=(4, 32, 14, 14), kern_shape=(64, 32, 3, 3), border_mode="half", filter_flip=flip
    )
    case = Case(conv, dtype, "relu", parts, 2)
    op = case.op(memory_format=memory_format, allow_tf32=False)
    node, inputs = make_node(op, *case.arrays(memory_format))
    out = on_gpu(np.zeros(case.expected.shape), dtype, memory_format)
    fused = unfused = 0
    with PlanList(node, inputs, out) as listed:
        for index, plan in enumerate(listed.plans):
            if plan.reason:
                continue
            out[...] = cupy.nan
            listed.run(index)
            case.check(out)
            unfused += plan.name.endswith("_unfused")
            fused += not plan.name.endswith("_unfused")
    assert unfused
    # With a scale, cuDNN 9.19 computed wrong results in 16 bits.
    if dtype != "float32" and memory_format == "channels_last" and parts != 3:
        assert fused


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stored_plans")
def test_nan_passes_relu():
    """In every plan, whether relu is cuDNN's or a dnnops kernel's."""
    from dnnops.plans.gpu import PlanList
    from tests.gpu.conv.convolutions import large_case

    conv = large_case(img_shape=(2, 32, 8, 8), kern_shape=(32, 32, 1, 1), border_mode="valid")
    case = Case(conv, "bfloat16", "relu", 2, 2)
    case.img[1, :, 2, 3] = np.nan
    op = case.op(memory_format="channels_last")
    node, inputs = make_node(op, *case.arrays("channels_last"))
    out = on_gpu(np.zeros(case.expected.shape), "bfloat16", "channels_last")
    with PlanList(node, inputs, out) as listed:
        for index, plan in enumerate(listed.plans):
            if not plan.reason:
                listed.run(index)
                found = np.isnan(host(out))
                assert found[1, :, 2, 3].all(), plan.name
                assert found.sum() == case.expected.shape[1], plan.name


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stored_plans")
def test_policies():
    """Words select plans as for other convolutions; timing may select either kind."""
    from tests.gpu.conv.convolutions import large_case

    case = Case(large_case(), "float16", "relu", 2, 2)
    arrays = case.arrays("channels_last")
    for algo in ("guess_once", "time_on_shape_change", "small", "deterministic"):
        op = case.op(memory_format="channels_last", algo=algo)
        case.check(apply_op(op, *arrays))
        assert last_plan().endswith("_unfused") >= (algo in ("small", "deterministic"))
    guessed = apply_op(case.op(memory_format="channels_last", algo="guess_once"), *arrays)
    case.check(guessed)
    assert not last_plan().endswith("_unfused")
