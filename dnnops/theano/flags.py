"""Translate Theano's flags (``THEANO_FLAGS``, ``.theanorc``) to flags of PyTensor and dnnops.

Importing this module doesn't import PyTensor, which reads its flags when it is imported.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, Error
from pathlib import Path

from dnnops.config import VARIABLE
from dnnops.errors import DnnValueError

__all__ = [
    "IGNORED",
    "RENAMED",
    "adopt_environment",
    "apply_to_config",
    "device_as_given",
    "is_ignored",
    "translate",
    "warn_ignored",
]

#: Flags that exist only in Theano, and their defaults. They are accepted but have no effect.
IGNORED: dict[str, object] = {
    "assert_no_cpu_op": "ignore",
    "cache_optimizations": False,
    "compute_test_value": "off",
    "compute_test_value_opt": "off",
    "contexts": "",
    "conv.assert_shape": False,
    "ctc.root": "",
    "cuda.include_path": "",
    "cuda.root": "",
    "enable_initial_driver_test": True,
    "experimental.local_alloc_elemwise": False,
    "experimental.local_alloc_elemwise_assert": True,
    "experimental.unpickle_gpu_on_cpu": False,
    "force_device": False,
    "gpu.local_elemwise_fusion": True,
    "gpuarray.preallocate": 0.0,
    "gpuarray.sched": "default",
    "gpuarray.single_stream": True,
    "gpuarray.cache_path": "",
    "gpuarray.sync": False,
    "gpuelemwise.sync": True,
    "ignore_bug_before": "None",
    "init_gpu_device": "",
    "int_division": "int",
    "lib.cnmem": 0.0,
    "magma.enabled": False,
    "magma.include_path": "",
    "magma.library_path": "",
    "metaopt.optimizer_excluding": "",
    "metaopt.optimizer_including": "",
    "metaopt.verbose": 0,
    "numpy.seterr_all": "ignore",
    "numpy.seterr_divide": "None",
    "numpy.seterr_invalid": "None",
    "numpy.seterr_over": "None",
    "numpy.seterr_under": "None",
    "nvcc.compiler_bindir": "",
    "nvcc.fastmath": False,
    "nvcc.flags": "",
    "pickle_test_value": True,
    "print_active_device": True,
    "print_test_value": False,
    "reoptimize_unpickled_function": False,
    "scan.debug": False,
    "tensor.local_elemwise_fusion": True,
    "unittests.rseed": "666",
    "warn.ignore_bug_before": "0.9",
}
#: Sections that exist only in Theano.
_IGNORED_SECTIONS = (
    *("conv", "cublas", "cuda", "dnn.bin", "experimental", "gpuarray", "gpuelemwise", "lib"),
    *("magma", "metaopt", "nvcc", "pycuda", "unittests", "warn"),
)
#: Flags that have other names.
RENAMED = {
    "dnn.conv.workmem": "dnn.conv.algo_fwd",
    "dnn.conv.workmem_bwd": "dnn.conv.algo_bwd",
}

_adopted = False
_device = ""


def device_as_given() -> str:
    """Return the flag ``device`` in Theano's spelling, for scripts; empty if it was not set."""
    return _device


def is_ignored(name: str) -> bool:
    """Return whether a flag, given by its dotted name, exists only in Theano."""
    return name in IGNORED or name.rpartition(".")[0] in _IGNORED_SECTIONS


def translate(name: str, value: str) -> tuple[str, str] | None:
    """Translate one flag.

    Parameters
    ----------
    name : str
        Theano's dotted name.
    value : str
        Value of the flag.

    Returns
    -------
    tuple of str, or None
        Name and value for PyTensor's parser; None if the flag has no effect.

    Raises
    ------
    DnnValueError
        If the value of the flag ``device`` is not a device that dnnops supports.
    """
    name = RENAMED.get(name, name)
    if is_ignored(name):
        return None
    if name == "device":
        return name, _device_flag(value)
    if name == "deterministic":
        return "dnn__deterministic", str(value == "more")
    if name == "mode" and value.upper() in ("PROFILEMODE", "PROFILE_MODE"):
        return "profile", "True"
    return name.replace(".", "__"), value


def _device_flag(value: str) -> str:
    match = re.fullmatch(r"(?:gpu|cuda)(\d*)", value)
    if match is None and value != "cpu":
        raise DnnValueError(
            f"flag device: {value!r} is not accepted. Give one of: cpu, cuda, cuda0, ..."
        )
    return value if match is None else f"cuda{match[1]}"


def adopt_environment() -> None:
    """Add Theano's flags to ``PYTENSOR_FLAGS``, before PyTensor is imported.

    Flags that are set in ``PYTENSOR_FLAGS`` or ``DNNOPS_FLAGS`` take precedence. A single warning
    lists the flags that have no effect.
    """
    global _adopted
    _adopted = True
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    given = _translate_all(_read(os.environ), _own(os.environ))
    added = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    os.environ["PYTENSOR_FLAGS"] = ",".join([*added, *([flags] if flags else [])])


def apply_to_config() -> None:
    """Set Theano's flags in ``pytensor.config``, unless :func:`adopt_environment` has been called.

    Warnings list the flags that PyTensor doesn't have, and flags that can't be changed once it is
    imported.
    """
    global _adopted
    if _adopted:
        return
    _adopted = True
    from pytensor.configdefaults import config

    late, unknown = [], []
    given = _translate_all(_read(os.environ), _own(os.environ))
    for name, value in given.items():
        parameter = config._config_var_dict.get(name)
        if parameter is None:
            unknown.append(name)
        elif parameter.mutable:
            _set(config, name, value)
        elif parameter.apply(value) != getattr(config, name):
            late.append(name)
    if unknown:
        _warn(f"PyTensor does not have these flags of THEANO_FLAGS or .theanorc: {_list(unknown)}")
    if late:
        _warn(
            "These flags are only read before PyTensor is imported. Use `python -m dnnops theano"
            f" script.py`, or set them in PYTENSOR_FLAGS: {_list(late)}"
        )
    if "device" in given:
        from dnnops.modes import use_device

        use_device()


def _set(config: object, name: str, value: str) -> None:
    try:
        setattr(config, name, value)
    except ValueError as error:
        raise DnnValueError(f"THEANO_FLAGS or .theanorc: flag {name}={value}: {error}") from error


def warn_ignored(names: list[str]) -> None:
    """Warn about flags that exist only in Theano."""
    _warn(f"These flags have no effect on PyTensor and dnnops and are ignored: {_list(names)}")


def _translate_all(flags: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Translate flags, except those that are also set for PyTensor or dnnops themselves."""
    global _device
    taken = {name.replace(".", "__") for name in own}
    ignored, translated = [], {}
    for name, value in flags.items():
        pair = translate(name, value)
        if pair is None:
            ignored.append(name)
        elif pair[0] not in taken:
            translated[pair[0]] = pair[1]
            if pair[0] == "device":
                _device = value
    if ignored:
        warn_ignored(ignored)
    return translated


def _read(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of the configuration files and of ``THEANO_FLAGS``, which has precedence."""
    flags: dict[str, str] = {}
    for path in environment.get("THEANORC", "~/.theanorc").split(os.pathsep):
        flags.update(_read_file(Path(path).expanduser()))
    return flags | _parse(environment.get("THEANO_FLAGS", ""))


def _own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags that the environment sets for PyTensor and dnnops themselves."""
    return _parse(environment.get("PYTENSOR_FLAGS", "")) | _parse(environment.get(VARIABLE, ""))


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read(path)
    except (Error, OSError, UnicodeDecodeError) as error:
        _warn(f"{path} cannot be read and is ignored: {error}")
        return
    for section in parser.sections():
        prefix = "" if section == "global" else f"{section}."
        for option, value in parser.items(section):
            yield prefix + option, value


def _parse(text: str) -> dict[str, str]:
    """Split ``name=value,name=value`` as Theano and PyTensor do; values may be quoted."""
    splitter = shlex.shlex(text, posix=True)
    splitter.whitespace = ","
    splitter.whitespace_split = True
    pairs = (item.strip().partition("=") for item in splitter)
    return {name.strip(): value for name, equals, value in pairs if equals}


def _list(names: list[str]) -> str:
    return ", ".join(sorted(names))


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
