"""Other features of Theano's pooling: old names, 'average', large windows, integers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops.errors import DnnValueError
from dnnops.nnet import Pool, pool_2d, pool_3d
from dnnops.nnet.pool.op import POOL_MODES
from tests.emulation.host_graphs import on_host
from tests.oracle import PERFORM_MODE, evaluate

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((2, 3, 7, 6)).astype("float32")


@pytest.mark.parametrize(("pool", "ndim"), [(pool_2d, 2), (pool_3d, 3)])
def test_old_names(pool, ndim):
    x = pt.tensor(dtype="float32", shape=(2, 3, 7, 6, 5)[: ndim + 2])
    size, step, pad = (3, 2, 2)[:ndim], (2, 2, 1)[:ndim], (1, 1, 0)[:ndim]
    wanted = pool(x, ws=size, ignore_border=True, stride=step, pad=pad)
    found = pool(x, ds=size, ignore_border=True, st=step, padding=pad)
    assert pytensor.graph.basic.equal_computations([wanted], [found])
    for name, value, old in (("ws", size, "ds"), ("stride", step, "st"), ("pad", pad, "padding")):
        given = {"ws": size, name: value, old: value}
        with pytest.raises(DnnValueError, match=f"{old} is an old name of {name}; give only"):
            pool(x, ignore_border=True, **given)


def test_average():
    x = pt.tensor4(dtype="float32")
    assert pool_2d(x, (2, 2), True, mode="average").owner.op == Pool(2, "average_inc_pad", True)


@pytest.mark.filterwarnings("ignore::dnnops.errors.DnnWarning")
@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize("linker", ["py", None], ids=["perform", "compiled"])
def test_windows_larger_than_the_image(mode, linker):
    """Without windows, outputs are empty and gradients zero; sizes may be symbolic."""
    x, sizes = pt.tensor4(dtype="float32"), pt.lvector()
    out = pool_2d(x, sizes, True, (2, 2), (1, 0), mode)
    cost = out.sum() + (x[0, 0, 0, 0] * 3)
    gradient = pytensor.grad(cost, x)
    compiled = PERFORM_MODE if linker else "ONEDNN"
    f = pytensor.function([x, sizes], [out, gradient, out.shape], mode=compiled)
    wanted = np.zeros_like(IMAGE)
    wanted[0, 0, 0, 0] = 3
    for ws, shape in (((10, 2), (2, 3, 0, 3)), ((3, 9), (2, 3, 4, 0)), ((30, 7), (2, 3, 0, 0))):
        values, slopes, sized = f(IMAGE, np.array(ws))
        assert values.shape == shape == tuple(sized)
        np.testing.assert_array_equal(slopes, wanted)
        # The static shape says the same.
        assert pool_2d(IMAGE, ws, True, (2, 2), (1, 0), mode).type.shape == shape
    # In the same function, windows that fit.
    assert f(IMAGE, np.array([3, 2]))[0].shape == (2, 3, 4, 3)


def test_second_derivatives_of_no_windows():
    x = pt.tensor4(dtype="float64")
    first = pytensor.grad((pool_2d(x, (9, 9), True) ** 2).sum(), x)
    second = pytensor.grad((first**2).sum(), x)
    assert not evaluate(second, {x: IMAGE.astype("float64")}).any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers(dtype):
    """Integers keep their dtype: averages are rounded toward zero."""
    info = np.iinfo(dtype)
    top = min(info.max, 2**50) // 4
    x = RNG.integers(max(info.min, -top), top, (1, 2, 4, 4), dtype)
    groups = x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 2, 4)
    total = groups.sum(axis=-1, dtype="int64")
    wanted = {
        "max": groups.max(axis=-1),
        "sum": total.astype(dtype),
        "average_exc_pad": np.trunc(total / 4).astype(dtype),
    }
    for mode, reference in wanted.items():
        out = evaluate(pool_2d(x, (2, 2), True, mode=mode), {})
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, reference)


def test_large_sums_of_integers_wrap_around():
    x = np.full((1, 1, 2, 2), 100, "int8")
    (out,) = pytensor.function(
        [], [pool_2d(pt.constant(x), (2, 2), True, mode="sum")], mode="CVM"
    )()
    assert out == np.int8(400 - 512)
    assert out.dtype == "int8"


def test_dnn_pool_of_a_small_image():
    """`dnnops.dnn.dnn_pool` has the same shapes."""
    from dnnops import dnn

    x = pt.tensor4(dtype="float32")
    out = dnn.dnn_pool(x, (9, 2), (2, 2))
    gradient = pytensor.grad(pt.as_tensor_variable(out).sum(), x)
    values, slopes = evaluate(on_host([out, gradient]), {x: IMAGE})
    assert values.shape == (2, 3, 0, 3)
    assert slopes.shape == IMAGE.shape
    assert not slopes.any()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", POOL_MODES)
def test_windows_larger_than_the_image_on_a_gpu(mode):
    x = pt.tensor4(dtype="float32")
    out = pool_2d(x, (10, 2), True, (2, 2), (1, 0), mode)
    gradient = pytensor.grad(out.sum(), x)
    # Of sums and means it does not depend on the image at all.
    second = pytensor.grad((gradient**2).sum(), x, disconnected_inputs="ignore")
    f = pytensor.function([x], [out, gradient, second], mode="CUDNN")
    values, *slopes = (np.asarray(z.get() if hasattr(z, "get") else z) for z in f(IMAGE))
    assert values.shape == (2, 3, 0, 3)
    for zeros in slopes:
        assert zeros.shape == IMAGE.shape
        assert not zeros.any()
