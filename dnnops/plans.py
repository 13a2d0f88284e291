"""The ways to run a convolution: listed, timed and chosen without running a network."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dnnops.arguments import switch
from dnnops.errors import DnnError, DnnNotSupportedError, DnnTypeError, DnnWarning

if TYPE_CHECKING:
    from dnnops.plan_cases import PlanCase

__all__ = ["ConvPlan", "FlagChoice", "Survey", "conv_plans", "flag_choices", "survey"]

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class ConvPlan:
    """One way to run one convolution, whichever library does it.

    Attributes
    ----------
    name : str
        What the flags ``dnn.conv.algo_*`` take: an algorithm of cuDNN's legacy API (``FFT_TILING``,
        ``FFT_FMA_MATH``), an engine of its graph API (``engine7_k2=4``), an algorithm of cuBLASLt
        (``gemm20_k1=17``) or a kernel of our own (``depthwise1_k0=8``). It ends in
        ``_channels_last`` or ``_contiguous`` where arrays are copied to that format first, in
        ``_as_forward`` where a forward convolution with turned filters computes the gradient. On
        the CPU an implementation of oneDNN, as oneDNN calls it, or one of our own.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        What is computed.
    api : {'legacy', 'graph', 'cublaslt', 'onednn', 'dnnops'}
        Whose it is; ``dnnops`` for our own.
    number : int or None
        Of the legacy algorithm, engine, kernel or algorithm of cuBLASLt.
    workspace_bytes : int or None
        Memory that it needs besides the operands. On the CPU that includes copies of operands in
        other memory layouts. None if it can't be told.
    deterministic : bool or None
        Whether every run gives the same bits; None if the library doesn't say.
    math_type : str
        How it multiplies.
    notes : tuple of str
        What else there is to know.
    time_ms : float or None
        Milliseconds of one call; None if it wasn't timed.
    reason : str
        Why it can't be run; empty if it can.
    energy_mj : float or None
        Millijoules of one call; None if they weren't measured.
    """

    name: str
    direction: str
    api: str
    number: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    math_type: str = ""
    notes: tuple[str, ...] = ()
    time_ms: float | None = None
    reason: str = ""
    energy_mj: float | None = None


class FlagChoice(str):
    """The name of the plan that a flag's value stands for; empty if there is none.

    Attributes
    ----------
    reason : str
        Why there is none.
    """

    __slots__ = ("reason",)

    reason: str

    def __new__(cls, name: str, reason: str = "") -> FlagChoice:
        """Make one of a plan's name, or of the reason why there is none."""
        choice = super().__new__(cls, name)
        choice.reason = reason
        return choice


@dataclass(frozen=True)
class Survey:
    """What was found out about one convolution in one direction.

    Attributes
    ----------
    case : PlanCase
        The convolution.
    plans : list of ConvPlan
        Fastest first, then those untimed in the library's order, then those that can't be run.
    choices : dict
        For each value of the flag ``case.flag`` the plan that it stands for.
    energy_reason : str
        Why no energy was measured, if it was asked for.
    """

    case: PlanCase
    plans: list[ConvPlan]
    choices: dict[str, FlagChoice]
    energy_reason: str = ""


def conv_plans(
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    *,
    filter_flip: bool = True,
    direction: str = "forward",
    dtype: Any = "float32",
    precision: str | None = None,
    memory_format: str = "contiguous",
    allow_tf32: bool | None = None,
    deterministic: bool | None = None,
    workspace_limit: Any = None,
    device: str | None = None,
    time: bool = False,
    energy: bool = False,
    progress: Progress | None = None,
) -> list[ConvPlan]:
    """List the ways in which a convolution can be run.

    Operands of normally distributed random numbers are allocated for it, and freed.

    Parameters
    ----------
    input_shape : sequence of int
        The image's: (batch, channels, one to three spatial sizes).
    filter_shape : sequence of int
        (output channels, input channels / `num_groups`, spatial sizes).
    border_mode, subsample, filter_dilation, num_groups, filter_flip
        As `dnnops.nnet.conv2d` takes them. cuDNN isn't given padding that differs before and after
        an axis: the GPU's Ops pad the image first. Then the plans are those of the convolution that
        follows, of less padding and a larger image; a note says so, and padding isn't timed.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        The convolution, or which of its gradients; the gradients are also called
        ``backward_data`` and ``backward_filter``.
    dtype : str
        Of all arrays: float16, bfloat16, float32 or float64; the CPU computes in the last two.
    precision, allow_tf32, deterministic, workspace_limit
        Settings for cuDNN, in place of the flags ``dnn.conv.precision``, ``dnn.allow_tf32``,
        ``dnn.deterministic`` and ``dnn.conv.workspace_limit``. The CPU's Ops have no such settings.
    memory_format : {'contiguous', 'channels_last'}
        The order of all arrays in memory, but that the CPU's results are always contiguous.
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda0``...; by default ``cuda0`` if cuDNN can be used, else ``cpu``.
    time : bool
        Whether to run and time every plan. On the GPU engines are then tried with further values of
        their knobs too, as ``time_on_shape_change`` does.
    energy : bool
        Whether to measure millijoules, too; then plans are timed. Only NVIDIA GPUs tell; see
        `dnnops.gpuarray.energy`.
    progress : callable, optional
        Called as ``progress(done, total)`` while plans are timed.

    Returns
    -------
    list of ConvPlan
        Fastest first; then those not timed, in the order in which the library would try them; then
        those that can't be run, with the reason.

    Raises
    ------
    DnnValueError, DnnTypeError
        If an argument can't be right; the message says which.
    DnnUnavailableError
        If the library or the device can't be used, or if `energy` needs a package that is missing.
    DnnMemoryError
        If plans are timed and there is no room for the operands.

    Warns
    -----
    DnnWarning
        If energy was asked for and the device doesn't tell.

    Examples
    --------
    >>> import dnnops
    >>> plans = dnnops.conv_plans(
    ...     (2, 16, 14, 14), (32, 16, 3, 3), border_mode="half", device="cpu", time=True
    ... )
    >>> plans[0].time_ms <= plans[1].time_ms
    True
    """
    time, energy = switch("conv_plans", "time", time), switch("conv_plans", "energy", energy)
    found = survey(
        make_case(
            input_shape=input_shape,
            filter_shape=filter_shape,
            border_mode=border_mode,
            subsample=subsample,
            filter_dilation=filter_dilation,
            num_groups=num_groups,
            filter_flip=filter_flip,
            direction=direction,
            dtype=dtype,
            precision=precision,
            memory_format=memory_format,
            allow_tf32=allow_tf32,
            deterministic=deterministic,
            workspace_limit=workspace_limit,
            device=device,
        ),
        time=time,
        energy=energy,
        choices=False,
        progress=progress,
    )
    if found.energy_reason:
        warnings.warn(
            f"conv_plans: no energy was measured: {found.energy_reason}", DnnWarning, stacklevel=2
        )
    if found.case.remark:
        return [replace(plan, notes=(*plan.notes, found.case.remark)) for plan in found.plans]
    return found.plans


def flag_choices(
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    *,
    time: bool = True,
    **settings: Any,
) -> dict[str, FlagChoice]:
    """Tell for each value of an algorithm flag which plan it would choose.

    Parameters
    ----------
    input_shape, filter_shape, border_mode, subsample, filter_dilation, num_groups
        As for `conv_plans`.
    time : bool
        Whether to time all plans, without which it isn't known what ``time_once`` and
        ``time_on_shape_change`` would choose.
    **settings
        Other arguments of `conv_plans`, such as `direction`, `dtype` and `device`.

    Returns
    -------
    dict
        From each word that the flag takes (on the GPU ``dnn.conv.algo_fwd``, ``algo_bwd_data`` or
        ``algo_bwd_filter``, on the CPU ``onednn.conv.algo``) to the plan's name; where there is
        none that is an empty string whose attribute ``reason`` tells why.

    Raises
    ------
    DnnError
        As `conv_plans` does.
    """
    progress = settings.pop("progress", None)
    known = inspect.signature(conv_plans).parameters
    for name in settings:
        if name not in known or name in ("time", "energy"):
            raise DnnTypeError(
                f"flag_choices: there is no argument {name}; those of conv_plans are taken, other"
                " than energy"
            )
    time = switch("flag_choices", "time", time)
    case = make_case(
        input_shape=input_shape,
        filter_shape=filter_shape,
        border_mode=border_mode,
        subsample=subsample,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
        **settings,
    )
    return survey(case, time=time, progress=progress).choices


def make_case(**arguments: Any) -> PlanCase:
    """Check arguments as `conv_plans` takes them, and make the convolution that they describe."""
    from dnnops.plan_arguments import make_case

    return make_case(**arguments)


def survey(
    case: PlanCase,
    *,
    time: bool = True,
    energy: bool = False,
    choices: bool = True,
    progress: Progress | None = None,
) -> Survey:
    """Find out all that is wanted of a convolution with one set of operands.

    Parameters
    ----------
    case : PlanCase
        The convolution.
    time, energy, progress
        As for `conv_plans`.
    choices : bool
        Whether to ask which plan each value of the flag stands for.

    Returns
    -------
    Survey

    Raises
    ------
    DnnError
        As `conv_plans` does.
    """
    meter, energy_reason = None, ""
    if energy:
        try:
            meter = case.energy_meter()
        except DnnNotSupportedError as error:
            energy_reason = str(error)
    time = time or energy
    with case.listing(with_memory=time) as listing:
        if time:
            _time_all(case, listing, progress, rounds=1 if meter is None else 2)
        plans = listing.plans
        if meter is not None:
            try:
                _measure_all(meter, listing, plans, progress)
            except DnnNotSupportedError as error:
                energy_reason = str(error)
        chosen = _ask_all(case, listing, time) if choices else {}
    # Sorting keeps the library's order where nothing was measured.
    plans.sort(key=lambda plan: math.inf if plan.time_ms is None else plan.time_ms)
    plans.sort(key=lambda plan: bool(plan.reason))
    return Survey(case, plans, chosen, energy_reason)


def _time_all(case: PlanCase, listing: Any, progress: Progress | None, rounds: int) -> None:
    runnable = [index for index, plan in enumerate(listing.plans) if not plan.reason]
    for done, index in enumerate(runnable):
        if progress is not None:
            progress(done, rounds * len(runnable))
        # One that fails is refused from then on, and its row tells why.
        with suppress(DnnError):
            listing.time(index)
    try:
        case.search(listing)
    except DnnError as error:
        warnings.warn(
            f"conv_plans: only the plans that the library proposes were timed: {error}",
            DnnWarning,
            stacklevel=4,
        )
    if progress is not None:
        progress(len(runnable), rounds * len(runnable))


def _measure_all(
    meter: Any, listing: Any, plans: list[ConvPlan], progress: Progress | None
) -> None:
    """Add to the rows of the timed plans what energy they take."""
    timed = [index for index, plan in enumerate(plans) if plan.time_ms is not None]
    for done, index in enumerate(timed, start=1):

        def run(repeats: int, index: int = index) -> None:
            listing.run(index, repeats)

        energy_mj = meter.millijoules(run, plans[index].time_ms)
        plans[index] = replace(plans[index], energy_mj=energy_mj)
        if progress is not None:
            progress(len(timed) + done, 2 * len(timed))


def _ask_all(case: PlanCase, listing: Any, timed: bool) -> dict[str, FlagChoice]:
    choices = {}
    for value in case.flag_values:
        if value in case.timed_values and not timed:
            choices[value] = FlagChoice("", "nothing was timed")
            continue
        try:
            choices[value] = FlagChoice(listing.choice(value))
        except DnnError as error:
            choices[value] = FlagChoice("", str(error))
    return choices


def conv_flops(filter_shape: Sequence[int], output_shape: Sequence[int]) -> int:
    """Count the operations of a direct convolution, or of one of its gradients.

    Parameters
    ----------
    filter_shape : sequence of int
        (output channels, input channels of a group, spatial sizes).
    output_shape : sequence of int
        (batch, output channels, spatial sizes).

    Returns
    -------
    int
        Multiplications and additions, those with the padding's zeros included.
    """
    return 2 * math.prod(output_shape) * math.prod(filter_shape[1:])
