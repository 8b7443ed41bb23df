"""Print the error of an env: its own traceback, without the frames of the code that calls it."""

from __future__ import annotations

import multiprocessing
import re
import sys
import traceback
from pathlib import Path

import gymnasium

import shoal
from shoal.errors import EnvError, ShoalError
from shoal.processes.remote_errors import WorkerTraceback
from shoal.stepping.env_faults import summary_of

MOST_FRAMES, FIRST_FRAMES = 12, 3  # shown of one traceback: all in all, and before the gap
MOST_ERRORS = 3  # shown of a chain of errors: the last ones
LONGEST_SUMMARY = 500  # characters

_SHOAL, _GYMNASIUM = (str(Path(module.__file__ or "").parent) for module in (shoal, gymnasium))
OWN_ENVS = f"{_SHOAL}/envs/"
# Code that calls an env or wraps it. Gymnasium's own envs lie in other folders.
NOISE = (
    f"{_GYMNASIUM}/wrappers/",
    f"{_GYMNASIUM}/utils/",
    f"{_GYMNASIUM}/vector/",
    f"{_GYMNASIUM}/core.py",
    f"{_GYMNASIUM}/envs/registration.py",
    f"{Path(multiprocessing.__file__).parent}/",
    "<frozen ",  # Python's own modules: runpy, importlib
    "<string>",  # the first frame of a worker
)
NO_GRAD = "/torch/utils/_contextlib.py"  # between a learner and its vec

NOTES = ("raised by ", "raised while creating env", "raised while importing ")

# A frame in the text of a traceback: its line, and the lines below with a larger indent.
_FRAME = r'  File "([^"\n]*)".*\n(?:    .*\n|  \[Previous line repeated .*\n)*'
FRAME = re.compile(f"^{_FRAME}", re.MULTILINE)
FRAMES = re.compile(rf"^(Traceback \(most recent call last\):\n)(?:{_FRAME})+", re.MULTILINE)
# The lines between two errors of a chain.
BETWEEN = re.compile(
    r"(\n(?:The above exception was the direct cause of|During handling of the above exception,) .*\n\n)"
)


def is_of_an_env(error: BaseException) -> bool:
    """Return whether an env or its creator raised this error."""
    if isinstance(error, ShoalError):
        return isinstance(error, EnvError)
    return bool(_where(error)) or _in_worker(error) is not None


def describe_failure(error: BaseException) -> str:
    """Return the env's traceback, shortened, and a summary in one line."""
    where = _where(error)
    text = _in_worker(error) or "".join(traceback.format_exception(error))
    if where:  # the last line says it
        text = text.replace(f"\n{where}\n", "\n")
        where = f", {where}"
    return f"{shorten(text)}\nshoal: {_summary(error)}{where}"


def shorten(text: str) -> str:
    """Leave out the frames of a traceback that are not the env's, and the middle of what is long.

    Args:
        text: The traceback of an error, or of a chain of errors, as Python formats it.
    """
    errors, between = _split(text)
    errors = [FRAMES.sub(_shorten_frames, each) for each in errors]
    if between and errors[-1].startswith(f"{ShoalError.__module__}."):  # the last line has its text
        del errors[-1], between[-1]
    left_out = max(len(errors) - MOST_ERRORS, 0)
    head = f"[{left_out} earlier errors are left out]\n\n" if left_out else ""
    links = [*between[left_out:], ""]
    return head + "".join(error + link for error, link in zip(errors[left_out:], links, strict=True))


def _split(text: str) -> tuple[list[str], list[str]]:
    """Split the text of a chain of errors into the errors and the lines between them."""
    parts = BETWEEN.split(text)
    return parts[::2], parts[1::2]


def _shorten_frames(found: re.Match[str]) -> str:
    all_frames = [*FRAME.finditer(found[0])]
    frames = [frame[0] for frame in all_frames if not _is_noise(frame[1])]
    if not frames:  # raised by a wrapper, for example
        frames = [frame[0] for frame in all_frames if not _is_ours(frame[1])][-1:]
    if not frames:
        return ""
    left_out = len(frames) - MOST_FRAMES
    if left_out > 0:
        frames[FIRST_FRAMES : FIRST_FRAMES + left_out] = [f"  [{left_out} frames are left out]\n"]
    return "".join([found[1], *frames])


def _is_ours(file: str) -> bool:
    if file == sys.argv[0] or file.endswith(NO_GRAD):  # the first is `shoal`, where this process began
        return True
    return file.startswith(f"{_SHOAL}/") and not file.startswith(OWN_ENVS)


def _is_noise(file: str) -> bool:
    return _is_ours(file) or file.startswith(NOISE)


def _where(error: BaseException) -> str:
    """Return the note of an error that names the env; "" if there is none."""
    notes = [str(note) for note in getattr(error, "__notes__", None) or []]
    return next((note for note in notes if note.startswith(NOTES)), "")


def _in_worker(error: BaseException) -> str | None:
    """Return the traceback of the worker that raised the error; None for an error of this process."""
    cause = error.__cause__
    if not isinstance(cause, (WorkerTraceback, Exception)) and cause is not None:
        cause = cause.__cause__  # the error replaces one that would have ended the worker
    return str(cause.args[0]) if isinstance(cause, WorkerTraceback) else None


def _summary(error: BaseException) -> str:
    """Return the type and the text of an error in one line; of an error of Shoal only the text."""
    text = " ".join((str(error) if isinstance(error, ShoalError) else summary_of(error)).split())
    return text if len(text) <= LONGEST_SUMMARY else f"{text[:LONGEST_SUMMARY]} ..."
