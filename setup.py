"""Add the CPU's runtime library and the start-up file to the wheel; the rest is in setup.cfg.

Without a compiler or oneDNN's headers, the package is built without the library, which is then
compiled at its first use.
"""

from __future__ import annotations

import os
import sys
import types
import typing
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

_PACKAGE = Path(__file__).resolve().parent / "dnnops"


def _without_dependencies() -> None:
    """Make ``dnnops.runtime`` importable without ``dnnops/__init__.py``, which needs PyTensor."""
    package = types.ModuleType("dnnops")
    package.__path__ = [str(_PACKAGE)]
    sys.modules["dnnops"] = package


class BuildRuntime(build_ext):
    """Compile the library for each level of x86-64, or in a checkout for this machine's level."""

    def run(self) -> None:
        _without_dependencies()
        from dnnops.errors import DnnUnavailableError
        from dnnops.runtime.build import ONEDNN
        from dnnops.runtime.compiling import compile_library, is_intact
        from dnnops.runtime.prebuilt import LEVELS, PREBUILT_DIR, prebuilt_name, supported_levels

        in_place = self.inplace or getattr(self, "editable_mode", False)
        directory = PREBUILT_DIR if in_place else Path(self.build_lib, "dnnops", PREBUILT_DIR.name)
        levels = supported_levels()[:1] if in_place else tuple(LEVELS) * bool(supported_levels())
        self.made: list[str] = []
        try:
            libraries = ONEDNN.find()
            for level in levels:
                target = directory / prebuilt_name(ONEDNN.name, level, ONEDNN.source_hash)
                if not is_intact(target):
                    directory.mkdir(parents=True, exist_ok=True)
                    compile_library(
                        target,
                        ONEDNN.sources,
                        os.environ.get("CXX") or "g++",
                        [f"-march={level}", *ONEDNN.arguments(libraries)],
                        ONEDNN.link_arguments(libraries, rpath=False),
                    )
                self.made += [str(target), f"{target}.sha256"]
        except (DnnUnavailableError, OSError) as error:
            self.warn(f"the runtime library will be compiled at its first use: {error}")

    def get_outputs(self) -> list[str]:
        return list(getattr(self, "made", ()))

    def get_source_files(self) -> list[str]:
        return []


class StartupFile(Command):
    """Put the file that Python executes at start-up beside the package."""

    description = "put the start-up file beside the package"
    user_options: typing.ClassVar = [("build-lib=", "d", "directory to build in")]
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        _without_dependencies()
        from dnnops.startup import PTH

        target = self._target()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(PTH, encoding="ascii")

    def get_outputs(self) -> list[str]:
        return [str(self._target())]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return []

    def _target(self) -> Path:
        _without_dependencies()
        from dnnops.startup import PTH_NAME

        # An editable installation does not install the build directory. Other files belong where
        # the install command would put them, which is the root of its wheel.
        editable = self.editable_mode
        root = self.get_finalized_command("install").install_lib if editable else self.build_lib
        return Path(root, PTH_NAME)


class Build(build):
    """Build the start-up file, too."""

    sub_commands: typing.ClassVar = [*build.sub_commands, ("build_startup", None)]


class PlatformWheel(bdist_wheel):
    """Tag the wheel for its platform but no Python version; the library calls no Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={
        "build": Build,
        "build_ext": BuildRuntime,
        "build_startup": StartupFile,
        "bdist_wheel": PlatformWheel,
    },
    # The extension has no sources, but makes setuptools run build_ext.
    ext_modules=[Extension("dnnops.lib", sources=[])],
)
