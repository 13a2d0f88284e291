"""What becomes of each parameter of a C function in Python: an argument, a result, or both.

`classify` decides by type, and by the names in a few tables where the type does not tell.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from dnnops.errors import DnnNotSupportedError
from dnnops.libcudnn import kinds, results
from dnnops.libcudnn.declarations import (
    INTEGERS,
    REALS,
    Declarations,
    Function,
    Type,
    Variable,
    is_cuda_type,
)
from dnnops.libcudnn.kinds import Kind

__all__ = ["classify", "classify_all"]

#: Factors, which cuDNN reads from the host: ``alpha``, ``beta1``, ``alphaDgrid``, ... cuDNN 9.19
#: also reads ``valuePtr`` so, although its documentation asks for an element of the tensor.
_SCALES = re.compile(r"(alpha|beta)(\d|[A-Z]|$)|valuePtr$")
#: A single element of a tensor, which cuDNN reads from the host or writes to it.
_ELEMENT = "paddingFill"
#: Pointers that cuDNN passes on, or whose meaning another argument gives.
_ANYWHERE = {"udata", "ptr", "tag"}
#: Bytes of memory whose type another argument gives: an enum or a descriptor, and a pointer.
_LEAST_SIZES = {"param": 4, "ptr": 8}
#: Elements of attributes, whose type another argument gives.
_ATTRIBUTES = "arrayOfElements"
#: Arrays of integers on the device, besides those whose name starts with ``dev``.
_ON_DEVICE = {("cudnnCTCLoss_v8", name) for name in ("labels", "labelLengths", "inputLengths")}
#: Descriptors that may be null: of tensors that a function may do without, and of dropout.
_OPTIONAL = {
    "zDesc": "Normalization",
    "activationDesc": "Normalization",
    "yDesc": "NormalizationBackward",
    "dzDesc": "NormalizationBackward",
    "hDesc": "RNN",
    "cDesc": "RNN",
    "dropoutDesc": "SetRNN",
    "attnDropoutDesc": "",
    "postDropoutDesc": "",
}
#: Numbers of elements of arrays on the host that the integer before the array does not give.
_COUNTS = {
    ("cudnnSetRNNDataDescriptor", "seqLengthArray"): "batchSize",
    # They may be null, and folding leaves out batch and channels.
    ("cudnnSetTensorTransformDescriptor", "padBeforeA"): "0 if padBeforeA is None else nbDims",
    ("cudnnSetTensorTransformDescriptor", "padAfterA"): "0 if padAfterA is None else nbDims",
    ("cudnnSetTensorTransformDescriptor", "foldA"): "0 if foldA is None else nbDims - 2",
}
#: Integers that give the number of elements of the arrays after them.
_COUNTING = re.compile(r"nbDims|arrayLength|seqLengthArraySize")
#: Names that generated functions use.
_USED = {"bytes", "float", "int", "list", "tuple", "type"}


def classify(function: Function, declared: Declarations) -> list[Kind]:
    """Return the kind of each parameter of a function.

    Parameters
    ----------
    function : Function
        The function.
    declared : Declarations
        What the headers declare.

    Returns
    -------
    list of Kind

    Raises
    ------
    DnnNotSupportedError
        If a parameter or the result has a type that is not known.
    """
    _check_result(function)
    names = {v.name: _safe(v.name) for v in function.parameters}
    if "" in names:
        raise DnnNotSupportedError("a parameter has no name")
    sorter = _Sorter(function, declared, names)
    return [sorter.kind(variable) for variable in function.parameters]


def classify_all(declared: Declarations) -> tuple[dict[str, list[Kind]], dict[str, str]]:
    """Return the kinds of the parameters of each function, and why functions are left out.

    Calling a function with a wrong guess at a type could end the process, so a function that is
    unlike all others is left out.

    Parameters
    ----------
    declared : Declarations
        What the headers declare.

    Returns
    -------
    kinds : dict of str to list of Kind
        By name of the function.
    omitted : dict of str to str
        Reasons by name, of all other functions.
    """
    found, omitted = {}, {name: why for name, why in declared.unreadable.items() if name}
    for name, function in declared.functions.items():
        try:
            found[name] = classify(function, declared)
        except Exception as error:
            omitted[name] = str(error) or type(error).__name__
    return found, omitted


def _check_result(function: Function) -> None:
    result = function.result
    is_text = result.base == "char" and result.pointers == 1
    is_value = result.base in ("cudnnStatus_t", "void", *INTEGERS) and not result.pointers
    if not is_text and (not is_value or result.base == "char"):
        raise DnnNotSupportedError(f"it returns {_written(result)}, which dnnops does not convert")


def _unknown(variable: Variable) -> DnnNotSupportedError:
    return DnnNotSupportedError(
        f"{variable.name} has the type {_written(variable.type)}, which dnnops does not convert"
    )


def _written(type_: Type) -> str:
    return f"{type_.base}{' ' * bool(type_.pointers)}{'*' * type_.pointers}"


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _USED else name


def _is_text(variable: Variable) -> bool:
    return variable.type == Type("char", 1)


@dataclass
class _Sorter:
    function: Function
    declared: Declarations
    names: dict[str, str]
    #: The last integer argument so far.
    count: str = ""

    def kind(self, variable: Variable) -> Kind:
        name, type_ = self.names[variable.name], variable.type
        if type_.base in self.declared.handles:
            return self._handle(name, variable)
        if type_.pointers == 0:
            return self._value(name, variable)
        if type_.base == "void":
            return self._void(name, variable)
        if _is_text(variable):
            return results.Text(name, self._following(variable), "", "b", "")
        code = self._code(type_.base)
        if type_.base in self.declared.structs:
            if type_.const:
                return kinds.Struct(name, type_.base)
            count = self.count if "equested" in self.count else "1"
            return results.NewStructs(name, count, self._limit(), type_.base)
        if not code and name in _ANYWHERE:
            return kinds.Anywhere(name)
        if not code or type_.pointers > 1:
            raise _unknown(variable)
        if type_.const:
            return self._array(name, variable, code)
        # Without a number of elements, a pointer and an array are different.
        if self._is_array(variable):
            count = str(variable.length or self.count)
            if not count:
                return kinds.Anywhere(name)
            enum = type_.base if type_.base in self.declared.enums else ""
            return results.NewArray(name, count, self._limit(), code, enum)
        if self._requested(name):
            return results.Returned(name)
        if type_.base in self.declared.enums:
            return results.NewEnum(name, type_.base)
        return results.NewNumber(name, code)

    def _handle(self, name: str, variable: Variable) -> Kind:
        base, pointers = variable.type.base, variable.type.pointers
        if pointers == 0:
            functions = _OPTIONAL.get(name)
            optional = functions is not None and re.search(functions, self.function.name)
            return kinds.HandleOf(name, base, bool(optional))
        if variable.type.const:
            return kinds.Numbers(name, "P", self.count or "1")
        return results.NewHandle(name, base, "Create" in self.function.name)

    def _value(self, name: str, variable: Variable) -> Kind:
        base = variable.type.base
        if base in self.declared.enums:
            return kinds.EnumOf(name, base)
        if base in REALS:
            return kinds.Real(name, base)
        if base in INTEGERS:
            self.count = name
            is_size = any(
                self._following(v) == name for v in self.function.parameters if _is_text(v)
            )
            return (kinds.Size if is_size else kinds.Integer)(name, base)
        if base in self.declared.callbacks:
            return kinds.Callback(name)
        if not is_cuda_type(base):
            raise _unknown(variable)
        return kinds.CudaObject(name)

    def _void(self, name: str, variable: Variable) -> Kind:
        if variable.type.pointers > 1:
            return results.NewNumber(name, "Q")
        if _SCALES.match(name):
            return kinds.Scale(name, *self._scaled())
        if name == _ELEMENT and "dataType" in self.names.values():
            is_written = self.function.name.startswith("cudnnGet")
            return (results.NewElement if is_written else kinds.Element)(name, "dataType")
        if name == _ATTRIBUTES:
            return self._attribute(name, variable)
        is_written = self.function.name.startswith("cudnnGet")
        if name == "param" or (name == "ptr" and is_written):
            return kinds.OnHost(name, _LEAST_SIZES[name], is_written)
        return kinds.Anywhere(name) if name in _ANYWHERE else kinds.OnDevice(name)

    def _attribute(self, name: str, variable: Variable) -> Kind:
        of_type = {v.type.base: self.names[v.name] for v in self.function.parameters}
        enum = "cudnnBackendAttributeType_t"
        words = f"{of_type[enum]}, _types, {self.count}"
        if variable.type.const:
            return kinds.AttributeIn(name, words)
        return results.AttributeOut(name, words, "elementCount")

    def _following(self, variable: Variable) -> str:
        """Return the name of the next parameter."""
        following = self.function.parameters.index(variable) + 1
        if following == len(self.function.parameters):
            raise _unknown(variable)
        return self.names[self.function.parameters[following].name]

    def _scaled(self) -> tuple[str, bool]:
        """Return the first descriptor of a tensor or, without one, of filters."""
        for base in ("cudnnTensorDescriptor_t", "cudnnFilterDescriptor_t"):
            for variable in self.function.parameters:
                if variable.type.base == base and not variable.type.pointers:
                    return self.names[variable.name], base == "cudnnTensorDescriptor_t"
        return "0", True

    def _array(self, name: str, variable: Variable, code: str) -> Kind:
        if (
            name.startswith("dev")
            or variable.type.base in REALS
            or (self.function.name, name) in _ON_DEVICE
        ):
            return kinds.OnDevice(name)
        # Where another descriptor gives the number, it is not known here.
        count = self.count if _COUNTING.fullmatch(self.count) else "1"
        return kinds.Numbers(name, code, _COUNTS.get((self.function.name, name), count))

    def _code(self, base: str) -> str:
        if base in self.declared.enums:
            return "i"
        if base in self.declared.callbacks or is_cuda_type(base):
            return "Q"
        return INTEGERS.get(base) or REALS.get(base, "")

    def _is_array(self, variable: Variable) -> bool:
        return f"{variable.name}[" in self.function.signature.replace(" [", "[")

    def _requested(self, name: str) -> bool:
        return name.startswith("returned") and f"requested{name[8:]}" in self.names.values()

    def _limit(self) -> str:
        """Return the result that says how many elements of an array cuDNN sets."""
        returned = (
            self.count.removesuffix("Requested"),
            self.count.replace("requested", "returned"),
        )
        return next((n for n in self.names.values() if n in returned and n != self.count), "")
