"""Capture the nodes of a function on a device as CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.aliases import is_same, overlaps, require_apart
from dnnops.capture.between import Between, Place, stand_ins
from dnnops.capture.captured import Captured
from dnnops.capture.graph import recorded
from dnnops.capture.memory import Pool
from dnnops.capture.plan import planned
from dnnops.capture.replay import Replay
from dnnops.capture.schedule import Role, Schedule, taken_as_numbers
from dnnops.capture.staging import uploads_of
from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.library import free_workspaces
from dnnops.gpuarray.op import is_on_device
from dnnops.runtime.lifetimes import chain, declared_origins, releases

__all__ = ["Recorder"]

Cell = list[Any]

#: Bytes of the blocks for host values. Those of one block are copied to the device at once.
UPLOADED = 1 << 16


class Recorder:
    """Runs the thunks of a function while their work is recorded.

    Parameters
    ----------
    vm : pytensor.link.vm.VM
        Virtual machine that holds the thunks.
    fgraph : FunctionGraph
        Graph that it runs.
    schedule : Schedule
        Roles of the nodes.

    Attributes
    ----------
    steps : list of tuple
        Node, thunk and role, in the order of execution.
    shared, arguments : list of Variable
        The function's inputs on the device that are shared variables, and the others.
    spared : dict of Apply to list of Variable
        For nodes before the graph, the operands that they overwrite although nodes of other roles
        read them. In the function's order the readers come first, as with an optimizer's counter.
    """

    def __init__(self, vm: Any, fgraph: FunctionGraph, schedule: Schedule):
        self.steps: list[tuple[Apply, Any, Role]] = list(
            zip(vm.nodes, vm.thunks, schedule.roles, strict=True)
        )
        inputs = [x for x in fgraph.inputs if is_on_device(x)]
        self.shared = [x for x in inputs if isinstance(x, SharedVariable)]
        self.arguments = [x for x in inputs if not isinstance(x, SharedVariable)]
        self._fgraph, self._device, self._numbers = fgraph, schedule.device, schedule.numbers
        self._storage: dict[Variable, Cell] = vm.storage_map
        # Positions of inputs by positions of outputs.
        self._updates: dict[int, int] = {**(fgraph.update_mapping or {})}  # type: ignore[dict-item]
        self._origins: dict[Variable, Variable] = {}
        for node in vm.nodes:
            self._origins |= declared_origins(node)
        self._passing = self._find_passing()
        self._overwritten = self._find_overwritten()
        self._freed = self._find_freed()
        outputs = set(fgraph.outputs)
        # What host nodes after the graph, or the caller, read.
        self._read_later = outputs | {
            x for node, _, role in self.steps if role is Role.AFTER for x in node.inputs
        }
        self.spared = self._find_spared()
        computed = [(role, z) for node, _, role in self.steps for z in node.outputs]
        self._computed = [(role, self._storage[z]) for role, z in computed if z not in outputs]
        self._results = [(role, self._storage[z]) for role, z in computed if z in outputs]

    def thunks(self, role: Role) -> list[tuple[int, Any]]:
        """Return the positions and the thunks of the nodes with a role.

        Instead of the operands in `spared`, the thunks overwrite copies.
        """
        return [
            (i, self._sparing(node, thunk))
            for i, (node, thunk, own) in enumerate(self.steps)
            if own is role
        ]

    def _sparing(self, node: Apply, thunk: Any) -> Any:
        """Return a thunk that overwrites copies of the spared operands."""
        if node not in self.spared:
            return thunk
        cells = [self._storage[x] for x in self.spared[node]]

        def run() -> None:
            values = [cell[0] for cell in cells]
            for cell in cells:
                cell[0] = copy.deepcopy(cell[0])
            try:
                thunk()
            finally:
                for cell, value in zip(cells, values, strict=True):
                    cell[0] = value

        return run

    def _find_spared(self) -> dict[Apply, list[Variable]]:
        """Return the operands that nodes before the graph must not overwrite."""
        read = self._read_later.union(
            *(node.inputs for node, _, role in self.steps if role is not Role.BEFORE)
        )
        # A result in a copy's memory shares none with the operand.
        origins = dict(self._origins)
        found: dict[Apply, list[Variable]] = {}
        for node, _, role in self.steps:
            for output, operands in node.op.destroy_map.items() if role is Role.BEFORE else ():
                result = node.outputs[output]
                for x in (node.inputs[i] for i in operands):
                    root = chain(x, origins)[-1]
                    chains = (chain(y, origins) for y in read)
                    if any(used[-1] is root and result not in used for used in chains):
                        found.setdefault(node, []).append(x)
                        origins.pop(result, None)
        return found

    def free(self, position: int) -> None:
        """Release the device arrays that the node at a position is the last to use."""
        for cell in self._freed[position]:
            cell[0] = None

    def free_all(self, keep: Role | None = None) -> None:
        """Release all results but outputs, and those of nodes with a role."""
        _clear(self._computed, keep)

    # -- the graph's variables -------------------------------------------------------------

    def _root(self, x: Variable) -> Variable:
        return chain(x, self._origins)[-1]

    def _find_overwritten(self) -> set[Variable]:
        """Return the variables whose memory is overwritten after they are computed."""
        found = {
            self._root(node.inputs[i])
            for node, _, _ in self.steps
            for operands in node.op.destroy_map.values()
            for i in operands
        }
        return found | {self._fgraph.inputs[x] for x in self._updates.values()}

    def _find_freed(self) -> list[list[Cell]]:
        """Return the storage of the device arrays that each node is the last to use."""
        order = [node for node, _, _ in self.steps]
        return [
            [self._storage[x] for x in freed if is_on_device(x)]
            for freed in releases(order, set(self._fgraph.outputs), allow_gc=True)
        ]

    def _find_passing(self) -> set[Variable]:
        """Return the results that only nodes between graphs use.

        As they need no place of their own, they may have another shape in each call.
        """
        read = {x for node, _, role in self.steps if role is not Role.BETWEEN for x in node.inputs}
        read.update(self._fgraph.outputs)
        own = {z for node, _, role in self.steps if role is Role.BETWEEN for z in node.outputs}
        return own - read

    # -- capturing -------------------------------------------------------------------------

    def capture(self, in_place: Sequence[bool] | None = None) -> Captured:
        """Record the work of a call, whose arguments are stored and whose first nodes have run.

        Nothing is computed on the device. A trial comes first, which tells how much memory each
        array takes, and when it is freed. The arrays of the graph are then placed in one block.

        Parameters
        ----------
        in_place : sequence of bool, optional
            For each argument, whether the graph may read it where it is, so that later calls must
            pass arrays of the same address. By default, it reads copies of all arguments.

        Raises
        ------
        DnnError or CUDARuntimeError
            If something cannot be captured.
        """
        import cupy

        shared = [(cell := self._storage[x], cell[0]) for x in self.shared]
        arrays = [array for _, array in shared]
        values = [self._storage[x][0] for x in self.arguments]
        require_apart(arrays)
        is_read = [
            is_wanted and x not in self._overwritten and not overlaps(value, arrays)
            for is_wanted, x, value in zip(
                in_place or [False] * len(values), self.arguments, values, strict=True
            )
        ]
        # Neither memory that is free nor the workspaces of other graphs are used.
        free_workspaces()
        with cupy.cuda.Device(self._device):
            cupy.get_default_memory_pool().free_all_blocks()  # of the current device
            stream = cupy.cuda.Stream(non_blocking=True)
            trial = Pool()
            self._captured(trial, stream, shared, values, is_read, is_trial=True)
            plan = planned(trial.lifetimes)
            del trial  # returns its memory before that of the graph is allocated
            return self._captured(Pool(plan), stream, shared, values, is_read)

    def _captured(
        self,
        pool: Pool,
        stream: Any,
        shared: list[tuple[Cell, Any]],
        values: Sequence[Any],
        is_read: Sequence[bool],
        is_trial: bool = False,
    ) -> Captured:
        with pool.used():
            arguments = [
                array if is_in_place else array.copy(order="K")
                for array, is_in_place in zip(values, is_read, strict=True)
            ]
        captured = Captured([], pool, Pool(smallest=UPLOADED), shared, arguments)
        cells = [self._storage[x] for x in self.arguments]
        try:
            for cell, array in zip(cells, arguments, strict=True):
                cell[0] = array
            positions = range(len(self.steps))
            ends = [i for i in positions if self.steps[i][2] is Role.BETWEEN]
            for start, end in pairwise([-1, *ends, len(self.steps)]):
                with recorded(pool, stream, is_trial=is_trial) as recording:
                    self._record(captured, positions[start + 1 : end])
                    if end == len(self.steps):
                        self._record_end(captured)
                if not is_trial:
                    captured.graphs.append(recording.graph)
                if end < len(self.steps):
                    captured.between.append(self._between(captured, end))
        finally:
            for cell, array in zip(cells, values, strict=True):
                cell[0] = array
            free_workspaces()
        _clear(self._computed, keep=Role.BEFORE)
        _clear(self._results, keep=Role.BEFORE)
        if not is_trial:
            own = list(zip(cells, values, arguments, strict=True))
            captured.in_place = [(cell, x.data.ptr) for cell, x, array in own if array is x]
            copied = [(cell, x, array) for cell, x, array in own if array is not x]
            # Arguments that are read in place may be freed between calls, unless views of them are
            # among the results.
            captured.arguments = [array for _, _, array in copied]
            self._set_replays(captured, copied)
        return captured

    def _set_replays(self, captured: Captured, copied: list[tuple[Cell, Any, Any]]) -> None:
        """Prepare the launches: the first copies what graphs read, the last what they return."""
        uploads = uploads_of(captured.uploads, captured.upload_pool.block_of)
        results: tuple[list[Any], list[int]] = (captured.outputs, captured.copied)
        *first, last = captured.graphs
        for graph, node in zip(first, captured.between, strict=True):
            is_needed = graph.nodes or copied or uploads
            replay = Replay(graph, copied, uploads, [], []) if is_needed else None
            captured.stages.append((replay, node))
            copied, uploads = [], []
        captured.replay = Replay(last, copied, uploads, *results)

    def _between(self, captured: Captured, position: int) -> Between:
        """Describe a node between two graphs, and give it arrays for its results."""
        node, thunk, _ = self.steps[position]
        given = [self._storage[x][0] for x in node.inputs]
        laid_out = node.op.evaluated(node, given, is_dry=True)
        kept = list(zip(node.outputs, laid_out, strict=True))
        placed = stand_ins(
            [array for z, array in kept if z not in self._passing], given, captured.pool
        )
        places = iter(placed)
        made = Between(position, thunk, [], [], [], [], [])
        for x, value in {x: self._storage[x][0] for x in node.inputs}.items():
            cell = self._storage[x]
            if x in self.arguments and any(value is y for y in captured.arguments):
                made.replaced.append(Place.of(cell, value, captured.pool))
            elif is_on_device(x) and x.owner is not None and x not in self._passing:
                made.operands.append(Place.of(cell, value, captured.pool))
            elif not is_on_device(x) and x.owner is not None and self._is_fixed(x):
                made.values.append((cell, copy.deepcopy(value)))
        for z, array in kept:
            cell = self._storage[z]
            cell[0] = array if z in self._passing else next(places)
            if z not in self._passing:
                made.results.append(Place.of(cell, cell[0], captured.pool))
        passing = {id(self._storage[x]) for x in self._passing}
        made.passed = [cell for cell in self._freed[position] if id(cell) in passing]
        self.free(position)
        return made

    def _record(self, captured: Captured, positions: Sequence[int]) -> None:
        for position in positions:
            node, thunk, role = self.steps[position]
            if role is Role.AFTER:
                for x in node.inputs:
                    if is_on_device(x):
                        self._keep(captured, x, self._lasting(x))
            elif role is Role.UPLOAD:
                (x,) = node.inputs
                # A value that does not change is copied each time, too, since the graph may
                # overwrite the array.
                own = self._storage[x]
                cell = [np.array(own[0])] if self._is_fixed(x) else own
                self._storage[node.outputs[0]][0] = self._uploaded(captured, cell)
            elif role is Role.DEVICE:
                with self._numbers_on_device(captured, node):
                    thunk()
                # Its memory may be that of other arrays while no node needs a workspace.
                free_workspaces()
            elif role is Role.FIXED:
                thunk()
            if role is Role.FIXED:
                for z in node.outputs:
                    if z in self._read_later:
                        value = self._storage[z][0]
                        # Other fixed nodes may overwrite it while the graph is captured.
                        is_overwritten = self._root(z) in self._overwritten
                        self._keep(captured, z, copy.deepcopy(value) if is_overwritten else value)
            self.free(position)

    def _record_end(self, captured: Captured) -> None:
        self._set_outputs(captured)
        run = [
            cell
            for role, cell in (*self._computed, *self._results)
            if role in (Role.BEFORE, Role.AFTER)
        ]
        inputs = {id(self._storage[x]) for x in self._fgraph.inputs}
        read = [cell for cell, _ in captured.results if id(cell) not in inputs]
        passing = [self._storage[x] for x in self._passing]
        captured.written = run + read + passing
        self._set_updates(captured)

    def _uploaded(self, captured: Captured, cell: Cell) -> Any:
        """Return a device array to which each launch copies a host value."""
        import cupy

        with captured.upload_pool.used():
            target = cupy.empty(cell[0].shape, cell[0].dtype)
        captured.uploads.append((cell, target))
        return target

    @contextmanager
    def _numbers_on_device(self, captured: Captured, node: Apply) -> Iterator[None]:
        """Let a node read numbers from device memory."""
        numbers = taken_as_numbers(node) & self._numbers
        values = [(self._storage[x], self._storage[x][0]) for x in numbers]
        try:
            for x in numbers:
                if x not in captured.numbers:
                    captured.numbers[x] = self._uploaded(captured, self._storage[x])
                self._storage[x][0] = captured.numbers[x]
            yield
        finally:
            for cell, value in values:
                cell[0] = value

    def _is_fixed(self, x: Variable) -> bool:
        if x.owner is None:
            return x not in self._fgraph.inputs
        return any(node is x.owner and role is Role.FIXED for node, _, role in self.steps)

    def _lasting(self, x: Variable) -> Any:
        """Return an array that has the value of `x` at this point when the graph ends."""
        value = self._storage[x][0]
        return value.copy(order="K") if self._root(x) in self._overwritten else value

    def _keep(self, captured: Captured, x: Variable, value: Any) -> None:
        # The array of an input that is not overwritten is stored already.
        if x.owner is not None or x in self._overwritten:
            captured.results.append((self._storage[x], value))

    def _set_outputs(self, captured: Captured) -> None:
        """Describe the outputs, and copy new values of shared variables to their arrays."""
        arrays = dict(
            zip(
                (*self.shared, *self.arguments),
                (*(array for _, array in captured.shared), *captured.arguments),
                strict=True,
            )
        )
        updated = [
            arrays[x] for i in self._updates.values() if (x := self._fgraph.inputs[i]) in arrays
        ]
        copies = []
        for position, z in enumerate(self._fgraph.outputs):
            value = self._storage[z][0]
            if not is_on_device(z):
                is_fixed = isinstance(value, np.ndarray) and self._is_fixed(z)
                captured.outputs.append(value if is_fixed else None)
                (captured.copied if is_fixed else captured.on_host).append(position)
                continue
            target = None
            if position in self._updates:
                target = arrays[self._fgraph.inputs[self._updates[position]]]
            # An Op in place may return a view of the array that it overwrites.
            is_in_place = target is not None and is_same(value, target)
            if not is_in_place and overlaps(value, updated):
                value = value.copy(order="K")  # before the arrays are overwritten
            if target is None:
                captured.copied.append(position)
            elif not is_in_place:
                if (value.shape, value.dtype) != (target.shape, target.dtype):
                    raise DnnNotSupportedError(f"the shape or dtype of {z} changes")
                copies.append((target, value))
            captured.outputs.append(value if target is None else target)
        for target, value in copies:
            target[...] = value

    def _set_updates(self, captured: Captured) -> None:
        """Describe which inputs get new values after a launch.

        The graph writes the new values of most shared variables to the arrays that they have.
        """
        replaced = {id(cell) for cell, _ in captured.results}
        for position, i in self._updates.items():
            x = self._fgraph.inputs[i]
            cell = self._storage[x]
            if x not in self.shared or id(cell) in replaced:
                captured.updates.append((cell, position))


def _clear(cells: Sequence[tuple[Role, Cell]], keep: Role | None) -> None:
    for role, cell in cells:
        if role is not keep:
            cell[0] = None
