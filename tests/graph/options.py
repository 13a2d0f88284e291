"""Graphs that use what those of `tests.graph.declarations` leave at its default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnops.graph.nodes.pointwise import POINTWISE
from tests.graph.declarations import array, channels_last, images, number, outputs, vector

__all__ = ["OPTIONS"]


def _attention(api, graph, gradients=False):
    """Return operands and options of attention over fewer keys than queries, with shared heads."""
    q = array(graph, "q", [2, 8, 48, 16])
    k, v = (array(graph, name, [2, 2, 32, 16]) for name in "kv")
    lengths = [array(graph, x, [2, 1, 1, 1], data_type=api.data_type.INT32) for x in ("a", "b")]
    drawn = [array(graph, x, [1, 1, 1, 1], data_type=api.data_type.INT64) for x in ("s", "o")]
    more = {
        "bias": array(graph, "bias", [1, 8, 48, 32]),
        "use_padding_mask": True,
        "seq_len_q": lengths[0],
        "seq_len_kv": lengths[1],
        "use_causal_mask": True,
        "dropout": (0.25, *drawn),
    }
    return (q, k, v), more


def sdpa_with_all(api, graph):
    (q, k, v), more = _attention(api, graph)
    o, stats = graph.sdpa(q=q, k=k, v=v, is_inference=False, **more)
    return outputs(api, o, stats, wide=[stats])


def sdpa_with_dropout(api, graph):
    (q, k, v), more = _attention(api, graph)
    o, _ = graph.sdpa(q=q, k=k, v=v, generate_stats=False, dropout=more["dropout"])
    return outputs(api, o)


def sdpa_backward_with_all(api, graph):
    (q, k, v), more = _attention(api, graph)
    o, do = (array(graph, name, [2, 8, 48, 16]) for name in ("o", "do"))
    stats = array(graph, "stats", [2, 8, 48, 1], data_type=api.data_type.FLOAT)
    found = graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=do, stats=stats, **more)
    return outputs(api, *found)


def every_pointwise(api, graph):
    """Each elementwise operation, with the default of each of its parameters that has one."""
    a, b = (images(graph, name, [4, 16, 9, 9]) for name in "ab")
    condition = graph.cmp_gt(a, b)
    found = []
    for name, method in sorted(POINTWISE.items()):
        operands = [a, b, condition][: len(method.operands)]
        if name.startswith("logical"):
            operands = [condition] * len(method.operands)
        more = {"axis": 1} if name == "gen_index" else {}
        more |= {"negative_slope": 0.1} if name.startswith("leaky_relu") else {}
        found.append(getattr(graph, name)(*operands, **more))
    return outputs(api, *found)


def pointwise_parameters(api, graph):
    x, dy = (images(graph, name, [4, 16, 9, 9]) for name in ("x", "dy"))
    more = {"negative_slope": 0.1, "lower_clip": -1.0, "upper_clip": 6.0}
    return outputs(
        api,
        graph.relu(x, **more),
        graph.relu_backward(dy, x, **more),
        graph.elu(x, elu_alpha=0.5),
        graph.elu_backward(dy, x, elu_alpha=0.5),
        graph.softplus(x, softplus_beta=2.0),
        graph.softplus_backward(dy, x, softplus_beta=2.0),
        graph.swish(x, swish_beta=1.5),
        graph.swish_backward(dy, x, swish_beta=1.5),
    )


def every_reduction(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    modes = [mode for mode in api.reduction_mode if mode.name != "NOT_SET"]
    found = [graph.reduction(x, mode).set_dim([1, 16, 1, 1]) for mode in modes]
    for result in found:
        result.set_stride(channels_last([1, 16, 1, 1]))
    return outputs(api, *found, wide=found)


def matmul_with_padding(api, graph):
    a, b = array(graph, "a", [3, 8, 16]), array(graph, "b", [1, 16, 24])
    return outputs(api, graph.matmul(a, b, padding=2.0), graph.matmul(a, b))


def joined(api, graph):
    parts = [array(graph, name, [2, n, 5]) for name, n in (("a", 3), ("b", 4))]
    whole = graph.concatenate(parts, 1, in_place_index=0)
    return outputs(api, whole)


def pooled_by_window(api, graph):
    x = images(graph, "x", [4, 16, 9, 11])
    more = {"window": [3, 2], "stride": [2, 1], "pre_padding": [1, 0], "post_padding": [0, 1]}
    mode = api.resample_mode.AVGPOOL_INCLUDE_PADDING
    (y,) = graph.resample(x, mode, padding_mode=api.padding_mode.ZERO_PAD, **more)
    return outputs(api, y)


def pooled_backward_by_values(api, graph):
    x, y, dy = (images(graph, n, [4, 16, s, s]) for n, s in (("x", 9), ("y", 4), ("dy", 4)))
    mode = api.resample_mode.MAXPOOL
    dx = graph.resample_backward(dy, mode, window=[3, 3], stride=[2, 2], input=x, output=y)
    return outputs(api, dx.set_dim([4, 16, 9, 9]))


def batchnorm_with_averages(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    scale, bias, mean, variance = (vector(api, graph, name, 16) for name in "sbmv")
    epsilon, momentum = (number(api, graph, name) for name in ("epsilon", "momentum"))
    found = graph.batchnorm(x, scale, bias, mean, variance, epsilon, momentum)
    return outputs(api, *found, wide=found[1:])


OPTIONS: dict[str, Callable[[Any, Any], list[Any]]] = {
    f.__name__: f
    for f in (
        sdpa_with_all,
        sdpa_with_dropout,
        sdpa_backward_with_all,
        every_pointwise,
        pointwise_parameters,
        every_reduction,
        matmul_with_padding,
        joined,
        pooled_by_window,
        pooled_backward_by_values,
        batchnorm_with_averages,
    )
}
