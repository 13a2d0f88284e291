"""The names of theano.gpuarray.dnn: graphs without a GPU, numbers with one."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from dnnops import dnn
from dnnops.errors import DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.gpu.library import cudnn_usable
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool.op import Pool
from tests.gpu.device import check, on_gpu
from tests.oracle import run_op

MODE = get_mode("CVM").including("gpu")


def arrays(count: int, ndim: int = 4, dtype: str = "float32") -> list:
    return [GpuArrayType(dtype, (None,) * ndim)() for _ in range(count)]


def has_op(out, kind) -> bool:
    return any(isinstance(v.owner.op, kind) for v in _ancestors(out) if v.owner)


def _ancestors(out):
    from pytensor.graph.traversal import ancestors

    return ancestors([out])


@pytest.mark.needs("no gpu")
def test_without_a_gpu():
    assert not dnn.dnn_available()
    assert "cuda0" in dnn.dnn_available.msg or "CUDA" in dnn.dnn_available.msg
    assert not dnn.dnn_available("cuda0")
    assert not dnn.dnn_available(0)
    with (
        pytensor.config.change_flags(dnn__enabled="True"),
        pytest.raises(DnnUnavailableError, match=r"dnn\.enabled=True, but cuDNN cannot be used"),
    ):
        dnn.dnn_available()


def test_enabled():
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        assert dnn.dnn_available()
        assert dnn.dnn_available.msg == ""
    with pytensor.config.change_flags(dnn__enabled="False"):
        assert not dnn.dnn_available()
        assert "dnn.enabled=False" in dnn.dnn_available.msg
        assert cudnn_usable(0)[0] is False
    with pytest.raises(DnnValueError, match="gpu0"):
        dnn.dnn_available("gpu0")


@pytest.mark.needs("cudnn")
def test_version():
    assert dnn.dnn_present()
    assert dnn.dnn_present.msg == ""
    assert dnn.version() >= 90000
    assert dnn.version(raises=False) == dnn.version()


@pytest.mark.gpu
def test_available():
    assert dnn.dnn_available(), dnn.dnn_available.msg


def test_direction_hints():
    img, kerns = arrays(2)
    for kwargs, kind in (
        ({}, dnn.GpuDnnConv),
        ({"direction_hint": "bprop weights"}, dnn.GpuDnnConvGradW),
        ({"direction_hint": "bprop weights", "subsample": (2, 1)}, dnn.GpuDnnConv),
        ({"direction_hint": "bprop weights", "num_groups": 2}, dnn.GpuDnnConv),
        ({"direction_hint": "bprop inputs"}, dnn.GpuDnnConv),
        ({"border_mode": "full"}, dnn.GpuDnnConvGradI),
        ({"border_mode": "full", "direction_hint": "forward!"}, dnn.GpuDnnConv),
        ({"border_mode": "full", "algo": "small"}, dnn.GpuDnnConv),
        ({"border_mode": "full", "subsample": (2, 2)}, dnn.GpuDnnConv),
    ):
        out = dnn.dnn_conv(img, kerns, **kwargs)
        assert has_op(out, kind), kwargs
        others = {dnn.GpuDnnConv, dnn.GpuDnnConvGradI, dnn.GpuDnnConvGradW} - {kind}
        assert not any(has_op(out, other) for other in others)


def test_parameters_reach_the_op():
    img, kerns = arrays(2)
    op = dnn.dnn_conv(
        img,
        kerns,
        "half",
        (2, 1),
        (1, 2),
        "cross",
        algo="time_once",
        precision="float32",
        num_groups=2,
    ).owner.op
    assert op.border_mode == "half"
    assert op.subsample == (2, 1)
    assert op.filter_dilation == (1, 2)
    assert not op.filter_flip
    assert op.algo == "time_once"
    assert op.num_groups == 2
    assert op.precision == "float32"
    assert dnn.dnn_conv(img, kerns, workmem="none").owner.op.algo == "none"


@pytest.mark.parametrize(
    ("first", "second", "wide"),
    [
        ("float64", "float32", "float64"),
        ("float16", "float32", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float64", "bfloat16", "float64"),
    ],
)
def test_the_wider_dtype(first, second, wide):
    """The function behaves as in Theano, and like `dnnops.nnet.conv2d`."""
    for ndim, suffix in ((4, ""), (5, "3d")):
        for x, y in ((first, second), (second, first)):
            x, y = (arrays(1, ndim, dtype)[0] for dtype in (x, y))
            shape = (2,) * ndim
            for out in (
                getattr(dnn, f"dnn_conv{suffix}")(x, y),
                getattr(dnn, f"dnn_gradweight{suffix}")(x, y, shape),
                getattr(dnn, f"dnn_gradinput{suffix}")(x, y, shape),
            ):
                assert out.type.dtype == wide
    with pytest.raises(DnnTypeError, match="dnn_conv: the operands must have the same dtype, got"):
        dnn.dnn_conv(arrays(1, 4, "float16")[0], arrays(1, 4, "bfloat16")[0])


def test_operands_of_five_dimensions():
    """`dnn_conv` and its gradients take volumes, as in Theano."""
    volume, kerns = arrays(2, 5)
    for options in (
        {},
        {"subsample": (2, 1, 1), "dilation": (1, 2, 1), "conv_mode": "cross"},
        {"border_mode": (1, 0, 2), "num_groups": 2},
    ):
        found, wanted = dnn.dnn_conv(volume, kerns, **options), dnn.dnn_conv3d(
            volume, kerns, **options
        )  # fmt: skip
        assert found.owner.op == wanted.owner.op
        top, shape = found, (2, 4, 3, 3, 3)
        for name in ("dnn_gradweight", "dnn_gradinput"):
            made = [getattr(dnn, name + end)(volume, top, shape, **options) for end in ("", "3d")]
            assert made[0].owner.op == made[1].owner.op
            assert made[0].owner.op.ndim == 3
    with pytest.raises(DnnTypeError, match="dnn_conv: kerns must have 5 dimensions, got 4"):
        dnn.dnn_conv(volume, arrays(1)[0])


@pytest.mark.parametrize(
    ("dtype", "precision", "others"),
    [
        ("float32", "float64", "float32"),
        ("float64", "float32", "float64"),
        ("float32", "float16", "float32"),
        ("bfloat16", "float64", "float32"),
        ("float16", "float64", "float32 or float16"),
    ],
)
def test_precisions_that_cudnn_lacks(dtype, precision, others):
    img, kerns = arrays(2, 4, dtype)
    message = (
        f"cuDNN 9 has no convolution of {dtype} arrays that computes in {precision}, only in"
        f" {others}. Set that"
    )
    with pytest.raises(DnnValueError, match=message):
        dnn.dnn_conv(img, kerns, precision=precision)


def test_shapes_of_gradients():
    img, kerns, top = arrays(3)
    assert dnn.dnn_gradweight(img, top, (4, 3, 2, 5)).type.shape[2:] == (2, 5)
    assert dnn.dnn_gradweight(img, top, kerns.shape).type.ndim == 4
    assert dnn.dnn_gradinput(kerns, top, (1, 3, 9, 8)).type.shape[2:] == (9, 8)
    img, kerns, top = arrays(3, 5)
    assert dnn.dnn_gradweight3d(img, top, (4, 3, 2, 5, 1)).type.shape[2:] == (2, 5, 1)
    assert dnn.dnn_gradinput3d(kerns, top, (4, 3, 2, 5, 1)).type.shape[2:] == (2, 5, 1)


def test_host_operands_are_transferred():
    x, w = pt.ftensor4(), np.zeros((4, 3, 2, 2), "float32")
    out = dnn.dnn_conv(x, w)
    assert isinstance(out.type, GpuArrayType)
    assert out.type.shape[1] == 4


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: dnn.dnn_conv(*arrays(2), conv_mode="correlate"), DnnValueError, "conv_mode"),
        (lambda: dnn.dnn_conv(*arrays(2), direction_hint="back"), DnnValueError, "direction_hint"),
        (lambda: dnn.dnn_conv(*arrays(2), border_mode=-1), DnnValueError, "border_mode"),
        (lambda: dnn.dnn_conv(*arrays(2, 3)), DnnTypeError, "dnn_conv: img must have 4"),
        (
            lambda: dnn.dnn_conv3d(*arrays(2)),
            DnnTypeError,
            "dnn_conv3d: img must have 5 dimensions",
        ),
        (lambda: dnn.dnn_conv(*arrays(2), algo="quick"), DnnValueError, "quick"),
        (lambda: dnn.dnn_conv(*arrays(2), algo="fft", workmem="fft"), DnnValueError, "workmem"),
        (lambda: dnn.dnn_gradweight(*arrays(2), (3, 3)), DnnValueError, "kerns_shp must have 4"),
        (lambda: dnn.dnn_pool(*arrays(1), (2, 2), mode="mean"), DnnValueError, "mean"),
        (lambda: dnn.dnn_pool(*arrays(1, 2), (2, 2)), DnnValueError, "three to five"),
        (lambda: dnn.dnn_pool(None, (2, 2)), DnnTypeError, "dnn_pool: img cannot be an array"),
        (lambda: dnn.dnn_conv(arrays(1)[0], None), DnnTypeError, "dnn_conv: kerns cannot be"),
        (lambda: dnn.dnn_lrn(None), DnnTypeError, "cannot be an array on a GPU"),
        (lambda: dnn.dnn_spatialtf(None, *arrays(1, 3)), DnnTypeError, "cannot be an array"),
        (lambda: dnn.dnn_reduction(None, "sum"), DnnTypeError, "cannot be an array on a GPU"),
        (
            lambda: dnn.dnn_batch_normalization_train(*arrays(1), None, *arrays(1)),
            DnnTypeError,
            "dnn_batch_normalization_train: gamma cannot be an array",
        ),
        (lambda: dnn.GpuDnnReduction("max", 0, return_indices="no"), DnnTypeError, "return_ind"),
        (lambda: dnn.GpuDnnDropoutOp("no"), DnnTypeError, "inplace must be True or False"),
        (lambda: dnn.GpuDnnBatchNorm("spatial", "no"), DnnTypeError, "running_averages must be"),
        (lambda: dnn.GpuDnnPool("average")(*arrays(1, 2), [2], [1], [0]), DnnTypeError, "three to"),
    ],
)
def test_bad_arguments(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.gpu
@pytest.mark.parametrize("conv_mode", dnn.CONV_MODES)
@pytest.mark.parametrize("hint", [None, "forward!", "bprop weights"])
@pytest.mark.parametrize("border_mode", ["valid", "full"])
def test_hints_compute_the_same(border_mode, hint, conv_mode):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 2, 9, 8)), rng.standard_normal((4, 2, 5, 3))
    img, kerns = arrays(2)
    for dilation in ((1, 1), (1, 2)):
        out = dnn.dnn_conv(
            img, kerns, border_mode, dilation=dilation, conv_mode=conv_mode, direction_hint=hint
        )
        f = pytensor.function([img, kerns], out, mode=MODE)
        flip = conv_mode == "conv"
        abstract = Conv(2, border_mode, filter_flip=flip, filter_dilation=dilation)
        check(f(on_gpu(x, "float32"), on_gpu(w, "float32")), run_op(abstract, x, w), "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("conv_mode", dnn.CONV_MODES)
@pytest.mark.parametrize("ndim", [2, 3])
def test_gradients_compute_the_same(ndim, conv_mode):
    rng = np.random.default_rng(1)
    flip = conv_mode == "conv"
    params = {"border_mode": "half", "filter_flip": flip, "subsample": 2}
    x, w = (
        rng.standard_normal((2, 3, 7, 6, 5)[: ndim + 2]),
        rng.standard_normal((4, 3) + (3,) * ndim),
    )
    top = run_op(Conv(ndim, **params), x, w)
    img, kerns, topgrad = arrays(3, ndim + 2)
    suffix = "3d" if ndim == 3 else ""
    weight = getattr(dnn, f"dnn_gradweight{suffix}")(
        img, topgrad, w.shape, "half", (2,) * ndim, conv_mode=conv_mode
    )
    inputs = getattr(dnn, f"dnn_gradinput{suffix}")(
        kerns, topgrad, x.shape, "half", (2,) * ndim, conv_mode=conv_mode
    )
    f = pytensor.function([img, kerns, topgrad], [weight, inputs], mode=MODE)
    gw, gx = f(*(on_gpu(a, "float32") for a in (x, w, top)))
    check(gw, run_op(ConvGradWeights(ndim, **params), x, top, np.array(w.shape[2:])), "float32")
    check(gx, run_op(ConvGradInputs(ndim, **params), w, top, np.array(x.shape[2:])), "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["max", "sum", "average_inc_pad", "average_exc_pad"])
@pytest.mark.parametrize("ndim", [2, 3])
def test_pool_computes_the_same(ndim, mode):
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 6, 5)[: ndim + 2])
    (img,) = arrays(1, ndim + 2)
    out = dnn.dnn_pool(img, (3,) * ndim, (2,) * ndim, mode, (1,) * ndim)
    f = pytensor.function([img], out, mode=MODE)
    vectors = (np.array([n] * ndim) for n in (3, 2, 1))
    check(f(on_gpu(x, "float32")), run_op(Pool(ndim, mode, True), x, *vectors), "float32")
