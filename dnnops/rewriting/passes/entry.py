"""What a pass is, and database entries that make its rewriter from the tags of a mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytensor.graph.rewriting.basic import GraphRewriter, SequentialGraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabase

from dnnops.rewriting.move.lifting import EVERYTHING
from dnnops.rewriting.recognize.networks import InNetworks

__all__ = [
    "CPU",
    "GPU",
    "ByTags",
    "Pass",
    "Tags",
    "before_the_move",
    "in_networks",
    "is_float",
    "is_ours",
    "on_the_gpu",
    "on_the_host",
    "unless_excluded",
    "when_included",
]

Tags = frozenset[str]

#: Tags of passes for the libraries of one device.
CPU, GPU = ("fast_run", "onednn"), ("gpu", "cudnn")


class Pass(NamedTuple):
    """One pass over a graph.

    Attributes
    ----------
    position : float
        Position among the passes of `optdb`.
    name : str
        Name in `optdb`.
    rewriter : GraphRewriter or RewriteDatabase
        Rewriter to run, or database to query for it.
    tags : tuple of str
        Tags of the modes that run the pass.
    reason : str
        Reason for the position.
    """

    position: float
    name: str
    rewriter: GraphRewriter | RewriteDatabase
    tags: tuple[str, ...]
    reason: str


class ByTags(RewriteDatabase):
    """A database entry whose rewriter depends on the tags of the mode.

    Parameters
    ----------
    make : callable
        Function that takes the included and the excluded tags of a query, and returns the rewriter,
        or None if there is nothing to do.
    """

    def __init__(self, make: Callable[[Tags, Tags], GraphRewriter | None]):
        super().__init__()
        self.make = make

    def query(self, *tags: Any, **kwtags: Any) -> GraphRewriter:
        """Return the rewriter for a query."""
        query = tags[0] if tags else None
        included, excluded = (
            frozenset(getattr(query, name, None) or ()) for name in ("include", "exclude")
        )
        return self.make(included, excluded) or SequentialGraphRewriter()


# These decorate functions that return a rewriter. Such a function imports the rewriter's module
# where most processes do not need it, because they move nothing to a GPU.


def when_included(*tags: str) -> Callable[[Callable[[], GraphRewriter]], ByTags]:
    """Return a decorator to a database entry that does nothing in modes without these tags.

    Parameters
    ----------
    *tags : str

    Returns
    -------
    callable
        Decorator of a function without arguments that returns a rewriter.
    """
    return lambda make: ByTags(
        lambda included, excluded: make() if included.issuperset(tags) else None
    )


def unless_excluded(*tags: str) -> Callable[[Callable[[], GraphRewriter]], ByTags]:
    """Return a decorator to a database entry that does nothing if a mode excludes such a tag.

    Parameters
    ----------
    *tags : str

    Returns
    -------
    callable
        Decorator of a function without arguments that returns a rewriter.
    """
    return lambda make: ByTags(
        lambda included, excluded: make() if excluded.isdisjoint(tags) else None
    )


def on_the_host(make: Callable[[], GraphRewriter]) -> ByTags:
    """Return a database entry that does nothing for graphs that move to a GPU.

    Parameters
    ----------
    make : callable
        Function that returns a rewriter.

    Returns
    -------
    ByTags
    """
    return ByTags(lambda included, excluded: None if "gpu" in included else make())


def on_the_gpu(make: Callable[[], GraphRewriter]) -> ByTags:
    """Return a database entry whose rewriter is only made for graphs that move to a GPU.

    Parameters
    ----------
    make : callable
        Function that returns a rewriter.

    Returns
    -------
    ByTags
    """
    return ByTags(lambda included, excluded: make())


def before_the_move(make: Callable[[Tags, bool], GraphRewriter]) -> ByTags:
    """Return a database entry for a rewriter that must know which nodes will move to the GPU.

    Parameters
    ----------
    make : callable
        Function of the excluded tags, and of whether everything moves that can, that returns a
        rewriter.

    Returns
    -------
    ByTags
    """
    return ByTags(lambda included, excluded: make(excluded, EVERYTHING in included))


def in_networks(*steps: GraphRewriter) -> ByTags:
    """Return a database entry that rewrites only graphs of neural networks.

    In the modes of dnnops, every graph counts as a neural network.

    Parameters
    ----------
    *steps : GraphRewriter
        Rewriters, in the order in which they run.

    Returns
    -------
    ByTags
    """
    return ByTags(lambda included, excluded: InNetworks(*steps, everywhere=is_ours(included)))


def is_ours(included: Tags) -> bool:
    """Return whether a mode is one of dnnops."""
    return bool({"onednn", "gpu"} & included)


def is_float(dtype: str) -> bool:
    """Return whether a dtype is a floating-point one of NumPy; bfloat16 is not."""
    return dtype.startswith("float")
