"""Whether fusing an MLP pays on a device. Start from `decide`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fmlp_op.plan import DEVICES, Device, plan
from fmlp_op.problem import Problem

# "auto" fuses where measurements say it pays; "always" wherever it is the same function.
POLICIES = ("auto", "always", "never")

_MEASURED_ON_CUDA = {"relu", "identity"}

# What a batch that is only known at run time is taken to be: it has to pay for both.
_TYPICAL_ROWS = (16, 1024)

_default = "auto"


@dataclass(frozen=True)
class Verdict:
    """`reason` is a sentence."""

    fuse: bool
    reason: str


def default_policy() -> str:
    """The policy where neither an argument nor an option names one: what `enable` set, else "auto"."""
    return _default


def set_default_policy(policy: str) -> None:
    """Raises ValueError for a policy that does not exist."""
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
    global _default
    _default = policy


def decide(problem: Problem, policy: str) -> Verdict:
    """Whether to fuse `problem` under `policy`.

    Raises ValueError for a policy that does not exist.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
    if policy == "never":
        return Verdict(False, 'the policy is "never"')
    if policy == "always":
        return Verdict(True, 'the policy is "always"')
    if problem.device.type == "cuda" and not {problem.activation, problem.output_activation} <= _MEASURED_ON_CUDA:
        return Verdict(False, f'{problem.activation} has not been measured on GPUs; the policy "always" fuses it')
    for rows in _TYPICAL_ROWS if problem.rows is None else (problem.rows,):
        chosen = plan(replace(problem, rows=rows), _assumed_device(problem))
        if chosen.kernel == "none":
            return Verdict(False, f"no kernel pays for {rows} rows of it: {chosen.reason}")
    return Verdict(True, "a kernel serves it")


def _assumed_device(problem: Problem) -> Device | None:
    """None, the problem's own device, where it is present."""
    return None if problem.device.type != "cuda" or torch.cuda.is_available() else DEVICES["sm_90"]
