"""Functions that plan graphs for a described device, in a process of their own.

``python -m tests.graph.planning`` writes what cuDNN's frontend for Python, if it is installed,
infers and proposes for the same graphs, to ``tests/graph/frontend.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dnnops.graph
from dnnops import libcudnn
from dnnops.graph.names import knob_type
from tests.graph.declarations import DECLARATIONS, OWN_DECLARATIONS
from tests.plans.described_device import H200

STORED = Path(__file__).with_name("frontend.json")
EVERY = {**DECLARATIONS, **OWN_DECLARATIONS}


def new_graph(api: Any, device: Any = None, io: str = "HALF", **more: Any) -> Any:
    """Return an empty graph for a described device."""
    types = api.data_type
    if device is not None:
        more["device_property"] = api.create_device_properties(device)
    return api.pygraph(
        io_data_type=getattr(types, io),
        intermediate_data_type=types.FLOAT,
        compute_data_type=types.FLOAT,
        **more,
    )


def declared(name: str, device: Any = None, io: str = "HALF", **more: Any) -> Any:
    """Return a graph of `EVERY`, and its results."""
    graph = new_graph(dnnops.graph, device, io, **more)
    return graph, EVERY[name](dnnops.graph, graph)


def described(name: str, **more: Any) -> Any:
    """Return a graph of `EVERY` for an H200."""
    return declared(name, json.dumps(H200), **more)[0]


def plan_with(api: Any, name: str, **more: Any) -> dict[str, Any]:
    """Return the shapes of the results, and the proposed plans, with a module's graphs."""
    graph = new_graph(api, json.dumps(H200), **more)
    results = EVERY[name](api, graph)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([api.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    count = graph.get_execution_plan_count()
    return {
        "results": [
            [list(x.get_dim()), list(x.get_stride()), x.get_data_type().name] for x in results
        ],
        "plans": [graph.get_plan_name_at_index(i) for i in range(min(count, 5))],
        "count": count,
        "workspace": graph.get_workspace_size(),
    }


def plan(name: str) -> dict[str, Any]:
    """Return what `plan_with` returns for dnnops."""
    return plan_with(dnnops.graph, name)


def cudnn_version() -> int:
    """Return the version of the loaded cuDNN."""
    return int(libcudnn.cudnnGetVersion())


def reason(name: str) -> str:
    """Return the message for a graph that cuDNN does not support: a convolution of doubles."""
    graph = described(name, io="DOUBLE")
    try:
        graph.build()
    except dnnops.graph.cudnnGraphNotSupportedError as error:
        return str(error)
    raise AssertionError("there is a plan")


def refused_shape() -> str:
    """Return the message and notes for a graph whose descriptors cuDNN refuses."""
    graph, (y,) = declared("conv", json.dumps(H200))
    graph.validate()
    y.dim = [4, 8, 9, 7]
    try:
        graph.build()
    except dnnops.errors.DnnError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    raise AssertionError("cuDNN accepted it")


def selection() -> dict[str, Any]:
    """Return what choosing, excluding and building plans gives for one graph."""
    graph = described("conv")
    graph.create_execution_plans([dnnops.graph.heur_mode.A, dnnops.graph.heur_mode.FALLBACK])
    names = [plan.name for plan in graph.plans]
    first = names[0].partition("_")[0]
    graph.deselect_engines([first])
    graph.deselect_numeric_notes([dnnops.graph.numerical_note.WINOGRAD])
    graph.deselect_workspace_greater_than(0)
    graph.build_plans(dnnops.graph.build_plan_policy.ALL)
    built = [p for p in graph.plans if p.descriptor is not None and not p.is_excluded]
    chosen = graph.plan_at().name
    graph.select_plan(graph.plans.index(built[-1]))
    return {
        "names": names,
        "first": first,
        "built": [p.name for p in built],
        "workspaces": [p.workspace for p in built],
        "chosen": chosen,
        "selected": graph.plan_at().name,
        "table": graph.plan_table(80),
    }


def faults(io: str) -> dict[str, Any]:
    """Return the plans of pooling that are excluded, and the chosen one."""
    graph = described("max_pool", io=io)
    graph.build([dnnops.graph.heur_mode.A, dnnops.graph.heur_mode.FALLBACK])
    return {
        "excluded": {plan.engine: plan.reason for plan in graph.plans if plan.is_excluded},
        "chosen": graph.plan_at().engine,
        "table": graph.plan_table(200),
    }


def engines() -> dict[str, Any]:
    """Return engines and knobs, and the name of a plan made of them."""
    graph = described("conv_bias_relu")
    count = graph.get_engine_count()
    made = []
    for engine in range(count):
        try:
            knobs = graph.get_knobs_for_engine(engine)
            values = {k.type: k.min_value for k in knobs if isinstance(k.type, knob_type)}
            graph.create_execution_plan(engine, values)
            graph.build_plan_at_index(len(graph.plans) - 1)
        except dnnops.errors.DnnError:
            continue
        made.append([graph.plans[-1].name, {k.name: v for k, v in values.items()}])
    return {"count": count, "made": made}


def stored_again(name: str) -> list[Any]:
    """Return the plan of a graph, and that of its serialized form."""
    graph = described(name)
    graph.build()
    again = dnnops.graph.pygraph(device_property=graph.device)
    again.deserialize(graph.serialize())
    return [(g.plan_at().name, g.get_workspace_size(), str(g)) for g in (graph, again)]


def stored_plan_with(**changes: Any) -> None:
    """Read a stored graph whose plan has other fields; None removes one."""
    graph = described("conv")
    graph.build()
    data = json.loads(graph.serialize())
    data["plan"].update(changes)
    data["plan"] = {key: value for key, value in data["plan"].items() if value is not None}
    again = dnnops.graph.pygraph(device_property=graph.device)
    try:
        again.deserialize(json.dumps(data).encode())
    finally:
        assert not again.tensors


def filtered_first() -> tuple[str, str]:
    """Return the chosen plan without filters, and that with one that was set before planning."""
    names = []
    for exclude in (False, True):
        graph = described("conv")
        graph.build_operation_graph()
        if exclude:
            graph.deselect_engines([names[0].partition("_")[0]])
        graph.create_execution_plans()
        graph.build_plans()
        names.append(graph.plan_at().name)
    return names[0], names[1]


def _write() -> None:
    import cudnn

    found = {}
    for name in DECLARATIONS:
        try:
            found[name] = plan_with(cudnn, name, sm_version=90)
        except Exception as error:  # the frontend needs a GPU to check attention
            print(f"{name}: {error}")
    versions = {"frontend": cudnn.__version__, "cudnn": cudnn.backend_version()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x)}" for name, x in found.items())
    STORED.write_text(f'{{"versions": {json.dumps(versions)}, "graphs": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    _write()
