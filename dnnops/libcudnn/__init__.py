"""cuDNN's C API as Python functions, with its enums, structs, handles and descriptors.

The names are those of cuDNN's headers, from which they are generated when one is first used.
Importing this package does nothing else. The page `libcudnn` of the documentation describes how
arguments and results correspond to those in C.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

#: How all names of cuDNN start.
_PREFIXES = ("cudnn", "CUDNN", "libraryPropertyType", "__all__")
#: What replaces names of cudnn-python-wrappers that are not those of cuDNN 9.
_FORMER = {
    "cudnnCheckStatus": "functions raise exceptions",
    "cudnnError": "functions raise dnnops.errors.CudnnError",
    "cudnnConvolutionFwdPreference": "cudnnGetConvolutionForwardAlgorithm_v7 returns algorithms",
    "cudnnConvolutionBwdDataPreference": (
        "cudnnGetConvolutionBackwardDataAlgorithm_v7 returns algorithms"
    ),
    "cudnnConvolutionBwdFilterPreference": (
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7 returns algorithms"
    ),
    "cudnnGetConvolutionForwardAlgorithm": "use cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataAlgorithm": "use cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterAlgorithm": (
        "use cudnnGetConvolutionBackwardFilterAlgorithm_v7"
    ),
}


def __getattr__(name: str) -> Any:
    """Return a name of cuDNN's headers.

    Raises
    ------
    AttributeError
        If cuDNN does not declare the name. The message says what replaces it, or why dnnops
        cannot call the function.
    DnnUnavailableError
        If cuDNN or its headers are missing.
    """
    # Others are looked up here, too, such as names of modules.
    if not name.startswith(_PREFIXES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__all__":
        return __dir__()
    names = _generated()
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {_reason(name)}")
    globals().update(names)
    return names[name]


def _reason(name: str) -> str:
    from dnnops.libcudnn.loading import generated_module

    module: Any = generated_module()
    if name in module._omitted:
        return f"dnnops cannot call it: {module._omitted[name]}"
    reason = f"cuDNN {module.__version__} does not declare it"
    former = _FORMER.get(name.removesuffix("_t"))
    return f"{reason}; {former}" if former else reason


def __dir__() -> list[str]:
    """Return the names of cuDNN's headers; nothing if they are missing."""
    from dnnops.errors import DnnUnavailableError

    with suppress(DnnUnavailableError):
        return sorted(_generated())
    return []


def _generated() -> dict[str, Any]:
    from dnnops.libcudnn.loading import generated_module

    return {name: value for name, value in vars(generated_module()).items() if name[0] != "_"}
