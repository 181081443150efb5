"""`python -m fmlp_op demo`: a small MLP from training to compiled, with its times on every device here."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fmlp_op import explain
from fmlp_op.bench.peers import EAGER, FMLP, INDUCTOR, OPERATOR, build
from fmlp_op.bench.progress import Progress
from fmlp_op.bench.report import print_load, print_table
from fmlp_op.bench.timing import back_to_back, cuda_latency, interleave, num_threads, warm_up
from fmlp_op.bench.workload import REFERENCE, Workload
from fmlp_op.cli import CommandError

_DIGITS = Workload((64, 64, 40, 10), 16)
_EPOCHS, _TRAINING_ROWS = 30, 64
_PEERS = (EAGER, INDUCTOR, FMLP, OPERATOR)


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, 8 by 8 pixels from 0 to 1 as rows of 64, and which digit each is."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def demo() -> None:
    """Train on handwritten digits, compile, compare predictions with eager's, print what was fused and the times."""
    digits = load_digits()
    with num_threads(1):  # networks this small gain nothing from a second one
        model = train(digits)
        with torch.no_grad():
            _check_compiled(model, digits)
            _print_latencies(model, digits)


def load_digits() -> Digits:
    """scikit-learn's 1797 digits, a fifth of them for the test."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise CommandError('the demo needs scikit-learn for its data: pip install "fmlp_op[demo]"') from error
    pixels, labels = load(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(pixels, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    test_rows = len(labels) // 5
    return Digits(x[test_rows:], y[test_rows:], x[:test_rows], y[:test_rows])


def train(digits: Digits) -> nn.Module:
    """A 64→64→40→10 MLP with ReLU, trained for some seconds."""
    torch.manual_seed(0)
    model = _DIGITS.model().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    progress = Progress(_EPOCHS, "training")
    start = time.perf_counter()
    for epoch in range(_EPOCHS):
        for rows in torch.split(torch.randperm(len(digits.train_x)), _TRAINING_ROWS):
            loss = nn.functional.cross_entropy(model(digits.train_x[rows]), digits.train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        progress.update(epoch + 1, f"loss {loss.item():.4f}")
    progress.close()
    print(
        f"Trained a {'→'.join(map(str, _DIGITS.widths))} MLP on {len(digits.train_x)} handwritten digits: "
        f"{_EPOCHS} epochs in {time.perf_counter() - start:.1f} s."
    )
    return model.eval()


def _check_compiled(model: nn.Module, digits: Digits) -> None:
    compiled = torch.compile(model, backend="fmlp")
    expected, actual = model(digits.test_x), compiled(digits.test_x)
    accuracy = (actual.argmax(1) == digits.test_y).float().mean().item()
    differing = int((actual.argmax(1) != expected.argmax(1)).sum())
    agreement = "every prediction is eager's" if differing == 0 else f"{differing} predictions are not eager's"
    print(
        f'Compiled it with torch.compile(model, backend="fmlp"): accuracy {accuracy:.1%} on {len(digits.test_y)} more; '
        f"{agreement}, and no output differs by more than {(actual - expected).abs().max().item():.1e}."
    )
    if not torch.allclose(actual, expected, rtol=1e-4, atol=1e-4):
        raise CommandError(
            "the compiled model differs from eager, which is a bug: please report it with the lines above"
        )
    print(f"\nWhat was fused, as fmlp_op.explain(model, x) says it:\n{explain(model, digits.test_x)}\n")


def _print_latencies(model: nn.Module, digits: Digits) -> None:
    rows: list[tuple[str, Workload, nn.Module, Tensor]] = []
    for device in ["cpu", *_distinct_gpus()]:
        sizes = replace(_DIGITS, device=device)
        x = digits.test_x[: sizes.rows].contiguous().to(device)
        rows.append(("digits", sizes, _copy(model, device), x))
        sizes = replace(REFERENCE, device=device)
        rows.append(("reference", sizes, sizes.model(), sizes.example_input()))
    progress = Progress(len(rows), "compiling and measuring")
    table: list[tuple[str, ...]] = []
    notes: dict[str, str] = {}
    for i, (name, sizes, network, x) in enumerate(rows):
        progress.update(i, str(sizes))
        with torch.cuda.device(x.device if x.is_cuda else -1):  # -1 leaves the current device as it is
            times, missing = _latencies(network, x)
        notes.update(missing)
        title = f"{name} {'→'.join(map(str, sizes.widths))} {_device_name(sizes.device)}"
        table.append((title, *(f"{times[peer] * 1e6:.1f}" if peer in times else "-" for peer in _PEERS)))
    progress.update(len(rows))
    progress.close()
    print("Time of one call in µs, 16 rows, float32, no gradients; on a GPU with the wait for the result; medians:")
    print_table([("", *(f"{peer} µs" for peer in _PEERS)), *table])
    print_load()
    for name, reason in notes.items():
        print(f"{name}: {reason}")


def _copy(model: nn.Module, device: str) -> nn.Module:
    copy = _DIGITS.model().to(device)
    copy.load_state_dict(model.state_dict())
    return copy


def _latencies(model: nn.Module, x: Tensor) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds per call of each peer, and why others are missing."""
    peers, missing = build(model, x, _PEERS)
    rounds = {}
    for peer in peers:
        calls = warm_up(peer.call, torch.cuda.synchronize if x.is_cuda else None)
        rounds[peer.name] = cuda_latency(peer.call, calls) if x.is_cuda else back_to_back(peer.call, calls)
    return {name: timing.median for name, timing in interleave(rounds, seconds=1.0).items()}, missing


def _distinct_gpus() -> list[str]:
    """One device of each kind."""
    first = {torch.cuda.get_device_name(i): f"cuda:{i}" for i in reversed(range(torch.cuda.device_count()))}
    return sorted(first.values())


def _device_name(device: str) -> str:
    return "CPU, 1 thread" if device == "cpu" else torch.cuda.get_device_name(device)
