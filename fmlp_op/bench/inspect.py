"""`python -m fmlp_op inspect`: the CUDA kernel that would serve an MLP, and what it is made of. Needs no GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fmlp_op.bench.occupancy import Occupancy, occupancy
from fmlp_op.bench.report import print_table
from fmlp_op.bench.workload import Workload
from fmlp_op.cli import CommandError
from fmlp_op.info import cuda_info
from fmlp_op.plan import DEVICES, Plan, compile_kernel, plan

_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_MOST_INSTRUCTIONS = 14


def inspect(
    dims: tuple[int, ...],
    batch: int,
    dtype: str,
    arch: str,
    activation: str,
    output_activation: str,
) -> None:
    """Compile the planned kernel and print its registers, memory, occupancy, spills, traffic and instructions.

    Args:
        dims: in_features, then the out_features of every linear layer.
        batch: rows.
        dtype: a name of fmlp_op.bench.workload.DTYPES.
        arch: a name of fmlp_op.plan.DEVICES.
        activation, output_activation: as the operators spell them.
    """
    device = DEVICES[arch]
    workload = Workload(dims, batch, dtype, arch, activation=activation, output_activation=output_activation)
    problem = replace(workload, device="cuda").problem
    planned = plan(problem, device)
    if planned.kernel == "none":
        print(f"{workload}: no fused kernel, torch's own operators serve, because {planned.reason}")
        return
    cuda = cuda_info()
    if cuda["nvrtc_missing"]:
        raise CommandError(f"{cuda['nvrtc_missing']}; pip install nvidia-cuda-nvrtc")
    with _fresh_cache() as folder:
        built = compile_kernel(problem, device)
        if built["error"]:
            raise CommandError(f"the {planned.kernel} kernel does not compile for {arch}: {built['error']}")
        instructions = _instructions(folder)
    shared_bytes = built["shared_bytes"] + planned.details["shared_bytes"]
    resident = occupancy(device, planned.details["threads"], built["registers"], shared_bytes)
    most_blocks = resident.blocks * device.multiprocessors
    print(f"{workload}: {planned.kernel} kernel, because {planned.reason}")
    rows = [
        *_shape(planned),
        *_resources(planned, built, resident),
        *_traffic(planned, most_blocks, workload),
        ("compiled", f"in {built['milliseconds']:.0f} ms by NVRTC {cuda['nvrtc']} to {built['image_bytes']} bytes"),
        ("instructions", instructions),
    ]
    print_table(rows, right=False)


@contextmanager
def _fresh_cache() -> Iterator[Path]:
    """An empty kernel cache, so that the kernel is compiled and its image can be found."""
    before = os.environ.get("FMLP_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FMLP_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["FMLP_CACHE_DIR"]
            if before is not None:
                os.environ["FMLP_CACHE_DIR"] = before


def _shape(planned: Plan) -> list[tuple[str, str]]:
    details = planned.details
    extras = [name for name in ("persistent", "dependent_launch", "arch_specific") if details[name]]
    extras += [f"{name} {details[name]}" for name in ("cluster_size", "stages") if details[name] > 1]
    return [
        (
            "grid",
            f"{details['grid']} blocks of {details['threads']} threads, rows per block {details['rows_per_block']}",
        ),
        ("also", ", ".join(extras).replace("_", " ") or "-"),
    ]


def _resources(planned: Plan, built: Mapping[str, Any], resident: Occupancy) -> list[tuple[str, str]]:
    share = 100 * resident.warps / resident.most_warps
    warps = f"{resident.warps} of {resident.most_warps} warps ({share:.0f} %)"
    return [
        ("registers", f"{built['registers']} a thread"),
        ("spills", f"{built['spill_bytes']} bytes a thread"),
        ("shared memory", f"{built['shared_bytes']} bytes static, {planned.details['shared_bytes']} dynamic, a block"),
        ("occupancy", f"{resident.blocks} blocks a multiprocessor, {warps}, limited by {resident.limited_by}"),
    ]


def _traffic(planned: Plan, most_blocks: int, workload: Workload) -> list[tuple[str, str]]:
    """Every block, or cluster of blocks, reads all weights; a persistent one reads them once for all its rows."""
    blocks = planned.details["grid"]
    if planned.details["persistent"]:
        blocks = min(blocks, most_blocks)
    readers = -(-blocks // planned.details["cluster_size"])
    requested = workload.bytes + (readers - 1) * workload.parameter_bytes
    return [
        ("bytes needed", f"{workload.bytes / 1e3:.4g} kB: input and parameters read once, the result written once"),
        (
            "bytes requested",
            f"{requested / 1e3:.4g} kB, {requested / workload.bytes:.3g} times that: parameters are read {readers} "
            "times, after the first from the L2 cache",
        ),
    ]


def _instructions(folder: Path) -> str:
    """How often each instruction is in the image, the most frequent first."""
    tool = _disassembler()
    if tool is None:
        return "not counted: there is no cuobjdump or nvdisasm on PATH (the CUDA toolkit and triton have them)"
    files = [path for path in folder.iterdir() if b"\x7fELF" in path.read_bytes()]
    if len(files) != 1:
        return "this NVRTC does not know the architecture, so there is only PTX for the driver to compile"
    content = files[0].read_bytes()
    image = folder / "kernel.cubin"
    image.write_bytes(content[content.index(b"\x7fELF") :])  # a key stands before it
    options = ["-sass"] if tool.name.startswith("cuobjdump") else ["-c"]
    ran = subprocess.run([str(tool), *options, str(image)], capture_output=True, text=True, check=False)
    found = _SASS.findall(ran.stdout)
    if ran.returncode != 0 or not found:
        return f"{tool} failed: {(ran.stderr.strip() or 'no instruction in its output').splitlines()[0]}"
    counts = Counter(name + "".join(re.findall(r"\.(?:64|128)\b", suffix)) for name, suffix in found)
    most = counts.most_common(_MOST_INSTRUCTIONS)
    parts = [f"{name} {count}" for name, count in most]
    rest = len(found) - sum(count for _, count in most)
    return f"{len(found)}: {', '.join(parts)}" + (f", others {rest}" if rest else "")


def _disassembler() -> Path | None:
    for name in ("cuobjdump", "nvdisasm"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        carried = Path(triton.origin).parent / "backends" / "nvidia" / "bin"
        for name in ("nvdisasm", "cuobjdump"):
            if (carried / name).is_file():
                return carried / name
    return None
