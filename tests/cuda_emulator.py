"""Runs the library's CUDA kernels where there is no GPU: as C++, on one CPU thread. Start from `run`.

The generated source of a kernel is preprocessed, every PTX instruction in it is replaced by a call of what it does in
cuda_emulator.h, and g++ compiles the result. It says nothing of speed, and is blind to what cuda_emulator.h lists; but
a wrong index, a missing barrier or a lost row shows.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from torch import Tensor

from fmlp_op import Problem
from fmlp_op.plan import DEVICES, kernel_source, plan

TESTS = Path(__file__).parent
KERNELS = TESTS.parent / "csrc/cuda/kernels"

# The architectures among which the kernels' text differs, with the macros that it asks for.
MACROS = {
    "sm_80": ["-D__CUDA_ARCH__=800"],
    "sm_90": ["-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL"],
    "sm_100": ["-D__CUDA_ARCH__=1000"],
}

# Text of an asm statement → C++. {outs}: addresses of its outputs; {ins}: its inputs; {0}, …: groups of the pattern.
INSTRUCTIONS = {
    r"": "",  # only keeps the compiler from moving a value
    r"ld\.global\..*": "emulator::load({ins}, {outs})",
    r"st\.global\..*": "emulator::store({ins})",
    r"ld\.shared\..*": "emulator::load(emulator::shared_memory({ins}), {outs})",
    r"st\.async\.shared::cluster\..*": "emulator::send({ins})",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 .*": "emulator::load_matrices({{{outs}}}, {ins})",
    r"mma\.sync\.aligned\.m16n8k\d+\.row\.col\.f32\.(\w+)\..*": "emulator::multiply<emulator::{0}>({{{outs}}}, {ins})",
    r".*wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.f32\.(\w+)\..*": (
        "emulator::multiply_warpgroup<emulator::{1}, {0}>({{{outs}}}, {ins})"
    ),
    r"wgmma\..*|fence\..*|prefetch\..*|griddepcontrol\..*": "",
    r"cvt\.rna\.tf32\.f32 .*": "*{outs} = emulator::to_tf32({ins})",
    r"cvt\.rn\.relu\.(\w+)x2\.f32 .*": "*{outs} = emulator::pack<emulator::{0}, true>({ins})",
    r"cvt\.rn\.(\w+)x2\.f32 .*": "*{outs} = emulator::pack<emulator::{0}>({ins})",
    r"cvt\.rn\.(f16|bf16)\.f32 .*": "*{outs} = emulator::{0}::from({ins})",
    r"cvt\.f32\.f16 .*": "*{outs} = emulator::from_half({ins})",
    r"mov\.u32 %0, %%cluster_ctarank;": "*{outs} = emulator::block().rank",
    r"mapa\.shared::cluster\..*": "*{outs} = emulator::remote_address({ins})",
    r"barrier\.cluster\.arrive\..*": "emulator::arrive_at_cluster()",
    r"barrier\.cluster\.wait\..*": "emulator::wait_for_cluster()",
    r"mbarrier\.init\..*": "emulator::initialize_barrier({ins})",
    r"mbarrier\.arrive\.expect_tx\..*": "emulator::arrive_and_expect({ins})",
    r"mbarrier\.arrive\.release\..*": "emulator::change_barrier({ins}, 1, 0)",
    r".*mbarrier\.try_wait\.parity\..*": "emulator::wait_for_barrier({ins})",
}


def run(
    problem: Problem,
    arch: str,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    folder: Path,
    seed: int = 0,
    edit: Callable[[str], str] = lambda source: source,
) -> list[Tensor]:
    """What the kernel that is planned for `problem` makes of these operands.

    Args:
        problem: its rows choose the kernel, of which few blocks run, over the rows of `x`.
        x: `[rows, in_features]`, on the CPU and contiguous, like the other operands.
        folder: for files.
        seed: of the order in which warps take turns.
        edit: applied to the kernel's text.

    Returns:
        y, and the hidden activations where the problem needs gradients.

    Raises:
        AssertionError: the kernel wrote behind a result, or did what no GPU does well.
    """
    details = plan(problem, DEVICES[arch]).details
    library = _build(edit(_translated(kernel_source(problem, DEVICES[arch]), arch)), folder)
    rows, depth = x.shape[0], len(weights)
    hidden = depth - 1 if problem.needs_grad else 0
    results = [_guarded(x, weight.shape[0]) for weight in [weights[-1], *weights[:hidden]]]

    places = [0 if t is None else t.data_ptr() for t in (x, results[0], *weights, *biases, *results[1:])]
    places += [0] * (depth - hidden)
    arguments = (ctypes.c_int64 * (len(places) + 2))(*places, rows, x.shape[1])
    tiles = 1 if details["persistent"] else -(-rows // details["rows_per_block"])
    library.run.restype = ctypes.c_char_p
    failure = library.run(ctypes.byref(arguments), tiles * details["cluster_size"], seed)
    assert failure is None, failure.decode()

    for result in results:
        assert result[rows:].isnan().all(), "the kernel wrote behind its result"
    return [result[:rows] for result in results]


def _guarded(x: Tensor, columns: int) -> Tensor:
    """Room for a result and one row more, all NaN."""
    return x.new_full((x.shape[0] + 1, columns), float("nan"))


def _translated(source: str, arch: str) -> str:
    """Plain C++ with calls into cuda_emulator.h."""
    command = ["g++", "-E", "-P", "-x", "c++", "-I", str(KERNELS), *MACROS[arch], "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"extern __shared__ .*?char (\w+)\[\];", r"char* const \1 = emulator::block().shared();", text)
    numbers = count()
    text = re.sub(
        r"__shared__ alignas\(16\) (\w+) (\w+)\[(.*?)\];",
        lambda m: f"auto& {m[2]} = emulator::block().template variable<{m[1]}[{m[3]}]>({next(numbers)});",
        text,
    )
    translated, end = "", 0
    for start in re.finditer(r"\basm(?: volatile)?\(", text):
        translated += text[end : start.start()]
        end = _closing(text, start.end()) + 1
        translated += _instruction(text[start.end() : end - 1])
    return translated + text[end:]


def _instruction(statement: str) -> str:
    text, *operands = _split(statement, ":")
    instruction = "".join(re.findall(r'"(.*?)"', text)).replace("\\n", "")
    outs, ins = ([_inside(operand) for operand in _split(part, ",")] for part in (*operands, "", "")[:2])
    for pattern, call in INSTRUCTIONS.items():
        if match := re.fullmatch(pattern, instruction):
            return call.format(*match.groups(), outs=", ".join(f"&({out})" for out in outs), ins=", ".join(ins))
    raise NotImplementedError(f"say in INSTRUCTIONS what this does: {instruction}")


def _inside(operand: str) -> str:
    """`"r"(expression)` → `expression`"""
    return operand[operand.index("(") + 1 : operand.rindex(")")]


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside of strings and brackets; none of an empty text."""
    parts, start, at = [], 0, 0
    while at < len(text):
        if text[at] == '"':
            at = text.index('"', at + 1)
        elif text[at] in "([{":
            at = _closing(text, at + 1)
        elif text[at] == separator:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]] if text.strip() else []


def _closing(text: str, at: int) -> int:
    """Where the bracket closes that was opened before `at`."""
    while text[at] not in ")]}":
        if text[at] == '"':
            at = text.index('"', at + 1)
        elif text[at] in "([{":
            at = _closing(text, at + 1)
        at += 1
    return at


ENTRY = """
static const fmlp::KernelArguments<Config::depth>* arguments_of_launch;
extern "C" const char* run(const void* arguments, int blocks, unsigned seed) {
  arguments_of_launch = static_cast<const fmlp::KernelArguments<Config::depth>*>(arguments);
  return emulator::launch(blocks, Config::threads, Config::cluster_size, Config::shared_bytes, seed,
                          [] { fmlp_kernel(*arguments_of_launch); });
}
"""


@functools.cache
def _build(translated: str, folder: Path) -> ctypes.CDLL:
    path = folder / f"{len(list(folder.iterdir()))}.so"  # loaded libraries are known by their paths
    source = f'#include "{TESTS}/cuda_emulator.h"\n{translated}{ENTRY}'
    command = ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return ctypes.CDLL(str(path))
