"""Checks of an env class before it is compiled: its syntax, and a few steps in plain Python."""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from shoal.errors import NativeError
from shoal.native.bodies import RESET, STEP_NEXT
from shoal.native.columns import Columns
from shoal.native.debugging import DebugKernel
from shoal.native.rng import keys_of
from shoal.native.spec import Spec
from shoal.rows.arena import Arena
from shoal.rows.packing import BatchPacker

STEPS = 3

REFUSED: dict[type[ast.AST], str] = {
    ast.Raise: "there is nobody to raise to inside a kernel. Return terminated, or write it into the state",
    ast.Assert: "there is nobody to raise to inside a kernel. Check it in a test, with debug=True",
    ast.Try: "nothing is raised inside a kernel, so there is nothing to catch. Test with if, before it "
    "happens: that an index is in range, that a divisor is not 0",
    ast.With: "context managers are not compiled",
    ast.Yield: "generators are not compiled",
    ast.YieldFrom: "generators are not compiled",
    ast.Await: "await is not compiled",
    ast.Import: "import at the top of the file",
    ast.ImportFrom: "import at the top of the file",
    ast.Global: "other threads run the same code. Keep values in the state instead",
    ast.Dict: "dicts are not compiled. Use fields of the state, or arrays",
    ast.DictComp: "dicts are not compiled. Use fields of the state, or arrays",
    ast.Set: "sets are not compiled. Use an array of bools",
    ast.SetComp: "sets are not compiled. Use an array of bools",
    ast.JoinedStr: "text is not compiled",
    ast.ClassDef: "define it outside",
    ast.Lambda: "define a function outside",
}


STOPS = ("breakpoint", "print", "input")  # calls that work only with debug=True


def check_syntax(spec: Spec) -> str:
    """Refuse code that cannot be compiled, or that would do something else than it seems to do.

    Returns:
        A message about a call that works only with debug=True; "" if there is no such call.

    Raises:
        NativeError: If code is refused. The message shows the line and says what to do.
    """
    stops = ""
    own = {spec.step: "step", spec.reset: "reset"}
    for function in _reachable(spec.step, spec.reset):
        verb = own.get(function, function.__name__)
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, IndexError):  # no source, for instance in an interpreter
            continue
        misunderstood = _misunderstood(tree.body[0], own.get(function, ""), spec)
        for node in (*misunderstood, *ast.walk(tree)):  # these first: they cause the other errors
            why = misunderstood.get(node) or REFUSED.get(type(node))
            if _is_random(node, function.__globals__):
                why = "these numbers would not follow the seed, and envs would share them. Ask for rng"
            if isinstance(node, (ast.Assign, ast.AugAssign)) and _writes_actions(node):
                why = "actions are the caller's, and only to be read. Assign to a variable of your own"
            at = getattr(node, "lineno", 1)
            where = (
                f"{spec.cls.__name__}.{verb}, line {first + at - 1} of {function.__code__.co_filename}:\n"
                f"    {lines[at - 1].strip()}\n"
            )
            if why:
                raise NativeError(f"{where}{why}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in STOPS:
                stops = f"{where}only debug=True can do that"
    return stops


# Arguments that must be written in place. Assigning to the bare name only rebinds it, and the write is lost.
WRITTEN = {
    "obs": "obs[:] = ..., obs[0] = ..., or obs.key = ... for a Dict",
    "state": "state.field = ..., or state.field[:] = ... for an array",
    "rewards": "rewards[:] = ..., or rewards[agent] = ...",
    "terminated": "terminated[:] = ..., or terminated[agent] = ...",
    "alive": "alive[:] = ..., or alive[agent] = ...",
    "info": "info.field = ...",
    "infos": "infos[agent].field = ...",
    "workspace": "workspace.field = ..., or workspace.field[:] = ... for an array",
}
STEP_RETURNS = (
    "step must return (reward, terminated), or (reward, terminated, truncated). Write observations into obs, "
    "and infos into info"
)
RESET_RETURNS = "reset must return nothing. Write the observation into obs: obs[:] = ..., or obs[0] = ..."
TEAM_RETURNS = "step of several agents must return nothing. Write into obs, rewards and terminated"


def _misunderstood(function: ast.AST, verb: str, spec: Spec) -> dict[ast.AST, str]:
    """Find code that runs but has no effect: returned observations, and arguments that are rebound."""
    if not isinstance(function, ast.FunctionDef):
        return {}
    found: dict[ast.stmt | ast.expr, str] = {}
    nodes = list(_of_this_scope(function))
    for node in nodes:
        if verb and isinstance(node, ast.Return) and node.value is not None:
            count = len(node.value.elts) if isinstance(node.value, ast.Tuple) else 1
            is_nothing = isinstance(node.value, ast.Call) or ast.unparse(node.value) == "None"
            if verb == "step" and not spec.is_team and count > 3:
                found[node] = STEP_RETURNS
            elif (verb == "reset" or spec.is_team) and not is_nothing:
                found[node] = RESET_RETURNS if verb == "reset" else TEAM_RETURNS
    arguments = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    in_place = [node.target for node in nodes if isinstance(node, ast.AugAssign)]  # obs += 1 writes
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id in arguments]
    loops = any(isinstance(node, (ast.For, ast.While)) for node in nodes)
    for name in names:
        if not isinstance(name.ctx, ast.Store) or name.id not in WRITTEN or name in in_place:
            continue
        # In a function that step or reset calls, the name may be an ordinary variable. It is refused there
        # only if it is not used again.
        used = loops or any(
            isinstance(each.ctx, ast.Load) and each.lineno > name.lineno
            for each in names
            if each.id == name.id
        )
        if verb or not used:
            found[name] = (
                f"this binds the name {name.id} to a new value. The array that Shoal reads does not change. "
                f"Write in place: {WRITTEN[name.id]}"
            )
    return {node: found[node] for node in sorted(found, key=lambda node: node.lineno)}


def _of_this_scope(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Iterate over all nodes of a function, without those of inner functions."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop(0)
        yield node
        if isinstance(node, ast.comprehension):
            left += [node.iter, *node.ifs]
        elif not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            left += ast.iter_child_nodes(node)


def _reachable(*functions: FunctionType) -> list[FunctionType]:
    """Return these functions and the plain functions that they call."""
    found = list(functions)
    for function in found:  # the list grows during the loop
        names = (function.__globals__.get(name) for name in function.__code__.co_names)
        found += [each for each in names if isinstance(each, FunctionType) and each not in found]
    return found


def _writes_actions(node: ast.Assign | ast.AugAssign) -> bool:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        place: ast.AST = target
        while isinstance(place, (ast.Subscript, ast.Attribute)):
            place = place.value
        if place is not target and isinstance(place, ast.Name) and place.id in ("action", "actions"):
            return True
    return False


def _is_random(node: ast.AST, known: Mapping[str, Any]) -> bool:
    """Return whether the node is a random function or module of NumPy or Python."""
    if isinstance(node, ast.Attribute) and node.attr == "random" and isinstance(node.value, ast.Name):
        return known.get(node.value.id) is np
    if not isinstance(node, ast.Name) or node.id not in known:
        return False
    value = known[node.id]
    return (
        value is random
        or value is np.random
        or str(getattr(value, "__module__", "")) in ("random", "numpy.random")
    )


def check_run(spec: Spec) -> None:
    """Reset an env and step it a few times, uncompiled, to find wrong shapes, dtypes and indices early.

    Raises:
        NativeError: If a line of the env raises. The message shows the line.
    """
    arena = Arena.allocate(spec.agents, spec.observation, spec.action)
    columns = Columns(_of_one(spec), arena, 1, finals=False)
    kernel = DebugKernel(spec, columns)
    columns.arrays["chosen"][:] = True
    columns.arrays["keys"][:], columns.arrays["seeded"][:] = keys_of([0])
    space = batch_space(spec.action.space, spec.agents)
    space.seed(0)
    packer = BatchPacker(spec.action, arena.actions, arena.action_objects)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy's warning about numbers that do not fit
        _attempt(spec, lambda: kernel.run(RESET))
        for _ in range(STEPS):
            packer.write(space.sample(), None)
            _attempt(spec, lambda: kernel.run(STEP_NEXT))


def _of_one(spec: Spec) -> Spec:
    from dataclasses import replace

    return replace(
        spec, parameters={name: np.asarray(v).reshape(-1)[:1][0] for name, v in spec.parameters.items()}
    )


def _attempt(spec: Spec, run: Callable[[], Any]) -> None:
    try:
        run()
    except NativeError:
        raise
    except Exception as error:
        where = line_of(spec, error)
        if not where:
            raise
        hint = (
            ". Define it above the class, because a class is checked as soon as it is defined"
            if isinstance(error, NameError)
            else ""
        )
        kind = "" if isinstance(error, AttributeError) else f"{type(error).__name__}: "
        raise NativeError(f"{where}{kind}{error}{hint}") from None


def line_of(spec: Spec, error: BaseException) -> str:
    """Return the line of the env's code that raised `error` in plain Python; "" if there is none."""
    others = (str(Path(__file__).parent), str(Path(np.__file__).parent))  # shoal.native and NumPy
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)
    ]
    if not frames:
        return ""
    frame = frames[-1]
    own = {spec.step.__code__.co_name: "step", spec.reset.__code__.co_name: "reset"}
    text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    where = f"{spec.cls.__name__}.{own.get(frame.name, frame.name)}"
    return f"{where}, line {frame.lineno} of {frame.filename}:\n    {text}\n"
