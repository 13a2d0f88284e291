"""CUDA graphs of a function, with everything that they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytensor.graph.basic import Variable

from dnnops.capture.between import Between
from dnnops.capture.graph import Graph
from dnnops.capture.memory import Pool
from dnnops.capture.replay import Replay

__all__ = ["Captured"]

Cell = list[Any]


@dataclass
class Captured:
    """The graphs of one signature of a function.

    Attributes
    ----------
    graphs : list of Graph
        What is launched: one more than there are nodes in between.
    between : list of Between
        The nodes that run between the graphs.
    pool : Pool
        Memory of its results and of workspaces. What is freed during the capture is used again by
        later nodes.
    upload_pool : Pool
        Memory of host values, which are there before the first node runs.
    shared : list of tuple
        Storage and array of each shared variable.
    arguments : list of cupy.ndarray
        The arrays that the graph reads instead of arguments.
    in_place : list of tuple
        Storage and address of the arguments that the graph reads where they are.
    numbers : dict of Variable to cupy.ndarray
        Where kernels read host numbers.
    uploads : list of tuple
        Storage of each host value that a launch copies to the device, and the array
        that it is copied to.
    results : list of tuple
        Storage and value of each result that host nodes after the graph, or the caller, read.
    outputs : list of cupy.ndarray
        For each output of the function, the array that the graph writes or None.
    copied, on_host : list of int
        Positions of the outputs of which the caller gets a copy, and of those that nodes on the
        host compute.
    updates : list of tuple
        Storage of inputs that get the value of an output, and the position of the output.
    written : list
        Storage of results of nodes on the host and of what they read, released after a call.
    stages : list of tuple
        All launches but the last, each with the node that runs after it. None launches nothing.
    replay : Replay
        The last launch. The first one includes the copies of arguments and host values, and this
        one those of outputs.
    """

    graphs: list[Graph]
    pool: Pool
    upload_pool: Pool
    shared: list[tuple[Cell, Any]]
    arguments: list[Any]
    in_place: list[tuple[Cell, int]] = field(default_factory=list)
    numbers: dict[Variable, Any] = field(default_factory=dict)
    uploads: list[tuple[Cell, Any]] = field(default_factory=list)
    results: list[tuple[Cell, Any]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    on_host: list[int] = field(default_factory=list)
    updates: list[tuple[Cell, int]] = field(default_factory=list)
    written: list[Cell] = field(default_factory=list)
    between: list[Between] = field(default_factory=list)
    stages: list[tuple[Replay | None, Between]] = field(default_factory=list)
    replay: Replay = field(init=False)

    @property
    def nbytes(self) -> int:
        """Device memory of its own."""
        return self.pool.nbytes + self.upload_pool.nbytes

    def has_shared_arrays(self) -> bool:
        """Return whether shared variables have the arrays that the graph reads."""
        # There may be hundreds, and all() takes twice as long.
        for cell, array in self.shared:  # noqa: SIM110
            if cell[0] is not array:
                return False
        return True

    def has_arguments_in_place(self) -> bool:
        """Return whether the arguments that the graph reads in place are where they were."""
        return all(cell[0].data.ptr == address for cell, address in self.in_place)
