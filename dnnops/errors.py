"""Exceptions and warnings of dnnops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DnnError(Exception):
    """Base class of all dnnops errors."""


class DnnValueError(DnnError, ValueError):
    """Raised for invalid values of operands or parameters, such as shapes, strides or padding."""


class DnnOverflowError(DnnValueError, OverflowError):
    """Raised for a number that does not fit into its type in C."""


class DnnNeighborhoodError(DnnValueError, TypeError):
    """Raised for neighborhoods that do not fit their images; Theano raised a TypeError."""


class DnnShapeError(DnnValueError, AssertionError):
    """Raised for a shape that is not the one that was declared; Theano asserted it."""


class DnnTypeError(DnnError, TypeError):
    """Raised for a dtype or rank that an Op does not accept."""


class DnnUnknownFlagError(DnnError, KeyError):
    """Raised for a flag that does not exist."""

    def __str__(self) -> str:
        # Not the representation of the key.
        return str(self.args[0])


class DnnNotSupportedError(DnnError, NotImplementedError):
    """Raised for valid operands or parameters that the library does not support."""


class DnnLibraryError(DnnError, RuntimeError):
    """Raised when a library call fails; the message gives the call, the status and its text."""


class DnnCompileError(DnnLibraryError):
    """Raised when a CUDA kernel does not compile; the message gives the log and the source.

    A kernel that the runtime library requests raises `DnnNotSupportedError` with this text, since
    another plan may do without it.
    """

    def name_node(self, node: Any) -> None:
        """Let the message begin with the Op that needs the kernel, and add a note with its node.

        Parameters
        ----------
        node : Apply
        """
        self.args = (f"{node.op}: {self}",)
        self.add_note(f"Apply node that needs the kernel: {node}")


class DnnMemoryError(DnnError, MemoryError):
    """Raised when memory runs out, even after freeing caches and trying smaller workspaces."""


class DnnIndexError(DnnError, IndexError):
    """Raised for an index or label out of bounds; on a GPU, by a later transfer to the host."""


class DnnUnavailableError(DnnError, RuntimeError):
    """Raised when a required library, compiler or device is missing; the message names it."""


class DnnThreadError(DnnError, RuntimeError):
    """Raised when calls of one function overlap: those of two threads, or one within another."""


class DnnCacheError(DnnError, RuntimeError):
    """Raised when the plan cache, or a file exported from it, cannot be read or written."""


class DnnRequiredError(DnnUnavailableError, AssertionError):
    """Raised when a library requested by ``optimizer_including`` cannot be used.

    It is also an `AssertionError`, because PyTensor logs other exceptions in rewrites and
    continues.
    """


class CudnnError(DnnLibraryError):
    """Base class of the exceptions of `dnnops.libcudnn`, which are named after cuDNN's statuses.

    ``CUDNN_STATUS_BAD_PARAM_NULL_POINTER`` raises ``CudnnBadParamNullPointerError``, for example.
    Its base is the class of its category, here `CudnnBadParamError`.

    Attributes
    ----------
    status : str
        Name of the status.
    """

    status = ""


class CudnnBadParamError(CudnnError, DnnValueError):
    """Raised for invalid arguments."""

    status = "CUDNN_STATUS_BAD_PARAM"


class CudnnNotSupportedError(CudnnError, DnnNotSupportedError):
    """Raised for valid arguments that cuDNN does not support."""

    status = "CUDNN_STATUS_NOT_SUPPORTED"


class CudnnInternalError(CudnnError):
    """Raised if cuDNN fails."""

    status = "CUDNN_STATUS_INTERNAL_ERROR"


class CudnnExecutionFailedError(CudnnError):
    """Raised if a kernel or a library that cuDNN uses fails."""

    status = "CUDNN_STATUS_EXECUTION_FAILED"


class DnnWarning(UserWarning):
    """Issued when something is unavailable; the message names it and the fallback."""


#: Exception class for each ``dnnops_status`` in ``c_code/abi/dnnops_runtime.h``.
STATUS_ERRORS: dict[int, type[DnnError]] = {
    1: DnnValueError,
    2: DnnTypeError,
    3: DnnNotSupportedError,
    4: DnnLibraryError,
    5: DnnMemoryError,
    6: DnnIndexError,
}


def error_from_status(status: int, message: str) -> DnnError:
    """Return the exception for a status that a runtime library returned.

    Parameters
    ----------
    status : int
        Non-zero ``dnnops_status``.
    message : str
        Result of ``dnnops_last_error()``.

    Returns
    -------
    DnnError
        Instance of the matching subclass.
    """
    return STATUS_ERRORS.get(status, DnnLibraryError)(message)


#: Classes of cuDNN's statuses by category, which is the thousands of a status.
_CATEGORIES: dict[int, type[CudnnError]] = {
    1: CudnnError,
    2: CudnnBadParamError,
    3: CudnnNotSupportedError,
    4: CudnnInternalError,
    5: CudnnExecutionFailedError,
}
#: The other statuses of cuDNN 9.28, by category, without ``CUDNN_STATUS_``.
_STATUSES = {
    1: """NOT_INITIALIZED SUBLIBRARY_VERSION_MISMATCH SERIALIZATION_VERSION_MISMATCH DEPRECATED
    LICENSE_ERROR RUNTIME_IN_PROGRESS RUNTIME_FP_OVERFLOW SUBLIBRARY_LOADING_FAILED""",
    2: """INVALID_VALUE BAD_PARAM_NULL_POINTER BAD_PARAM_MISALIGNED_POINTER BAD_PARAM_NOT_FINALIZED
    BAD_PARAM_OUT_OF_BOUND BAD_PARAM_SIZE_INSUFFICIENT BAD_PARAM_STREAM_MISMATCH
    BAD_PARAM_SHAPE_MISMATCH BAD_PARAM_DUPLICATED_ENTRIES BAD_PARAM_ATTRIBUTE_TYPE
    BAD_PARAM_CUDA_GRAPH_MISMATCH BAD_PARAM_DESCRIPTOR_TYPE""",
    3: """NOT_SUPPORTED_GRAPH_PATTERN NOT_SUPPORTED_SHAPE NOT_SUPPORTED_DATA_TYPE
    NOT_SUPPORTED_LAYOUT NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER NOT_SUPPORTED_INCOMPATIBLE_CUDART
    NOT_SUPPORTED_ARCH_MISMATCH NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING
    NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT
    NOT_SUPPORTED_PADDING NOT_SUPPORTED_BAD_LAUNCH_PARAM NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API
    NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE""",
    4: """INTERNAL_ERROR_COMPILATION_FAILED INTERNAL_ERROR_UNEXPECTED_VALUE
    INTERNAL_ERROR_HOST_ALLOCATION_FAILED INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    INTERNAL_ERROR_BAD_LAUNCH_PARAM INTERNAL_ERROR_TEXTURE_CREATION_FAILED""",
    5: """EXECUTION_FAILED_CUDA_DRIVER EXECUTION_FAILED_CUBLAS EXECUTION_FAILED_CUDART
    EXECUTION_FAILED_CURAND""",
}
#: Present names of statuses that cuDNN renamed.
_RENAMED = {
    "ALLOC_FAILED": "INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "ARCH_MISMATCH": "NOT_SUPPORTED_ARCH_MISMATCH",
    "MAPPING_ERROR": "INTERNAL_ERROR_TEXTURE_CREATION_FAILED",
    "RUNTIME_PREREQUISITE_MISSING": "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING",
    "VERSION_MISMATCH": "SUBLIBRARY_VERSION_MISMATCH",
}


def cudnn_error(status: str, number: int) -> type[CudnnError]:
    """Return the exception class of a status of cuDNN, which is made when it is first used.

    Parameters
    ----------
    status : str
        Name of the status, which may be newer than dnnops.
    number : int
        Its value, whose thousands are its category.

    Returns
    -------
    type
        The class of the category if cuDNN has no name for the value.
    """
    category = _CATEGORIES.get(number // 1000, CudnnError)
    if status == category.status or not status.startswith("CUDNN_STATUS_"):
        return category
    name = _class_name(status.removeprefix("CUDNN_STATUS_"))
    if name not in globals():
        memory = (DnnMemoryError,) if status.endswith("ALLOCATION_FAILED") else ()
        members = {
            "__doc__": f"Raised if cuDNN returns ``{status}``.",
            "__module__": __name__,
            "__reduce__": _reduction(status, number),
            "status": status,
        }
        # Another thread may have made it in the meantime, and there must be one.
        globals().setdefault(name, type(name, (category, *memory), members))
    return globals()[name]


def _reduction(status: str, number: int) -> Callable[[CudnnError], Any]:
    """Return a method that lets other processes make the class, which they may not have yet."""

    def reduce(error: CudnnError) -> Any:
        return _restore, (status, number, error.args), error.__dict__ or None

    return reduce


def _restore(status: str, number: int, arguments: tuple[Any, ...]) -> CudnnError:
    return cudnn_error(status, number)(*arguments)


def _class_name(status: str) -> str:
    words = "".join(word.capitalize() for word in status.split("_"))
    return f"Cudnn{words.removesuffix('Error')}Error"


def __getattr__(name: str) -> type[CudnnError]:
    """Return the exception class of a status of cuDNN."""
    if name.startswith("Cudnn"):
        named = {_class_name(old): new for old, new in _RENAMED.items()}.get(name)
        for category, statuses in _STATUSES.items():
            for status in statuses.split():
                if status == named or _class_name(status) == name:
                    return cudnn_error(f"CUDNN_STATUS_{status}", 1000 * category)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
