"""Writes type stubs, from which editors and type checkers know cuDNN's names."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from dnnops.libcudnn.declarations import Declarations, Function
from dnnops.libcudnn.kinds import Kind
from dnnops.libcudnn.parameters import classify_all
from dnnops.libcudnn.source import aliases, destroyed_handle, field_type

__all__ = ["write_stubs"]

_HEAD = """\
# cuDNN {version}. Written by `python -m dnnops.libcudnn stubs`; changes are lost.
from collections.abc import Sequence
from ctypes import Structure, c_void_p
from enum import IntEnum
from typing import Any, Self, TypeAlias

# Address of an object or struct.
Address: TypeAlias = int | c_void_p
# Address in any memory, pointer of ctypes, or array.
Pointer: TypeAlias = Any
# Array on the device, its address, or None.
DeviceArray: TypeAlias = Any
# Stream or graph, or its address.
CudaObject: TypeAlias = Any
# Instance of a type such as cudnnCallback_t, its address, or None.
Callback: TypeAlias = Any
# Elements of an attribute, one element, or a pointer of ctypes.
Attributes: TypeAlias = Any
"""


def write_stubs(declared: Declarations) -> str:
    """Return the stub of the package, for a version of cuDNN.

    Parameters
    ----------
    declared : Declarations
        What the headers declare.

    Returns
    -------
    str
    """
    kinds, _ = classify_all(declared)
    functions = {name: declared.functions[name] for name in kinds}
    lines = [_HEAD.format(version=declared.version)]
    lines += [f"{name}: {type(value).__name__}" for name, value in declared.constants.items()]
    for name, members in declared.enums.items():
        lines += ["", f"class {name}(IntEnum):"]
        lines += [f"    {member} = {value}" for member, value in members.items()]
    lines += ["", *(f"{short} = {name}" for short, name in aliases(declared).items())]
    destroyable = {destroyed_handle(f, kinds[name]) for name, f in functions.items()}
    for name in declared.handles:
        lines += ["", f"class {name}(int):", "    def __enter__(self) -> Self: ..."]
        lines.append("    def __exit__(self, *error: object) -> None: ...")
        if name in destroyable:
            lines.append("    def destroy(self) -> None: ...")
    for name, fields in declared.structs.items():
        lines += ["", f"class {name}(Structure):"]
        lines += [
            f"    {field.name}: {field_type(field, declared)}"
            for field in fields
            if not iskeyword(field.name)
        ]
    lines += ["", *(f"{name}: Any" for name in declared.callbacks)]
    for name, function in functions.items():
        lines.append(_function(function, kinds[name]))
    return "\n".join(lines) + "\n"


def _function(function: Function, kinds: Sequence[Kind]) -> str:
    arguments = ", ".join(
        f"{kind.name}: {kind.argument_type}{' = ...' * bool(kind.default)}"
        for kind in kinds
        if kind.is_argument
    )
    results = [kind.result_type for kind in kinds if kind.result]
    if function.result.base == "char":
        results = ["str"]
    elif function.result.base not in ("cudnnStatus_t", "void"):
        results = ["int"]
    result = results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    return f"def {function.name}({arguments}) -> {result if results else 'None'}: ..."
