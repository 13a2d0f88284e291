"""Spatial transformers: a network chooses an affine transformation of each image."""

from __future__ import annotations

from typing import Any

from dnnops import nnet
from dnnops.arguments import shown
from dnnops.errors import DnnTypeError
from dnnops.layers.images import size
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import as_tensor

__all__ = ["AffineGridGenerator", "BilinearSampler", "SpatialTransformer"]


class AffineGridGenerator(Layer):
    """Make sampling grids of affine transformations, as ``nn.AffineGridGeneratorBHWD``.

    Parameters
    ----------
    height, width : int
        Rows and columns of the grid.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a size is not a positive int.

    Notes
    -----
    ``forward(theta)`` takes transformations of shape (batch, 2, 3); see `dnnops.nnet.affine_grid`.
    """

    def __init__(self, height: int, width: int):
        super().__init__()
        self.height = size(self._name(), "height", height)
        self.width = size(self._name(), "width", width)

    def forward(self, theta: Any) -> Any:
        return nnet.affine_grid(theta, (self.height, self.width))

    def describe(self) -> str:
        return f"({self.height}, {self.width})"


class BilinearSampler(Layer):
    """Sample images at the points of grids; see `dnnops.nnet.grid_sample`.

    ``forward(img, grid)`` takes images of shape (batch, channels, rows, columns) and grids of shape
    (batch, rows, columns, 2).
    """

    def forward(self, img: Any, grid: Any) -> Any:
        return nnet.grid_sample(img, grid)


class SpatialTransformer(Layer):
    """Apply to each image the affine transformation that a localization network predicts.

    Parameters
    ----------
    localization : Layer or callable
        Network whose result for a batch of images is reshaped to transformations, (batch, 2, 3).
    height, width : int
        Rows and columns of the result.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.

    References
    ----------
    Jaderberg, Simonyan, Zisserman and Kavukcuoglu, Spatial Transformer Networks (2015).
    """

    def __init__(self, localization: Any, height: int, width: int):
        super().__init__()
        if not callable(localization):
            raise DnnTypeError(
                f"SpatialTransformer: localization must be a layer, got {shown(localization)}"
            )
        self.localization = localization
        self.grid = AffineGridGenerator(height, width)
        self.sampler = BilinearSampler()

    def forward(self, x: Any) -> Any:
        x = as_tensor("SpatialTransformer: the input must be a tensor", x)
        theta = self.localization(x).reshape((x.shape[0], 2, 3))
        return self.sampler(x, self.grid(theta))

    def describe(self) -> str:
        return self.grid.describe()
