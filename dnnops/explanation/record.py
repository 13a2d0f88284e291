"""What is known about the nodes of a function, as dataclasses and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from dnnops.errors import DnnValueError

__all__ = ["Node", "Operand", "Record"]


@dataclass(frozen=True)
class Operand:
    """An operand or a result of a node.

    Attributes
    ----------
    name : str
        Name of the variable, or empty if it has none.
    dtype : str
        Dtype of an array; for other values, such as random generators, the name of their type.
    shape : tuple of int or None, or None
        Shape in the measured call; else the static shape, with None for unknown sizes. None for
        values that are not arrays.
    device : str
        ``cpu``, or the device that holds the array, such as ``cuda0``.
    source : int or None
        For an operand, the `index` of the node that computes it; None for inputs of the function
        and constants. For a result, the node's own `index`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    device: str
    source: int | None


@dataclass(frozen=True)
class Node:
    """One node of a compiled function.

    Attributes
    ----------
    index : int
        Position in the order of execution.
    op : str
        Class of the Op. For elementwise Ops and reductions, also what they apply.
    detail : str
        The Op as PyTensor prints it, with its parameters.
    device : str
        Device that runs the node: ``cpu``, or ``cuda0``, ``cuda1``...
    library : {'oneDNN', 'cuDNN', 'dnnops', 'CuPy', 'C', 'Python', 'Numba', 'JAX', ...}
        What runs the node. `oneDNN` and `cuDNN` stand for the runtime library of dnnops that is
        linked with them. `dnnops` stands for Ops on the GPU that call only kernels of dnnops,
        `CuPy` for those that compute with CuPy, or launch kernels from Python through it, `C` for
        PyTensor's C code, and `Python` for the Op's ``perform``. A linker that compiles the whole
        function, such as Numba's, stands for all of its nodes.
    call : str
        Function of the runtime library, or empty.
    inputs, outputs : tuple of Operand
        Operands and results.
    reuse : {'', 'view', 'in-place'}
        Whether a result shares the memory of an operand, or overwrites it.
    transfer : {'', 'to device', 'to host', 'between devices'}
        Direction of the transfer if the node is one.
    between : bool
        Whether the node runs on the host, uses a result of a node on a device, directly or not, and
        contributes to an operand of another one.
    fused : int
        Number of scalar Ops that an elementwise node computes; 0 for other Ops.
    reason : str
        Why the node is on the host although others are on a device, or why no library runs it.
        Empty if nothing is to be explained.
    bytes : int or None
        Memory that the node allocates for its results. A view and a result in place allocate
        none. None if a size is unknown.
    moved_bytes : int or None
        Bytes of a transfer; 0 for other nodes, None if unknown.
    live_bytes : int or None
        Memory of all results that are kept after the node.
    peak_bytes : int or None
        Memory of all results while the node runs: those kept before it, and its own.
    time_ms : float or None
        Median of the milliseconds per call, or None if not measured.
    calls : int
        Number of measured calls in which the node ran. A node that is evaluated lazily, as with
        ``ifelse``, may not run.
    plan : str
        Plan of a convolution, as in `dnnops.chosen_plans`; empty if it has not run.
    workspace_bytes : int or None
        Memory of the plan in addition to operands and results, or None if unknown. It is not
        part of `peak_bytes`.
    captured : bool or None
        Whether the calls were replayed as CUDA graphs; None if unknown or not on a device.
    """

    index: int
    op: str
    detail: str
    device: str
    library: str
    call: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    reuse: str = ""
    transfer: str = ""
    between: bool = False
    fused: int = 0
    reason: str = ""
    bytes: int | None = None
    moved_bytes: int | None = 0
    live_bytes: int | None = None
    peak_bytes: int | None = None
    time_ms: float | None = None
    calls: int = 0
    plan: str = ""
    workspace_bytes: int | None = None
    captured: bool | None = None


@dataclass(frozen=True)
class Record:
    """The nodes of a compiled function, in the order of execution, and totals.

    `dnnops.explanation.result.Explanation` describes the attributes.
    """

    #: Version of the JSON that :meth:`to_json` returns.
    VERSION: ClassVar[int] = 1

    name: str
    linker: str
    nodes: tuple[Node, ...]
    calls: int = 0
    allow_gc: bool = True
    input_bytes: int | None = None
    note: str = ""

    @property
    def transfers(self) -> tuple[Node, ...]:
        """Nodes that copy between host and device, or between devices."""
        return tuple(node for node in self.nodes if node.transfer)

    @property
    def between(self) -> tuple[Node, ...]:
        """Nodes that run on the host between nodes on a device."""
        return tuple(node for node in self.nodes if node.between)

    @property
    def peak_bytes(self) -> int | None:
        """Greatest memory of all results at once, or None if a size is unknown."""
        peaks = [node.peak_bytes for node in self.nodes if node.peak_bytes is not None]
        known = all(node.bytes is not None for node in self.nodes)
        return max(peaks, default=0) if known else None

    @property
    def peak_node(self) -> Node | None:
        """First node that runs while memory is at its peak, or None if a size is unknown."""
        peak = self.peak_bytes
        return next((node for node in self.nodes if node.peak_bytes == peak), None)

    @property
    def time_ms(self) -> float | None:
        """Sum of the times of the nodes, or None if not measured."""
        if not self.calls:
            return None
        return sum(node.time_ms for node in self.nodes if node.time_ms is not None)

    @property
    def libraries(self) -> dict[str, int]:
        """Number of nodes by what runs them, the most frequent first."""
        return dict(Counter(node.library for node in self.nodes).most_common())

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dicts, lists, strings and numbers."""
        return {
            "schema": "dnnops.explain",
            "version": self.VERSION,
            **asdict(self),
            "time_ms": self.time_ms,
            "peak_bytes": self.peak_bytes,
            "peak_node": None if self.peak_node is None else self.peak_node.index,
            "transfers": [node.index for node in self.transfers],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the explanation as JSON.

        Parameters
        ----------
        indent : int, optional
            Spaces per level; None for one line.

        Returns
        -------
        str
            One JSON object, whose ``version`` changes when the meaning of a field does.
        """
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the explanation that :meth:`to_json` wrote.

        Raises
        ------
        DnnValueError
            If the text is not such JSON, or of another version.
        """
        try:
            found = json.loads(text)
            if (found["schema"], found["version"]) != ("dnnops.explain", cls.VERSION):
                raise ValueError(f"schema {found['schema']!r}, version {found['version']!r}")
            for name in ("schema", "version", "time_ms", "peak_bytes", "transfers"):
                found.pop(name)
            found.pop("peak_node", None)
            return cls(**{**found, "nodes": tuple(map(_node, found["nodes"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise DnnValueError(
                f"not an explanation of version {cls.VERSION} in JSON: {error}"
            ) from error


def _node(fields: dict[str, Any]) -> Node:
    operands = {
        name: tuple(
            Operand(**{**x, "shape": None if x["shape"] is None else tuple(x["shape"])})
            for x in fields[name]
        )
        for name in ("inputs", "outputs")
    }
    return Node(**{**fields, **operands})
