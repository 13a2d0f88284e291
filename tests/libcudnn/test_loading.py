"""The generated module: when it is made, and what happens if it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.libcudnn import loading
from dnnops.libcudnn.__main__ import main
from dnnops.libcudnn.declarations import read_headers
from dnnops.libcudnn.stubs import write_stubs
from dnnops.runtime.find import find_cudnn

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "dnnops" / "libcudnn" / "__init__.pyi"


def run(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | variables,
    )
    return done.stdout


def test_importing_does_nothing():
    """Not even `hasattr` for special names, or for those of other modules, searches for cuDNN.

    An unknown name is looked up among those of other libraries.
    """
    program = (
        "import sys, dnnops; before = set(sys.modules)\n"
        "from dnnops import libcudnn\n"
        "hasattr(libcudnn, '__wrapped__'), hasattr(libcudnn, 'loading'), hasattr(libcudnn, 'Foo')\n"
        "print(sorted(set(sys.modules) - before))"
    )
    names = "foreign_layers", "foreign_names", "foreign_optimizers", "libcudnn"
    assert run(program).strip() == str([f"dnnops.{name}" for name in names])


def test_missing_cudnn(tmp_path, monkeypatch):
    import pytensor

    from dnnops import libcudnn

    monkeypatch.setattr(loading, "_modules", [])
    with monkeypatch.context() as patch:
        for name in [name for name in vars(libcudnn) if name.startswith("cudnn")]:
            patch.delitem(vars(libcudnn), name)
        patch.setattr(pytensor.config, "dnn__base_path", str(tmp_path))
        with pytest.raises(DnnUnavailableError, match=str(tmp_path)):
            _ = libcudnn.cudnnCreate
        with pytest.raises(DnnUnavailableError, match=str(tmp_path)):
            from dnnops.libcudnn import cudnnDestroy  # noqa: F401
        assert dir(libcudnn) == []
        # `pickle` looks for names of other objects in all modules.
        assert not hasattr(libcudnn, "Foo")


@pytest.mark.needs("cudnn")
def test_module_is_generated_once_and_in_memory(tmp_path):
    """No other process can change the code, and tracebacks show its lines."""
    program = (
        "import inspect, linecache, traceback\n"
        "from dnnops import libcudnn\n"
        "from dnnops.libcudnn.loading import generated_module\n"
        "assert generated_module() is generated_module()\n"
        "linecache.checkcache()\n"
        "print(inspect.getsource(libcudnn.cudnnGetVersion).splitlines()[0])\n"
        "try:\n"
        "    libcudnn.cudnnDestroyTensorDescriptor('x')\n"
        "except TypeError:\n"
        "    print(traceback.format_exc())\n"
    )
    printed = run(program, PYTENSOR_FLAGS=f"base_compiledir={tmp_path}")
    assert printed.startswith("def cudnnGetVersion():\n")
    assert "tensorDesc = _handle(tensorDesc, cudnnTensorDescriptor_t" in printed
    assert not list(tmp_path.rglob("*libcudnn*"))


# --- Stubs ---------------------------------------------------------------------------------------


@pytest.mark.needs("cudnn")
def test_command_writes_stubs(tmp_path, capsys):
    assert main(["stubs", str(tmp_path)]) == 0
    target = tmp_path / "dnnops" / "libcudnn" / "__init__.pyi"
    assert capsys.readouterr().out == f"wrote {target}\n"
    assert target.read_text() == write_stubs(read_headers(find_cudnn().include_dirs[0]))
    (tmp_path / "file").write_text("")
    assert main(["stubs", str(tmp_path / "file")]) == 1
    assert "dnnops.libcudnn stubs: " in capsys.readouterr().err


@pytest.mark.needs("cudnn")
def test_shipped_stubs_are_those_of_their_version():
    """Run ``python -m dnnops.libcudnn stubs .`` after a change."""
    shipped = STUBS.read_text()
    written = write_stubs(read_headers(find_cudnn().include_dirs[0]))
    if shipped.split(". ")[0] == written.split(". ")[0]:
        assert shipped == written
    else:
        # Everything but the functions and members of enums is independent of the version.
        assert (
            shipped.partition("\n\n")[0].splitlines()[1:]
            == (written.partition("\n\n")[0].splitlines()[1:])
        )
    assert os.path.getsize(STUBS) > 50_000
