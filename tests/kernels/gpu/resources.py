"""Compiles a kernel for a card that is not here, and tells what it takes there.

`check` is what tests call. Committed figures are in `figures/`, a file for each test of a kernel; with
TEST_WRITE_FIGURES=1 they are written anew.
"""

import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SM_90, SM_80 = GPUTarget("cuda", 90, 32), GPUTarget("cuda", 80, 32)
MOST_SHARED = {90: 232_448, 80: 166_912}
"""Bytes of shared memory that one program may have."""

FIGURES = Path(__file__).parent / "figures"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Resources:
    """Registers a thread, bytes of shared memory a program, bytes of spills a thread, and matrix instructions."""

    registers: int
    shared: int
    spill_stores: int
    spill_loads: int
    wgmma: int
    mma_sync: int


def named(target):
    return f"sm_{target.arch}"


def targets(*types):
    """The cards that a kernel with arguments of these types is compiled for: fp8 e4m3 began with sm_89."""
    return [SM_90] if any("fp8e4nv" in kind for kind in types) else [SM_90, SM_80]


def compiled(kernel, types, constants, target, **options):
    """A kernel compiled for a target. `types` has each argument that is no constant: "*bf16", "i32", "fp32".

    Pointers are taken to be aligned to 16 bytes, as torch's are, and so are integers whose type is written "i32:16".
    `constants` are the constexpr arguments; None among them stands for a pointer that is not given.
    """
    given = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    aligned = [i for i, kind in enumerate(given.values()) if kind.startswith("*") or kind.endswith(":16")]
    source = ASTSource(
        fn=kernel,
        signature={name: kind.removesuffix(":16") for name, kind in given.items()},
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    return triton.compile(source, target=target, options=options)


def resources(kernel, types, constants, target, **options):
    """What a kernel takes on a target. `options` are `num_warps` and `num_stages`."""
    done = compiled(kernel, types, constants, target, **options)
    stores, loads = _spills(done.asm["ptx"])
    return Resources(
        registers=_registers(done.asm["cubin"]),
        shared=done.metadata.shared,
        spill_stores=stores,
        spill_loads=loads,
        wgmma=done.asm["ptx"].count("wgmma.mma_async"),
        mma_sync=done.asm["ptx"].count("mma.sync"),
    )


def check(kernel, case, types, constants, target, *, wgmma=False, **options):
    """Fails on spills, too much shared memory, a tenth more registers than the figure committed for this Triton, and,
    if `wgmma`, on a kernel for sm_90 without warp-group matrix instructions. `case` names the figure.
    """
    took = resources(kernel, types, constants, target, **options)
    _compare(FIGURES / f"{kernel.__name__}.json", f"{case} {named(target)}", took)
    assert (took.spill_stores, took.spill_loads) == (0, 0), f"registers are spilled: {took}"
    assert took.shared <= MOST_SHARED[target.arch], f"too much shared memory: {took}"
    if wgmma and target.arch == 90:
        assert took.wgmma > 0, f"no warp-group matrix instructions: {took}"
    return took


def _compare(path, case, took):
    figures = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("TEST_WRITE_FIGURES") == "1":
        figures[case] = {"triton": triton.__version__, **asdict(took)}
        path.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    assert case in figures, f"{path.name} has no figure for {case!r}: run once with TEST_WRITE_FIGURES=1"
    known = figures[case]
    if known["triton"] != triton.__version__:
        return  # another compiler takes others; spills and memory are checked all the same
    assert took.registers <= 1.1 * known["registers"], (
        f"{took.registers} registers with Triton {triton.__version__}, {known['registers']} with {known['triton']}"
    )


def _registers(cubin):
    """As the driver will see them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = _said([TOOLS / "cuobjdump", "--dump-resource-usage", file.name])
    return int(re.search(r"REG:(\d+)", said)[1])


def _spills(ptx):
    """Bytes stored and loaded, which only the assembler tells."""
    arch = re.search(r"\.target (sm_\w+)", ptx)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        said = _said([TOOLS / "ptxas", "-v", f"-arch={arch}", file.name, "-o", os.devnull])
    stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said).groups()
    return int(stores), int(loads)


def _said(command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
