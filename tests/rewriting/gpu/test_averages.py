"""Running averages whose factor changes are captured."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dnnops import nnet
from dnnops.capture.schedule import schedule
from dnnops.capture.vm import ORDINARY_CALLS
from dnnops.gpuarray import shared
from dnnops.modes import CudnnMode
from tests.emulation.host_graphs import on_host
from tests.gpuarray.graphs import ops, rewritten
from tests.oracle import PERFORM_MODE, assert_close


def outputs_of(x, averages, factor):
    parameters = [pt.constant(np.full(3, n, "float32")) for n in (2, 1)]
    mean, variance = averages
    results = nnet.batch_normalization_train(
        x, *parameters, axes="spatial", running_average_factor=factor,
        running_mean=mean, running_var=variance,
    )  # fmt: skip
    return [results[0], *results[-2:]]


def test_the_factor_is_not_part_of_a_captured_graph():
    x, factor = pt.tensor4(dtype="float32"), pt.dscalar()
    averages = [pt.fvector(), pt.fvector()]
    outputs = [z.transfer("cuda") for z in outputs_of(x, averages, factor)]
    with pytensor.config.change_flags(dnn__enabled="no_check"):
        graph = rewritten([x, *averages, factor], outputs, CudnnMode().excluding("inplace"))
    order = graph.toposort()
    found = schedule(graph, order, [None] * len(order))
    assert found.by_value == ()
    assert graph.inputs[-1] in found.numbers
    assert ops(graph).count("GpuDnnBatchNorm") == 1
    f = pytensor.function(list(graph.inputs), on_host(list(graph.outputs)), mode=PERFORM_MODE)
    plain = pytensor.function(
        [x, *averages, factor], outputs_of(x, averages, factor), mode=PERFORM_MODE
    )
    rng = np.random.default_rng(0)
    image = rng.standard_normal((4, 3, 5, 5)).astype("float32")
    given = [rng.uniform(1, 2, 3).astype("float32") for _ in range(2)]
    for value in (0.1, 1.0, 0.0):
        for got, wanted in zip(f(image, *given, value), plain(image, *given, value), strict=True):
            assert_close(got, np.asarray(wanted, "float64"), bound=1e-6)
    assert np.isnan(f(image, *given, 1.5)[1]).all()


@pytest.mark.gpu
def test_cumulative_averages_are_captured_once():
    """The factor of step n is 1/n."""
    rng = np.random.default_rng(1)
    x = pt.tensor4(dtype="float32")
    averages = [shared(np.full(3, n, "float32")) for n in (0, 1)]
    count = pytensor.shared(np.float64(1))
    out, *new = outputs_of(x, averages, 1 / count)
    updates = [(s, z.transfer("cuda")) for s, z in zip(averages, new, strict=True)]
    f = pytensor.function([x], out, updates=[*updates, (count, count + 1)], mode="CUDNN")
    means = []
    for _ in range(8):
        image = rng.standard_normal((4, 3, 5, 5)).astype("float32")
        means.append(image.mean(axis=(0, 2, 3), dtype="float64"))
        f(image)
        got = np.asarray(averages[0].get_value())
        np.testing.assert_allclose(got, np.mean(means, axis=0), rtol=1e-4, atol=1e-5)
    assert (f.vm.captures, f.vm.replays) == (1, 8 - ORDINARY_CALLS), f.vm.reason
