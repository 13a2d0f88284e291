"""Writes the Python module with cuDNN's functions, enums, structs and handles."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from dnnops.libcudnn.declarations import Declarations, Function, Variable
from dnnops.libcudnn.kinds import EnumOf, HandleOf, Integer, Kind, Scale
from dnnops.libcudnn.parameters import classify_all

__all__ = ["aliases", "destroyed_handle", "field_type", "write_module"]

_HEAD = '''"""cuDNN {version}, generated from its headers by dnnops. Changes are lost."""

import ctypes as _ctypes
from enum import IntEnum as _IntEnum
from struct import unpack_from as _unpack

from dnnops.libcudnn.attributes import (
    Attribute as _Attribute,
    ElementTypes as _ElementTypes,
    as_attribute as _attribute,
)
from dnnops.libcudnn.calls import Symbols as _Symbols, text as _text
from dnnops.libcudnn.handles import (
    Handle as _Handle,
    as_handle as _handle,
    as_optional_handle as _optional_handle,
    known_handle as _known_handle,
    new_handle as _new_handle,
    retire as _retire,
)
from dnnops.libcudnn.memory import object_or_memory as _object
from dnnops.libcudnn.pointers import (
    as_address as _address,
    as_callback as _callback,
    as_cuda_object as _cuda_object,
    as_device as _device,
)
from dnnops.libcudnn.scaling import Scaling as _Scaling
from dnnops.libcudnn.structures import (
    Structure as _Structure,
    as_struct as _struct,
    new_structs as _structs,
    wrap_fields as _wrap_fields,
)
from dnnops.libcudnn.values import (
    as_element as _element,
    as_enum as _enum,
    as_float as _float,
    as_int as _int,
    as_numbers as _numbers,
    new_array as _array,
    out_of_range as _out_of_range,
    outputs as _outputs,
    to_enum as _to_enum,
    to_number as _to_number,
)
from dnnops.runtime.find import find_cudnn as _find_cudnn

'''
#: Types of ctypes by type of C; all other types are addresses.
_CTYPES = {
    "char": "c_char",
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int": "c_int",
    "int32_t": "c_int32",
    "unsigned": "c_uint",
    "unsigned int": "c_uint",
    "uint32_t": "c_uint32",
    "long long": "c_int64",
    "int64_t": "c_int64",
    "unsigned long long": "c_uint64",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
}
_ATTRIBUTE_TYPES = "cudnnBackendAttributeType_t"
_WIDTH = 96
#: Bytes that follow a result in its memory.
_PADDING = {"i": "4x", "I": "4x", "f": "4x", "b": "7x", "B": "7x"}


def aliases(declared: Declarations) -> dict[str, str]:
    """Return enums by their names without ``_t``, as in cudnn-python-wrappers."""
    short = {name.removesuffix("_t"): name for name in declared.enums}
    return {name: enum for name, enum in short.items() if name not in declared.functions}


def write_module(declared: Declarations) -> str:
    """Return the source code of a module with everything that the headers declare.

    Parameters
    ----------
    declared : Declarations
        What the headers declare.

    Returns
    -------
    str
    """
    kinds, omitted = classify_all(declared)
    functions = {name: declared.functions[name] for name in kinds}
    parts = [_HEAD.format(version=declared.version)]
    parts.append(f"__version__ = {declared.version!r}\n_omitted = {omitted!r}\n")
    parts += [f"{name} = {value!r}\n" for name, value in declared.constants.items()]
    for name, members in declared.enums.items():
        lines = [f"    {member} = {value}" for member, value in members.items()]
        parts.append(f"\n\nclass {name}(_IntEnum):\n" + "\n".join(lines) + "\n")
    parts += [f"{short} = {name}\n" for short, name in aliases(declared).items()]
    for name in declared.handles:
        parts.append(f"\n\nclass {name}(_Handle):\n    __slots__ = ()\n")
    for name, fields in declared.structs.items():
        parts.append(_struct(name, fields, declared))
    for name, parameters in declared.callbacks.items():
        types = ", ".join(_ctype(parameter, declared) for parameter in parameters)
        parts.append(f"\n\n{name} = _ctypes.CFUNCTYPE(None, {types})\n")
    parts.append("\n\n_c = _Symbols(_find_cudnn(), {\n")
    for name, function in functions.items():
        types = ", ".join(kind.c_type for kind in kinds[name])
        parts.append(f'    "{name}": "{_returned(function)}({types})",\n')
    parts.append("})\n_scaling = _Scaling(_c)\n")
    if _ATTRIBUTE_TYPES in declared.enums:
        parts.append(f"_types = _ElementTypes({_ATTRIBUTE_TYPES}, globals())\n")
    for name, function in functions.items():
        parts.append("\n\n" + "\n".join(_function(function, kinds[name])) + "\n")
        destroyed = destroyed_handle(function, kinds[name])
        if destroyed:
            parts.append(f"\n\n{destroyed}.destroy = {name}\n")
    return "".join(parts)


def destroyed_handle(function: Function, kinds: Sequence[Kind]) -> str:
    """Return the type of the handle that a function destroys, or an empty string."""
    if "Destroy" in function.name and len(kinds) == 1 and isinstance(kinds[0], HandleOf):
        return kinds[0].base
    return ""


def _ctype(variable: Variable, declared: Declarations) -> str:
    type_ = variable.type
    if type_.pointers == 1 and type_.base == "char":
        # ctypes would copy c_char_p up to the first zero, which separates lines of a message.
        return "_ctypes.POINTER(_ctypes.c_char)"
    if type_.pointers == 1 and type_.base in declared.structs:
        return f"_ctypes.POINTER({type_.base})"
    if type_.base in declared.enums and not type_.pointers:
        return "_ctypes.c_int"
    if type_.base in _CTYPES and (variable.length or not type_.pointers):
        length = f" * {variable.length}" if variable.length else ""
        return f"_ctypes.{_CTYPES[type_.base]}{length}"
    return "_ctypes.c_void_p"


def field_type(field: Variable, declared: Declarations) -> str:
    """Return the type in Python of a field of a struct, for stubs."""
    type_ = field.type
    if field.length or (type_.pointers and type_.base in declared.structs):
        return "Any"
    if type_.pointers:
        return "DeviceArray" if type_.const else "Pointer"
    if type_.base in declared.enums:
        return type_.base
    return "float" if type_.base in ("float", "double") else "int"


def _struct(name: str, fields: Sequence[Variable], declared: Declarations) -> str:
    lines = [f'        ("{field.name}", {_ctype(field, declared)}),' for field in fields]
    enums = [
        f'"{field.name}": {field.type.base}'
        for field in fields
        if field.type.base in declared.enums and not field.type.pointers
    ]
    pointers = [
        f'"{field.name}"' for field in fields if field.type.const and field.type.pointers == 1
    ]
    return (
        f"\n\nclass {name}(_Structure):\n    _fields_ = [\n" + "\n".join(lines) + "\n    ]\n\n\n"
        f"_wrap_fields({name}, {{{', '.join(enums)}}}, [{', '.join(pointers)}])\n"
    )


def _returned(function: Function) -> str:
    result = function.result
    if result.base == "cudnnStatus_t":
        return "int"
    return f"{result.base}{' *' * bool(result.pointers)}"


def _function(function: Function, kinds: Sequence[Kind]) -> Iterator[str]:
    """Yield the lines of a function."""
    arguments = [
        f"{kind.name}={kind.default}" if kind.default else kind.name
        for kind in kinds
        if kind.is_argument
    ]
    yield from _wrapped(f"def {function.name}(", arguments, "):")
    yield from _docstring(function, kinds)
    # What depends on converted arguments comes last.
    ordered = sorted(kinds, key=lambda kind: bool(kind.result) or isinstance(kind, Scale))
    yield from dict.fromkeys(f"    {line}" for kind in ordered for line in kind.before())
    if destroyed := destroyed_handle(function, kinds):
        # Afterwards, another thread could destroy it, too.
        yield f'    _retire({kinds[0].name}, {destroyed}, "{kinds[0].name}")'
    slots = [kind for kind in kinds if kind.slot]
    if slots:
        yield f"    _out, _at = _outputs({len(slots)})"
    places = {kind.name: f"_at + {8 * i}" if i else "_at" for i, kind in enumerate(slots)}
    passed = [places.get(kind.name, kind.passed) for kind in kinds]
    call = f"_c.{function.name}("
    scalars = [
        f'("{kind.name}", {kind.name}, "{kind.c_type}")'
        for kind in kinds
        if isinstance(kind, Integer | EnumOf)
    ]
    if scalars:
        yield "    try:"
        yield from (f"    {line}" for line in _call(function, call, passed))
        yield "    except OverflowError as _error:"
        yield from _wrapped("        raise _out_of_range(", ["_error", *scalars], ") from None")
    else:
        yield from _call(function, call, passed)
    if function.result.base == "cudnnStatus_t":
        yield "    if _status:"
        yield f'        _c.fail("{function.name}", _status)'
    if slots:
        code = "=" + "".join(kind.slot + _PADDING.get(kind.slot, "") for kind in slots)
        names = ", ".join(kind.name for kind in slots)
        yield f'    {names}{"," * (len(slots) == 1)} = _unpack("{code}", _out)'
    results = [kind.result for kind in kinds if kind.result]
    if results:
        yield from _wrapped("    return ", results, "")


def _call(function: Function, call: str, passed: Sequence[str]) -> Iterator[str]:
    """Yield the lines that call the C function, and return what is not a status."""
    result = function.result.base
    if result == "char":
        yield from _wrapped(f"    return _text({call}", passed, "))")
    else:
        start = {"cudnnStatus_t": "_status = ", "void": ""}.get(result, "return ")
        yield from _wrapped(f"    {start}{call}", passed, ")")


def _wrapped(start: str, items: Sequence[str], end: str) -> Iterator[str]:
    """Yield items between a start and an end, in one line if they fit."""
    line = f"{start}{', '.join(items)}{end}"
    if len(line) <= _WIDTH + 4 or not items:
        yield line
        return
    margin = " " * (len(start) - len(start.lstrip()))
    bare = "" if end else "("
    yield f"{start}{bare}"
    yield from (f"{margin}    {item}," for item in items)
    yield f"{margin}{end or ')'}"


def _docstring(function: Function, kinds: Sequence[Kind]) -> Iterator[str]:
    signature = textwrap.wrap(
        f"{function.signature};", _WIDTH - 4, subsequent_indent="    ", break_on_hyphens=False
    )
    results = [f"{kind.name} : {kind.result_type}" for kind in kinds if kind.result]
    parts = [signature, textwrap.wrap(function.brief, _WIDTH)]
    if results:
        parts.append(["Returns", "-------", *results])
    text = "\n\n".join("\n".join(part) for part in parts if part)
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    yield from textwrap.indent(f'"""{text}\n"""', "    ").splitlines()
