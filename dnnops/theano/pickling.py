"""``theano.misc.pkl_utils``: pickles in a zip file, with arrays in files of their own."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from dnnops.errors import DnnValueError

__all__ = [
    "DEFAULT_PROTOCOL",
    "CompatUnpickler",
    "PersistentGpuArrayID",
    "PersistentNdarrayID",
    "PersistentNdarrayLoad",
    "PersistentSharedVariableID",
    "dump",
    "load",
    "zipadd",
]

DEFAULT_PROTOCOL = pickle.DEFAULT_PROTOCOL
CompatUnpickler = pickle.Unpickler


class PersistentNdarrayID:
    """Function that writes arrays into a zip file, and returns their identities for a pickler.

    Parameters
    ----------
    zip_file : ZipFile
    """

    def __init__(self, zip_file: ZipFile):
        self.zip_file = zip_file
        self.count = 0
        self.seen: dict[int, str] = {}

    def name_of(self, obj: np.ndarray) -> str:
        """Return the name of an array's file.

        Parameters
        ----------
        obj : numpy.ndarray

        Returns
        -------
        str
        """
        self.count += 1
        return f"array_{self.count - 1}"

    def __call__(self, obj: Any) -> str | None:
        """Return the identity of an array; None for other objects."""
        if type(obj) is not np.ndarray or obj.dtype.hasobject:
            return None
        if id(obj) not in self.seen:
            name = self.name_of(obj)
            zipadd(lambda file: np.lib.format.write_array(file, obj), self.zip_file, name)
            self.seen[id(obj)] = f"ndarray.{name}"
        return self.seen[id(obj)]


PersistentGpuArrayID = PersistentNdarrayID


class PersistentSharedVariableID(PersistentNdarrayID):
    """Function that names the arrays of shared variables after these.

    Parameters
    ----------
    zip_file : ZipFile
    allow_unnamed, allow_duplicates : bool
        Whether shared variables may have no name, or the same one. Equal names are numbered.

    Raises
    ------
    DnnValueError
        At a call, if a name is not allowed.
    """

    def __init__(
        self, zip_file: ZipFile, allow_unnamed: bool = True, allow_duplicates: bool = True
    ):
        super().__init__(zip_file)
        self.name_counter: Counter[str] = Counter()
        self.ndarray_names: dict[int, str] = {}
        self.allow_unnamed = allow_unnamed
        self.allow_duplicates = allow_duplicates

    def name_of(self, obj: np.ndarray) -> str:
        """Return the name of an array's file.

        Parameters
        ----------
        obj : numpy.ndarray

        Returns
        -------
        str

        Raises
        ------
        DnnValueError
            If two shared variables have its name, and `allow_duplicates` is False.
        """
        name = self.ndarray_names.get(id(obj))
        if name is None:
            return super().name_of(obj)
        self.name_counter[name] += 1
        if self.name_counter[name] == 1:
            return name
        if not self.allow_duplicates:
            raise DnnValueError(f"multiple shared variables with the name {name!r} found")
        return f"{name}_{self.name_counter[name]}"

    def __call__(self, obj: Any) -> str | None:
        """Return the identity of an array; None for other objects."""
        if isinstance(obj, SharedVariable):
            if obj.name == "pkl":
                raise DnnValueError("a shared variable cannot have the name 'pkl' in a zip file")
            if obj.name:
                self.ndarray_names[id(obj.container.storage[0])] = obj.name
            elif not self.allow_unnamed:
                raise DnnValueError(f"unnamed shared variable, {obj}")
        return super().__call__(obj)


class PersistentNdarrayLoad:
    """Function that reads an array by its identity.

    Parameters
    ----------
    zip_file : ZipFile
    """

    def __init__(self, zip_file: ZipFile):
        self.zip_file = zip_file
        self.cache: dict[str, np.ndarray] = {}

    def __call__(self, persid: str) -> np.ndarray:
        """Return the array; the same one for equal identities."""
        name = persid.split(".", 1)[1]
        if name not in self.cache:
            with self.zip_file.open(name) as file:
                self.cache[name] = np.lib.format.read_array(file)
        return self.cache[name]


def dump(
    obj: Any,
    file_handler: BinaryIO,
    protocol: int = DEFAULT_PROTOCOL,
    persistent_id: Callable[[ZipFile], Callable[[Any], Any]] = PersistentSharedVariableID,
) -> None:
    """Pickle an object into a zip file, which `numpy.load` can read, too.

    Parameters
    ----------
    obj : object
    file_handler : binary file
    protocol : int
        Protocol of the pickle.
    persistent_id : callable
        Function that takes the zip file and returns a function for ``Pickler.persistent_id``.
    """
    with ZipFile(file_handler, "w", ZIP_DEFLATED, allowZip64=True) as zip_file:
        identify = persistent_id(zip_file)

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj: Any) -> Any:
                return identify(obj)

        # A zip file has one file open at a time, and the pickler writes arrays meanwhile.
        buffer = BytesIO()
        Pickler(buffer, protocol).dump(obj)
        zip_file.writestr("pkl", buffer.getvalue())


def load(
    f: BinaryIO, persistent_load: Callable[[ZipFile], Callable[[Any], Any]] = PersistentNdarrayLoad
) -> Any:
    """Load an object that :func:`dump` has written. Like any pickle, the file can run code.

    Parameters
    ----------
    f : binary file
    persistent_load : callable
        Function that takes the zip file and returns a function for ``Unpickler.persistent_load``.
    """
    with ZipFile(f, "r") as zip_file:
        find = persistent_load(zip_file)

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                return find(pid)

        with zip_file.open("pkl") as file:
            return Unpickler(file).load()


def zipadd(func: Callable[[Any], Any], zip_file: ZipFile, name: str) -> None:
    """Let a function write a file of a zip file.

    Parameters
    ----------
    func : callable
        Function that takes a binary file.
    zip_file : ZipFile
    name : str
        Name of the new file.
    """
    with zip_file.open(name, "w", force_zip64=True) as file:
        func(file)
