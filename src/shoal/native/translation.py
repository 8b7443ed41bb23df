"""Numba's error for a function it cannot compile -> an error that shows the line and says what to do."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.errors import NativeError
from shoal.native.rng import no_such_draw
from shoal.native.spec import Spec

# A pattern in Numba's message, and its explanation for the author of an env: a text, or a function of the
# groups of the match.
MEANINGS: tuple[tuple[str, str | Callable[..., str]], ...] = (
    (
        r"Unknown attribute '?(\w+)'? (?:of|for) type config",
        "config has no {0}: add it to constants or parameters",
    ),
    (r"Unknown attribute '?(\w+)'? (?:of|for) type rng", no_such_draw),
    (r"Unknown attribute '?(\w+)'? (?:of|for) type Record", "there is no field {0}"),
    (r"[Ff]ield '(\w+)' was not found", "there is no field {0}"),
    (
        r"Invalid use of Function\(<function _result",
        "step must return (reward, terminated): a number and a bool",
    ),
    (
        r"Cannot unify (.+?) and (.+?) for '(\w+)",
        "the variable {2} is once {0} and once {1}: give it only values of one type",
    ),
    (r"variable '?(\w+)'? .*(?:not defined|referenced before)", "{0} may be used before it has a value"),
    (r"NameError: name '(\w+)' is not defined", "the name {0} is not defined"),
    (
        r"Untyped global name '(\w+)'",
        "{0} cannot be compiled: only numbers, arrays and functions can",
    ),
    (r"unicode_type|Literal\[str\]", "strings are not compiled"),
)


@contextmanager
def translated(spec: Spec) -> Iterator[None]:
    """Turn Numba's errors inside this context into errors for the author of the env.

    Raises:
        NativeError: Instead of Numba's error.
    """
    try:
        yield
    except NativeError:
        raise
    except Exception as error:  # Numba's errors, and others that it does not catch
        raise NativeError(_explained(spec, error)) from None  # Numba's long text would hide this


def _explained(spec: Spec, error: Exception) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    file, line = _place(spec, text)
    name = spec.cls.__name__
    where = name
    if line:
        verb = _verb_at(spec, line)
        where = f"{name}.{verb}, line {line} of {file}:\n    {linecache.getline(file, line).strip()}\n"
    if isinstance(error, KeyError):
        return f"{where}{'' if line else ': '}there is no field {error}"
    for pattern, meaning in MEANINGS:
        if found := re.search(pattern, text):
            said = meaning.format(*found.groups()) if isinstance(meaning, str) else meaning(*found.groups())
            return f"{where}{'' if line else ': '}{said}"
    first = next(
        (part.strip() for part in text.splitlines() if part.strip() and "Failed in" not in part), text
    )
    return (
        f"{where}{'' if line else ': '}this cannot be compiled ({first[:200]}). Compiled are numbers, "
        "arrays, loops, conditions, math, most of NumPy, and functions of these"
    )


def _place(spec: Spec, text: str) -> tuple[str, int]:
    """Return the innermost file and line of the env's code that the message names."""
    own = {function.__code__.co_filename for function in (spec.step, spec.reset)}
    found = ("", 0)
    for file, line in re.findall(r'File "([^"]+)", line (\d+)', text):
        for path in own:
            if path == file or path.endswith(file.lstrip("./")):
                found = (path, int(line))
    return found


def _verb_at(spec: Spec, line: int) -> str:
    starts = {"step": spec.step.__code__.co_firstlineno, "reset": spec.reset.__code__.co_firstlineno}
    before = {verb: start for verb, start in starts.items() if start <= line}
    return max(before, key=lambda verb: before[verb]) if before else "step"
