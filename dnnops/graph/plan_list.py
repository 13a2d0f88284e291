"""The plans of a graph: which there are, and which are excluded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.declaration import Declaration
from dnnops.graph.names import as_members, behavior_note, data_type, numerical_note
from dnnops.graph.plan import Plan
from dnnops.graph.tensors import as_integer

__all__ = ["PlanList"]


class PlanList(Declaration):
    """A graph with plans.

    Parameters are those of `Declaration`.

    Attributes
    ----------
    plans : list of Plan
        In the order in which they are tried.
    """

    def __init__(
        self,
        name: str = "graph",
        io_data_type: Any = data_type.NOT_SET,
        intermediate_data_type: Any = data_type.NOT_SET,
        compute_data_type: Any = data_type.NOT_SET,
    ) -> None:
        super().__init__(name, io_data_type, intermediate_data_type, compute_data_type)
        self.plans: list[Plan] = []
        self._filters: list[Callable[[Plan], bool]] = []
        self._chosen: int | None = None
        self._workspace_limit: int | None = None

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
