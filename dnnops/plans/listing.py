"""List, time and select the plans of a convolution without running a network."""

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
from dnnops.plans.plan import ConvPlan
from dnnops.plans.table import ConvPlans

if TYPE_CHECKING:
    from dnnops.plans.cases import PlanCase

__all__ = ["FlagChoice", "Survey", "conv_plans", "flag_choices", "survey"]

Progress = Callable[[int, int], object]


class FlagChoice(str):
    """Name of the plan that a flag's value selects, or an empty string if it selects none.

    Attributes
    ----------
    reason : str
        Reason why no plan is selected.
    """

    __slots__ = ("reason",)

    reason: str

    def __new__(cls, name: str, reason: str = "") -> FlagChoice:
        """Create a choice from a plan's name, or from the reason why no plan is selected."""
        choice = super().__new__(cls, name)
        choice.reason = reason
        return choice


@dataclass(frozen=True)
class Survey:
    """Plans and choices for one convolution in one direction.

    Attributes
    ----------
    case : PlanCase
        Convolution.
    plans : list of ConvPlan
        Timed plans, fastest first, then untimed plans in the library's order, then plans that
        cannot be run.
    choices : dict
        Plan that each value of the flag ``case.flag`` selects.
    energy_reason : str
        Reason why no energy was measured although it was requested.
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
) -> ConvPlans:
    """List the plans of a convolution.

    Operands with normally distributed random numbers are allocated for the call and freed after it.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of the image: (batch, channels, one to three spatial sizes).
    filter_shape : sequence of int
        Shape of the filters: (output channels, input channels / `num_groups`, spatial sizes).
    border_mode, subsample, filter_dilation, num_groups, filter_flip
        Same as for `dnnops.nnet.conv2d`. cuDNN is not used for padding that differs before and
        after an axis; GPU Ops pad the image first. The plans are then those of the remaining
        convolution, with less padding and a larger image. A note says so, and the padding is not
        timed.
    direction : {'forward', 'grad_inputs', 'grad_weights'}
        Forward convolution or one of its gradients. The gradients are also called ``backward_data``
        and ``backward_filter``.
    dtype : str
        Dtype of all arrays: float16, bfloat16, float32 or float64. The CPU supports the last two.
    precision, allow_tf32, deterministic, workspace_limit
        Settings for cuDNN, which override the flags ``dnn.conv.precision``, ``dnn.allow_tf32``,
        ``dnn.deterministic`` and ``dnn.conv.workspace_limit``. CPU Ops do not have these settings.
    memory_format : {'contiguous', 'channels_last'}
        Memory format of all arrays, except that results on the CPU are always contiguous.
    device : str, optional
        ``cpu``, ``cuda``, ``cuda0``, ``cuda1``, ... Default: the device of the flag
        ``device``, or ``cuda0``, if cuDNN can be used there, else ``cpu``.
    time : bool
        Whether to run and time every plan. On the GPU, engines are then also tried with further
        values of their knobs, as with ``time_on_shape_change``.
    energy : bool
        Whether to measure energy, which implies `time`. Only NVIDIA GPUs report energy; see
        `dnnops.gpuarray.energy`.
    progress : callable, optional
        Function called as ``progress(done, total)`` while plans are timed.

    Returns
    -------
    ConvPlans
        List of `ConvPlan`, which shows itself as a table: timed plans, fastest first; then untimed
        plans, in the order in which the library would try them; then plans that cannot be run, with
        the reason.

    Raises
    ------
    DnnValueError, DnnTypeError
        If an argument is invalid; the message names it.
    DnnUnavailableError
        If the library or the device cannot be used, or if `energy` needs a package that is missing.
    DnnMemoryError
        If plans are timed and there is not enough memory for the operands.

    Warns
    -----
    DnnWarning
        If energy was requested and the device does not report it.

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
    remarks = (found.case.remark,) if found.case.remark else ()
    plans = [replace(plan, notes=(*plan.notes, *remarks)) for plan in found.plans]
    return ConvPlans(plans, found.case.flops)


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
    """Return the plan that each value of an algorithm flag would select.

    Parameters
    ----------
    input_shape, filter_shape, border_mode, subsample, filter_dilation, num_groups
        Same as for `conv_plans`.
    time : bool
        Whether to time all plans. Otherwise the selections of ``time_once`` and
        ``time_on_shape_change`` are unknown.
    **settings
        Other arguments of `conv_plans`, such as `direction`, `dtype` and `device`.

    Returns
    -------
    dict
        Name of the plan for each word that the flag accepts. The flag is ``dnn.conv.algo_fwd``,
        ``algo_bwd_data`` or ``algo_bwd_filter`` on the GPU and ``onednn.conv.algo`` on the CPU. If
        no plan is selected, the name is an empty string with the reason in its attribute
        ``reason``.

    Raises
    ------
    DnnError
        Same as for `conv_plans`.
    """
    progress = settings.pop("progress", None)
    known = inspect.signature(conv_plans).parameters
    for name in settings:
        if name not in known or name in ("time", "energy"):
            raise DnnTypeError(
                f"flag_choices: there is no argument {name}; it takes those of conv_plans except"
                " energy"
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
    """Check the arguments of `conv_plans` and return the convolution that they describe."""
    from dnnops.plans.arguments import make_case

    return make_case(**arguments)


def survey(
    case: PlanCase,
    *,
    time: bool = True,
    energy: bool = False,
    choices: bool = True,
    progress: Progress | None = None,
) -> Survey:
    """List, time and measure the plans of a convolution with one set of operands.

    Parameters
    ----------
    case : PlanCase
        Convolution.
    time, energy, progress
        Same as for `conv_plans`.
    choices : bool
        Whether to find the plan that each value of the flag selects.

    Returns
    -------
    Survey

    Raises
    ------
    DnnError
        Same as for `conv_plans`.
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
        chosen = _flag_choices(case, listing, time) if choices else {}
    # The sort is stable, so untimed plans keep the library's order.
    plans.sort(key=lambda plan: math.inf if plan.time_ms is None else plan.time_ms)
    plans.sort(key=lambda plan: bool(plan.reason))
    return Survey(case, plans, chosen, energy_reason)


def _time_all(case: PlanCase, listing: Any, progress: Progress | None, rounds: int) -> None:
    runnable = [index for index, plan in enumerate(listing.plans) if not plan.reason]
    for done, index in enumerate(runnable):
        if progress is not None:
            progress(done, rounds * len(runnable))
        # A plan that fails is refused from then on, with the reason in its row.
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
    """Add the measured energy to the rows of the timed plans."""
    timed = [index for index, plan in enumerate(plans) if plan.time_ms is not None]
    for done, index in enumerate(timed, start=1):

        def run(repeats: int, index: int = index) -> None:
            listing.run(index, repeats)

        energy_mj = meter.millijoules(run, plans[index].time_ms)
        plans[index] = replace(plans[index], energy_mj=energy_mj)
        if progress is not None:
            progress(len(timed) + done, 2 * len(timed))


def _flag_choices(case: PlanCase, listing: Any, timed: bool) -> dict[str, FlagChoice]:
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
