"""Require cuDNN in modes that include it explicitly."""

from __future__ import annotations

from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

from dnnops.errors import DnnRequiredError, DnnUnavailableError
from dnnops.gpu.library import check_cudnn
from dnnops.rewriting.move.lifting import (
    graph_device,
)

__all__ = ["RequireCudnn"]


class RequireCudnn(GraphRewriter):
    """Raise an error if cuDNN is unusable, in modes that include the tag ``cudnn``."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Check cuDNN without changing `fgraph`."""
        try:
            check_cudnn(graph_device(fgraph))
        except DnnUnavailableError as error:
            raise DnnRequiredError(f"optimizer_including=cudnn: {error}") from error
