"""The table of all dnnops flags, and their registration with ``pytensor.config``.

PyTensor's parser writes sections with double underscores (``dnn__conv__algo_fwd``). Theano's dotted
names (``dnn.conv.algo_fwd``) are also accepted, in ``PYTENSOR_FLAGS`` and as sections of
``.pytensorrc`` (``[dnn.conv]``).

This module does not import PyTensor until :func:`register_flags` is called. PyTensor warns about
unknown flags while it is imported, so :func:`quiet_unknown_flag_warnings` must be active before
that.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from configparser import InterpolationError, NoOptionError, NoSectionError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dnnops.errors import DnnValueError
from dnnops.flag_values import (
    BOOLEAN,
    CPU_PLAN_NAME,
    PATH,
    Flag,
    Values,
    algorithm,
    as_cache_path,
    as_seconds,
    as_size,
    matching,
)

if TYPE_CHECKING:
    from pytensor.configparser import ConfigParam, PyTensorConfigParser

__all__ = [
    "FLAGS",
    "flag_value",
    "parse_flag",
    "quiet_unknown_flag_warnings",
    "register_flags",
]


#: The environment variable for flags of dnnops only.
VARIABLE = "DNNOPS_FLAGS"


def _default_cache() -> str:
    from pytensor.configdefaults import config

    return str(config.compiledir.parent / "dnnops-plans")


FLAGS: tuple[Flag, ...] = (
    Flag(
        "device",
        "cpu",
        Values(("cpu", "cuda"), "cuda0, cuda1, ...", matching(r"cuda\d+")),
        "Where graphs run unless their mode says otherwise.",
    ),
    Flag(
        "dnn.enabled",
        "auto",
        Values(("auto", "True", "False", "no_check")),
        "Whether cuDNN is used: if it works (auto), always, with an error if it does not (True), "
        "never (False), or without trying it first (no_check).",
    ),
    Flag("dnn.base_path", "", PATH, "Folder that holds include/ and lib/ (or lib64/) of cuDNN."),
    Flag("dnn.include_path", "", PATH, "Folder that holds cudnn.h."),
    Flag("dnn.library_path", "", PATH, "Folder that holds libcudnn."),
    Flag(
        "dnn.bin_path",
        "",
        PATH,
        "Folder of cuDNN's DLLs. Theano used it on Windows; it has no effect on Linux.",
    ),
    Flag(
        "dnn.conv.algo_fwd",
        "guess_once",
        algorithm(7),
        "Algorithm of forward convolutions.",
    ),
    Flag(
        "dnn.conv.algo_bwd",
        "guess_once",
        algorithm(5),
        "Algorithm of both gradients of convolutions, unless the next two flags are set.",
    ),
    Flag(
        "dnn.conv.algo_bwd_data",
        "",
        algorithm(5),
        "Algorithm of the gradient of convolutions with respect to their input.",
        follows="dnn.conv.algo_bwd",
    ),
    Flag(
        "dnn.conv.algo_bwd_filter",
        "",
        algorithm(6),
        "Algorithm of the gradient of convolutions with respect to their filters.",
        follows="dnn.conv.algo_bwd",
    ),
    Flag(
        "dnn.conv.precision",
        "as_input_f32",
        Values(("as_input_f32", "as_input", "float16", "float32", "float64")),
        "Type that convolutions compute in: that of the inputs, but float32 for float16 and "
        "bfloat16 inputs (as_input_f32), that of the inputs always (as_input), or a given one.",
    ),
    Flag(
        "dnn.allow_tf32",
        "False",
        BOOLEAN,
        "Whether float32 operations may round their inputs to TF32, for speed.",
    ),
    Flag(
        "dnn.matmul.algo",
        "time_once",
        Values(("guess_once", "time_once")),
        "How cuBLASLt's algorithm of a matrix product is selected: as its heuristic proposes "
        "(guess_once), or for large products as the fastest of several, timed once for each "
        "process, shape and layout unless dnn.deterministic is set (time_once).",
    ),
    Flag(
        "dnn.mixed_precision",
        "off",
        Values(("off", "bfloat16", "float16")),
        "16-bit type in which float32 graphs on a GPU run convolutions, matrix products, "
        "recurrent networks and attention, and store the arrays between them. Parameters, "
        "statistics, losses and updates stay float32.",
    ),
    Flag(
        "dnn.conv.workspace_limit",
        "auto",
        Values(("auto",), "a size (512MB, 2GiB, a number of bytes)", as_size),
        "Maximum device memory that one convolution may use as workspace: all free memory (auto), "
        "or a size. MB is 1000 * 1000 bytes, MiB 1024 * 1024.",
    ),
    Flag(
        "dnn.conv.time_limit",
        "2",
        Values(others="seconds, more than 0", convert=as_seconds),
        "Time limit for timing the plans of one selection (time_once, time_on_shape_change). "
        "Each stage also ends when a quarter of the limit, and more than eight plans, have "
        "brought nothing faster. A plan that is being built or timed at that moment is finished.",
    ),
    Flag(
        "dnn.conv.cache",
        _default_cache,
        Values(("off",), "a path", as_cache_path),
        "Folder that stores the plans selected for convolutions between processes, or off.",
        default_doc="dnnops-plans, next to the compiledir",
    ),
    Flag(
        "dnn.deterministic",
        "False",
        BOOLEAN,
        "Whether to use only algorithms that give bitwise identical results in every run.",
    ),
    Flag(
        "onednn.conv.algo",
        "auto",
        Values(("auto", "direct"), "a plan's name (jit:avx2, winograd)", matching(CPU_PLAN_NAME)),
        "Algorithm of convolutions on the CPU: in float32, Winograd's for 3x3 filters, matrix "
        "products for 1x1 filters and loops for depthwise convolutions where they are faster "
        "(auto); always oneDNN's direct algorithm (direct); or a plan that `python -m dnnops "
        "algos` lists, by name.",
    ),
    Flag(
        "onednn.scratch_limit",
        "64MiB",
        Values(others="a size (64MiB, 1GB, a number of bytes)", convert=as_size),
        "Maximum scratch memory that each CPU thread keeps between calls. Memory beyond it is "
        "freed at the end of a call. The flag is read when the CPU's runtime library is loaded.",
    ),
    Flag(
        "onednn.kept_memory",
        "1GiB",
        Values(others="a size (64MiB, 1GB, a number of bytes)", convert=as_size),
        "Memory that glibc's malloc keeps in this process after arrays are freed, so that the next "
        "call of a function need not request it from the system again: at most 2 GiB; 0 leaves "
        "malloc as it is. Thresholds of malloc set in the environment take precedence. The flag is "
        "read when the CPU's runtime library is loaded.",
    ),
    Flag(
        "dnn.verbose",
        "False",
        BOOLEAN,
        "Whether to print each selection of a plan, and why a function is not captured as a CUDA "
        "graph or a node not run from C.",
    ),
    Flag(
        "dnn.cuda_graph",
        "auto",
        Values(("auto", "True", "False")),
        "Whether functions record their work on a GPU as a CUDA graph and replay it once shapes "
        "repeat: if possible (auto), always, with an error if it is not possible (True), or never "
        "(False).",
    ),
    Flag(
        "dnn.prepared_calls",
        "True",
        BOOLEAN,
        "Whether C code repeats what elementwise operations, views, copies, reductions and matrix "
        "products launch on a GPU. If False, Python launches it in each call. The flag is read "
        "when a function is compiled.",
    ),
)


@contextmanager
def quiet_unknown_flag_warnings() -> Iterator[None]:
    """Silence PyTensor's warnings about unknown dnnops flags while it is imported.

    Only warnings about flags in `FLAGS` are silenced, in both spellings. A misspelled flag is still
    reported.
    """
    names = "|".join(re.escape(name) for flag in FLAGS for name in {flag.name, flag.key})
    # Not warnings.catch_warnings(), which would also undo filters that imported libraries install
    # permanently.
    warnings.filterwarnings("ignore", rf"PyTensor does not recognise this flag: (?:{names})\Z")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]


def register_flags() -> None:
    """Add every flag in `FLAGS` to ``pytensor.config``, except those already registered.

    Raises
    ------
    DnnValueError
        If the environment or a configuration file sets a flag to a value that it does not accept,
        or sets one flag to two values (under its two spellings, or in ``PYTENSOR_FLAGS`` and
        ``DNNOPS_FLAGS``), or if ``DNNOPS_FLAGS`` sets a flag that does not belong to dnnops.
    """
    from pytensor.configdefaults import config

    from dnnops.flag_names import suggest_flags, warn_of_unknown_flags

    _adopt_own_variable(config)
    for flag in FLAGS:
        if flag.key in config._config_var_dict:
            continue
        _adopt_dotted_name(config, flag)
        try:
            config.add(flag.key, flag.doc, _make_param(flag), in_c_key=flag.in_c_key)
        except Exception:
            # add() registers the flag before it reads the user's value.
            config._config_var_dict.pop(flag.key, None)
            raise
    warn_of_unknown_flags(config)
    suggest_flags(config)


def flag_value(name: str) -> Any:
    """Return the current value of a flag.

    Parameters
    ----------
    name : str
        Dotted name, such as ``"dnn.conv.algo_fwd"``.

    Returns
    -------
    object
        A `bool` for switches, an `int` for sizes, else a `str`.

    Raises
    ------
    AttributeError
        If there is no such flag.
    """
    from pytensor.configdefaults import config

    return getattr(config, name.replace(".", "__"))


def parse_flag(name: str, value: object) -> Any:
    """Check and normalize an argument that overrides a flag.

    Parameters
    ----------
    name : str
        Dotted name of the flag.
    value : object
        Value of the argument.

    Returns
    -------
    object
        Normalized value, as `flag_value` returns it.

    Raises
    ------
    DnnValueError
        If the flag does not accept the value. The message names the flag and lists accepted values.
    """
    return next(flag for flag in FLAGS if flag.name == name).parse(value)


def _adopt_own_variable(config: PyTensorConfigParser) -> None:
    """Pass the flags in ``DNNOPS_FLAGS`` to the parser, as if they were in ``PYTENSOR_FLAGS``.

    PyTensor checks ``PYTENSOR_FLAGS`` at the end of its own import and warns about flags that it
    does not know yet. It does not read ``DNNOPS_FLAGS``.
    """
    from pytensor.configparser import parse_config_string

    given = config._flags_dict
    for name, value in parse_config_string(os.environ.get(VARIABLE, "")).items():
        if name == "mode":
            continue  # see dnnops.mode_flag
        flag = next((flag for flag in FLAGS if name in (flag.name, flag.key)), None)
        if flag is None:
            from dnnops.flag_names import flag_hint

            hint = flag_hint(name, [flag.key for flag in FLAGS])
            elsewhere = "; set PyTensor's flags in PYTENSOR_FLAGS"
            raise DnnValueError(f"{VARIABLE}: dnnops has no flag {name}{hint or elsewhere}")
        if flag.key in config._config_var_dict:
            continue  # read before
        for spelling in (flag.name, flag.key):
            if given.setdefault(spelling, value) != value:
                raise DnnValueError(
                    f"{VARIABLE} sets {name}={value}, but {spelling}={given[spelling]} is also "
                    "set; set it only once"
                )


def _adopt_dotted_name(config: PyTensorConfigParser, flag: Flag) -> None:
    """Pass a value set under the dotted name to the parser under the name that it looks up."""
    given = config._flags_dict
    if flag.name == flag.key:
        return
    if flag.name in given:
        value = given.pop(flag.name)
        if given.setdefault(flag.key, value) != value:
            raise DnnValueError(
                f"PYTENSOR_FLAGS sets {flag.name}={value} and {flag.key}={given[flag.key]}, "
                "which are two spellings of one flag; set it only once"
            )
    elif flag.key not in given:
        section, option = flag.name.rsplit(".", 1)
        try:
            try:
                value = config._pytensor_cfg.get(section, option)
            except InterpolationError:
                value = config._pytensor_raw_cfg.get(section, option)
        except (NoOptionError, NoSectionError):
            return
        given[flag.key] = value


class _Inherited(str):
    """Value that a flag takes from another one. Setting it makes the flag follow again."""

    __slots__ = ()


def _make_param(flag: Flag) -> ConfigParam:
    from pytensor.configparser import ConfigParam

    if not flag.follows:
        return ConfigParam(flag.default, apply=flag.parse)

    leader = flag.follows.replace(".", "__")

    class FollowingParam(ConfigParam):
        """Parameter that takes the value of another one until it is set itself."""

        def __get__(self, cls: Any, type_: Any, delete_key: bool = False) -> Any:
            value = super().__get__(cls, type_, delete_key)
            return _Inherited(getattr(cls, leader)) if isinstance(value, _Inherited) else value

    def apply(value: object) -> object:
        # change_flags() restores the value that it has read, which must not pin an inherited one.
        return _Inherited() if isinstance(value, _Inherited) or value == "" else flag.parse(value)

    return FollowingParam(flag.default, apply=apply)
