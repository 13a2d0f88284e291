"""Kinds of parameters that are arguments in Python, and the Python code that handles each.

A generated function first converts arguments, then allocates memory for results, calls the C
function, and returns the results. Each kind contributes lines or expressions to these parts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Anywhere",
    "AttributeIn",
    "Callback",
    "CudaObject",
    "Element",
    "EnumOf",
    "HandleOf",
    "Integer",
    "Kind",
    "Numbers",
    "OnDevice",
    "OnHost",
    "Real",
    "Scale",
    "Size",
    "Struct",
]


@dataclass(frozen=True)
class Kind:
    """A parameter.

    Attributes
    ----------
    name : str
        Its name.
    """

    name: str

    #: Type in the call's signature; addresses are integers, and host memory may be bytes.
    c_type = "uintptr_t"
    #: Whether it is an argument in Python.
    is_argument = True
    #: Format of `struct` of a result in the memory of eight bytes that each of these has.
    slot = ""

    @property
    def default(self) -> str:
        """Default value in Python, if there is one."""
        return ""

    @property
    def argument_type(self) -> str:
        """Type of the argument, for the stub."""
        return "Pointer"

    @property
    def result_type(self) -> str:
        """Type of the result, for the stub; empty if there is none."""
        return ""

    def before(self) -> list[str]:
        """Return lines that convert the argument, or allocate memory for the result."""
        return []

    @property
    def passed(self) -> str:
        """Expression that is passed to the C function."""
        return self.name

    @property
    def result(self) -> str:
        """Expression of the result."""
        return ""


def _converted(name: str, kind: str, conversion: str) -> list[str]:
    """Convert an argument unless it has exactly this type, which takes 20 ns to see."""
    return [f"if type({name}) is not {kind}:", f"    {name} = {conversion}"]


@dataclass(frozen=True)
class Integer(Kind):
    """An integer."""

    base: str
    argument_type = "int"

    @property
    def c_type(self) -> str:  # type: ignore[override]
        """Type in C."""
        return self.base

    def before(self) -> list[str]:
        return _converted(self.name, "int", f'_int({self.name}, "{self.name}")')


@dataclass(frozen=True)
class Size(Integer):
    """The size of memory for a string."""

    default = "4096"


@dataclass(frozen=True)
class Real(Integer):
    """A float or double."""

    argument_type = "float"

    def before(self) -> list[str]:
        return _converted(self.name, "float", f'_float({self.name}, "{self.name}")')


@dataclass(frozen=True)
class EnumOf(Kind):
    """A member of an enum."""

    base: str
    c_type = "int"

    @property
    def argument_type(self) -> str:
        return f"{self.base} | int"

    def before(self) -> list[str]:
        conversion = f'_enum({self.name}, {self.base}, "{self.name}")'
        return _converted(self.name, self.base, conversion)


@dataclass(frozen=True)
class HandleOf(Kind):
    """A handle or descriptor."""

    base: str
    optional: bool = False

    @property
    def argument_type(self) -> str:
        return f"{self.base} | Address{' | None' * self.optional}"

    def before(self) -> list[str]:
        function = "_optional_handle" if self.optional else "_handle"
        conversion = f'{function}({self.name}, {self.base}, "{self.name}")'
        return _converted(self.name, self.base, conversion)


@dataclass(frozen=True)
class Callback(Kind):
    """A function that cuDNN calls."""

    argument_type = "Callback"

    @property
    def passed(self) -> str:
        return f'_callback({self.name}, "{self.name}")'


@dataclass(frozen=True)
class CudaObject(Kind):
    """A stream or graph."""

    argument_type = "CudaObject"

    # This expression and those around it keep the argument until the function returns.
    @property
    def passed(self) -> str:
        return f'_cuda_object({self.name}, "{self.name}")'


@dataclass(frozen=True)
class OnDevice(Kind):
    """An array on the device."""

    argument_type = "DeviceArray"

    @property
    def passed(self) -> str:
        return f'_device({self.name}, "{self.name}")'


@dataclass(frozen=True)
class Anywhere(Kind):
    """Memory on the host or the device."""

    @property
    def passed(self) -> str:
        return f'_address({self.name}, "{self.name}")'


@dataclass(frozen=True)
class OnHost(Kind):
    """A descriptor, or memory on the host of which only the least size is known."""

    size: int
    is_written: bool

    @property
    def passed(self) -> str:
        return f'_object({self.name}, {self.size}, "{self.name}", {self.is_written})'


@dataclass(frozen=True)
class Struct(Kind):
    """A struct that the function reads."""

    base: str

    @property
    def argument_type(self) -> str:
        return f"{self.base} | Pointer"

    @property
    def passed(self) -> str:
        return f'_struct({self.name}, {self.base}, "{self.name}")'


@dataclass(frozen=True)
class Numbers(Kind):
    """An array on the host that the function reads."""

    code: str
    #: Expression of the number of elements, or of the least one if no argument gives it.
    count: str
    c_type = "void *"
    argument_type = "Sequence[int] | Pointer"

    @property
    def passed(self) -> str:
        return f'_numbers({self.name}, "{self.code}", {self.count}, "{self.name}")'


@dataclass(frozen=True)
class Scale(Kind):
    """A factor, whose type in C depends on that of a tensor or of filters."""

    scaled: str
    is_tensor: bool
    c_type = "void *"
    argument_type = "float | Pointer"

    def before(self) -> list[str]:
        function = "of_tensor" if self.is_tensor else "of_filter"
        return [f"_scale = _scaling.{function}({self.scaled})"]

    @property
    def passed(self) -> str:
        return f'_scale({self.name}, "{self.name}")'


@dataclass(frozen=True)
class Element(Kind):
    """An element of a tensor that the function reads."""

    data_type: str
    c_type = "void *"
    argument_type = "float | Pointer"

    @property
    def passed(self) -> str:
        return f'_element({self.name}, {self.data_type}, cudnnDataType_t, "{self.name}")'


@dataclass(frozen=True)
class AttributeIn(Kind):
    """Elements of an attribute that the function reads."""

    type_and_count: str
    c_type = "void *"
    argument_type = "Attributes"

    @property
    def passed(self) -> str:
        return f'_attribute({self.name}, {self.type_and_count}, "{self.name}")'
