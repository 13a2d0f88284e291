"""Which plans of a graph are listed, excluded, built and chosen, with a stand-in for cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dnnops.errors import (
    DnnError,
    DnnLibraryError,
    DnnMemoryError,
    DnnNotSupportedError,
    DnnValueError,
)
from dnnops.graph.names import (
    behavior_note,
    build_plan_policy,
    heur_mode,
    knob_type,
    numerical_note,
)
from tests.graph.stand_in import Engine, Library, planned

pytestmark = pytest.mark.needs("cudnn")

MODES = (heur_mode.A, heur_mode.B, heur_mode.FALLBACK)
NUMERICAL, BEHAVIOR = list(numerical_note)[:4], list(behavior_note)[:3]
LIMITS = (0, 7, 8, 64, 999, 1000)


@dataclass
class Row:
    """What is expected of a plan."""

    name: str
    engine: int
    is_excluded: bool
    is_built: bool = False
    reason: str = ""


@dataclass
class Expected:
    """Plans, and which is chosen, as the documentation says."""

    library: Library
    rows: list[Row] = field(default_factory=list)
    filters: list[Callable[[Row], bool]] = field(default_factory=list)
    limit: float = float("inf")
    chosen: int | None = None

    def add(self, engine: int, knobs: dict[int, int]) -> None:
        name = "_".join([f"eng{engine}", *(f"k{k}={v}" for k, v in knobs.items())])
        row = Row(name, engine, False)
        row.is_excluded = not all(keeps(row) for keeps in self.filters)
        self.rows.append(row)

    def exclude(self, keeps: Callable[[Row], bool]) -> None:
        self.filters.append(keeps)
        for row in self.rows:
            row.is_excluded |= not keeps(row)
        if self.chosen is not None and self.rows[self.chosen].is_excluded:
            self.chosen = None

    def fits(self, row: Row, limit: float) -> bool:
        """Plans that are not built may still turn out to fit."""
        return not row.is_built or self.library.engines[row.engine].workspace <= limit

    def build(self, row: Row) -> str:
        """Build a plan, and return why it fails."""
        engine = self.library.engines[row.engine]
        if engine.error is not None and not row.is_built:
            return str(engine.error).partition("Reason: ")[2]
        row.is_built = True
        if engine.workspace > self.limit:
            row.is_excluded = True
            return f"it needs {engine.workspace} bytes of workspace, more than {self.limit}"
        return ""

    def build_all(self, everything: bool) -> bool:
        """Build the first plan that can be built, or all, and return whether there is one."""
        for number, row in enumerate(self.rows):
            if self.chosen is not None:
                break
            if not row.is_excluded:
                row.reason = self.build(row)
                self.chosen = None if row.reason else number
        if self.chosen is None:
            return False
        for row in self.rows if everything else []:
            if not row.is_excluded and not row.is_built:
                row.reason = self.build(row)
        return True

    def check(self, graph: Any) -> None:
        found = [
            (p.name, p.engine, p.is_excluded, p.descriptor is not None, p.reason)
            for p in graph.plans
        ]
        assert found == [(r.name, r.engine, r.is_excluded, r.is_built, r.reason) for r in self.rows]
        for row, plan in zip(self.rows, graph.plans, strict=True):
            engine = self.library.engines[row.engine]
            assert plan.workspace == (engine.workspace if row.is_built else None)
            assert plan.numerical_notes == list(engine.numerical_notes)
            assert plan.behavior_notes == list(engine.behavior_notes)
        if self.chosen is None:
            with pytest.raises(DnnValueError, match="has no plan; call build first"):
                graph.get_workspace_size()
        else:
            row = self.rows[self.chosen]
            assert graph.plan_at() is graph.plans[self.chosen]
            assert graph.get_workspace_size() == self.library.engines[row.engine].workspace


def some(rng: np.random.Generator, items: list) -> tuple:
    return tuple(item for item in items if rng.random() < 0.4)


def random_library(rng: np.random.Generator) -> Library:
    def error(number: int) -> Exception | None:
        kind = rng.choice([DnnLibraryError, DnnNotSupportedError])
        return kind(f"status\nReason: engine {number}") if rng.random() < 0.3 else None

    engines = [
        Engine(some(rng, NUMERICAL), some(rng, BEHAVIOR), int(rng.choice([0, 8, 1000])), error(i))
        for i in range(rng.integers(1, 6))
    ]

    def proposals() -> list[tuple[int, dict[int, int]]]:
        return [
            (int(rng.integers(len(engines))), {int(k): 1 for k in some(rng, [0, 2])})
            for _ in range(rng.integers(6))
        ]

    return Library(engines, {mode: proposals() for mode in MODES})


def run(rng: np.random.Generator, graph: Any, expected: Expected) -> None:
    """Call a method, and do what it should do to the expected plans."""
    rows, library = expected.rows, expected.library
    number = int(rng.integers(len(rows))) if rows else 0
    limit = int(rng.choice(LIMITS))
    step = rng.integers(8 if rows else 2)
    if step == 0:
        modes = [MODES[i] for i in rng.permutation(3)[: rng.integers(1, 4)]]
        known = {row.name for row in rows}
        for engine, knobs in (x for mode in modes for x in library.proposals[mode]):
            name = "_".join([f"eng{engine}", *(f"k{k}={v}" for k, v in knobs.items())])
            if name not in known:
                known.add(name)
                expected.add(engine, knobs)
        if rows:
            graph.create_execution_plans(modes)
        else:
            with pytest.raises(DnnNotSupportedError) as error:
                graph.create_execution_plans(modes)
            for i, engine in enumerate(library.engines):
                reason = f"not proposed; create_execution_plan({i}) adds it"
                if engine.error is not None:
                    reason = f"engine {i}"
                elif engine.workspace > expected.limit:
                    reason = f"it needs {engine.workspace} bytes of workspace, more than"
                assert f"\n  eng{i}: {reason}" in str(error.value)
    elif step == 1:
        engine = int(rng.integers(len(library.engines)))
        knobs = {knob_type.TILE_SIZE.value_in_c(): 2} if rng.random() < 0.5 else {}
        expected.add(engine, knobs)
        graph.create_execution_plan(engine, {knob_type.TILE_SIZE: 2} if knobs else None)
    elif step == 2:
        names = [str(rng.choice([rows[number].name, "eng0", "eng2", "eng1_k2", "ng1"]))]
        expected.exclude(lambda row: not any(f"{row.name}_".startswith(f"{n}_") for n in names))
        graph.deselect_engines(names)
    elif step == 3:
        expected.limit = min(expected.limit, limit)
        expected.exclude(lambda row: expected.fits(row, limit))
        graph.deselect_workspace_greater_than(limit)
    elif step == 4:
        which, members = [("numerical", NUMERICAL), ("behavior", BEHAVIOR)][rng.integers(2)]
        notes, selects = some(rng, members), rng.random() < 0.3

        def keeps(row: Row) -> bool:
            own = getattr(library.engines[row.engine], f"{which}_notes")
            return set(notes) <= set(own) if selects else not set(notes) & set(own)

        expected.exclude(keeps)
        word = "numeric" if which == "numerical" else which
        getattr(graph, f"{'select' if selects else 'deselect'}_{word}_notes")(list(notes))
    elif step == 5:
        everything = bool(rng.integers(2))
        policy = build_plan_policy.ALL if everything else build_plan_policy.HEURISTICS_CHOICE
        if expected.build_all(everything):
            graph.build_plans(policy)
        else:
            with pytest.raises(DnnNotSupportedError) as error:
                graph.build_plans(policy)
            for row in rows:
                assert f"\n  {row.name}: {row.reason or 'deselected'}" in str(error.value)
    else:
        reason = expected.build(rows[number])
        call = graph.build_plan_at_index if step == 6 else graph.select_plan
        if reason:
            with pytest.raises(DnnError, match=reason):
                call(number)
        else:
            call(number)
            expected.chosen = number if step == 7 or expected.chosen is None else expected.chosen


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        library = random_library(rng)
        with monkeypatch.context() as patch:
            graph, expected = planned(library, patch), Expected(library)
            for _ in range(12):
                run(rng, graph, expected)
                expected.check(graph)
            assert set(map(str, library.handles)) <= {str(("HANDLE", ["handle"]))}
            assert graph.get_engine_count() == len(library.engines)


def test_no_memory_is_no_reason_to_go_on(monkeypatch):
    error = DnnMemoryError("no memory")
    both = {heur_mode.A: [(0, {}), (1, {})], heur_mode.B: []}
    graph = planned(Library([Engine(error=error), Engine()], both), monkeypatch)
    graph.create_execution_plans([heur_mode.A])
    for call in (
        graph.check_support,
        lambda: (graph.build_plan_at_index(1), graph.build_plans(build_plan_policy.ALL)),
        lambda: planned(Library([Engine(error=error)], both), monkeypatch).create_execution_plans(
            [heur_mode.B]
        ),
        lambda: planned(
            Library([Engine()], {heur_mode.A: error}), monkeypatch
        ).create_execution_plans(heur_mode.A),
    ):
        with pytest.raises(DnnMemoryError):
            call()


def test_heuristics_that_fail(monkeypatch):
    """Others are asked; if none proposes anything, each engine's reason is given once."""
    refused = DnnLibraryError("status\nReason: sizes are odd")
    engines = [Engine(), Engine(error=DnnLibraryError("Reason: own words")), Engine()]
    proposals = {heur_mode.A: refused, heur_mode.B: [(2, {})], heur_mode.FALLBACK: []}
    library = Library(engines, proposals, '"engineId":1\nReason: in the text')
    graph = planned(library, monkeypatch)
    graph.create_execution_plans([heur_mode.A, heur_mode.B])
    assert [plan.name for plan in graph.plans] == ["eng2"]
    graph = planned(library, monkeypatch)
    with pytest.raises(DnnNotSupportedError) as error:
        graph.create_execution_plans((heur_mode.A, heur_mode.FALLBACK, heur_mode.FALLBACK))
    assert str(error.value).splitlines()[1:] == [
        "  heuristics A: sizes are odd",
        "  eng1: in the text",
        "  eng0: not proposed; create_execution_plan(0) adds it",
        "  eng2: not proposed; create_execution_plan(2) adds it",
    ]
