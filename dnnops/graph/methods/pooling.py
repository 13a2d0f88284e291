"""Methods that add pooling."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError
from dnnops.graph.methods.base import Methods
from dnnops.graph.names import data_type, padding_mode, resample_mode
from dnnops.graph.nodes.resampling import Resample, ResampleBackward
from dnnops.graph.tensors import Tensor

__all__ = ["PoolingMethods"]

_NOT_SET: Any = data_type.NOT_SET


class PoolingMethods(Methods):
    """Pooling and its gradient."""

    def resample(
        self,
        input: Tensor,
        mode: Any,
        window: Any,
        stride: Any = (),
        pre_padding: Any = (),
        post_padding: Any = (),
        padding_mode: Any = padding_mode.NEG_INF_PAD,
        generate_index: bool = False,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Pool over windows of the spatial axes.

        Parameters
        ----------
        input : Tensor
            Images, of (n, c, spatial...).
        mode : resample_mode
            Maxima, or averages with or without the padding.
        window, stride, pre_padding, post_padding : sequence of int
            Sizes of the windows; steps, by default those sizes; and padding, by default 0.
        padding_mode : padding_mode
            Value of the padding.
        generate_index : bool
            Whether to return the positions of maxima, which the gradient uses.

        Returns
        -------
        list of Tensor
            The result and, with `generate_index`, the positions of maxima.
        """
        return self.add_operation(
            Resample,
            {"X": input},
            name,
            compute_data_type,
            generate_index=bool(generate_index),
            **_window(mode, window, stride, pre_padding, post_padding, padding_mode),
        )

    def resample_backward(
        self,
        loss: Tensor,
        mode: Any,
        window: Any,
        stride: Any = (),
        pre_padding: Any = (),
        post_padding: Any = (),
        padding_mode: Any = padding_mode.NEG_INF_PAD,
        index: Tensor | None = None,
        input: Tensor | None = None,
        output: Tensor | None = None,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> Tensor:
        """Return the gradient of `resample` with respect to its input, whose dim you set.

        For maxima, give the positions, `index`, or the input and the output of `resample`.
        """
        operands = {"DY": loss, "INDEX": index, "X": input, "Y": output}
        if mode is resample_mode.MAXPOOL and index is None and (input is None or output is None):
            raise DnnValueError("resample_backward of maxima needs index, or input and output")
        (result,) = self.add_operation(
            ResampleBackward,
            operands,
            name,
            compute_data_type,
            **_window(mode, window, stride, pre_padding, post_padding, padding_mode),
        )
        return result


def _window(
    mode: Any, window: Any, stride: Any, pre_padding: Any, post_padding: Any, padding_mode: Any
) -> dict[str, Any]:
    return {
        "mode": mode,
        "window": window,
        "stride": stride,
        "pre_padding": pre_padding,
        "post_padding": post_padding,
        "padding_mode": padding_mode,
    }
