"""Import a module of the package with other code than its file has.

As ``sitecustomize.py`` in a folder of ``PYTHONPATH``, this changes the module in every process of
Python. ``DNNOPS_TEST_CHANGED`` has the module's path and that of the file with the code.
"""

import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

#: The variable of the environment.
VARIABLE = "DNNOPS_TEST_CHANGED"

if VARIABLE in os.environ:
    _path, _file = os.environ[VARIABLE].split(os.pathsep)
    _get_code = SourceFileLoader.get_code

    def _changed_code(self: SourceFileLoader, name: str) -> CodeType | None:
        if os.path.realpath(self.get_filename(name)) == _path:
            return compile(Path(_file).read_text(), _path, "exec", dont_inherit=True)
        return _get_code(self, name)

    SourceFileLoader.get_code = _changed_code  # type: ignore[method-assign]
