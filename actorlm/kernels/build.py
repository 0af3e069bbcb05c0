"""Compiles the native kernels with any C++17 compiler: `python -m actorlm.kernels.build`.

The package's own build calls this before anything is installed, so only the standard library is used. A library is made
for each instruction set of the machine's architecture; which one runs is decided where it runs. A name carries a digest
of the sources, so that what was compiled from others is never loaded.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread",
    "-w",  # gcc warns of its own headers
)  # fmt: skip
AVX2 = ("-mavx2", "-mfma", "-mf16c")
LEVELS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": AVX2,
    "avx512": (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
}
"""Compiler flags of each instruction set, least first."""


class BuildFailed(Exception):
    """There is no compiler, or it refused; the message says which."""


def sources(directory: Path = HERE) -> list[Path]:
    """The C++ files and headers."""
    return sorted([*directory.glob("*.cpp"), *directory.glob("*.h")])


def library_path(level: str, directory: Path = HERE) -> Path:
    """Where the library of an instruction set is, or would be, for the sources as they are now."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources(directory), Path(__file__)]))
    return directory / f"_native_{level}-{digest.hexdigest()[:12]}.so"


def levels() -> list[str]:
    """The instruction sets to compile for on this machine's architecture."""
    return list(LEVELS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def find_compiler(environment: Mapping[str, str]) -> list[str]:
    """The command of `CXX`, or of a compiler on the path. Raises BuildFailed if there is none."""
    if named := environment.get("CXX"):
        return shlex.split(named)
    for name in COMPILERS:
        if shutil.which(name, path=environment.get("PATH")):
            return [name]
    raise BuildFailed(f"no C++ compiler: CXX is not set, and none of {', '.join(COMPILERS)} is on the path")


def build(environment: Mapping[str, str], directory: Path = HERE) -> list[Path]:
    """Compiles what is not compiled yet, and removes what is old. Raises BuildFailed."""
    wanted = {library_path(level, directory): LEVELS[level] for level in levels()}
    for old in set(directory.glob("_native_*.so")) - set(wanted):
        old.unlink()
    missing = {path: flags for path, flags in wanted.items() if not path.exists()}
    if missing:
        _compile(find_compiler(environment), missing, directory)
    return list(wanted)


def _compile(compiler: list[str], missing: dict[Path, tuple[str, ...]], directory: Path) -> None:
    files = [str(path) for path in sources(directory) if path.suffix == ".cpp"]
    running = {}
    for path, flags in missing.items():
        unfinished = path.with_suffix(f".{os.getpid()}")
        command = [*compiler, *FLAGS, *flags, "-o", str(unfinished), *files]
        try:
            running[path] = unfinished, subprocess.Popen(command, stderr=subprocess.PIPE)
        except OSError as error:
            raise BuildFailed(f"cannot run {compiler[0]}: {error.strerror}") from error
    complaints = {path: process.communicate()[1] for path, (_, process) in running.items()}
    for path, (unfinished, process) in running.items():
        if process.returncode != 0:
            raise BuildFailed(f"{shlex.join(compiler)} failed: {complaints[path].decode(errors='replace')[-2000:]}")
        unfinished.replace(path)


if __name__ == "__main__":
    try:
        print(*build(os.environ), sep="\n")  # noqa: T201 - a command
    except BuildFailed as failure:
        sys.exit(str(failure))
