"""Write the files of a new Op from templates."""

from __future__ import annotations

import keyword
import re
from bisect import bisect
from importlib.resources import files
from pathlib import Path
from string import Template

from dnnops.errors import DnnValueError
from dnnops.runtime import output

__all__ = ["FAMILIES", "write_op"]

#: Folders of Ops.
FAMILIES = (
    "activation",
    "attention",
    "conv",
    "loss",
    "norm",
    "pool",
    "regularization",
    "resample",
    "rnn",
)
#: Templates, and the files that are made of them. The last one is the test.
TEMPLATES = {
    "nnet.py.in": "dnnops/nnet/{family}/{name}.py",
    "cpu.py.in": "dnnops/cpu/{name}.py",
    "cpu.cpp.in": "dnnops/c_code/cpu/{family}/{name}.cpp",
    "test.py.in": "tests/nnet/{family}/test_{name}.py",
}


def write_op(root: Path, name: str, family: str) -> list[Path]:
    """Write the files of a new Op and export it from ``dnnops.nnet``.

    Parameters
    ----------
    root : Path
        Root of the checkout.
    name : str
        Name of the function for users: lowercase words joined by underscores. The class has the
        same words.
    family : str
        One of `FAMILIES`.

    Returns
    -------
    list of Path
        New files, relative to `root`.

    Raises
    ------
    DnnValueError
        If `name` is not such a name, if one of the files exists, or if `root` is not a checkout.
        Nothing is written then.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise DnnValueError(
            "name must be lowercase words joined by underscores, such as local_contrast, "
            f"got {name!r}"
        )
    exports = root / "dnnops" / "nnet" / "__init__.py"
    if not exports.is_file() or not (root / "tests").is_dir():
        raise DnnValueError(f"{root} is not a checkout of dnnops; run the command in its root")
    words = {
        "name": name,
        "cls": "".join(word.capitalize() for word in name.split("_")),
        "title": name.replace("_", " ").capitalize(),
        "family": family,
    }
    paths = {template: Path(path.format(**words)) for template, path in TEMPLATES.items()}
    for path in paths.values():
        if (root / path).exists():
            raise DnnValueError(f"{path} exists; give another name")
    templates = files("dnnops.devtools") / "templates"
    for template, path in paths.items():
        text = (templates / template).read_text(encoding="utf-8")
        (root / path).parent.mkdir(exist_ok=True)
        output.write(root / path, Template(text).substitute(words))
    text = exports.read_text(encoding="utf-8")
    output.write(exports, _with_exports(text, **words))
    return list(paths.values())


def _with_exports(text: str, name: str, cls: str, family: str, title: str) -> str:
    """Add an Op to ``dnnops/nnet/__init__.py``, in the order that the linter wants."""
    module = f"dnnops.nnet.{family}.{name}"
    imports = list(re.finditer(r"^from (dnnops\.nnet\S*) import", text, re.MULTILINE))
    after = bisect([m[1] for m in imports], module)
    place = imports[after].start() if after < len(imports) else text.index("\n__all__")
    text = f"{text[:place]}from {module} import {cls}, {name}\n{text[place:]}"
    start = text.index("__all__ = [\n") + len("__all__ = [\n")
    end = text.index("]", start)
    names = sorted(
        [*re.findall(r'"(\w+)"', text[start:end]), cls, name],
        # Constants, classes, functions.
        key=lambda found: (not found.isupper(), not found[0].isupper(), found),
    )
    return text[:start] + "".join(f'    "{found}",\n' for found in names) + text[end:]
