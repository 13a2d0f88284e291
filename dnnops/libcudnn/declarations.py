"""The functions, enums, structs and handles that cuDNN's headers declare."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnUnavailableError
from dnnops.libcudnn.preprocess import Preprocessor, constant

__all__ = [
    "INTEGERS",
    "REALS",
    "Declarations",
    "Function",
    "Type",
    "Variable",
    "is_cuda_type",
    "read_headers",
]

#: Types of headers other than cuDNN's, which need not be installed.
_FOREIGN = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef unsigned long size_t;
typedef _Bool bool;
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;
"""
#: Formats of `struct` by type of C.
INTEGERS = {
    "char": "b",
    "int8_t": "b",
    "uint8_t": "B",
    "int": "i",
    "int32_t": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "uint32_t": "I",
    "long long": "q",
    "int64_t": "q",
    "unsigned long long": "Q",
    "uint64_t": "Q",
    "size_t": "Q",
}
REALS = {"float": "f", "double": "d"}
#: Objects of CUDA, such as streams, are pointers to structs.
_CUDA_TYPE = re.compile(r"\b(cuda[A-Z]\w*_t|CU[a-z]\w+)\b")
#: A documented function, perhaps with other comments in between.
_DOCUMENTED = re.compile(
    r"/\*\*(?P<text>(?:(?!\*/).)*)\*/\s*(?:/\*(?:(?!\*/).)*\*/\s*)*[\w\s*]*?\b(?P<name>cudnn\w+)\s*\(",
    re.DOTALL,
)
_BRIEF = re.compile(r"@brief\s+(.*?)(?=\n\s*\n|@|\Z)", re.DOTALL)
_DIRECTION = re.compile(r"@param\[([a-z, ]+)\]\s+(\w+)")


def is_cuda_type(name: str) -> bool:
    """Return whether a type is one of CUDA's, such as that of streams."""
    return _CUDA_TYPE.fullmatch(name) is not None


@dataclass(frozen=True)
class Type:
    """A type of C: the name of its base, how many pointers, and whether the base is const."""

    base: str
    pointers: int = 0
    const: bool = False


@dataclass(frozen=True)
class Variable:
    """A parameter of a function, or a field of a struct, with the length of its array."""

    name: str
    type: Type
    length: int = 0


@dataclass(frozen=True)
class Function:
    """A function, with its declaration and the first sentences of its documentation."""

    name: str
    result: Type
    parameters: tuple[Variable, ...]
    signature: str
    brief: str = ""
    #: Documented directions of the parameters: ``in``, ``out`` or ``in,out``.
    directions: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass
class Declarations:
    """Everything that the headers declare, by name.

    Attributes
    ----------
    version : str
        Version of cuDNN.
    functions : dict of str to Function
    enums : dict of str to dict of str to int
        Values by name, of each enum.
    structs : dict of str to tuple of Variable
        Fields of each struct that has any.
    handles : list of str
        Types of cuDNN's handles and descriptors.
    callbacks : dict of str to tuple of Variable
        Parameters of each type of callback, all of which return nothing.
    constants : dict of str to int or float
        Values of macros.
    unreadable : dict of str to str
        Why other declarations are missing.
    """

    version: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    structs: dict[str, tuple[Variable, ...]] = field(default_factory=dict)
    handles: list[str] = field(default_factory=list)
    callbacks: dict[str, tuple[Variable, ...]] = field(default_factory=dict)
    constants: dict[str, int | float] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def read_headers(folder: Path) -> Declarations:
    """Read ``cudnn.h`` and the headers that it includes.

    Parameters
    ----------
    folder : Path
        Folder of cuDNN's headers.

    Returns
    -------
    Declarations

    Raises
    ------
    DnnUnavailableError
        If the headers are missing or cannot be understood.
    """
    # Imported here because it takes time.
    from pycparser import CParser

    try:
        read = Preprocessor(folder, "cudnn.h")
        foreign = dict.fromkeys(_CUDA_TYPE.findall(read.code))
        opaque = "".join(f"typedef struct {name}_object *{name};" for name in foreign)
        code = f'{_FOREIGN}{opaque}\n# 1 "cudnn.h"\n{read.code}'
        return _Reader(read).declarations(CParser().parse(code))
    except DnnUnavailableError:
        raise
    except Exception as error:  # unlike any headers of today
        raise DnnUnavailableError(
            f"cuDNN's headers in {folder} cannot be read: {type(error).__name__}: {error}"
        ) from error


class _Reader:
    """Collects the declarations of a syntax tree."""

    def __init__(self, read: Preprocessor) -> None:
        from pycparser.c_generator import CGenerator

        self._written = CGenerator().visit
        self._found = Declarations()
        self._values: dict[str, int] = {}
        self._macros = read.macros
        self._documentation = {
            match["name"]: re.sub(r"^[ \t]*\* ?", "", match["text"], flags=re.MULTILINE)
            for source in read.sources
            for match in _DOCUMENTED.finditer(source)
        }

    def declarations(self, tree: Any) -> Declarations:
        for node in tree.ext:
            try:
                self._declaration(node)
            except Exception as error:  # an unusual declaration does not spoil the others
                reason = f"{type(error).__name__}: {error}"
                self._found.unreadable[getattr(node, "name", None) or ""] = reason
        self._constants()
        return self._found

    def _declaration(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "Typedef":
            self._typedef(node.name, node.type)
        elif kind == "Decl" and type(node.type).__name__ == "FuncDecl":
            self._function(node)

    def _typedef(self, name: str, node: Any) -> None:
        kind, inner = type(node).__name__, type(node.type).__name__
        if kind == "TypeDecl" and inner == "Enum" and node.type.values:
            self._found.enums[name] = self._members(node.type.values)
        elif kind == "TypeDecl" and inner == "Struct" and node.type.decls:
            fields = tuple(map(self._variable, node.type.decls))
            for field_ in fields:
                self._check_field(field_)
            self._found.structs[name] = fields
        elif kind == "PtrDecl" and inner == "FuncDecl":
            self._found.callbacks[name] = self._parameters(node.type)
        elif kind == "PtrDecl" and name.startswith("cudnn"):
            self._found.handles.append(name)

    def _check_field(self, variable: Variable) -> None:
        """Raise an error for a field whose size is not known."""
        base, is_number = variable.type.base, variable.type.base in INTEGERS | REALS
        found = self._found
        named = (found.enums, found.handles, found.callbacks)
        if variable.length:
            known = is_number and variable.type.pointers == 1
        else:
            known = variable.type.pointers > 0 or is_number or is_cuda_type(base)
            known = known or any(base in names for names in named)
        if not known:
            raise DnnNotSupportedError(f"its field {variable.name} has the type {base}")

    def _members(self, values: Any) -> dict[str, int]:
        members: dict[str, int] = {}
        following = 0
        for member in values.enumerators:
            if member.value is not None:
                following = int(constant(self._written(member.value), self._values))
            members[member.name] = self._values[member.name] = following
            following += 1
        return members

    def _function(self, node: Any) -> None:
        text = self._documentation.get(node.name, "")
        brief = _BRIEF.search(text)
        self._found.functions[node.name] = Function(
            node.name,
            self._type(node.type.type),
            self._parameters(node.type),
            self._written(node),
            " ".join(brief[1].split()) if brief else "",
            {name: way.replace(" ", "") for way, name in _DIRECTION.findall(text)},
        )

    def _parameters(self, node: Any) -> tuple[Variable, ...]:
        found = tuple(map(self._variable, node.args.params)) if node.args else ()
        return () if found and found[0].type == Type("void") else found

    def _variable(self, node: Any) -> Variable:
        length = 0
        if type(node.type).__name__ == "ArrayDecl" and node.type.dim is not None:
            length = int(constant(self._written(node.type.dim), self._values))
        return Variable(node.name or "", self._type(node.type), length)

    def _type(self, node: Any) -> Type:
        pointers = 0
        while type(node).__name__ in ("PtrDecl", "ArrayDecl"):
            pointers += 1
            node = node.type
        names = getattr(node.type, "names", None) or [node.type.name]
        return Type(" ".join(names), pointers, "const" in node.quals)

    def _constants(self) -> None:
        found: dict[str, int | float] = {}
        for _ in range(4):  # a macro may contain others
            for name, text in self._macros.items():
                if name.startswith("CUDNN_") and text and name not in found:
                    try:
                        found[name] = constant(text, self._values | found)
                    except ValueError:
                        continue
        self._found.constants = dict(sorted(found.items()))
        self._found.version = ".".join(
            str(found[f"CUDNN_{part}"]) for part in ("MAJOR", "MINOR", "PATCHLEVEL")
        )
