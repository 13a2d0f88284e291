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


#: Directories of CUDA's files, below the folder that the wheels share or below a toolkit.
CUDA_LAYOUTS = {
    "shared": dict.fromkeys(("runtime", "crt", "cublas", "cccl"), "nvidia/cu{major}"),
    "separate": {
        "runtime": "nvidia/cuda_runtime",
        "crt": "nvidia/cuda_nvcc",
        "cublas": "nvidia/cublas",
        "cccl": "nvidia/cuda_cccl",
    },
    "toolkit": dict.fromkeys(("runtime", "crt", "cublas", "cccl"), "cuda"),
    "runtime and cuBLAS from wheels": {
        "runtime": "nvidia/cu{major}",
        "crt": "cuda",
        "cublas": "nvidia/cu{major}",
        "cccl": "cuda",
    },
}
#: Directories of a layout, and the header that each of them brings.
CUDA_HEADERS = {"crt": "crt/host_defines.h", "cublas": "cublasLt.h", "cccl": "nv/target"}


@pytest.fixture(params=CUDA_LAYOUTS)
def install_cuda(request, tmp_path, monkeypatch, fresh_search):
    """Install CUDA's files in each layout, and search only there."""
    major = 12 if request.param == "separate" else 13
    version = f"#define CUDART_VERSION {major}000"

    def install(without: str = "") -> None:
        folders = {
            part: tmp_path / folder.format(major=major)
            for part, folder in CUDA_LAYOUTS[request.param].items()
        }
        files = {
            folders["runtime"] / "include/cuda_runtime_api.h": version,
            folders["runtime"] / f"lib/libcudart.so.{major}": "",
        }
        if request.param not in ("shared", "separate"):
            files[tmp_path / "cuda/include/cuda_runtime_api.h"] = version
        for part, header in CUDA_HEADERS.items():
            if header != without:
                files[folders[part] / "include" / header] = ""
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    monkeypatch.setattr(find, "_nvidia_wheels", lambda: iter([tmp_path / "nvidia"]))
    monkeypatch.setattr(find, "_roots", lambda variables: iter([(tmp_path / "cuda", "system")]))
    monkeypatch.setattr(find, "_cupy_cccl", lambda: [tmp_path / "cupy"])
    monkeypatch.setattr(find, "_TOOLKIT", str(tmp_path / "cuda"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(find, "_cupy_cuda_major", lambda: major)
    return install


def test_cuda_is_found_with_the_headers_of_cublaslt(install_cuda):
    install_cuda()
    cuda = find.find_cuda()
    for header in ("cuda_runtime_api.h", *CUDA_HEADERS.values()):
        assert any((folder / header).is_file() for folder in cuda.include_dirs), header


@pytest.mark.parametrize("header", CUDA_HEADERS.values())
def test_missing_headers_of_cuda_are_named(header, install_cuda):
    install_cuda(without=header)
    with pytest.raises(DnnUnavailableError, match=rf"lacks {header}.*`pip install dnnops\[cuda"):
        find.find_cuda()


@pytest.mark.needs("cupy")
def test_cupy_brings_the_header_of_cccl():
    (directory,) = find._cupy_cccl()
    assert (directory / "nv" / "target").is_file()


def test_cccl_of_cupy_is_searched_last(install_cuda, tmp_path):
    install_cuda(without="nv/target")
    (tmp_path / "cupy" / "nv").mkdir(parents=True)
    (tmp_path / "cupy" / "nv" / "target").touch()
    assert find.find_cuda().include_dirs[-1] == tmp_path / "cupy"
