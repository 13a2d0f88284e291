"""Declaration of graphs, inference, and errors, which need no cuDNN."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from dnnops import graph as cudnn
from dnnops.errors import DnnError, DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.nodes.pointwise import POINTWISE
from tests.graph.planning import EVERY, declared

TYPES = cudnn.data_type


def new(**more):
    return cudnn.pygraph(
        **{
            "io_data_type": TYPES.HALF,
            "intermediate_data_type": TYPES.FLOAT,
            "compute_data_type": TYPES.FLOAT,
            **more,
        }
    )


def test_first_notebook_prints_what_it_printed():
    """The notebook of cuDNN's frontend shows these texts."""
    graph = cudnn.pygraph(io_data_type=TYPES.HALF, compute_data_type=TYPES.FLOAT)
    x = graph.tensor(
        name="X",
        dim=[8, 64, 56, 56],
        stride=[56 * 56 * 64, 1, 56 * 64, 64],
        data_type=TYPES.HALF,
    )
    w = graph.tensor(name="W", dim=[32, 64, 3, 3], stride=[3 * 3 * 64, 1, 3 * 64, 64])
    y = graph.conv_fprop(
        x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1], compute_data_type=TYPES.FLOAT
    )
    assert repr(y.set_output(True)) == (
        '[{"data_type":null,"dim":[],"is_pass_by_value":false,"is_virtual":false,"name":"0::Y",'
        '"pass_by_value":null,"reordering_type":"NONE","stride":[],"uid":0,"uid_assigned":false}]'
    )
    graph.validate()
    printed = str(graph)
    assert '"dilation": [1,1],' in printed
    read = json.loads(printed)
    (node,) = read["nodes"]
    assert node == {
        "compute_data_type": "FLOAT",
        "dilation": [1, 1],
        "inputs": {"W": "W", "X": "X"},
        "math_mode": "CROSS_CORRELATION",
        "name": "0",
        "outputs": {"Y": "0::Y"},
        "post_padding": [1, 1],
        "pre_padding": [1, 1],
        "stride": [1, 1],
        "tag": "CONV_FPROP",
    }
    assert read["tensors"]["0::Y"]["dim"] == [8, 32, 56, 56]
    assert read["tensors"]["0::Y"]["data_type"] == "HALF"
    assert read["context"]["io_data_type"] == "HALF"


@pytest.mark.parametrize("name", EVERY)
def test_stored_declarations_are_equal(name):
    graph, _ = declared(name)
    again = cudnn.pygraph()
    again.deserialize(graph.serialize())
    graph.validate()
    assert str(again) == str(graph)
    assert again.serialize() == graph.serialize()


def test_lists_of_inputs_and_outputs():
    graph, (y,) = declared("conv_bias_relu")
    assert [t.name for t in graph.get_inputs()] == ["x", "w", "b"]
    assert graph.get_outputs() == [y]
    graph.validate()
    assert graph.find_tensor("x") is graph.find_tensor(graph.find_tensor("x").uid)
    assert len({t.uid for t in graph.tensors.values()}) == len(graph.tensors)


def test_setters_chain_and_getters_return_what_was_set():
    graph = new()
    x = graph.tensor([2, 3])
    assert x.get_stride() == [3, 1]
    y = graph.relu(x).set_name("y").set_dim((2, 3)).set_stride(np.array([1, 2])).set_uid(7)
    y.set_data_type("float32").set_output(True).set_is_pass_by_value(False)
    assert (y.get_name(), y.get_dim(), y.get_stride(), y.get_uid()) == ("y", [2, 3], [1, 2], 7)
    assert (y.get_data_type(), y.get_is_virtual()) == (TYPES.FLOAT, False)
    assert graph.find_tensor("y") is y
    graph.validate()
    assert x.uid not in (-1, 7)


def test_tensor_like():
    graph = new()
    x = graph.tensor_like(np.zeros((4, 3), "float32").T)
    assert (x.dim, x.stride, x.data_type) == ([3, 4], [1, 3], TYPES.FLOAT)
    y = graph.tensor_like(x, name="same")
    assert (y.dim, y.stride, y.data_type, y.name) == (x.dim, x.stride, x.data_type, "same")
    with pytest.raises(DnnTypeError, match="not a tensor of a graph, or an array"):
        graph.tensor_like("x")


def test_every_elementwise_mode_has_a_method():
    modes = {method.mode for method in POINTWISE.values()}
    from dnnops.graph.names import pointwise_mode

    assert modes == {mode.name for mode in pointwise_mode}
    assert cudnn.pygraph.relu.__doc__.startswith("Clip")


def test_importing_the_ops_does_not_import_the_rest():
    code = "import sys, dnnops.graph.op; print('dnnops.graph.user_graph' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def _images(graph, name="x", dim=(2, 4, 5, 5)):
    return graph.tensor(dim, name=name)


def _no_operations():
    return new()


def _no_outputs():
    graph = new()
    graph.relu(_images(graph))
    return graph


def _no_type():
    graph = cudnn.pygraph(compute_data_type=TYPES.FLOAT)
    graph.relu(_images(graph)).set_output(True)
    return graph


def _no_compute_type():
    graph = cudnn.pygraph(io_data_type=TYPES.FLOAT)
    graph.relu(_images(graph)).set_output(True)
    return graph


def _no_intermediate_type():
    graph = cudnn.pygraph(io_data_type=TYPES.FLOAT, compute_data_type=TYPES.FLOAT)
    graph.relu(graph.relu(_images(graph))).set_output(True)
    return graph


def _no_broadcast():
    graph = new()
    graph.add(_images(graph), _images(graph, "y", (2, 3, 5, 5))).set_output(True)
    return graph


def _other_ranks():
    graph = new()
    graph.add(_images(graph), graph.tensor([4], name="y")).set_output(True)
    return graph


def _groups():
    graph = new()
    graph.conv_fprop(_images(graph), _images(graph, "w", (6, 3, 3, 3))).set_output(True)
    return graph


def _filters_of_a_group():
    graph = new()
    graph.conv_fprop(_images(graph), _images(graph, "w", (5, 2, 3, 3))).set_output(True)
    return graph


def _large_filters():
    graph = new()
    graph.conv_fprop(_images(graph), _images(graph, "w", (6, 4, 9, 9))).set_output(True)
    return graph


def _short_padding():
    graph = new()
    w = _images(graph, "w", (6, 4, 3, 3))
    graph.conv_fprop(_images(graph), w, padding=[1]).set_output(True)
    return graph


def _dgrad_without_dim():
    graph = new()
    w = _images(graph, "w", (6, 4, 3, 3))
    graph.conv_dgrad(_images(graph, "y", (2, 6, 5, 5)), w, padding=[1, 1]).set_output(True)
    return graph


def _wrong_top():
    graph = new()
    w = _images(graph, "w", (6, 4, 3, 3))
    dx = graph.conv_dgrad(_images(graph, "y", (2, 6, 5, 5)), w)
    dx.set_dim([2, 4, 5, 5]).set_output(True)
    return graph


def _wrong_result():
    graph = new()
    graph.relu(_images(graph)).set_dim([1, 2, 3, 4]).set_output(True)
    return graph


def _inner_sizes():
    graph = new()
    graph.matmul(graph.tensor([2, 3]), graph.tensor([4, 5])).set_output(True)
    return graph


def _reduction_without_dim():
    graph = new()
    graph.reduction(_images(graph), cudnn.reduction_mode.ADD).set_output(True)
    return graph


def _reduction_of_other_sizes():
    graph = new()
    y = graph.reduction(_images(graph), cudnn.reduction_mode.ADD)
    y.set_dim([2, 2, 1, 1]).set_output(True)
    return graph


def _same_uid():
    graph = new()
    x = _images(graph).set_uid(3)
    graph.relu(x).set_uid(3).set_output(True)
    return graph


def _wrong_scale():
    graph = new()
    x, s = _images(graph), _images(graph, "s", (1, 3, 1, 1))
    number = graph.tensor_scalar(1e-5)
    graph.instancenorm(cudnn.norm_forward_phase.INFERENCE, x, s, s, number)[0].set_output(True)
    return graph


def _odd_heads():
    graph = new()
    q, k, v = (graph.tensor([2, n, 8, 16], name=name) for name, n in (("q", 3), ("k", 2), ("v", 2)))
    graph.sdpa(q, k, v, generate_stats=False)[0].set_output(True)
    return graph


def _wrong_lengths():
    graph = new()
    q, k, v = (graph.tensor([2, 2, 8, 16], name=name) for name in "qkv")
    valid, wrong = (graph.tensor([2, 1, 1, n], data_type="int32") for n in (1, 2))
    more = {"use_padding_mask": True, "seq_len_q": valid, "seq_len_kv": wrong}
    graph.sdpa(q, k, v, generate_stats=False, **more)[0].set_output(True)
    return graph


def _sizes_to_join():
    graph = new()
    x, y = _images(graph), _images(graph, "y", (2, 4, 5, 6))
    graph.concatenate([x, y], 1).set_output(True)
    return graph


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (_no_operations, "no operations"),
        (_no_outputs, r"no outputs; call set_output\(True\)"),
        (_no_type, "tensor 'x' has no data type; set it, or io_data_type"),
        (_no_compute_type, "set compute_data_type"),
        (_no_intermediate_type, "set it, or intermediate_data_type"),
        (_no_broadcast, "do not broadcast along axis 1"),
        (_other_ranks, "different ranks"),
        (_groups, "number of groups"),
        (_filters_of_a_group, "5 filters do not divide into 2 groups"),
        (_large_filters, "larger than padded images"),
        (_short_padding, "pre_padding must have a number for each of 2 spatial axes"),
        (_dgrad_without_dim, r"call set_dim\(the shape of the images\)"),
        (_wrong_top, r"'y' has dim \[2, 6, 5, 5\], but the output of the convolution has"),
        (_wrong_result, r"has dim \[1, 2, 3, 4\], but the operands give"),
        (_inner_sizes, "last size of A"),
        (_reduction_without_dim, "with 1 for the axes to reduce"),
        (_reduction_of_other_sizes, "with 1 for the axes to reduce"),
        (_same_uid, "same uid 3"),
        (_wrong_scale, "SCALE"),
        (_odd_heads, "heads of Q a multiple"),
        (_wrong_lengths, r"SEQ_LEN_KV has dim \[2, 1, 1, 2\]; expected \[2, 1, 1, 1\]"),
        (_sizes_to_join, "differ in other axes than 1"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_invalid_graphs(declare, words):
    graph = declare()
    with pytest.raises(DnnValueError, match=words):
        graph.validate()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda g, x: g.relu("x"), DnnTypeError, "IN_0 must be a tensor of a graph"),
        (lambda g, x: g.relu(new().tensor([2])), DnnValueError, "belongs to another graph"),
        (lambda g, x: g.relu(), TypeError, "missing a required argument"),
        (lambda g, x: g.relu(x, slope=1), TypeError, "unexpected keyword"),
        (lambda g, x: g.tensor([2, 0]), DnnValueError, "must be at least 1"),
        (lambda g, x: g.tensor([2.5]), DnnTypeError, "sequence of integers"),
        (lambda g, x: g.tensor("23"), DnnTypeError, "sequence of integers"),
        (lambda g, x: g.tensor([2, 3], [1]), DnnValueError, "different lengths"),
        (lambda g, x: g.tensor([2], name=3), DnnTypeError, "a name must be a str"),
        (lambda g, x: g.relu(x, name=["y"]), DnnTypeError, "a name must be a str"),
        (lambda g, x: g.tensor([float("inf")]), DnnTypeError, "sequence of integers"),
        (lambda g, x: g.tensor([2**70]), DnnValueError, "64 bits"),
        (lambda g, x: g.tensor([2], uid=1.5), DnnTypeError, "uid of .* must be an integer"),
        (lambda g, x: g.tensor([2], ragged_offset="o"), DnnTypeError, "another tensor"),
        (lambda g, x: x.set_ragged_offset(x), DnnTypeError, "another tensor"),
        (lambda g, x: x.set_ragged_offset(new().tensor([2])), DnnTypeError, "another tensor"),
        (lambda g, x: g.tensor([2], reordering_type="NONE"), DnnTypeError, "tensor_reordering"),
        (lambda g, x: g.tensor_scalar("a"), DnnTypeError, "is a number"),
        (lambda g, x: g.tensor_scalar(1.5, "int32"), DnnValueError, "not int32"),
        (lambda g, x: g.tensor_scalar(300, "int8"), DnnValueError, "not int8"),
        (lambda g, x: g.add(x, None), DnnTypeError, "IN_1 is missing"),
        (lambda g, x: g.conv_fprop(x, None), DnnTypeError, "W is missing"),
        (lambda g, x: g.sdpa(x, None, x, generate_stats=True), DnnTypeError, "K is missing"),
        (lambda g, x: g.reduction(x, "ADD"), DnnTypeError, "member of reduction_mode"),
        (lambda g, x: g.reduction(x, None), DnnTypeError, "member of reduction_mode"),
        (
            lambda g, x: g.conv_fprop(x, x, convolution_mode=cudnn.reduction_mode.MUL),
            DnnTypeError,
            "member of convolution_mode",
        ),
        (lambda g, x: g.layernorm("TRAINING", x, x, x, x), DnnTypeError, "norm_forward_phase"),
        (lambda g, x: g.layernorm(None, x, x, x, x), DnnTypeError, "norm_forward_phase is"),
        (lambda g, x: g.gen_index(x, 1.5), DnnTypeError, "axis must be an integer"),
        (lambda g, x: g.relu(x, negative_slope="a"), DnnTypeError, "must be a number"),
        (lambda g, x: g.concatenate(x, 0), DnnValueError, "a list of at least one"),
        (lambda g, x: g.concatenate([x], "a"), DnnTypeError, "axis must be an integer"),
        (
            lambda g, x: g.sdpa(x, x, x, generate_stats=True, use_alibi_mask=True),
            DnnNotSupportedError,
            "use_alibi_mask is not supported",
        ),
        (
            lambda g, x: g.sdpa(x, x, x, generate_stats=True, diagonal_band_left_bound=2),
            DnnNotSupportedError,
            "only that of use_causal_mask",
        ),
        (
            lambda g, x: g.batchnorm(x, x, x, None, None, x, None, peer_stats=[x]),
            DnnNotSupportedError,
            "peer_stats",
        ),
        (lambda g, x: cudnn.pygraph(sm_count=8), DnnNotSupportedError, "sm_count"),
        (lambda g, x: g.deserialize(), DnnTypeError, "deserialize takes"),
        (lambda g, x: new().deserialize("data"), DnnTypeError, "must be bytes"),
        (lambda g, x: g.tensor([2], data_type="complex64"), DnnTypeError, "not a data type"),
        (lambda g, x: g.concatenate([], 0), DnnValueError, "at least one"),
        (lambda g, x: g.sdpa(x, x, x), DnnTypeError, "generate_stats or is_inference"),
        (
            lambda g, x: g.sdpa(x, x, x, generate_stats=True),
            DnnNotSupportedError,
            "K and V are one tensor",
        ),
        (
            lambda g, x: g.sdpa(x, x, x, generate_stats=True, use_padding_mask=True),
            DnnValueError,
            "seq_len_q and seq_len_kv",
        ),
        (
            lambda g, x: g.sdpa(x, x, x, generate_stats=True, dropout=(1.5, x, x)),
            DnnValueError,
            "not in",
        ),
        (
            lambda g, x: g.conv_fprop(x, x, padding=[1, 1], pre_padding=[1, 1]),
            DnnValueError,
            "padding",
        ),
        (
            lambda g, x: g.batchnorm(x, x, x, x, None, x, None),
            DnnValueError,
            "or none of them",
        ),
        (lambda g, x: g.gen_index(x, -1), DnnValueError, "must not be negative"),
        (
            lambda g, x: g.resample(x, cudnn.resample_mode.NEAREST, [2, 2], generate_index=True),
            DnnValueError,
            "only max pooling",
        ),
        (lambda g, x: g.find_tensor("z"), DnnValueError, "no tensor 'z'"),
        (lambda g, x: copy.copy(g), TypeError, "use serialize"),
        (lambda g, x: pickle.dumps(g), TypeError, "use serialize"),
        (lambda g, x: cudnn.pygraph(device_property="H200"), DnnTypeError, "device_properties"),
        (lambda g, x: cudnn.nothing, AttributeError, "has no attribute 'nothing'"),
    ],
)
def test_invalid_calls(call, error, words):
    graph = new()
    with pytest.raises(error, match=words):
        call(graph, _images(graph))
    # Nothing of the call is left.
    assert list(graph.tensors)[:1] == ["x"]
    assert not graph.nodes


def test_names_that_are_taken_get_a_number():
    graph = new()
    x, y = graph.tensor([2], name="x"), graph.tensor([2], name="x")
    assert (x.name, y.name) == ("x", "x_1")
    graph.tensor([2], name="r::OUT_0")
    results = [graph.relu(x, name="r") for _ in range(2)]
    assert [node.name for node in graph.nodes] == ["r", "r_1"]
    assert [r.name for r in results] == ["r::OUT_0_1", "r_1::OUT_0"]
    assert y.set_name("x").name == "x_2"


def test_results_that_are_not_computed_are_none():
    """As in cuDNN's frontend, so that they can be unpacked."""
    graph = new()
    x, s = graph.tensor([2, 4, 5, 5]), graph.tensor([1, 4, 1, 1])
    number = graph.tensor_scalar(1e-5)
    inference = cudnn.norm_forward_phase.INFERENCE
    assert graph.layernorm(inference, x, s, s, number)[1:] == [None] * 2
    assert graph.rmsnorm(inference, x, s, epsilon=number)[1:] == [None]
    assert graph.batchnorm(x, s, s, None, None, number, None)[3:] == [None] * 2
    assert graph.rmsnorm_backward(x, x, s, s, has_dbias=False)[2:] == [None]


def test_causal_bands():
    graph = new()
    q, k, v = (graph.tensor([1, 1, 4, 4]) for _ in range(3))
    for more in ({"use_causal_mask": True}, {"diagonal_band_right_bound": 0}, {}):
        graph.sdpa(q, k, v, generate_stats=False, **more)
    assert [node.parameters["causal_mask"] for node in graph.nodes] == [True, True, False]


def test_failed_validation_leaves_the_graph_as_it_was():
    graph = new()
    x, z = graph.tensor([4, 4], name="x"), graph.tensor([4, 5], name="z")
    graph.add(graph.relu(x), z).set_output(True)
    before = str(graph)
    with pytest.raises(DnnValueError, match="broadcast"):
        graph.validate()
    assert str(graph) == before
    x.set_dim([4, 5]).set_stride([5, 1])
    graph.validate()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.set_stride([1]), "different lengths"),
        (lambda x: x.set_is_virtual(True), "no operation computes the virtual tensor 'x'"),
    ],
)
def test_tensors_are_checked(change, words):
    graph = new()
    x = graph.tensor([4, 4], name="x")
    graph.relu(x).set_output(True)
    change(x)
    with pytest.raises(DnnValueError, match=words):
        graph.validate()


def test_number_on_the_host_is_passed_by_value():
    graph = new()
    assert graph.tensor_like(np.ones((1, 1, 1, 1), "float32")).is_pass_by_value
    assert not graph.tensor_like(np.ones((1, 2), "float32")).is_pass_by_value
    number = graph.tensor_scalar(0.1, "float16")
    assert number.value == float(np.float16(0.1))
    assert number.get_is_pass_by_value()


def test_damaged_fields_raise_errors_of_dnnops():
    """Replace each field by values of other types."""
    data = json.loads(declared("sdpa_with_lengths")[0].serialize())

    def places(value, path=()):
        yield path
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from places(item, (*path, key))

    damaged = 0
    for path in places(data):
        for value in (None, "x", -1, 10**30, [], {}, ["data_type", "FLOAT"], 1.5):
            changed = copy.deepcopy(data)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if path:
                place[path[-1]] = value
            else:
                changed = value
            graph = new()
            try:
                graph.deserialize(json.dumps(changed).encode())
            except DnnError:
                damaged += 1
                assert not graph.tensors
    assert damaged > 1000
    with pytest.raises(DnnValueError, match="not a serialized graph"):
        new().deserialize(b"[" * 300_000)


def test_validated_graphs_do_not_change():
    graph, (y,) = declared("conv")
    graph.validate()
    before = str(graph)
    for change in (
        lambda: graph.tensor([2]),
        lambda: graph.relu(y),
        lambda: y.set_dim([1]),
        lambda: y.set_output(False),
        lambda: y.set_name("y"),
    ):
        with pytest.raises(DnnValueError, match="too late"):
            change()
    assert str(graph) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 99}',
        b'{"version": 1}',
        json.dumps({"version": 1, "name": "x", "tensors": [{}], "nodes": []}).encode(),
        None,
    ],
)
def test_damaged_data_leave_the_graph_empty(data):
    graph = new()
    with pytest.raises(DnnError, match=r"data|version"):
        graph.deserialize(data)
    assert not graph.tensors
    assert not graph.nodes


def test_truncated_data():
    data = declared("sdpa_with_lengths")[0].serialize()
    for length in range(0, len(data), 97):
        graph = new()
        with pytest.raises(DnnError):
            graph.deserialize(data[:length])
        assert not graph.tensors


def test_deserialize_needs_an_empty_graph():
    graph, _ = declared("conv")
    with pytest.raises(DnnValueError, match="not empty"):
        graph.deserialize(graph.serialize())


def test_what_the_gradient_of_pooling_needs():
    """For maxima, their positions, or the input and the output; for averages, neither."""
    for mode in (
        m for m in cudnn.resample_mode if m.name in ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING")
    ):
        for given in range(8):
            graph = new()
            loss, index, x, y = (graph.tensor([2, 8, n, n]) for n in (4, 4, 8, 4))
            operands = {"index": index, "input": x, "output": y}
            chosen = {k: v for i, (k, v) in enumerate(operands.items()) if given >> i & 1}
            needs = mode.name == "MAXPOOL"
            if needs and "index" not in chosen and not {"input", "output"} <= set(chosen):
                with pytest.raises(DnnValueError, match="needs index, or input and output"):
                    graph.resample_backward(loss, mode, [2, 2], [2, 2], **chosen)
            else:
                graph.resample_backward(loss, mode, [2, 2], [2, 2], **chosen)
                ports = {"index": "INDEX", "input": "X", "output": "Y"}
                assert set(graph.nodes[0].inputs) == {"DY", *(ports[key] for key in chosen)}


def test_windows_strides_and_padding_at_both_ends():
    """For pooling and convolution; what is not given has its default on every axis."""
    rng = np.random.default_rng(4)
    for _ in range(60):
        ndim = int(rng.integers(1, 4))
        sizes, window = rng.integers(8, 20, ndim).tolist(), rng.integers(1, 5, ndim).tolist()
        given = {
            name: rng.integers(low, 4, ndim).tolist()
            for name, low in (("stride", 1), ("pre_padding", 0), ("post_padding", 0))
            if rng.random() < 0.6
        }
        before, after = (given.get(f"{end}_padding", [0] * ndim) for end in ("pre", "post"))
        room = [n + a + b - k for n, a, b, k in zip(sizes, before, after, window, strict=True)]

        def dims(strides, room=room):
            return [left // step + 1 for left, step in zip(room, strides, strict=True)]

        graph = new(io_data_type="half", intermediate_data_type="float32")
        x, w = graph.tensor([2, 3, *sizes]), graph.tensor([5, 3, *window])
        mode = cudnn.resample_mode.AVGPOOL_INCLUDE_PADDING
        (pooled,) = graph.resample(x, mode, window, **given)
        convolved = graph.conv_fprop(x, w, **given)
        for y in (pooled, convolved):
            y.set_output(True)
        graph.validate()
        assert pooled.dim == [2, 3, *dims(given.get("stride", window))]
        assert convolved.dim == [2, 5, *dims(given.get("stride", [1] * ndim))]
        for name, low in (("stride", 1), ("pre_padding", 0), ("post_padding", 0), ("window", 1)):
            wrong = {"window": window, **given, name: [low - 1, *[1] * (ndim - 1)]}
            other = new()
            with pytest.raises(DnnValueError, match=name):
                other.resample(other.tensor([2, 3, *sizes]), mode, **wrong)


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3])
def test_the_operand_that_a_concatenation_overwrites(index):
    graph = new(io_data_type="half", intermediate_data_type="float32")
    parts = [graph.tensor([2, 3]) for _ in range(2)]
    graph.concatenate(parts, 0, index).set_output(True)
    if 0 <= index < 2:
        graph.validate()
    else:
        with pytest.raises(DnnValueError, match=f"in_place_index {index} of 2 operands"):
            graph.validate()


@pytest.mark.parametrize("excess", [0, 1, 2])
def test_windows_of_the_padded_size(excess):
    """They are the largest ones."""
    for call in (
        lambda g, x, n: g.resample(x, cudnn.resample_mode.MAXPOOL, [n, 2], pre_padding=[2, 0])[0],
        lambda g, x, n: g.conv_fprop(x, g.tensor([5, 3, n, 2]), pre_padding=[2, 0]),
    ):
        graph = new(io_data_type="half", intermediate_data_type="float32")
        call(graph, graph.tensor([2, 3, 7, 7]), 9 + excess).set_output(True)
        if excess:
            with pytest.raises(DnnValueError, match=r"larger than (the )?padded"):
                graph.validate()
        else:
            graph.validate()
