"""Kinds of parameters that are results in Python, and the Python code that handles each."""

from __future__ import annotations

from dataclasses import dataclass

from dnnops.libcudnn.kinds import Kind

__all__ = [
    "AttributeOut",
    "NewArray",
    "NewElement",
    "NewEnum",
    "NewHandle",
    "NewNumber",
    "NewStructs",
    "Returned",
    "Text",
]


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
    #: Whether the function creates the object.
    created: bool
    slot = "Q"

    @property
    def result_type(self) -> str:
        return self.base

    @property
    def result(self) -> str:
        return f"{'_new' if self.created else '_known'}_handle({self.name}, {self.base})"


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
