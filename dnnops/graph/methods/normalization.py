"""Methods that add normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.graph.methods.base import Methods
from dnnops.graph.names import data_type, norm_mode
from dnnops.graph.nodes.normalization import BatchNormInference, NormBackward, NormForward
from dnnops.graph.tensors import Tensor

__all__ = ["NormalizationMethods"]

_NOT_SET: Any = data_type.NOT_SET


class NormalizationMethods(Methods):
    """Normalizations and their gradients."""

    def batchnorm(
        self,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        in_running_mean: Tensor | None,
        in_running_var: Tensor | None,
        epsilon: Tensor,
        momentum: Tensor | None,
        peer_stats: Sequence[Tensor] = (),
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor | None]:
        """Normalize each channel by the statistics of the batch.

        Parameters
        ----------
        input : Tensor
            Data, of (n, c, spatial...).
        scale, bias : Tensor
            Factor and addend of each channel, of (1, c, 1...).
        in_running_mean, in_running_var : Tensor or None
            Averages of former batches, of the shape of `scale`.
        epsilon : Tensor
            Number that is added to the variance, passed by value.
        momentum : Tensor or None
            Weight of this batch in the new averages, passed by value.
        peer_stats : sequence of Tensor
            Must be empty: normalization over several GPUs is not supported.

        Returns
        -------
        list of Tensor or None
            The result, the mean, the reciprocal of the standard deviation, and the new averages,
            which are None if no averages are given.
        """
        _refuse_peers(peer_stats)
        running = {"PREV_RUNNING_MEAN": in_running_mean, "PREV_RUNNING_VAR": in_running_var}
        given = [x is not None for x in (in_running_mean, in_running_var, momentum)]
        if any(given) and not all(given):
            raise DnnValueError(
                "batchnorm: give in_running_mean, in_running_var and momentum, or none of them"
            )
        operands = {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}
        results = self.add_operation(
            NormForward,
            {**operands, "MOMENTUM": momentum, **running},
            name,
            compute_data_type,
            norm_mode=norm_mode.BATCH,
            norm_forward_phase=None,
        )
        return _filled(results, 5)

    def batchnorm_inference(
        self,
        input: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        scale: Tensor,
        bias: Tensor,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> Tensor:
        """Normalize each channel by given statistics.

        `inv_variance` is the reciprocal of the standard deviation.
        """
        operands = {"X": input, "MEAN": mean, "INV_VARIANCE": inv_variance}
        (result,) = self.add_operation(
            BatchNormInference,
            {**operands, "SCALE": scale, "BIAS": bias},
            name,
            compute_data_type,
            norm_mode=norm_mode.BATCH,
        )
        return result

    def _norm(
        self,
        mode: Any,
        phase: Any,
        tensors: tuple[Tensor | None, ...],
        compute_data_type: Any,
        name: str,
    ) -> list[Tensor | None]:
        operands = dict(zip(("X", "SCALE", "BIAS", "EPSILON"), tensors, strict=True))
        results = self.add_operation(
            NormForward, operands, name, compute_data_type, norm_mode=mode, norm_forward_phase=phase
        )
        return _filled(results, 2 if mode is norm_mode.RMS else 3)

    def layernorm(
        self,
        norm_forward_phase: Any,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        epsilon: Tensor,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor | None]:
        """Normalize over the axes of the scale (Ba et al., 2016).

        Returns
        -------
        list of Tensor or None
            The result, the mean and the reciprocal of the standard deviation; the last two are None
            in the inference phase.
        """
        tensors = (input, scale, bias, epsilon)
        return self._norm(norm_mode.LAYER, norm_forward_phase, tensors, compute_data_type, name)

    def instancenorm(
        self,
        norm_forward_phase: Any,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        epsilon: Tensor,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor | None]:
        """Normalize each channel of each entry of the batch (Ulyanov et al., 2016).

        See `layernorm` for the results.
        """
        tensors = (input, scale, bias, epsilon)
        return self._norm(norm_mode.INSTANCE, norm_forward_phase, tensors, compute_data_type, name)

    def rmsnorm(
        self,
        norm_forward_phase: Any,
        input: Tensor,
        scale: Tensor,
        bias: Tensor | None = None,
        epsilon: Tensor | None = None,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor | None]:
        """Divide by the root of the mean square over the axes of the scale.

        Returns
        -------
        list of Tensor or None
            The result and the reciprocal of the root (Zhang and Sennrich, 2019); the latter is None
            in the inference phase.
        """
        if epsilon is None:
            raise DnnTypeError("rmsnorm: epsilon is missing")
        tensors = (input, scale, bias, epsilon)
        return self._norm(norm_mode.RMS, norm_forward_phase, tensors, compute_data_type, name)

    def _norm_backward(
        self,
        mode: Any,
        tensors: tuple[Tensor | None, ...],
        compute_data_type: Any,
        name: str,
        **more: Any,
    ) -> list[Tensor]:
        ports = ("DY", "X", "SCALE", "MEAN", "INV_VARIANCE")
        operands = dict(zip(ports, tensors, strict=True))
        return self.add_operation(
            NormBackward, operands, name, compute_data_type, norm_mode=mode, **more
        )

    def batchnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        peer_stats: Sequence[Tensor] = (),
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Return the gradients of `batchnorm` with respect to data, scale and bias.

        `peer_stats` must be empty: normalization over several GPUs is not supported.
        """
        _refuse_peers(peer_stats)
        tensors = (grad, input, scale, mean, inv_variance)
        return self._norm_backward(norm_mode.BATCH, tensors, compute_data_type, name)

    def layernorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Return the gradients of `layernorm` with respect to data, scale and bias."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._norm_backward(norm_mode.LAYER, tensors, compute_data_type, name)

    def instancenorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor]:
        """Return the gradients of `instancenorm` with respect to data, scale and bias."""
        tensors = (grad, input, scale, mean, inv_variance)
        return self._norm_backward(norm_mode.INSTANCE, tensors, compute_data_type, name)

    def rmsnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        inv_variance: Tensor,
        has_dbias: bool,
        compute_data_type: Any = _NOT_SET,
        name: str = "",
    ) -> list[Tensor | None]:
        """Return the gradients of `rmsnorm` with respect to data, scale and bias.

        The last is None unless `has_dbias` is true.
        """
        tensors = (grad, input, scale, None, inv_variance)
        results = self._norm_backward(
            norm_mode.RMS, tensors, compute_data_type, name, has_dbias=bool(has_dbias)
        )
        return _filled(results, 3)


def _filled(results: list[Tensor], count: int) -> list[Tensor | None]:
    """Return the results and None in the place of others, as cuDNN's frontend does."""
    return [*results, *[None] * (count - len(results))]


def _refuse_peers(peer_stats: Sequence[Tensor]) -> None:
    if len(peer_stats):
        raise DnnNotSupportedError("batchnorm: peer_stats must be empty")
