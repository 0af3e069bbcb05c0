"""Part of the package's build: compiles the native kernels, if there is a C++17 compiler.

Without one the package is built all the same, and its models run in plain torch.
"""

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("actorlm", "kernels")


def _load_build(root: Path) -> ModuleType:
    """The package's own module, without the package, whose dependencies are not here."""
    spec = importlib.util.spec_from_file_location("build_kernels", root / KERNELS / "build.py")
    assert spec, "the file is part of the package"
    assert spec.loader, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled libraries to the wheel, which is then one for this platform and any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the files of the wheel are gathered."""
        build = _load_build(Path(self.root))
        try:
            libraries = build.build(os.environ)
        except build.BuildFailed as failure:
            self.app.display_warning(f"actorlm is built without its native kernels: {failure}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"] += [str(KERNELS / library.name) for library in libraries]
