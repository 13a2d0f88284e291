"""The engines of cuDNN for a graph, and plans of them that the user asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnops import libcudnn
from dnnops.errors import DnnError, DnnNotSupportedError, DnnTypeError
from dnnops.graph.descriptors import Descriptor, Descriptors
from dnnops.graph.devices import current_device, default_handle, device_properties
from dnnops.graph.names import data_type, knob_type
from dnnops.graph.plan import Knob, describe_config, knobs_of
from dnnops.graph.plan_list import PlanList
from dnnops.graph.tensors import as_integer
from dnnops.libcudnn.handles import as_handle

__all__ = ["EnginePlans"]


class EnginePlans(PlanList):
    """A graph as cuDNN's descriptors, with its engines.

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
        self._graph: Descriptor | None = None

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
