"""Run the test suite on several torch versions, each in an environment of its own: python tests/versions.py

The library is built once; every version loads the same wheel. Plain releases of torch bring CUDA with them: several
gigabytes each, downloaded once into the folder given by --environments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

VERSIONS = ("2.10.0", "2.13.0", "2.14.1")
ROOT = Path(__file__).parent.parent


def run(*command: str | Path) -> int:
    print("$", *command, flush=True)
    return subprocess.run(list(map(str, command)), cwd=ROOT).returncode


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this torch; made where it does not exist yet."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        venv.create(folder / version, with_pip=True)
        if run(python, "-m", "pip", "install", "--quiet", f"torch=={version}"):
            raise SystemExit(f"torch {version} could not be installed into {folder / version}")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "torch-versions")
    parser.add_argument("--pytest", default="", help="arguments for pytest, in one string")
    arguments = parser.parse_args()

    wheels = arguments.environments / "wheel"
    if run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, "."):
        raise SystemExit("the wheel could not be built")
    (wheel,) = wheels.glob("fmlp_op-*.whl")

    outcome = {}
    for version in arguments.versions:
        python = environment(arguments.environments, version)
        run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[test,demo]", f"torch=={version}")
        outcome[version] = run(python, "-m", "pytest", *arguments.pytest.split())
    for version, code in outcome.items():
        print(f"torch {version}: {'passed' if code == 0 else 'FAILED'}")
    raise SystemExit(any(outcome.values()))


if __name__ == "__main__":
    main()
