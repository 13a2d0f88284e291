"""Kinds of parameters, and the Python code that handles each.

A generated function first converts arguments, then allocates memory for results, calls the C
function, and returns the results. Each kind contributes lines or expressions to these parts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Anywhere",
    "AttributeIn",
    "AttributeOut",
    "CudaObject",
    "Element",
    "EnumOf",
    "HandleOf",
    "Integer",
    "Kind",
    "NewArray",
    "NewElement",
    "NewEnum",
    "NewHandle",
    "NewNumber",
    "NewStructs",
    "Numbers",
    "OnDevice",
    "Real",
    "Returned",
    "Scale",
    "Size",
    "Struct",
    "Text",
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
class CudaObject(Kind):
    """A stream, graph or callback."""

    argument_type = "CudaObject"

    # This expression and those below keep the argument until the function returns.
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
class Struct(Kind):
    """A struct that the function reads."""

    base: str

    @property
    def argument_type(self) -> str:
        return f"{self.base} | Address"

    @property
    def passed(self) -> str:
        return f'_struct({self.name}, {self.base}, "{self.name}")'


@dataclass(frozen=True)
class Numbers(Kind):
    """An array on the host that the function reads."""

    code: str
    count: str
    c_type = "void *"
    argument_type = "Sequence[int] | Pointer"

    @property
    def passed(self) -> str:
        return f'_numbers({self.name}, "{self.code}", {self.count or 0}, "{self.name}")'


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
    is_tensor: bool
    c_type = "void *"
    argument_type = "float | Pointer"

    @property
    def passed(self) -> str:
        type_ = f"_scaling.tensor_type({self.data_type})" if self.is_tensor else self.data_type
        return f'_element({self.name}, {type_}, cudnnDataType_t, "{self.name}")'


@dataclass(frozen=True)
class AttributeIn(Kind):
    """Elements of an attribute that the function reads."""

    type_and_count: str
    c_type = "void *"
    argument_type = "Attributes"

    @property
    def passed(self) -> str:
        return f'_attribute({self.name}, {self.type_and_count}, "{self.name}")'


@dataclass(frozen=True)
class AttributeOut(Kind):
    """Memory for the elements of an attribute, which are results, too."""

    type_and_count: str
    #: Result that says how many elements there are.
    found: str
    default = "None"
    argument_type = "Attributes | None"
    result_type = "Any"

    def before(self) -> list[str]:
        return [f'_{self.name} = _Attribute({self.name}, {self.type_and_count}, "{self.name}")']

    @property
    def passed(self) -> str:
        return f"_{self.name}.address"

    @property
    def result(self) -> str:
        return f"_{self.name}.elements({self.found})"


@dataclass(frozen=True)
class _Slot(Kind):
    """A result in eight bytes of memory."""

    is_argument = False

    @property
    def result(self) -> str:
        return self.name


@dataclass(frozen=True)
class NewNumber(_Slot):
    """A number or address that is returned."""

    slot: str

    @property
    def result_type(self) -> str:
        return "float" if self.slot in "fd" else "int"


@dataclass(frozen=True)
class NewEnum(_Slot):
    """A member of an enum that is returned."""

    base: str
    slot = "i"

    @property
    def result_type(self) -> str:
        return self.base

    @property
    def result(self) -> str:
        return f"_to_enum({self.name}, {self.base})"


@dataclass(frozen=True)
class NewHandle(_Slot):
    """A handle that is returned."""

    base: str
    slot = "Q"

    @property
    def result_type(self) -> str:
        return self.base

    @property
    def result(self) -> str:
        return f"_new_handle({self.name}, {self.base})"


@dataclass(frozen=True)
class NewElement(_Slot):
    """An element of a tensor that is returned."""

    data_type: str
    slot = "8s"
    result_type = "Any"

    @property
    def result(self) -> str:
        return f"_to_number({self.name}, {self.data_type}, cudnnDataType_t)"


@dataclass(frozen=True)
class Returned(_Slot):
    """Length of an array that is returned, which is not a result of its own."""

    slot = "i"

    @property
    def result(self) -> str:
        return ""


@dataclass(frozen=True)
class _New(Kind):
    """An array that is returned, as long as an argument asks for."""

    count: str
    #: Result that says how many elements are set.
    limit: str
    is_argument = False

    @property
    def passed(self) -> str:
        return f"_{self.name}_at"

    @property
    def _slice(self) -> str:
        return f"[:{self.limit}]" if self.limit else ""


@dataclass(frozen=True)
class NewArray(_New):
    """An array of numbers or of members of an enum."""

    code: str
    enum: str

    @property
    def result_type(self) -> str:
        return f"tuple[{self.enum or 'int'}, ...]"

    def before(self) -> list[str]:
        return [f'{self.name}, {self.passed} = _array("{self.code}", {self.count}, "{self.count}")']

    @property
    def result(self) -> str:
        if self.enum:
            return f"tuple(_to_enum(_i, {self.enum}) for _i in {self.name}{self._slice})"
        return f"tuple({self.name}{self._slice})"


@dataclass(frozen=True)
class NewStructs(_New):
    """An array of structs."""

    base: str

    @property
    def result_type(self) -> str:
        return f"list[{self.base}]"

    def before(self) -> list[str]:
        return [f'{self.name}, {self.passed} = _structs({self.base}, {self.count}, "{self.count}")']

    @property
    def result(self) -> str:
        return f"list({self.name}{self._slice})"


@dataclass(frozen=True)
class Text(NewArray):
    """A string that the function writes into memory of a given size."""

    result_type = "str"

    @property
    def result(self) -> str:
        return f"bytes({self.name}).partition(bytes(1))[0].decode(errors='replace')"
