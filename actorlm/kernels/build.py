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
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread",
    "-w",  # gcc warns of its own headers
)  # fmt: skip
LINKING = ("-shared", "-pthread")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
LEVELS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "vnni": (*AVX512, "-mavx512vnni"),
}
"""Compiler flags of each instruction set, least first."""
WITH_BYTES = ("linear_int8.cpp", "linear_blocks.cpp")
"""What is compiled anew for `vnni`; its other parts are those of AVX-512."""


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
    wanted = {level: library_path(level, directory) for level in levels()}
    for old in set(directory.glob("_native_*.so")) - set(wanted.values()):
        old.unlink()
    missing = {level: path for level, path in wanted.items() if not path.exists()}
    if missing:
        with tempfile.TemporaryDirectory() as objects:
            _make(find_compiler(environment), missing, directory, Path(objects))
    return list(wanted.values())


def _make(compiler: list[str], missing: dict[str, Path], directory: Path, objects: Path) -> None:
    files = [path for path in sources(directory) if path.suffix == ".cpp"]
    parts = {level: [objects / _object(level, file) for file in files] for level in missing}
    pairs = ((_level_of(level, file), file) for level in missing for file in files)
    commands = {
        objects / _object(level, file): [*compiler, *FLAGS, *LEVELS[level], "-c", str(file)] for level, file in pairs
    }
    _run(commands)
    unfinished = {level: path.with_suffix(f".{os.getpid()}") for level, path in missing.items()}
    _run({unfinished[level]: [*compiler, *LINKING, *map(str, parts[level])] for level in missing})
    for level, path in missing.items():
        unfinished[level].replace(path)


def _level_of(level: str, file: Path) -> str:
    """Whose flags a file is compiled with for a level."""
    return "avx512" if level == "vnni" and file.name not in WITH_BYTES else level


def _object(level: str, file: Path) -> str:
    return f"{file.stem}.{_level_of(level, file)}.o"


def _run(commands: dict[Path, list[str]]) -> None:
    """Runs the compiler for each output, as many at once as there are CPUs. Raises BuildFailed."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for failure in threads.map(_complaint, commands.items()):
            if failure:
                raise BuildFailed(failure)


def _complaint(job: tuple[Path, list[str]]) -> str:
    """What is wrong with a compilation; empty if nothing is."""
    output, command = job
    try:
        done = subprocess.run([*command, "-o", str(output)], stderr=subprocess.PIPE, check=False)
    except OSError as error:
        return f"cannot run {command[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    return f"{shlex.join(command[:1])} failed: {done.stderr.decode(errors='replace')[-2000:]}"


if __name__ == "__main__":
    try:
        print(*build(os.environ), sep="\n")  # noqa: T201 - a command
    except BuildFailed as failure:
        sys.exit(str(failure))
