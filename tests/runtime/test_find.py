"""Finding libraries: wheels, flags, what is missing and what the message says."""

from __future__ import annotations

import pytensor
import pytest

from dnnops.errors import DnnUnavailableError
from dnnops.runtime import find


@pytest.fixture
def fresh_search():
    """Forget what was found, before and after."""
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
    with pytest.raises(DnnUnavailableError, match="pip install onednn-cpu-gomp"):
        find.find_onednn()


@pytest.mark.usefixtures("fresh_search")
def test_base_path_comes_first(tmp_path):
    include, lib = tmp_path / "include", tmp_path / "lib64"
    include.mkdir()
    lib.mkdir()
    numbers = {"MAJOR": 9, "MINOR": 7, "PATCHLEVEL": 3}
    (include / "cudnn_version.h").write_text(
        "".join(f"#define CUDNN_{part} {number}\n" for part, number in numbers.items())
    )
    (lib / "libcudnn.so.9").touch()
    with pytensor.config.change_flags(dnn__base_path=str(tmp_path)):
        library = find.find_cudnn()
    assert library.version == (9, 7, 3)
    assert library.library == lib / "libcudnn.so.9"
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
    directory = tmp_path / "nvidia" / "cudnn"
    for part in ("include", "lib"):
        (directory / part).mkdir(parents=True)
    (directory / "include" / "cudnn_version.h").write_text(
        "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 9\n#define CUDNN_PATCHLEVEL 0\n"
    )
    (directory / "lib" / "libcudnn.so.9").touch()
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
