"""`python -m fmlp_op explain FILE.py:factory`: finds the user's model and prints what would be fused in it."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fmlp_op.cli import CommandError
from fmlp_op.explain import explain

Example = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_EXPECTED = "it must return (model, args), (model, args, kwargs), or a model with an attribute example_inputs"


def explain_factory(target: str, policy: str | None = None) -> None:
    """Print the explanation of the model that `target` makes, as it runs without gradients."""
    model, args, kwargs = call_factory(load_factory(target), target)
    with torch.no_grad():
        try:
            model(*args, **kwargs)  # eager's errors are easier to read than Dynamo's
        except Exception as error:
            raise CommandError(f"the model of {target} does not run on its inputs: {_sentence(error)}") from error
        print(explain(model, *args, policy=policy, **kwargs))


def load_factory(target: str) -> Callable[[], Any]:
    """The function that `FILE.py:name` or `package.module:name` names."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise CommandError(f"{target!r} names no factory: write FILE.py:factory or package.module:factory", 2)
    namespace = _run_file(Path(place)) if place.endswith(".py") else _import_module(place)
    factory = namespace.get(name)
    if factory is None:
        raise CommandError(f"{place} defines no {name!r}", 2)
    if not callable(factory):
        raise CommandError(f"{name!r} in {place} is a {type(factory).__name__}, not a function", 2)
    return factory


def call_factory(factory: Callable[[], Any], target: str) -> Example:
    """What `factory()` returns, as (model, args, kwargs)."""
    try:
        result = factory()
    except Exception as error:
        raise CommandError(f"{target}() failed: {_sentence(error)}") from error
    if isinstance(result, tuple):
        if len(result) not in (2, 3) or not callable(result[0]):
            raise CommandError(f"{target}() returned a tuple of {len(result)}; {_EXPECTED}", 2)
        model, args, kwargs = (*result, {})[:3]
    elif callable(result) and hasattr(result, "example_inputs"):
        model, args, kwargs = result, result.example_inputs, {}
    else:
        raise CommandError(f"{target}() returned a {type(result).__name__}; {_EXPECTED}", 2)
    if isinstance(args, torch.Tensor) or not isinstance(args, Sequence):
        args = (args,)
    if not isinstance(kwargs, Mapping):
        raise CommandError(f"{target}() returned a {type(kwargs).__name__} as kwargs; {_EXPECTED}", 2)
    return model, tuple(args), dict(kwargs)


def _run_file(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise CommandError(f"there is no file {path}", 2)
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE.py` does
    try:
        return runpy.run_path(str(path), run_name=path.stem)
    except Exception as error:
        raise CommandError(f"{path} cannot be run: {_sentence(error)}") from error


def _import_module(name: str) -> Mapping[str, Any]:
    sys.path.insert(0, "")  # as `python -m` does
    try:
        return vars(importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise CommandError(f"there is no module {name}; a file is named with its .py", 2) from error
        raise CommandError(f"module {name} cannot be imported: {_sentence(error)}") from error
    except Exception as error:
        raise CommandError(f"module {name} cannot be imported: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
