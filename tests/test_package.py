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
}
BUILTINS = {"eval", "exec", "compile", "__import__", "globals", "locals"}
METHODS = {"recv_pyobj", "send_pyobj", "recv_serialized", "mktemp", "system", "popen", "load_state_dict_from_url"}
TORCH_LOADS = {("torch", "load"), ("torch", "save"), ("numpy", "load"), ("np", "load"), ("torch", "hub")}
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


def suspects(tree):
    """The nodes that could run or load code, with what they are."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, one.name) for one in names if one.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in MODULES:
                yield node, module
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
    good = "import re\nre.compile('x')\nself.eval = model.eval()\nsubprocess.run(x, shell=False)\n"
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
