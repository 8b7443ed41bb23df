"""One environment per peer, in .venvs/, made when it is first needed.

A stamp is written last and holds a digest of what was asked for. So a second call starts at once, and an
install that was killed, or whose requirements have changed since, is done anew.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE / ".venvs"
REQUIREMENTS = HERE / "requirements"
CONSTRAINTS = HERE.parent / "constraints.txt"

# What the working tree is installed in: the interpreter that runs this, and no environment of its own.
PROJECT = "project"
# Where a peer has wheels for one Python only.
ONLY_PYTHON = {"pufferlib": "3.11"}
MINUTES = {"gymnasium": "half a minute", "sb3": "2 minutes", "tianshou": "3 minutes"}


class VenvError(Exception):
    """An environment could not be made; the message is one line."""


def interpreter(name: str, say: Callable[[str], None]) -> Path:
    """The Python of an environment, which is made first if it is not there."""
    if name == PROJECT:
        return Path(sys.executable)
    base = _base_python(name)
    venv = VENVS / name
    python, stamp = venv / "bin" / "python", venv / ".complete"
    wanted = _digest(name, base)
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs must not install into the same place
        if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
            say(f"Setting up benchmarks/.venvs/{name} (once, about {MINUTES.get(name, 'a minute')})")
            _run([base, "-m", "venv", "--clear", str(venv)], name)
            requirements = str(REQUIREMENTS / f"{name}.txt")
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([*pip, "-r", requirements], name)
            stamp.write_text(wanted)
    return python


def packages(python: Path) -> Path:
    """Where an environment's packages lie."""
    (found,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    return found


def _base_python(name: str) -> str:
    version = ONLY_PYTHON.get(name)
    if version is None or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        raise VenvError(f"{name} needs Python {version}, and there is no python{version} here")
    return found


def _digest(name: str, base: str) -> str:
    digest = hashlib.sha256()
    for part in (REQUIREMENTS / f"{name}.txt", CONSTRAINTS):
        digest.update(part.read_bytes())
    digest.update(f"{Path(base).resolve()} {sys.version}".encode())
    return digest.hexdigest()


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR:")]
        reason = (errors or done.stdout.splitlines() or ["no output"])[0]
        raise VenvError(f"{name} cannot be installed: {reason.removeprefix('ERROR: ')}")
