"""Finding libraries: wheels, flags, missing libraries and the messages about them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytensor
import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.runtime import find


@pytest.fixture
def fresh_search():
    """Forget the search results before and after each test."""
    searches = (find.find_onednn, find._find_cudnn, find.find_cuda)
    for search in searches:
        search.cache_clear()
    yield
    for search in searches:
        search.cache_clear()


def test_onednn_is_found():
    library = find.find_onednn()
    assert library.version[0] == 3
    assert library.library.is_file()
    assert (library.include_dirs[0] / "oneapi" / "dnnl" / "dnnl.h").is_file()


@pytest.mark.usefixtures("fresh_search")
def test_missing_onednn_names_the_packages(monkeypatch):
    monkeypatch.setattr(find, "_roots", lambda variables: iter(()))
    monkeypatch.setattr(find, "_wheel_files", lambda distribution, name: [])
    monkeypatch.setattr(metadata, "distributions", lambda **known: iter(()))
    with pytest.raises(DnnUnavailableError, match="pip install onednn-cpu-gomp"):
        find.find_onednn()


def install(site_packages: Path, distribution: str, files: dict[str, str]) -> None:
    """Write an installed wheel: its metadata, and files relative to the packages."""
    record = []
    for name, text in files.items():
        path = site_packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        record.append(f"{name},,")
    info = site_packages / f"{distribution.replace('-', '_')}-3.9.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.9.2\n")
    (info / "RECORD").write_text("\n".join(record))


#: The folders lib and include of each wheel, relative to the packages.
LAYOUTS = {
    "prefix": ("../../", "../../../"),
    "target": ("lib/", ""),
    "home": ("../", "../../"),
}


@pytest.mark.usefixtures("fresh_search")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_onednn_is_where_its_wheel_says(layout, tmp_path, monkeypatch):
    """Use a prefix other than the interpreter's, with each wheel in its own, moved afterwards."""
    monkeypatch.setattr(find, "_roots", lambda variables: iter(()))
    lib, include = LAYOUTS[layout]
    header = "".join(
        f"#define DNNL_VERSION_{part} {number}\n"
        for part, number in zip(("MAJOR", "MINOR", "PATCH"), (3, 9, 2), strict=True)
    )
    places = {
        "onednn-cpu-gomp": {f"{lib}libdnnl.so.3": ""},
        "onednn-devel-cpu-gomp": {
            f"{include}include/dnnl_version.h": "",
            f"{include}include/oneapi/dnnl/dnnl_version.h": header,
        },
    }
    for name, files in places.items():
        install(tmp_path / "built" / name / "lib" / "python" / "site-packages", name, files)
    (tmp_path / "built").rename(tmp_path / "moved")
    for name in places:
        entry = tmp_path / "moved" / name / "lib" / "python" / "site-packages"
        monkeypatch.syspath_prepend(entry)
    library = find.find_onednn()
    assert library.version == (3, 9, 2)
    assert library.library.is_relative_to(tmp_path / "moved" / "onednn-cpu-gomp")
    (directory,) = library.include_dirs
    assert directory.is_relative_to(tmp_path / "moved" / "onednn-devel-cpu-gomp")


@pytest.mark.usefixtures("fresh_search")
def test_a_wheel_without_its_library_is_told(tmp_path, monkeypatch):
    """Create the files that pip installs with --target."""
    monkeypatch.setattr(find, "_roots", lambda variables: iter(()))
    install(tmp_path, "onednn-cpu-gomp", {"../libdnnl.so.3": ""})
    (tmp_path.parent / "libdnnl.so.3").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DnnUnavailableError, match=r"without its libdnnl\.so\.3, which `pip"):
        find.find_onednn()


def install_cudnn(root: Path, lib: str, *version: int) -> None:
    """Write cuDNN's library and its header."""
    for directory in (root / "include", root / lib):
        directory.mkdir(parents=True)
    (root / lib / "libcudnn.so.9").touch()
    parts = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version, strict=True)
    (root / "include" / "cudnn_version.h").write_text(
        "".join(f"#define CUDNN_{part} {number}\n" for part, number in parts)
    )


@pytest.mark.usefixtures("fresh_search")
def test_cudnn_is_found_on_the_path(tmp_path, monkeypatch):
    """Install cuDNN's wheel as ``pip --target`` does, with ``PYTHONPATH``."""
    install_cudnn(tmp_path / "nvidia" / "cudnn", "lib", 9, 99, 0)
    monkeypatch.syspath_prepend(tmp_path)
    library = find.find_cudnn()
    assert (library.version, library.origin) == ((9, 99, 0), "wheel")


@pytest.mark.usefixtures("fresh_search")
def test_base_path_comes_first(tmp_path):
    install_cudnn(tmp_path, "lib64", 9, 7, 3)
    with pytensor.config.change_flags(dnn__base_path=str(tmp_path)):
        library = find.find_cudnn()
    assert library.version == (9, 7, 3)
    assert library.library == tmp_path / "lib64" / "libcudnn.so.9"
    assert "dnn.base_path" in library.origin


@pytest.mark.usefixtures("fresh_search")
def test_wrong_base_path_is_an_error(tmp_path):
    with (
        pytensor.config.change_flags(dnn__base_path=str(tmp_path)),
        pytest.raises(DnnUnavailableError, match=r"dnn\.base_path"),
    ):
        find.find_cudnn()


@pytest.mark.usefixtures("fresh_search")
def test_old_cudnn_is_not_taken(tmp_path, monkeypatch):
    install_cudnn(tmp_path / "nvidia" / "cudnn", "lib", 8, 9, 0)
    monkeypatch.setattr(find, "_nvidia_wheels", lambda: iter([tmp_path / "nvidia"]))
    monkeypatch.setattr(find, "_roots", lambda variables: iter(()))
    with pytest.raises(DnnUnavailableError, match="cuDNN 9"):
        find.find_cudnn()


@pytest.mark.needs("cupy")
@pytest.mark.usefixtures("fresh_search")
def test_runtime_headers_without_crt_say_so(tmp_path, monkeypatch):
    include, lib = tmp_path / "include", tmp_path / "lib"
    include.mkdir()
    lib.mkdir()
    major = find._cupy_cuda_major()
    (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {major}000\n")
    (lib / f"libcudart.so.{major}").touch()
    monkeypatch.setattr(find, "_cuda_places", lambda major: iter([([include], [lib], "test")]))
    with pytest.raises(DnnUnavailableError, match=r"crt/host_defines\.h"):
        find.find_cuda()
    (include / "crt").mkdir()
    (include / "crt" / "host_defines.h").touch()
    find.find_cuda.cache_clear()
    assert find.find_cuda().version == (major, 0, 0)
