"""Plans of declared graphs for a described device: cuDNN's own checks, without a GPU."""

from __future__ import annotations

import json
from functools import partial

import pytest

from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from tests.graph import planning
from tests.graph.declarations import DECLARATIONS, OWN_DECLARATIONS
from tests.plans.described_device import described_process

pytestmark = pytest.mark.needs("cudnn")

STORED = json.loads(planning.STORED.read_text())


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    with described_process(tmp_path_factory.mktemp("driver")) as run:
        yield run


@pytest.mark.parametrize("name", [*DECLARATIONS, *OWN_DECLARATIONS])
def test_every_graph_has_a_plan(elsewhere, name):
    found = elsewhere(planning.plan, name)
    assert found["count"]
    stored = STORED["graphs"].get(name)
    if stored is None:
        return
    assert [_used(*x) for x in found["results"]] == [_used(*x) for x in stored["results"]]
    if elsewhere(planning.cudnn_version) == STORED["versions"]["cudnn"]:
        keys = ("plans", "count", "workspace")
        assert [found[key] for key in keys] == [stored[key] for key in keys]


def _used(dim, stride, dtype):
    """Return a shape with the strides of those axes along which there are several elements."""
    return dim, [s if n > 1 else 0 for n, s in zip(dim, stride, strict=True)], dtype


def test_plans_that_are_known_to_be_wrong(elsewhere):
    found = elsewhere(planning.faults, "BFLOAT16")
    assert list(found["excluded"]) == [3]
    assert "known to be wrong" in found["excluded"][3]
    assert found["chosen"] != 3
    assert "known to be wrong" in found["table"]
    assert not elsewhere(planning.faults, "HALF")["excluded"]


def test_frontend_planned_most_graphs():
    assert len(STORED["graphs"]) >= len(DECLARATIONS) - 5


def test_unsupported_graph_has_the_reason_of_each_engine(elsewhere):
    message = elsewhere(planning.reason, "conv_bias_relu")
    first, *lines = message.splitlines()
    assert "no plan for graph 'graph' (CONV_FPROP, POINTWISE, POINTWISE)" in first
    engines = [line.strip().partition(":")[0] for line in lines]
    assert len(engines) == len(set(engines)) > 1
    assert all(line.strip().startswith("eng") and len(line) > 12 for line in lines)


def test_refused_descriptor_names_the_node(elsewhere):
    message = elsewhere(planning.refused_shape)
    assert "CUDNN_STATUS_" in message
    assert "in node '0' (CONV_FPROP) of graph 'graph'" in message


def test_plans_are_chosen_and_excluded(elsewhere):
    found = elsewhere(planning.selection)
    assert len(found["names"]) > len(found["built"]) > 1
    assert not any(name.startswith(f"{found['first']}_") for name in found["built"])
    assert set(found["workspaces"]) == {0}
    assert found["chosen"] == found["built"][0]
    assert found["selected"] == found["built"][-1] != found["chosen"]
    table = found["table"].splitlines()
    assert table[0].split()[:2] == ["plan", "time"]
    assert max(map(len, table)) <= 80
    assert "deselected" in found["table"]


def test_plans_of_engines(elsewhere):
    found = elsewhere(planning.engines)
    assert found["count"] >= len(found["made"]) > 0
    assert all(name.startswith("eng") for name, _ in found["made"])
    assert any(knobs for _, knobs in found["made"])


@pytest.mark.parametrize("name", ["conv_bias_relu", "sdpa_with_lengths", "scaled"])
def test_plans_are_stored(elsewhere, name):
    graph, again = elsewhere(planning.stored_again, name)
    assert graph == again


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"json": "[" * 300_000}, DnnValueError, "damaged"),
        ({"json": "{}"}, DnnError, "CUDNN_STATUS_BAD_PARAM"),
        ({"json": None}, DnnValueError, "damaged: KeyError"),
        ({"engine": "one"}, DnnValueError, "damaged"),
        ({"graph": "0"}, DnnValueError, "of another graph"),
        ({"cudnn": 90000}, DnnError, "of cuDNN 90000"),
    ],
)
def test_damaged_plans(elsewhere, changes, error, words):
    with pytest.raises(error, match=words):
        elsewhere(partial(planning.stored_plan_with, **changes))


def test_filters_hold_for_later_plans(elsewhere):
    without, with_filter = elsewhere(planning.filtered_first)
    assert without.partition("_")[0] != with_filter.partition("_")[0]


def _without_plans():
    graph = planning.described("conv")
    graph.build_operation_graph()
    graph.check_support()


def _names_as_text():
    planning.described("conv").deselect_engines("eng0")


def _words_as_notes():
    planning.described("conv").deselect_numeric_notes(["TENSOR_CORE"])


def _policy_as_text():
    planning.described("conv").build_plans("ALL")


def _deep_device():
    from dnnops.graph import create_device_properties

    create_device_properties("[" * 200_000)


def _execute_described():
    graph = planning.described("conv")
    graph.build()
    graph.execute({})


def _too_early():
    planning.described("conv").get_workspace_size()


def _beyond():
    graph = planning.described("conv")
    graph.create_execution_plans()
    graph.build_plan_at_index(len(graph.plans))


def _excluded():
    graph = planning.described("conv")
    graph.create_execution_plans()
    graph.deselect_engines([plan.name for plan in graph.plans])
    graph.check_support()


def _damaged_device():
    from dnnops.graph import create_device_properties

    create_device_properties('{"deviceVer": 900}')


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (_execute_described, DnnError, "described device"),
        (_too_early, DnnValueError, "no plan; call build first"),
        (_beyond, DnnValueError, "there is no plan"),
        (_excluded, DnnError, "deselected"),
        (_damaged_device, DnnError, "cudnnBackend"),
        (_deep_device, DnnValueError, "an object of JSON"),
        (_without_plans, DnnValueError, "call create_execution_plans first"),
        (_names_as_text, DnnTypeError, "a list of names"),
        (_words_as_notes, DnnTypeError, "member of numerical_note"),
        (_policy_as_text, DnnTypeError, "member of build_plan_policy"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_errors(elsewhere, function, error, words):
    with pytest.raises(error, match=words):
        elsewhere(function)
