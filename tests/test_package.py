"""E01: nothing in the package can turn bytes into code; and what a command does not need it does not import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import actorlm
from actorlm.kernels.build import LEVELS, library_path

PACKAGE = Path(actorlm.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "code",
    "codeop",
    "runpy",
    "copyreg",
    "multiprocessing",
    "xmlrpc",
}
BUILTINS = {"eval", "exec", "compile", "__import__", "globals", "locals"}
METHODS = {"recv_pyobj", "send_pyobj", "recv_serialized", "mktemp", "system", "popen", "load_state_dict_from_url"}
METHODS |= {"ProcessPoolExecutor", "gather_object", "all_gather_object", "DistributedDataParallel", "rpc"}
METHODS |= {f"{verb}_object_list" for verb in ("broadcast", "scatter", "send", "recv")}
TORCH_LOADS = {(module, name) for module in ("numpy", "np", "torch") for name in ("load", "save")}
TORCH_LOADS |= {("torch", name) for name in ("hub", "jit", "package", "multiprocessing")}
KEYWORDS = {("weights_only", False), ("allow_pickle", True), ("trust_remote_code", True), ("shell", True)}

HEAVY = (
    "torch",
    "transformers",
    "litestar",
    "uvicorn",
    "tokenizers",
    "numpy",
    "zmq",
    "uvloop",
    "safetensors",
    "gguf",
    "huggingface_hub",
)


def is_suspect(dotted):
    """Whether what is imported could run or load code."""
    parts = dotted.split(".")
    return parts[0] in MODULES or not METHODS.isdisjoint(parts) or tuple(parts[:2]) in TORCH_LOADS


def suspects(tree):
    """The nodes that could run or load code, with what they are."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, one.name) for one in names if is_suspect(one.name))
            case ast.ImportFrom(module=str(module), level=0, names=names):
                dotted = [f"{module}.{one.name}" for one in names]
                yield from ((node, one) for one in dotted if is_suspect(one))
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                yield node, name
            case ast.Attribute(attr=name) if name in METHODS:
                yield node, name
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in TORCH_LOADS:
                yield node, f"{module}.{name}"
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)) if (name, value) in KEYWORDS:
                yield node.value, f"{name}={value}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_e01_no_code_from_bytes(path):
    text = path.read_text()
    found = [f"line {node.lineno}: {what}" for node, what in suspects(ast.parse(text))]
    assert not found
    assert "pickle" not in text.lower()  # scanners flag the word, too


BAD_LINES = (
    "from torch import Tensor, load",
    "from torch import load as read",
    "from numpy import load",
    "import torch.hub",
    "import torch.multiprocessing as mp",
    "from torch import multiprocessing",
    "import multiprocessing",
    "from multiprocessing.connection import Client",
    "from multiprocessing.reduction import ForkingPickler",
    "from concurrent.futures import ProcessPoolExecutor",
    "futures.ProcessPoolExecutor()",
    "from torch.distributed import broadcast_object_list",
    "from torch.distributed.rpc import rpc_sync",
    "from torch.distributed import rpc",
    "dist.broadcast_object_list(x)",
    "dist.all_gather_object(x, y)",
    "torch.distributed.gather_object(x)",
    "dist.scatter_object_list(x, y)",
    "dist.recv_object_list(x)",
    "dist.send_object_list(x)",
)


def test_e01_the_check_finds_what_it_looks_for():
    bad = """
import pickle
from pickle import loads
import yaml.loader
eval("1")
exec("1")
socket.recv_pyobj()
torch.load(path, weights_only=False)
numpy.load(path, allow_pickle=True)
subprocess.run(x, shell=True)
"""
    assert len(list(suspects(ast.parse(bad)))) == 11
    for line in BAD_LINES:
        assert list(suspects(ast.parse(line))), line
    good = "import re\nre.compile('x')\nself.eval = model.eval()\nsubprocess.run(x, shell=False)\n"
    good += "import torch.nn.functional\nfrom torch import distributed, Tensor\nfrom numpy import array\njson.load(x)\n"
    assert not list(suspects(ast.parse(good)))


def test_the_package_is_python_and_the_kernels():
    """Nothing else that a loader would run lies beside it, and no library of other sources."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    compiled = {library_path(level) for level in LEVELS}
    endings = {path.suffix for path in files if path not in compiled}
    assert endings <= {".py", ".cpp", ".h", ".typed"}, endings


def imported(statement):
    """The modules that a new interpreter has after a statement."""
    program = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).split())


def test_the_command_line_imports_light():
    modules = imported("import actorlm.cli")
    assert "actorlm.cli" in modules
    assert not modules & {*HEAVY}


@pytest.mark.parametrize("module", ["actorlm", "actorlm.process", "actorlm.config", "actorlm.messages.catalog"])
def test_the_foundations_import_light(module):
    assert not imported(f"import {module}") & {*HEAVY}


@pytest.mark.parametrize("role", ["frontend", "balancer", "detokenizer", "engine", "worker", "supervisor"])
def test_no_actor_imports_torch_of_itself(role):
    assert not imported(f"import actorlm.actors.{role}") & {"torch", "transformers", "triton", "litestar", "uvicorn"}


@pytest.mark.parametrize("name", ["Client", "SamplingParams"])
def test_what_the_package_offers_is_imported_when_it_is_asked_for(name):
    assert not imported("import actorlm") & {f"actorlm.{module}" for module in ("client", "sampling", "errors")}
    heavy = {"torch", "transformers", "litestar", "uvicorn", "tokenizers", "numpy", "uvloop", "safetensors"}
    assert not imported(f"from actorlm import {name}") & heavy


def test_what_the_package_does_not_offer_is_no_attribute():
    assert not hasattr(actorlm, "Clients")
