"""Every flag of dnnops, in one table, and its registration with ``pytensor.config``.

PyTensor's parser names sections with double underscores (``dnn__conv__algo_fwd``). The names with
dots that Theano had (``dnn.conv.algo_fwd``) are accepted too, from ``PYTENSOR_FLAGS`` and as
sections of ``.pytensorrc`` (``[dnn.conv]``).

This module does not import PyTensor until :func:`register_flags` is called: importing PyTensor is
what makes it complain about flags that it does not know, and :func:`quiet_unknown_flag_warnings`
has to be in place before.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from configparser import InterpolationError, NoOptionError, NoSectionError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dnnops.errors import DnnValueError

if TYPE_CHECKING:
    from pytensor.configparser import ConfigParam, PyTensorConfigParser

__all__ = [
    "ALGORITHM_WORDS",
    "FLAGS",
    "Flag",
    "Values",
    "flag_value",
    "parse_flag",
    "quiet_unknown_flag_warnings",
    "register_flags",
]


#: The variable of the environment that holds flags of dnnops alone.
VARIABLE = "DNNOPS_FLAGS"


@dataclass(frozen=True)
class Values:
    """What a flag accepts.

    Attributes
    ----------
    words : tuple of str
        Values that are taken literally.
    others : str
        What else is accepted, in words, for messages and for the documentation.
    convert : callable, optional
        Turns text into the flag's value, or raises `ValueError`: then only `words` are left.
    """

    words: tuple[str, ...] = ()
    others: str = ""
    convert: Callable[[str], object] | None = None

    def describe(self) -> str:
        """Say in one phrase what is accepted."""
        return ", ".join([*self.words, *([self.others] if self.others else [])])

    def parse(self, name: str, value: object) -> object:
        """Check and normalize a value.

        Parameters
        ----------
        name : str
            Dotted name of the flag, for the message.
        value : object
            What the user gave; anything but a string is taken by its `str`.

        Returns
        -------
        object
            The normalized value.

        Raises
        ------
        DnnValueError
            If the value is not one of those accepted. The message names the flag and lists them.
        """
        text = str(value).strip()
        if self.convert is not None:
            with suppress(ValueError):
                return self.convert(text)
        if text in self.words:
            return text
        raise DnnValueError(
            f"flag {name}: {text!r} is not accepted. Give one of: {self.describe()}"
        ) from None


_BOOLEANS = {"0": False, "false": False, "1": True, "true": True}

_SIZE_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("", 1000), ("ib", 1024))
}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(text)
    size = int(float(match[1]) * _SIZE_UNITS[match[2]])
    if size >= 2**63:
        raise ValueError(text)
    return size


def _cache_path(text: str) -> str:
    if not text or text.lower() in ("off", "false", "none"):
        raise ValueError(text)
    return os.path.expanduser(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError(text)
    return seconds


def _matching(pattern: str) -> Callable[[str], str]:
    """Make a converter that accepts the strings that match `pattern` as they are."""

    def convert(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(text)
        return text

    return convert


BOOLEAN = Values(("False", "True"), convert=_boolean)
PATH = Values(others="a path (empty: search)", convert=os.path.expanduser)
#: In the order of ``Wish`` in c_code/runtime/cudnn/conv_case.hpp.
ALGORITHM_WORDS = (
    "none",
    "small",
    "large",
    "fft",
    "fft_tiling",
    "winograd",
    "winograd_non_fused",
    "deterministic",
    "guess_once",
    "guess_on_shape_change",
    "time_once",
    "time_on_shape_change",
)
# A plan's name is an engine with its knobs, or an algorithm of the legacy API in capitals.
_PLAN_NAME = (
    r"(?:(?:engine|depthwise|gemm)\d{1,9}(?:_k\d{1,9}=-?\d{1,9})*|[A-Z][A-Z0-9_]+)"
    r"(?:_channels_last|_contiguous|_as_forward)?"
)


def _algorithm(last: int) -> Values:
    """What a flag takes whose direction has algorithms of cuDNN's legacy API from 0 to `last`."""
    numbers = "|".join(map(str, range(last + 1)))
    return Values(
        ALGORITHM_WORDS,
        others=f"a number from 0 to {last}, a plan's name (engine7_k2=4, WINOGRAD)",
        convert=_matching(rf"{numbers}|{_PLAN_NAME}"),
    )


# As oneDNN calls its implementations, with a number where it has several of one name; and those of
# dnnops. What there is for one convolution only a call can tell.
_CPU_PLAN_NAME = r"winograd|gemm \(BLAS\)|(?=.{1,127}\Z)[\w.+-]+(?::[\w.+-]+)+(?:#\d+)?"


@dataclass(frozen=True)
class Flag:
    """One row of the table of flags.

    Attributes
    ----------
    name : str
        Name with dots, as in the documentation.
    default : str or callable
        Default, as a user would write it; a callable is asked at the first read.
    values : Values
        What it accepts.
    doc : str
        What it does.
    in_c_key : bool
        Whether it alters generated C code, so that changing it compiles again.
    follows : str
        Dotted name of the flag whose value this one has as long as it is not set itself.
    default_doc : str
        How the documentation shows a default that is not a plain value.
    """

    name: str
    default: str | Callable[[], str]
    values: Values
    doc: str
    in_c_key: bool = False
    follows: str = ""
    default_doc: str = ""

    @property
    def key(self) -> str:
        """Name in ``pytensor.config``: double underscores for dots."""
        return self.name.replace(".", "__")

    def parse(self, value: object) -> object:
        """Check and normalize a value; see `Values.parse`."""
        return self.values.parse(self.name, value)


def _default_cache() -> str:
    from pytensor.configdefaults import config

    return str(config.compiledir.parent / "dnnops-plans")


FLAGS: tuple[Flag, ...] = (
    Flag(
        "device",
        "cpu",
        Values(("cpu", "cuda"), "cuda0, cuda1, ...", _matching(r"cuda\d+")),
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
        "Folder of cuDNN's DLLs. Theano had it for Windows; Linux has no use for it.",
    ),
    Flag(
        "dnn.conv.algo_fwd",
        "small",
        _algorithm(7),
        "Algorithm of forward convolutions.",
    ),
    Flag(
        "dnn.conv.algo_bwd",
        "none",
        _algorithm(5),
        "Algorithm of both gradients of convolutions, where the next two flags are not set.",
    ),
    Flag(
        "dnn.conv.algo_bwd_data",
        "",
        _algorithm(5),
        "Algorithm of the gradient of convolutions with respect to their input.",
        follows="dnn.conv.algo_bwd",
    ),
    Flag(
        "dnn.conv.algo_bwd_filter",
        "",
        _algorithm(6),
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
        "dnn.conv.workspace_limit",
        "auto",
        Values(("auto",), "a size (512MB, 2GiB, a number of bytes)", _size),
        "Most device memory that one convolution may use as workspace: what is free (auto), or a "
        "size. MB is 1000 * 1000 bytes, MiB 1024 * 1024.",
    ),
    Flag(
        "dnn.conv.time_limit",
        "2",
        Values(others="seconds, more than 0", convert=_seconds),
        "How long the timing of plans for one choice (time_once, time_on_shape_change) may take. "
        "What is being built or timed when the time is up is finished.",
    ),
    Flag(
        "dnn.conv.cache",
        _default_cache,
        Values(("off",), "a path", _cache_path),
        "Folder that keeps the plans chosen for convolutions from one process to the next, or off.",
        default_doc="dnnops-plans, beside the compiledir",
    ),
    Flag(
        "dnn.deterministic",
        "False",
        BOOLEAN,
        "Whether only algorithms that give the same bits in every run are used.",
    ),
    Flag(
        "onednn.conv.algo",
        "auto",
        Values(("auto", "direct"), "a plan's name (jit:avx2, winograd)", _matching(_CPU_PLAN_NAME)),
        "Algorithm of convolutions on the CPU: in float32 Winograd's for 3x3 filters where it is "
        "faster (auto), the direct one always, or the plan of a name that `python -m dnnops algos` "
        "lists.",
    ),
    Flag(
        "onednn.scratch_limit",
        "64MiB",
        Values(others="a size (64MiB, 1GB, a number of bytes)", convert=_size),
        "Most scratch memory that each thread on the CPU keeps from one call to the next; what a "
        "call takes beyond is given back when it ends. Read when the CPU's runtime library is "
        "loaded.",
    ),
    Flag("dnn.verbose", "False", BOOLEAN, "Whether choices of plans are printed as they are made."),
    Flag(
        "dnn.cuda_graph",
        "False",
        BOOLEAN,
        "Whether compiled functions record their kernels as a CUDA graph and replay it. Nothing "
        "reads it yet.",
    ),
)


@contextmanager
def quiet_unknown_flag_warnings() -> Iterator[None]:
    """Keep PyTensor from calling the flags of dnnops unknown while it is being imported.

    Only warnings about flags of `FLAGS` are silenced, in both spellings; a misspelled one is still
    reported.
    """
    names = "|".join(re.escape(name) for flag in FLAGS for name in {flag.name, flag.key})
    # Not warnings.catch_warnings(): it would also undo the filters that the libraries imported
    # inside install for good.
    warnings.filterwarnings("ignore", rf"PyTensor does not recognise this flag: (?:{names})\Z")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]


def register_flags() -> None:
    """Add every flag of `FLAGS` to ``pytensor.config``; do nothing for those already there.

    Raises
    ------
    DnnValueError
        If the environment or a configuration file gives a flag a value that it does not accept, or
        gives one flag two values, under its two spellings or in ``PYTENSOR_FLAGS`` and
        ``DNNOPS_FLAGS``; if ``DNNOPS_FLAGS`` has another flag.
    """
    from pytensor.configdefaults import config

    _adopt_own_variable(config)
    for flag in FLAGS:
        if flag.key in config._config_var_dict:
            continue
        _adopt_dotted_name(config, flag)
        try:
            config.add(flag.key, flag.doc, _make_param(flag), in_c_key=flag.in_c_key)
        except Exception:
            # add() registers before it reads the user's value.
            config._config_var_dict.pop(flag.key, None)
            raise


def flag_value(name: str) -> Any:
    """Read a flag by its dotted name.

    Parameters
    ----------
    name : str
        Such as ``"dnn.conv.algo_fwd"``.

    Returns
    -------
    object
        Its current value: `bool` for switches, `int` for sizes, else `str`.

    Raises
    ------
    AttributeError
        If there is no such flag.
    """
    from pytensor.configdefaults import config

    return getattr(config, name.replace(".", "__"))


def parse_flag(name: str, value: object) -> Any:
    """Check and normalize what an argument gives in place of a flag's value.

    Parameters
    ----------
    name : str
        Dotted name of the flag.
    value : object
        What was given.

    Returns
    -------
    object
        As `flag_value` gives it.

    Raises
    ------
    DnnValueError
        If the flag does not accept the value. The message names the flag and lists its values.
    """
    return next(flag for flag in FLAGS if flag.name == name).parse(value)


def _adopt_own_variable(config: PyTensorConfigParser) -> None:
    """Hand the flags of ``DNNOPS_FLAGS`` to the parser, as if ``PYTENSOR_FLAGS`` had them.

    PyTensor checks the latter at the end of its own import, and warns of flags that it does not
    know yet. This variable it does not read.
    """
    from pytensor.configparser import parse_config_string

    given = config._flags_dict
    for name, value in parse_config_string(os.environ.get(VARIABLE, "")).items():
        if name == "mode":
            continue  # see dnnops.mode_flag
        flag = next((flag for flag in FLAGS if name in (flag.name, flag.key)), None)
        if flag is None:
            raise DnnValueError(
                f"{VARIABLE}: dnnops has no flag {name}; PyTensor's own are set in PYTENSOR_FLAGS"
            )
        if flag.key in config._config_var_dict:
            continue  # read before
        for spelling in (flag.name, flag.key):
            if given.setdefault(spelling, value) != value:
                raise DnnValueError(
                    f"{VARIABLE} gives {name}={value}, and {spelling}={given[spelling]} is given, "
                    "too: give it once"
                )


def _adopt_dotted_name(config: PyTensorConfigParser, flag: Flag) -> None:
    """Hand a value given under the dotted name to the parser under the one that it looks up."""
    given = config._flags_dict
    if flag.name == flag.key:
        return
    if flag.name in given:
        value = given.pop(flag.name)
        if given.setdefault(flag.key, value) != value:
            raise DnnValueError(
                f"PYTENSOR_FLAGS gives {flag.name}={value} and {flag.key}={given[flag.key]}: "
                "these are two spellings of one flag, give it once"
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
    """The value of a flag that follows another; setting it makes the flag follow again."""

    __slots__ = ()


def _make_param(flag: Flag) -> ConfigParam:
    from pytensor.configparser import ConfigParam

    if not flag.follows:
        return ConfigParam(flag.default, apply=flag.parse)

    leader = flag.follows.replace(".", "__")

    class FollowingParam(ConfigParam):
        """A parameter that has another one's value as long as it is not set itself."""

        def __get__(self, cls: Any, type_: Any, delete_key: bool = False) -> Any:
            value = super().__get__(cls, type_, delete_key)
            return _Inherited(getattr(cls, leader)) if isinstance(value, _Inherited) else value

    def apply(value: object) -> object:
        # change_flags() puts back what it has read, which must not pin an inherited value.
        return _Inherited() if isinstance(value, _Inherited) or value == "" else flag.parse(value)

    return FollowingParam(flag.default, apply=apply)
