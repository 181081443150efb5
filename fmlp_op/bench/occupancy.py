"""How many blocks of a kernel fit on one multiprocessor at a time. Source of the limits: CUDA programming guide."""

from __future__ import annotations

from dataclasses import dataclass

from fmlp_op.plan import Device

_REGISTERS = 65536  # of a multiprocessor
_REGISTERS_PER_ALLOCATION = 256  # a warp gets them in this step
_SHARED_RESERVED = 1024  # bytes of a block, by the system

# Most resident warps and blocks of one multiprocessor, by compute capability.
_WARPS_AND_BLOCKS = {(8, 0): (64, 32), (9, 0): (64, 32), (10, 0): (64, 32), (12, 0): (48, 24)}


@dataclass(frozen=True)
class Occupancy:
    """`blocks` and `warps` of one multiprocessor at a time, the most `warps` it can hold, and which limit binds."""

    blocks: int
    warps: int
    most_warps: int
    limited_by: str


def occupancy(device: Device, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of a kernel.

    Args:
        device: one of fmlp_op.plan.DEVICES.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.
    """
    most_warps, most_blocks = _WARPS_AND_BLOCKS[device.major, device.minor]
    warps = -(-threads // 32)
    registers_per_warp = max(1, -(-registers * 32 // _REGISTERS_PER_ALLOCATION)) * _REGISTERS_PER_ALLOCATION
    limits = {
        "warps": most_warps // warps,
        "blocks": most_blocks,
        "registers": _REGISTERS // registers_per_warp // warps,
        "shared memory": device.shared_bytes_per_multiprocessor // (shared_bytes + _SHARED_RESERVED),
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limits[limit] * warps, most_warps, limit)
