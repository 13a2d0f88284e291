"""Theano's convolution Ops, built from those of `dnnops.nnet`, with checks of known shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

from dnnops import nnet
from dnnops.errors import DnnValueError
from dnnops.nnet.conv.geometry import canonical_conv_params
from dnnops.nnet.conv.op import conv_operands, refuse_unshared
from dnnops.nnet.validate import narrow
from dnnops.theano.ops import OpName

__all__ = [
    "AbstractConv",
    "AbstractConv2d",
    "AbstractConv2d_gradInputs",
    "AbstractConv2d_gradWeights",
    "AbstractConv3d",
    "AbstractConv3d_gradInputs",
    "AbstractConv3d_gradWeights",
    "AbstractConv_gradInputs",
    "AbstractConv_gradWeights",
    "Corr3dMM",
    "Corr3dMM_gradInputs",
    "Corr3dMM_gradWeights",
    "CorrMM",
    "CorrMM_gradInputs",
    "CorrMM_gradWeights",
]

#: Theano's names of the operands of each class; `imshp` describes ``img``, `kshp` ``kern``.
_OPERANDS: dict[type, tuple[str, str]] = {
    nnet.Conv: ("img", "kern"),
    nnet.ConvGradWeights: ("img", "topgrad"),
    nnet.ConvGradInputs: ("kern", "topgrad"),
}


class KnownShapes:
    """Convolution Op that checks the shapes of its operands against known shapes.

    Parameters
    ----------
    op : ConvBase
    imshp, kshp : sequence of int or None, optional
        Known shapes of the image and the filters, with None for unknown sizes.
    """

    def __init__(self, op: Any, imshp: Any, kshp: Any):
        self.op = op
        self.imshp = None if imshp is None else tuple(imshp)
        self.kshp = None if kshp is None else tuple(kshp)

    def __call__(
        self, first: Any, second: Any, shape: Any = None, add_assert_shape: bool = True
    ) -> Any:
        """Apply the Op; for gradients, `shape` gives the spatial sizes of the result."""
        where, ndim = self.op.where, self.op.ndim
        names = _OPERANDS[type(self.op)]
        told = {"img": ("imshp", self.imshp), "kern": ("kshp", self.kshp)}
        operands = conv_operands(where, ndim, **dict(zip(names, (first, second), strict=True)))
        if add_assert_shape:
            operands = [
                narrow(where, name, x, *told[name]) if name in told else x
                for name, x in zip(names, operands, strict=True)
            ]
        if isinstance(self.op, nnet.Conv):
            return self.op(*operands)
        return self.op(*operands, self._spatial(*operands) if shape is None else shape)

    def _spatial(self, first: Any, second: Any) -> Any:
        """Return the spatial sizes of a gradient's result, if its operands determine them."""
        backward = isinstance(self.op, nnet.ConvGradInputs)
        sizes: Any = nnet.get_conv_gradinputs_shape if backward else nnet.get_conv_gradweights_shape
        shapes = ([x.shape[i] for i in range(x.type.ndim)] for x in (first, second))
        geometry = (self.op.border_mode, self.op.subsample, self.op.filter_dilation)
        spatial = sizes(*shapes, *geometry)[2:]
        if None in spatial:
            raise DnnValueError(
                f"{self.op.where}: shape must be given with a stride or border_mode 'half'"
            )
        return spatial

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "op":
            raise AttributeError(name)
        return getattr(self.op, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownShapes) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.op, self.imshp, self.kshp))


def _abstract(
    cls: type,
    convdim: int,
    imshp: Any = None,
    kshp: Any = None,
    border_mode: Any = "valid",
    subsample: Any = None,
    filter_flip: bool = True,
    filter_dilation: Any = None,
    num_groups: int = 1,
    unshared: bool = False,
) -> KnownShapes:
    refuse_unshared(cls.__name__, unshared)
    params = canonical_conv_params(
        cls.__name__,
        convdim,
        border_mode,
        1 if subsample is None else subsample,
        filter_flip,
        1 if filter_dilation is None else filter_dilation,
        num_groups,
    )
    return KnownShapes(cls(**params), imshp, kshp)


def _corr(
    cls: type,
    ndim: int,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
    openmp: Any = None,
) -> KnownShapes:
    return _abstract(
        cls, ndim, None, None, border_mode, subsample, False, filter_dilation, num_groups, unshared
    )


def _corr3d(
    cls: type,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    openmp: Any = None,
) -> KnownShapes:
    return _corr(cls, 3, border_mode, subsample, filter_dilation, num_groups)


def _is_2d(op: Any) -> bool:
    return op.ndim == 2


def _is_3d(op: Any) -> bool:
    return op.ndim == 3


def _abstract_name(name: str, cls: Any, ndim: int = 0) -> OpName:
    """Name the abstract Op, but not the Ops of backends, which are derived from it."""
    make = partial(_abstract, cls, ndim) if ndim else partial(_abstract, cls)
    return OpName(name, make, cls, fits=lambda op: type(op) is cls and ndim in (0, op.ndim))


AbstractConv = _abstract_name("AbstractConv", nnet.Conv)
AbstractConv_gradWeights = _abstract_name("AbstractConv_gradWeights", nnet.ConvGradWeights)
AbstractConv_gradInputs = _abstract_name("AbstractConv_gradInputs", nnet.ConvGradInputs)
AbstractConv2d = _abstract_name("AbstractConv2d", nnet.Conv, 2)
AbstractConv2d_gradWeights = _abstract_name("AbstractConv2d_gradWeights", nnet.ConvGradWeights, 2)
AbstractConv2d_gradInputs = _abstract_name("AbstractConv2d_gradInputs", nnet.ConvGradInputs, 2)
AbstractConv3d = _abstract_name("AbstractConv3d", nnet.Conv, 3)
AbstractConv3d_gradWeights = _abstract_name("AbstractConv3d_gradWeights", nnet.ConvGradWeights, 3)
AbstractConv3d_gradInputs = _abstract_name("AbstractConv3d_gradInputs", nnet.ConvGradInputs, 3)
# Theano's correlations by matrix products. In dnnops, the rewrites choose the implementation.
CorrMM = OpName("CorrMM", partial(_corr, nnet.Conv, 2), nnet.Conv, fits=_is_2d)
CorrMM_gradWeights = OpName(
    "CorrMM_gradWeights", partial(_corr, nnet.ConvGradWeights, 2), nnet.ConvGradWeights, fits=_is_2d
)
CorrMM_gradInputs = OpName(
    "CorrMM_gradInputs", partial(_corr, nnet.ConvGradInputs, 2), nnet.ConvGradInputs, fits=_is_2d
)
Corr3dMM = OpName("Corr3dMM", partial(_corr3d, nnet.Conv), nnet.Conv, fits=_is_3d)
Corr3dMM_gradWeights = OpName(
    "Corr3dMM_gradWeights",
    partial(_corr3d, nnet.ConvGradWeights),
    nnet.ConvGradWeights,
    fits=_is_3d,
)
Corr3dMM_gradInputs = OpName(
    "Corr3dMM_gradInputs", partial(_corr3d, nnet.ConvGradInputs), nnet.ConvGradInputs, fits=_is_3d
)
