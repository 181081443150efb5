"""The command line, `python -m fmlp_op`: demo, info, explain, cache, bench, inspect. Start from `main`.

Every command lives in a module of its own that is imported when the command runs; here are only their arguments.
A command that cannot do its work raises CommandError, which ends in one sentence and an exit code.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from fmlp_op.activations import parse
from fmlp_op.bench.peers import CUDA_PEERS
from fmlp_op.bench.workload import DTYPES
from fmlp_op.plan import DEVICES
from fmlp_op.policy import POLICIES


class CommandError(Exception):
    """One sentence that says what is wrong and what to do.

    Args:
        message: the sentence.
        exit_code: 2 where the command was called wrongly, 1 where something is missing or failed.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after `python -m fmlp_op`; None takes them from sys.argv.

    Returns:
        The exit code: 0, 1 where something is missing or failed, 2 where the command was called wrongly.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "→" or "µ" shows a question mark
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except CommandError as error:
        print(f"fmlp_op {arguments.command}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(f"fmlp_op {arguments.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "demo":
        from fmlp_op.demo import demo

        demo()
    elif arguments.command == "info":
        from fmlp_op.info import info

        info()
    elif arguments.command == "explain":
        from fmlp_op.factory import explain_factory

        explain_factory(arguments.factory, arguments.policy)
    elif arguments.command == "cache":
        from fmlp_op.info import cache_folder, clear_cache

        if arguments.action == "path":
            print(cache_folder())
        else:
            clear_cache()
    elif arguments.command == "bench":
        from fmlp_op.bench.suites import bench

        bench(
            arguments.suite,
            arguments.device,
            arguments.dtype,
            arguments.threads,
            peer_names=arguments.peers,
            quick=arguments.quick,
            csv_file=arguments.csv,
            plot_file=arguments.plot,
        )
    else:
        from fmlp_op.bench.inspect import inspect

        activations = arguments.activation, arguments.output_activation
        inspect(arguments.dims, arguments.batch, arguments.dtype, arguments.arch, *activations)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m fmlp_op", description="Small MLPs as one kernel: see what it does here."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    commands.add_parser("demo", help="train a small MLP on handwritten digits, compile it, compare results and times")
    commands.add_parser("info", help="versions, library, devices, NVRTC, kernel cache; for what is missing, what to do")

    explain = commands.add_parser("explain", help="what would be fused in a model of yours, and why the rest would not")
    explain.add_argument(
        "factory",
        metavar="FILE.py:factory",
        help="or package.module:factory; factory() returns (model, args), (model, args, kwargs), or a model that has "
        "an attribute example_inputs",
    )
    explain.add_argument("--policy", choices=POLICIES, help="as in fmlp_op.enable")

    cache = commands.add_parser("cache", help="the folder of compiled CUDA kernels")
    cache.add_argument("action", choices=("path", "clear"), help="print where it is, or delete the kernels in it")

    bench = commands.add_parser("bench", help="measure against eager, every Inductor mode and two baseline kernels")
    bench.add_argument("--suite", choices=("reference", "networks", "sweep", "throughput"), default="reference")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    bench.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), help="default: the suite's own")
    bench.add_argument("--threads", nargs="+", type=_positive, metavar="N", help="CPU threads, default: 1 and 2")
    bench.add_argument("--peers", nargs="+", choices=CUDA_PEERS, metavar="NAME", help=f"of: {', '.join(CUDA_PEERS)}")
    bench.add_argument("--quick", action="store_true", help="fewer sizes and rounds: a look, no result")
    bench.add_argument("--csv", metavar="FILE", help="write every median with its spread")
    bench.add_argument("--plot", metavar="FILE", help="draw a picture (needs matplotlib)")

    inspect = commands.add_parser("inspect", help="what a CUDA kernel is made of; needs no GPU")
    inspect.add_argument(
        "--dims", type=_dims, required=True, metavar="48,64,40,24", help="in_features, then out_features"
    )
    inspect.add_argument("--batch", type=_positive, default=16, help="rows (default 16)")
    inspect.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    for name, default in (("--activation", "relu"), ("--output-activation", "identity")):
        inspect.add_argument(name, type=_activation, default=default, metavar="NAME", help=f"default {default}")
    inspect.add_argument("--arch", choices=tuple(DEVICES), default="sm_90", help="default sm_90")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _activation(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _dims(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of widths such as 48,64,40,24")
    if not 2 <= len(parts) - 1 <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} makes {len(parts) - 1} linear layers; 2 to 16 can be fused")
    return tuple(int(part) for part in parts)
