"""Whether fusing an MLP pays on a device. Start from `decide`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fmlp_op.activations import parse
from fmlp_op.plan import DEVICES, Device, plan
from fmlp_op.problem import Problem

# "auto" fuses where past measurements say it pays, and where no kernel does, times torch's own two ways on the GPU at
# hand; "measure" times both on the device at hand, while compiling; "always" fuses wherever it is the same function.
POLICIES = ("auto", "always", "never", "measure")

# Of its products' time, what calling them one by one has to save before they are taken out of Inductor's hands.
_LEAST_GAIN = 0.01

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
    if policy == "auto" and problem.needs_grad:
        for text in (problem.activation, problem.output_activation):
            if _derivative_needs_sums(text):
                return Verdict(False, f"in training, {text} would have its layer's product computed once more")
    for rows in _TYPICAL_ROWS if problem.rows is None else (problem.rows,):
        verdict = (_measured if policy == "measure" else _by_plan)(replace(problem, rows=rows))
        if not verdict.fuse:
            break
    return verdict


def _derivative_needs_sums(activation: str) -> bool:
    """Whether a backward needs what the activation was applied to, which the operators do not keep."""
    entry, values = parse(activation)
    return entry.needs_input(*values)


def _by_plan(problem: Problem) -> Verdict:
    chosen = plan(problem, _assumed_device(problem))
    if chosen.kernel == "none":
        return _without_kernel(problem, f"no kernel pays for {problem.rows} rows of it: {chosen.reason}")
    return Verdict(True, f"the {chosen.kernel} kernel serves it")


def _without_kernel(problem: Problem, reason: str) -> Verdict:
    """The operator then calls torch's own operators one by one. That is faster than Inductor where cuBLAS happens to
    have the better kernel for a product with its bias than for one without, which is up to the GPU and the sizes.
    Not asked where runs must be equal to the last bit: two measurements may differ.
    """
    if problem.device.type != "cuda" or problem.needs_grad or _inductor_is_tuned():
        return Verdict(False, reason)
    if torch.are_deterministic_algorithms_enabled():
        return Verdict(False, reason)
    from fmlp_op.measure import times_of_products

    try:
        found = times_of_products(problem)
    except RuntimeError:
        return Verdict(False, reason)
    if found is None or found.fused > (1 - _LEAST_GAIN) * found.plain:
        return Verdict(False, reason)
    figures = f"{found.fused * 1e6:.3g} µs one by one, {found.plain * 1e6:.3g} µs as Inductor calls them"
    return Verdict(True, f"{reason}; measured: torch's operators take {figures}")


def _inductor_is_tuned() -> bool:
    """Whether Inductor was asked for more than its default, which is what `times_of_products` compares with."""
    from torch._inductor import config

    return config.max_autotune or config.max_autotune_gemm or config.triton.cudagraphs


def _measured(problem: Problem) -> Verdict:
    from fmlp_op.measure import times  # not before it is asked: the operators load with it

    try:
        found = times(problem)
    except RuntimeError:  # the device is not there, or full
        return _by_plan(problem)
    figures = f"{found.fused * 1e6:.3g} µs fused, {found.plain * 1e6:.3g} µs not, for {problem.rows} rows"
    return Verdict(found.fused <= found.plain, f"measured {figures}")


def _assumed_device(problem: Problem) -> Device | None:
    """None, the problem's own device, where it is present."""
    return None if problem.device.type != "cuda" or torch.cuda.is_available() else DEVICES["sm_90"]
