"""Planning of a graph: cuDNN's proposals, and building them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dnnops import libcudnn
from dnnops.errors import (
    DnnLibraryError,
    DnnMemoryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnValueError,
)
from dnnops.graph.descriptors import Descriptor
from dnnops.graph.devices import get_last_error_string
from dnnops.graph.engines import EnginePlans
from dnnops.graph.names import as_member, build_plan_policy, heur_mode
from dnnops.graph.plan import Plan, describe_config, reason_of, reasons_by_engine
from dnnops.graph.serialization import as_data

__all__ = ["PlannedGraph"]

#: cuDNN's errors, other than running out of memory.
_REFUSALS = (DnnLibraryError, DnnNotSupportedError)


class PlannedGraph(EnginePlans):
    """A graph that cuDNN plans: the methods from its declaration to its plans.

    Parameters are those of `pygraph`.
    """

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
