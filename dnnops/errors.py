"""Exceptions and warnings of dnnops."""

from __future__ import annotations


class DnnError(Exception):
    """Base class of all dnnops errors."""


class DnnValueError(DnnError, ValueError):
    """Raised for invalid values of operands or parameters, such as shapes, strides or padding."""


class DnnTypeError(DnnError, TypeError):
    """Raised for a dtype or rank that an Op does not accept."""


class DnnNotSupportedError(DnnError, NotImplementedError):
    """Raised for valid operands or parameters that the library does not support."""


class DnnLibraryError(DnnError, RuntimeError):
    """Raised when a library call fails; the message gives the call, the status and its text."""


class DnnMemoryError(DnnError, MemoryError):
    """Raised when memory runs out, even after freeing caches and trying smaller workspaces."""


class DnnIndexError(DnnError, IndexError):
    """Raised for an index or label out of bounds; on a GPU, by a later transfer to the host."""


class DnnUnavailableError(DnnError, RuntimeError):
    """Raised when a required library, compiler or device is missing; the message names it."""


class DnnCacheError(DnnError, RuntimeError):
    """Raised when the plan cache, or a file exported from it, cannot be read or written."""


class DnnRequiredError(DnnUnavailableError, AssertionError):
    """Raised when a library requested by ``optimizer_including`` cannot be used.

    It is also an `AssertionError`, because PyTensor logs other exceptions in rewrites and
    continues.
    """


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
