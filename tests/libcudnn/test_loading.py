"""The generated module: when it is made, where it is stored, and what happens if it cannot be."""

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
from dnnops.runtime import files
from dnnops.runtime.find import find_cudnn

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "dnnops" / "libcudnn" / "__init__.pyi"


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


def test_importing_does_nothing():
    """Not even names of modules or `hasattr` for special names search for cuDNN."""
    program = (
        "import sys, dnnops; before = set(sys.modules)\n"
        "from dnnops import libcudnn\n"
        "hasattr(libcudnn, '__wrapped__'), hasattr(libcudnn, 'loading')\n"
        "print(sorted(set(sys.modules) - before))"
    )
    assert run(program).strip() == "['dnnops.libcudnn']"


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
        assert dir(libcudnn) == []


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """Return the folder of stored modules, which does not exist yet."""
    folder = tmp_path / "compiled" / "dnnops"
    monkeypatch.setattr(loading, "_modules", [])
    monkeypatch.setattr(loading, "_directory", lambda: folder)
    return folder


@pytest.mark.needs("cudnn")
def test_stored_module(directory, monkeypatch):
    first = loading.generated_module()
    assert loading.generated_module() is first
    (path,) = directory.glob("libcudnn_*.py")
    assert first.cudnnGetVersion.__code__.co_filename == str(path)

    # It is read by later processes, and made again if it is damaged.
    monkeypatch.setattr(loading, "_modules", [])
    text = path.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "read_headers", None)
        assert loading.generated_module().cudnnGetVersion() == first.cudnnGetVersion()
    for damaged in (text[: len(text) // 2], text.replace("cudnnGetVersion", "cudnnGetVersioN"), ""):
        path.write_text(damaged)
        monkeypatch.setattr(loading, "_modules", [])
        assert loading.generated_module().cudnnGetVersion() == first.cudnnGetVersion()
        assert path.read_text() == text


@pytest.mark.needs("cudnn")
@pytest.mark.parametrize("obstacle", ["full disk", "a file", "others may write", "read-only"])
def test_module_that_cannot_be_stored(directory, tmp_path, monkeypatch, obstacle):
    if obstacle == "full disk":

        def replace(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files, "replace", replace)
    elif obstacle == "a file":
        directory.parent.mkdir()
        directory.write_text("")
    elif obstacle == "others may write":
        directory.mkdir(parents=True)
        directory.chmod(0o777)
    else:
        monkeypatch.setattr(loading, "_directory", lambda: Path("/proc/none"))
    assert loading.generated_module().cudnnGetVersion() > 90000
    assert not list(tmp_path.rglob("libcudnn_*.py"))


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
