"""The exceptions and the warning of dnnops: a library, an operand or a file is at fault."""

from __future__ import annotations


class DnnError(Exception):
    """Base class of the errors of dnnops."""


class DnnValueError(DnnError, ValueError):
    """Operands or parameters that cannot be right: shapes, strides, padding, groups."""


class DnnTypeError(DnnError, TypeError):
    """A dtype or rank that an Op does not take."""


class DnnNotSupportedError(DnnError, NotImplementedError):
    """Valid operands that the library has no way to run."""


class DnnLibraryError(DnnError, RuntimeError):
    """A library call failed; the message holds the call, its status and its own words."""


class DnnMemoryError(DnnError, MemoryError):
    """Not enough memory, also after the caches were freed and smaller workspaces tried."""


class DnnIndexError(DnnError, IndexError):
    """An index, or a label, is out of bounds. On a GPU a later transfer to the host raises it."""


class DnnUnavailableError(DnnError, RuntimeError):
    """A library, a compiler or a device that is needed is missing; the message says which."""


class DnnCacheError(DnnError, RuntimeError):
    """The cache of plans, or a file that it is exported to, cannot be read or written."""


class DnnRequiredError(DnnUnavailableError, AssertionError):
    """A library that ``optimizer_including`` asks for cannot be used.

    An `AssertionError` too, because PyTensor logs other exceptions of a rewrite and goes on.
    """


class DnnWarning(UserWarning):
    """Something that dnnops goes on without; the message says what, and what happens instead."""


#: Exception class of each ``dnnops_status`` of ``c_code/runtime/dnnops_runtime.h``.
STATUS_ERRORS: dict[int, type[DnnError]] = {
    1: DnnValueError,
    2: DnnTypeError,
    3: DnnNotSupportedError,
    4: DnnLibraryError,
    5: DnnMemoryError,
    6: DnnIndexError,
}


def error_from_status(status: int, message: str) -> DnnError:
    """Make the exception for a status that a runtime library returned.

    Parameters
    ----------
    status : int
        A non-zero ``dnnops_status``.
    message : str
        What ``dnnops_last_error()`` said.

    Returns
    -------
    DnnError
        An instance of the matching subclass, not yet raised.
    """
    return STATUS_ERRORS.get(status, DnnLibraryError)(message)
