"""Planning of a graph: cuDNN's proposals, choosing among them, and building them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dnnops import libcudnn
from dnnops.errors import (
    DnnError,
    DnnLibraryError,
    DnnMemoryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnValueError,
)
from dnnops.graph.declaration import Declaration
from dnnops.graph.descriptors import Descriptor, Descriptors
from dnnops.graph.devices import (
    current_device,
    default_handle,
    device_properties,
    get_last_error_string,
)
from dnnops.graph.names import (
    as_member,
    as_members,
    behavior_note,
    build_plan_policy,
    data_type,
    heur_mode,
    knob_type,
    numerical_note,
)
from dnnops.graph.plan import (
    Knob,
    Plan,
    describe_config,
    knobs_of,
    reason_of,
    reasons_by_engine,
)
from dnnops.graph.serialization import as_data
from dnnops.graph.tensors import as_integer
from dnnops.libcudnn.handles import as_handle

__all__ = ["PlannedGraph"]

#: cuDNN's errors, other than running out of memory.
_REFUSALS = (DnnLibraryError, DnnNotSupportedError)


class PlannedGraph(Declaration):
    """A graph that cuDNN plans: the methods from its declaration to its plans.

    Parameters are those of `pygraph`.
    """

    def __init__(
        self,
        name: str = "graph",
        io_data_type: Any = data_type.NOT_SET,
        intermediate_data_type: Any = data_type.NOT_SET,
        compute_data_type: Any = data_type.NOT_SET,
        handle: Any = None,
        sm_count: None = None,
        sm_version: int | None = None,
        kernel_cache: None = None,
        device_property: Any = None,
    ) -> None:
        super().__init__(name, io_data_type, intermediate_data_type, compute_data_type)
        if device_property is not None and not isinstance(device_property, device_properties):
            raise DnnTypeError(
                f"device_property must be a device_properties, got {device_property!r}"
            )
        if sm_count is not None or kernel_cache is not None:
            raise DnnNotSupportedError("pygraph: sm_count and kernel_cache are not supported")
        if handle is not None:
            kind: Any = libcudnn.cudnnHandle_t
            handle = as_handle(handle, kind, "handle")
        self.handle: Any = handle
        self.device: Any = device_property
        self.device_number = 0
        self.plans: list[Plan] = []
        self._filters: list[Callable[[Plan], bool]] = []
        self._graph: Descriptor | None = None
        self._chosen: int | None = None
        self._workspace_limit: int | None = None

    def build_operation_graph(self) -> None:
        """Make cuDNN's descriptors of the tensors and operations.

        Raises
        ------
        CudnnError
            If cuDNN refuses one. The message has cuDNN's text.
        """
        self.validate()
        if self._graph is not None:
            return
        lowered = Descriptors(max(t.uid for t in self.tensors.values()) + 1)
        for node in self.nodes:
            try:
                node.lower(lowered)
            except DnnError as error:
                error.add_note(f"in {node.where} of graph {self.name!r}")
                raise
        self._graph = lowered.operation_graph(self._planning_handle())

    def _planning_handle(self) -> Any:
        """Return the handle for planning; None if the device is described."""
        if self.device is not None:
            return None
        self.device_number = current_device()
        return default_handle() if self.handle is None else self.handle

    def _new_plan(self) -> Descriptor:
        made = Descriptor("EXECUTION_PLAN")
        handle = self._planning_handle()
        if handle is None:
            made.set("EXECUTION_PLAN_DEVICEPROP", self.device.descriptor)
        else:
            made.set_as("EXECUTION_PLAN_HANDLE", "HANDLE", [handle])
        return made

    def _operation_graph(self) -> Descriptor:
        if self._graph is None:
            self.build_operation_graph()
        assert self._graph is not None
        return self._graph

    def create_execution_plans(self, modes: Sequence[Any] = (heur_mode.A,)) -> None:
        """Ask heuristics for plans, in the order in which they expect them to be fast.

        Parameters
        ----------
        modes : sequence of heur_mode
            Heuristics, whose proposals are put one after the other.

        Raises
        ------
        DnnNotSupportedError
            If they propose nothing.
        """
        graph = self._operation_graph()
        modes = [modes] if isinstance(modes, heur_mode) else modes
        if not isinstance(modes, list | tuple) or not modes:
            raise DnnTypeError(f"expected a list of members of heur_mode, got {modes!r}")
        known = {plan.name for plan in self.plans}
        refusals = []
        for mode in modes:
            as_member("create_execution_plans", "each mode", mode, heur_mode)
            try:
                configs = self._proposals(graph, mode)
            except DnnMemoryError:
                raise
            except _REFUSALS as error:
                refusals.append(f"heuristics {mode.name}: {reason_of(error)}")
                continue
            if not configs:
                refusals += reasons_by_engine(get_last_error_string())
            for config in configs:
                plan = describe_config(config)
                if plan.name not in known:
                    known.add(plan.name)
                    self._add_plan(plan)
        if not self.plans:
            raise self._no_plan([*dict.fromkeys(refusals), *self._reasons_of_engines(refusals)])

    def _proposals(self, graph: Descriptor, mode: Any) -> list[Descriptor]:
        heuristics = Descriptor("ENGINEHEUR", OPERATION_GRAPH=graph, MODE=mode)
        if self.device is not None:
            heuristics.set("ENGINEHEUR_DEVICEPROP", self.device.descriptor)
        heuristics.finalize()
        count = heuristics.count("ENGINEHEUR_RESULTS", "BACKEND_DESCRIPTOR")
        return heuristics.get_descriptors("ENGINEHEUR_RESULTS", "ENGINECFG", count)

    def _reasons_of_engines(self, known: Sequence[str]) -> list[str]:
        """Return why engines that `known` does not name do not support the graph."""
        reasons = []
        for engine in range(self.get_engine_count()):
            if any(reason.startswith(f"eng{engine}:") for reason in known):
                continue
            try:
                config = Descriptor("ENGINECFG", ENGINE=self._engine(engine).finalize())
                self._build(describe_config(config.finalize()))
            except DnnMemoryError:
                raise
            except _REFUSALS as error:
                reasons.append(f"eng{engine}: {reason_of(error)}")
            else:
                reasons.append(
                    f"eng{engine}: not proposed; create_execution_plan({engine}) adds it"
                )
        return reasons

    def create_execution_plan(self, engine_id: int, knobs: Mapping[Any, int] | None = None) -> None:
        """Add the plan of an engine with values of its knobs.

        Parameters
        ----------
        engine_id : int
            Number of the engine, less than `get_engine_count`.
        knobs : mapping of knob_type or int to int, optional
            Values; others have the engine's defaults.
        """
        numbers = {
            key.value_in_c() if isinstance(key, knob_type) else as_integer(key, "a knob"): (
                as_integer(value, "the value of a knob")
            )
            for key, value in dict(knobs or {}).items()
        }
        config = Descriptor("ENGINECFG", ENGINE=self._engine(engine_id).finalize())
        if numbers:
            choices = []
            for key, value in numbers.items():
                choice = Descriptor("KNOB_CHOICE", KNOB_VALUE=value)
                choice.set_as("KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE", [key])
                choices.append(choice.finalize())
            config.set("ENGINECFG_KNOB_CHOICES", choices)
        self._add_plan(describe_config(config.finalize()))

    def _engine(self, engine_id: int) -> Descriptor:
        engine = Descriptor(
            "ENGINE",
            OPERATION_GRAPH=self._operation_graph(),
            GLOBAL_INDEX=as_integer(engine_id, "engine_id"),
        )
        if self.device is not None:
            engine.set("ENGINE_DEVICEPROP", self.device.descriptor)
        return engine

    def get_engine_count(self) -> int:
        """Return the number of engines that cuDNN has for the graph."""
        graph = self._operation_graph()
        return int(graph.get("OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "INT64")[0])

    def get_knobs_for_engine(self, engine_id: int) -> list[Knob]:
        """Return the parameters of an engine."""
        return knobs_of(self._engine(engine_id).finalize())

    # -- choosing --------------------------------------------------------------------------

    def _filter(self, keeps: Callable[[Plan], bool]) -> None:
        """Exclude plans for which a function is false, and those that are added later."""
        self._filters.append(keeps)
        for plan in self.plans:
            plan.is_excluded = plan.is_excluded or not keeps(plan)
        if self._chosen is not None and self.plans[self._chosen].is_excluded:
            self._chosen = None

    def _add_plan(self, plan: Plan) -> None:
        plan.reason = next((why for node in self.nodes if (why := node.fault(plan))), "")
        is_kept = not plan.reason and all(keeps(plan) for keeps in self._filters)
        plan.is_excluded = not is_kept
        self.plans.append(plan)

    def deselect_engines(self, engine_names: Sequence[str]) -> None:
        """Exclude engines, given as in the names of plans, such as ``["eng0"]``."""
        names = engine_names
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise DnnTypeError(f"deselect_engines takes a list of names, got {engine_names!r}")
        self._filter(lambda plan: not any(_is_part(word, plan.name) for word in names))

    def deselect_workspace_greater_than(self, workspace: int) -> None:
        """Exclude plans that need more bytes of memory."""
        limit = as_integer(workspace, "workspace")
        former = self._workspace_limit
        self._workspace_limit = limit if former is None else min(former, limit)
        self._filter(lambda plan: plan.workspace is None or plan.workspace <= limit)

    def _filter_notes(self, method: str, notes: Any, kind: Any, keeps: Any) -> None:
        given = as_members(method, notes, kind)
        attribute = "numerical_notes" if kind is numerical_note else "behavior_notes"
        self._filter(lambda plan: keeps(given, set(getattr(plan, attribute))))

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> None:
        """Exclude engines with one of these numerical notes."""
        self._filter_notes("deselect_numeric_notes", notes, numerical_note, set.isdisjoint)

    def select_numeric_notes(self, notes: Sequence[Any]) -> None:
        """Exclude engines without one of these numerical notes."""
        self._filter_notes("select_numeric_notes", notes, numerical_note, set.issubset)

    def deselect_behavior_notes(self, notes: Sequence[Any]) -> None:
        """Exclude engines with one of these behavior notes."""
        self._filter_notes("deselect_behavior_notes", notes, behavior_note, set.isdisjoint)

    def select_behavior_notes(self, notes: Sequence[Any]) -> None:
        """Exclude engines without one of these behavior notes."""
        self._filter_notes("select_behavior_notes", notes, behavior_note, set.issubset)

    # -- building --------------------------------------------------------------------------

    def _build(self, plan: Plan) -> None:
        """Build a plan, unless it is built.

        Raises
        ------
        DnnError
            If the device does not support it, or it needs more memory than allowed.
        """
        if plan.descriptor is None:
            made = self._new_plan()
            assert plan.config is not None
            made.set("EXECUTION_PLAN_ENGINE_CONFIG", plan.config)
            made.finalize()
            plan.workspace = int(made.get("EXECUTION_PLAN_WORKSPACE_SIZE", "INT64")[0])
            plan.descriptor = made
        limit = self._workspace_limit
        if limit is not None and plan.workspace is not None and plan.workspace > limit:
            plan.is_excluded = True
            raise DnnNotSupportedError(
                f"it needs {plan.workspace} bytes of workspace, more than {limit}"
            )

    def _build_first(self) -> None:
        if not self.plans:
            raise DnnValueError(
                f"graph {self.name!r} has no plans; call create_execution_plans first"
            )
        reasons = []
        for index, plan in enumerate(self.plans):
            if plan.is_excluded:
                reasons.append(f"{plan.name}: {plan.reason or 'deselected'}")
                continue
            try:
                self._build(plan)
            except DnnMemoryError:
                raise
            except _REFUSALS as error:
                plan.reason = reason_of(error)
                reasons.append(f"{plan.name}: {plan.reason}")
                continue
            self._chosen = index
            return
        raise self._no_plan(reasons)

    def _no_plan(self, reasons: Sequence[str]) -> DnnNotSupportedError:
        operations = ", ".join(node.tag for node in self.nodes)
        lines = "".join(f"\n  {reason}" for reason in reasons)
        return DnnNotSupportedError(
            f"cuDNN {libcudnn.cudnnGetVersion()} has no plan for graph {self.name!r}"
            f" ({operations}):{lines}"
        )

    def check_support(self) -> None:
        """Check that the device supports a plan.

        Raises
        ------
        DnnNotSupportedError
            If it supports none. The message has the reason for each plan.
        """
        if self._chosen is None:
            self._build_first()

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Build the first plan that the device supports, or all.

        Raises
        ------
        DnnNotSupportedError
            If it supports none.
        """
        as_member("build_plans", "policy", policy, build_plan_policy)
        self.check_support()
        if policy is build_plan_policy.HEURISTICS_CHOICE:
            return
        for plan in self.plans:
            if plan.is_excluded or plan.descriptor is not None:
                continue
            try:
                self._build(plan)
            except DnnMemoryError:
                raise
            except _REFUSALS as error:
                plan.reason = reason_of(error)

    def build(self, modes: Sequence[Any] = (heur_mode.A,)) -> None:
        """Validate and lower the graph, ask heuristics, and build the first plan that works.

        Raises
        ------
        DnnValueError, DnnTypeError
            If the graph is not valid.
        DnnNotSupportedError
            If the device supports no plan.
        """
        self.validate()
        self.build_operation_graph()
        self.create_execution_plans(modes)
        self.build_plans()

    def digest(self) -> str:
        """Return a text that differs between graphs."""
        return hashlib.sha256(json.dumps(as_data(self)).encode()).hexdigest()

    def serialize_plan(self) -> dict[str, Any] | None:
        """Return the chosen plan as data that can be written as JSON; None if there is none."""
        if self._chosen is None:
            return None
        plan = self.plan_at()
        assert plan.descriptor is not None
        return {
            "cudnn": int(libcudnn.cudnnGetVersion()),
            "graph": self.digest(),
            "engine": plan.engine,
            "knobs": list(plan.knobs.items()),
            "json": plan.descriptor.get_text("EXECUTION_PLAN_JSON_REPRESENTATION"),
        }

    def load_plan(self, data: Mapping[str, Any]) -> None:
        """Choose a plan that `serialize_plan` returned.

        Raises
        ------
        DnnValueError
            If the data are damaged.
        DnnNotSupportedError
            If it is of another version of cuDNN.
        CudnnError
            If cuDNN refuses it.
        """
        version = int(libcudnn.cudnnGetVersion())
        try:
            text, engine = data["json"].encode(), int(data["engine"])
            knobs = {int(key): int(value) for key, value in data["knobs"]}
            stored, graph = int(data["cudnn"]), data["graph"]
            if not isinstance(json.loads(text), dict):
                raise ValueError("the plan is not an object of JSON")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DnnValueError(f"the data of the plan are damaged: {error!r}") from error
        if graph != self.digest():
            raise DnnValueError("the plan is that of another graph")
        if stored != version:
            raise DnnNotSupportedError(
                f"the plan is of cuDNN {stored}, and {version} is loaded; build the graph again"
            )
        made = self._new_plan()
        made.set_as("EXECUTION_PLAN_JSON_REPRESENTATION", "CHAR", text)
        made.finalize()
        workspace = int(made.get("EXECUTION_PLAN_WORKSPACE_SIZE", "INT64")[0])
        self.plans = [Plan(engine, knobs, [], [], None, made, workspace)]
        self._chosen = 0

    # -- queries ---------------------------------------------------------------------------

    def _plan(self, index: int) -> Plan:
        index = as_integer(index, "the index of a plan")
        if not 0 <= index < len(self.plans):
            raise DnnValueError(f"there is no plan {index}, but {len(self.plans)} plans")
        return self.plans[index]

    def plan_at(self, index: int | None = None) -> Plan:
        """Return a built plan, by default the chosen one.

        Raises
        ------
        DnnValueError
            If it is not built.
        """
        if index is None:
            if self._chosen is None:
                raise DnnValueError(f"graph {self.name!r} has no plan; call build first")
            index = self._chosen
        plan = self._plan(index)
        if plan.descriptor is None:
            reason = f": {plan.reason}" if plan.reason else "; call build_plan_at_index first"
            raise DnnValueError(f"plan {index} ({plan.name}) is not built{reason}")
        return plan

    def select_plan(self, index: int) -> None:
        """Choose the plan that `execute` uses, and build it.

        Raises
        ------
        DnnValueError
            If there is no such plan.
        DnnError
            If it cannot be built.
        """
        self.build_plan_at_index(index)
        self._chosen = index

    def build_plan_at_index(self, index: int) -> None:
        """Build a plan.

        Raises
        ------
        DnnValueError
            If there is no such plan.
        DnnError
            If the device does not support it.
        """
        self._build(self._plan(index))
        if self._chosen is None:
            self._chosen = index

    def get_execution_plan_count(self) -> int:
        """Return the number of plans, built or not."""
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """Return the engine of a plan and the values of its knobs."""
        return self._plan(index).name

    def get_workspace_size(self) -> int:
        """Return the number of bytes of memory that the chosen plan needs."""
        return self.plan_at().workspace or 0

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        """Return the number of bytes of memory that a plan needs."""
        return self.plan_at(index).workspace or 0

    def get_behavior_notes(self) -> list[Any]:
        """Return cuDNN's notes about what the chosen plan needs or does."""
        return list(self.plan_at().behavior_notes)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[Any]:
        """Return cuDNN's notes about what a plan needs or does."""
        return list(self.plan_at(index).behavior_notes)

    def get_numeric_notes_for_plan_at_index(self, index: int) -> list[Any]:
        """Return cuDNN's notes about how a plan computes."""
        return list(self.plan_at(index).numerical_notes)


def _is_part(word: str, name: str) -> bool:
    """Return whether a plan's name starts with the name of an engine, with or without knobs."""
    return re.match(rf"{re.escape(word)}(_|$)", name) is not None
