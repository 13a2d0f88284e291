"""Graphs for the tests, declared with `dnnops.graph` or with any module that has its names.

A function takes the module and an empty graph, and returns the results in the graph's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["DECLARATIONS", "OWN_DECLARATIONS", "channels_last", "contiguous"]


def contiguous(dim):
    """Return the strides of an array in the order of C."""
    return [int(np.prod(dim[i + 1 :])) for i in range(len(dim))]


def channels_last(dim):
    """Return the strides of channels-last images."""
    n, c, *spatial = dim
    strides = contiguous([n, *spatial, c])
    return [strides[0], strides[-1], *strides[1:-1]]


def images(graph, name, dim, **more):
    return graph.tensor(name=name, dim=dim, stride=channels_last(dim), **more)


def array(graph, name, dim, **more):
    return graph.tensor(name=name, dim=dim, stride=contiguous(dim), **more)


def vector(api, graph, name, channels):
    return images(graph, name, [1, channels, 1, 1], data_type=api.data_type.FLOAT)


def number(api, graph, name):
    one = [1, 1, 1, 1]
    float_ = api.data_type.FLOAT
    return graph.tensor(name=name, dim=one, stride=one, data_type=float_, is_pass_by_value=True)


def outputs(api, *tensors, wide=()):
    tensors = [tensor for tensor in tensors if tensor is not None]
    for tensor in tensors:
        tensor.set_output(True)
    for tensor in (tensor for tensor in wide if tensor is not None):
        tensor.set_data_type(api.data_type.FLOAT)
    return tensors


_CONV = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}


def conv(api, graph):
    x, w = images(graph, "x", [4, 16, 9, 9]), images(graph, "w", [8, 16, 3, 3])
    return outputs(api, graph.conv_fprop(x, w, **_CONV))


def conv_asymmetric(api, graph):
    x, w = images(graph, "x", [4, 16, 10, 9]), images(graph, "w", [8, 16, 3, 3])
    more = {"pre_padding": [2, 1], "post_padding": [1, 0], "stride": [2, 1], "dilation": [1, 1]}
    return outputs(api, graph.conv_fprop(x, w, **more))


def conv_3d(api, graph):
    x, w = images(graph, "x", [2, 16, 5, 6, 7]), images(graph, "w", [8, 16, 3, 3, 3])
    more = {"padding": [1, 1, 1], "stride": [1, 1, 1], "dilation": [1, 1, 1]}
    return outputs(api, graph.conv_fprop(x, w, **more))


def conv_groups(api, graph):
    x, w = images(graph, "x", [4, 16, 9, 9]), images(graph, "w", [16, 8, 3, 3])
    return outputs(api, graph.conv_fprop(x, w, **_CONV))


def conv_bias_relu(api, graph):
    x, w = images(graph, "x", [4, 16, 9, 9]), images(graph, "w", [8, 16, 3, 3])
    b = images(graph, "b", [1, 8, 1, 1])
    y = graph.bias(graph.conv_fprop(x, w, **_CONV), b)
    return outputs(api, graph.relu(y))


def scale_bias_relu_conv(api, graph):
    x, w = images(graph, "x", [4, 16, 9, 9]), images(graph, "w", [8, 16, 3, 3])
    s, b = images(graph, "s", [1, 16, 1, 1]), images(graph, "b", [1, 16, 1, 1])
    y = graph.relu(graph.bias(graph.scale(x, s), b)).set_data_type(api.data_type.HALF)
    return outputs(api, graph.conv_fprop(y, w, **_CONV))


def dgrad(api, graph):
    dy, w = images(graph, "dy", [4, 8, 9, 9]), images(graph, "w", [8, 16, 3, 3])
    dx = graph.conv_dgrad(dy, w, **_CONV)
    dx.set_dim([4, 16, 9, 9])
    return outputs(api, dx)


def wgrad(api, graph):
    x, dy = images(graph, "x", [4, 16, 9, 9]), images(graph, "dy", [4, 8, 9, 9])
    dw = graph.conv_wgrad(x, dy, **_CONV)
    dw.set_dim([8, 16, 3, 3])
    return outputs(api, dw)


def matmul(api, graph):
    a, b = array(graph, "a", [3, 16, 8]), array(graph, "b", [3, 8, 24])
    return outputs(api, graph.matmul(a, b))


def matmul_bias_gelu(api, graph):
    a, b = array(graph, "a", [3, 16, 8]), array(graph, "b", [1, 8, 24])
    bias = array(graph, "bias", [1, 1, 24])
    return outputs(api, graph.gelu(graph.bias(graph.matmul(a, b), bias)))


def arithmetic(api, graph):
    a, b, c = (images(graph, name, [4, 16, 9, 9]) for name in "abc")
    y = graph.mul(graph.add(a, b), graph.sub(b, c))
    return outputs(api, graph.max(y, graph.exp(graph.neg(graph.abs(a)))))


def select(api, graph):
    a, b = (images(graph, name, [4, 16, 9, 9]) for name in "ab")
    return outputs(api, graph.binary_select(a, b, graph.cmp_gt(a, b)))


def relu_with_bounds(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    return outputs(api, graph.relu(x, negative_slope=0.1, lower_clip=-0.5, upper_clip=1.5))


def swish_with_beta(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    return outputs(api, graph.swish(x, swish_beta=0.5))


def index(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    i = graph.gen_index(x, axis=2)
    i.set_data_type(api.data_type.INT32)
    return outputs(api, graph.add(x, i))


def reduction(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    y = graph.reduction(x, mode=api.reduction_mode.ADD)
    y.set_dim([1, 16, 1, 1]).set_stride([16, 1, 16, 16])
    return outputs(api, y, wide=[y])


def matmul_max(api, graph):
    a, b = array(graph, "a", [3, 16, 8]), array(graph, "b", [3, 8, 24])
    y = graph.reduction(graph.matmul(a, b), mode=api.reduction_mode.MAX)
    y.set_dim([3, 16, 1]).set_stride([16, 1, 1])
    return outputs(api, y, wide=[y])


def batchnorm(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    s, b, m, v = (vector(api, graph, name, 16) for name in ("s", "b", "m", "v"))
    epsilon, momentum = (number(api, graph, name) for name in ("epsilon", "momentum"))
    y, *stats = graph.batchnorm(
        input=x,
        scale=s,
        bias=b,
        in_running_mean=m,
        in_running_var=v,
        epsilon=epsilon,
        momentum=momentum,
    )
    return outputs(api, y, *stats, wide=stats)


def batchnorm_backward(api, graph):
    dy, x = (images(graph, name, [4, 16, 9, 9]) for name in ("dy", "x"))
    s, m, v = (vector(api, graph, name, 16) for name in ("s", "m", "v"))
    dx, *others = graph.batchnorm_backward(grad=dy, input=x, scale=s, mean=m, inv_variance=v)
    return outputs(api, dx, *others, wide=others)


def batchnorm_inference(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    m, v, s, b = (vector(api, graph, name, 16) for name in ("m", "v", "s", "b"))
    y = graph.batchnorm_inference(input=x, mean=m, inv_variance=v, scale=s, bias=b)
    return outputs(api, y)


def layernorm(api, graph):
    x = images(graph, "x", [32, 64, 1, 1])
    s, b = (vector(api, graph, name, 64) for name in "sb")
    y, *stats = graph.layernorm(
        norm_forward_phase=api.norm_forward_phase.TRAINING,
        input=x,
        scale=s,
        bias=b,
        epsilon=number(api, graph, "epsilon"),
    )
    return outputs(api, y, *stats, wide=stats)


def layernorm_backward(api, graph):
    dy, x = (images(graph, name, [32, 64, 1, 1]) for name in ("dy", "x"))
    s = vector(api, graph, "s", 64)
    m, v = (array(graph, name, [32, 1, 1, 1], data_type=api.data_type.FLOAT) for name in "mv")
    dx, *others = graph.layernorm_backward(grad=dy, input=x, scale=s, mean=m, inv_variance=v)
    return outputs(api, dx, *others, wide=others)


def instancenorm(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    s, b = (vector(api, graph, name, 16) for name in "sb")
    y, *stats = graph.instancenorm(
        norm_forward_phase=api.norm_forward_phase.TRAINING,
        input=x,
        scale=s,
        bias=b,
        epsilon=number(api, graph, "epsilon"),
    )
    return outputs(api, y, *stats, wide=stats)


def instancenorm_backward(api, graph):
    dy, x = (images(graph, name, [4, 16, 9, 9]) for name in ("dy", "x"))
    s = vector(api, graph, "s", 16)
    m, v = (images(graph, name, [4, 16, 1, 1], data_type=api.data_type.FLOAT) for name in "mv")
    dx, *others = graph.instancenorm_backward(grad=dy, input=x, scale=s, mean=m, inv_variance=v)
    return outputs(api, dx, *others, wide=others)


def rmsnorm(api, graph):
    x = images(graph, "x", [32, 64, 1, 1])
    y, *stats = graph.rmsnorm(
        norm_forward_phase=api.norm_forward_phase.TRAINING,
        input=x,
        scale=vector(api, graph, "s", 64),
        epsilon=number(api, graph, "epsilon"),
    )
    return outputs(api, y, *stats, wide=stats)


def rmsnorm_backward(api, graph):
    dy, x = (images(graph, name, [32, 64, 1, 1]) for name in ("dy", "x"))
    v = array(graph, "v", [32, 1, 1, 1], data_type=api.data_type.FLOAT)
    dx, ds, *_ = graph.rmsnorm_backward(
        grad=dy, input=x, scale=vector(api, graph, "s", 64), inv_variance=v, has_dbias=False
    )
    return outputs(api, dx, ds, wide=[ds])


def _heads(graph, query_heads=4, heads=4, length=64, depth=32):
    q = array(graph, "q", [2, query_heads, length, depth])
    return q, *(array(graph, name, [2, heads, length, depth]) for name in "kv")


def _like(result, tensor):
    """Set the shape of a result of attention, which the frontend does not infer."""
    return result.set_dim(tensor.get_dim()).set_stride(tensor.get_stride())


def sdpa(api, graph):
    q, k, v = _heads(graph)
    o, _ = graph.sdpa(q=q, k=k, v=v, generate_stats=False, attn_scale=0.25)
    return outputs(api, _like(o, q))


def sdpa_causal(api, graph):
    q, k, v = _heads(graph)
    o, stats = graph.sdpa(q=q, k=k, v=v, generate_stats=True, attn_scale=0.25, use_causal_mask=True)
    return outputs(api, _like(o, q), stats, wide=[stats])


def sdpa_with_lengths(api, graph):
    q, k, v = _heads(graph, query_heads=8)
    int32 = api.data_type.INT32
    a, b = (array(graph, name, [2, 1, 1, 1], data_type=int32) for name in ("a", "b"))
    bias = array(graph, "bias", [1, 8, 64, 64])
    o, stats = graph.sdpa(
        q=q,
        k=k,
        v=v,
        generate_stats=True,
        attn_scale=0.25,
        bias=bias,
        use_padding_mask=True,
        seq_len_q=a,
        seq_len_kv=b,
    )
    return outputs(api, _like(o, q), stats, wide=[stats])


def sdpa_backward(api, graph):
    q, k, v = _heads(graph)
    o, do = (array(graph, name, [2, 4, 64, 32]) for name in ("o", "do"))
    stats = array(graph, "stats", [2, 4, 64, 1], data_type=api.data_type.FLOAT)
    gradients = graph.sdpa_backward(
        q=q, k=k, v=v, o=o, dO=do, stats=stats, attn_scale=0.25, use_causal_mask=True
    )
    return outputs(api, *map(_like, gradients, (q, k, v)))


#: Graphs that cuDNN's frontend for Python can declare, too.
DECLARATIONS: dict[str, Callable[[Any, Any], list[Any]]] = {
    f.__name__: f
    for f in (
        conv,
        conv_asymmetric,
        conv_3d,
        conv_groups,
        conv_bias_relu,
        scale_bias_relu_conv,
        dgrad,
        wgrad,
        matmul,
        matmul_bias_gelu,
        arithmetic,
        select,
        relu_with_bounds,
        swish_with_beta,
        index,
        reduction,
        matmul_max,
        batchnorm,
        batchnorm_backward,
        batchnorm_inference,
        layernorm,
        layernorm_backward,
        instancenorm,
        instancenorm_backward,
        rmsnorm,
        rmsnorm_backward,
        sdpa,
        sdpa_causal,
        sdpa_with_lengths,
        sdpa_backward,
    )
}


def max_pool(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    more = {"window": [3, 3], "stride": [2, 2], "pre_padding": [1, 1], "post_padding": [1, 1]}
    (y,) = graph.resample(x, api.resample_mode.MAXPOOL, **more)
    return outputs(api, y)


def max_pool_with_index(api, graph):
    x = images(graph, "x", [4, 16, 8, 8])
    y, i = graph.resample(x, api.resample_mode.MAXPOOL, window=[2, 2], generate_index=True)
    i.set_data_type(api.data_type.INT8)
    return outputs(api, y, i)


def average_pool(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    mode = api.resample_mode.AVGPOOL_EXCLUDE_PADDING
    more = {"window": [3, 3], "stride": [2, 2], "pre_padding": [1, 1], "post_padding": [1, 1]}
    (y,) = graph.resample(x, mode, padding_mode=api.padding_mode.ZERO_PAD, **more)
    return outputs(api, y)


def max_pool_backward(api, graph):
    dy = images(graph, "dy", [4, 16, 4, 4])
    i = images(graph, "i", [4, 16, 4, 4], data_type=api.data_type.INT8)
    dx = graph.resample_backward(dy, api.resample_mode.MAXPOOL, window=[2, 2], index=i)
    return outputs(api, dx.set_dim([4, 16, 8, 8]))


def logic(api, graph):
    a, b = (images(graph, name, [4, 16, 9, 9]) for name in "ab")
    both = graph.logical_and(graph.cmp_gt(a, b), graph.logical_not(graph.cmp_lt(a, b)))
    return outputs(api, graph.binary_select(a, b, both))


def scaled(api, graph):
    x = images(graph, "x", [4, 16, 9, 9])
    return outputs(api, graph.mul(x, graph.tensor_scalar(2.5, name="factor")))


#: Graphs for which the frontend for Python has no methods.
OWN_DECLARATIONS: dict[str, Callable[[Any, Any], list[Any]]] = {
    f.__name__: f
    for f in (
        max_pool,
        max_pool_with_index,
        average_pool,
        max_pool_backward,
        logic,
        scaled,
    )
}
