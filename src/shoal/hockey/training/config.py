"""Configuration files of training runs: read, checked as a whole, and made into dataclasses."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError
from shoal.hockey.actions import SETS, Action, fine_actions
from shoal.hockey.settings import Mode, mode_of

BOTS = {"none": "none", "basic_weak": "weak", "basic_strong": "strong"}
"""Opponents that the engine plays itself, and their names there."""

RIVALS = ("self_play", "archive", "run_checkpoints")
"""Opponents that policies play."""

MIXTURE = "weighted_mixture"
WAYS = ("pfsp", "random", "baseline", "skill", "latest")
AGENTS = ("DDDQN", "SAC")
NOISES = {"normal": "white", "white": "white", "pink": "pink", "red": "red"}


@dataclass(frozen=True)
class Shaping:
    """Weights of additional rewards.

    They are START for N games of a phase, and in the next K games they change linearly to FINAL.
    """

    N: int = 600
    K: int = 400
    CLOSENESS_START: float = 20.0
    TOUCH_START: float = 15.0
    DIRECTION_START: float = 0.0
    CLOSENESS_FINAL: float = 1.5
    TOUCH_FINAL: float = 1.0
    DIRECTION_FINAL: float = 2.0

    def weights(self, games: int) -> dict[str, float]:
        """Return the weights of closeness, touch and direction after a number of games of the phase."""
        part = 1.0 if games >= self.N + self.K else max(0.0, (games - self.N) / max(1, self.K))
        return {
            name: (1 - part) * getattr(self, f"{name.upper()}_START")
            + part * getattr(self, f"{name.upper()}_FINAL")
            for name in ("closeness", "touch", "direction")
        }


@dataclass(frozen=True)
class Rival:
    """An opponent that a policy plays."""

    kind: str
    """"self_play": a checkpoint, or else the policy as it is now. "archive": a member of the league.
    "run_checkpoints": any policy that the run has saved."""
    weight: float = 1.0
    checkpoint: str | None = None
    """"latest" for the last policy that the run has saved; the path of a file or run; None."""
    deterministic: bool = True
    """Whether it takes its likeliest actions."""
    distribution: Mapping[str, float] = field(default_factory=dict)
    """Weights of the ways to choose a member of the league; see `shoal.learn.league.Matchmaking`."""
    skill_range: float = 50.0


@dataclass(frozen=True)
class Phase:
    """A part of a curriculum."""

    name: str
    episodes: int
    """Number of games."""
    modes: Mapping[Mode, float]
    """Weight of each mode; every game draws its own."""
    opponents: Mapping[str, float]
    """Weight of each of the engine's opponents; every game draws its own."""
    rivals: tuple[Rival, ...] = ()
    """Opponents that policies play, with weights relative to those of the engine's."""
    shaping: Shaping | None = None
    """Additional rewards."""
    clear_buffer: bool = True
    """Whether the replay is cleared when the phase begins."""


@dataclass(frozen=True)
class Training:
    """How much is learnt, and what is saved."""

    max_episode_steps: int = 500
    """Number of steps after which a game is cut off. Games end after 251 steps anyway."""
    updates_per_step: float = 1.0
    """Number of gradient steps for each time that the agent learns."""
    train_freq: int = 1
    """Number of env steps from one time to the next, whatever the number of envs."""
    warmup_steps: int = 400
    """Number of steps with random actions, before learning begins."""
    reward_scale: float = 0.1
    """Factor of all rewards that the agent learns from."""
    checkpoint_save_freq: int = 100
    """Number of games from one saved policy to the next."""


@dataclass(frozen=True)
class Agent:
    """Which learner, and its settings."""

    type: str
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class Config:
    """All that a configuration file says."""

    phases: tuple[Phase, ...]
    agent: Agent
    training: Training = field(default_factory=Training)
    learning_rate: float = 1e-4
    batch_size: int = 256
    source: Mapping[str, Any] = field(default_factory=dict)
    """The file as it was read."""

    @property
    def has_rivals(self) -> bool:
        """Whether policies play opponents in any phase."""
        return any(phase.rivals for phase in self.phases)

    @property
    def has_league(self) -> bool:
        """Whether any phase needs an archive."""
        return any(rival.kind == "archive" for phase in self.phases for rival in phase.rivals)

    @property
    def episodes(self) -> int:
        """Number of games of all phases."""
        return sum(phase.episodes for phase in self.phases)


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a configuration file.

    Raises:
        ArgumentError: If there is no such file, or if something in it is wrong; the message lists everything.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from shoal.hockey.training.config import read_config
        >>> phase = {
        ...     "name": "shoot",
        ...     "episodes": 100,
        ...     "environment": {"mode": "TRAIN_SHOOTING"},
        ...     "opponent": {"type": "none"},
        ... }
        >>> text = json.dumps({"curriculum": {"phases": [phase]}, "agent": {"type": "SAC"}, "training": {}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "config.json")
        ...     _ = path.write_text(text)
        ...     print(read_config(path).phases[0].opponents)
        {'none': 1.0}
    """
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ArgumentError(f"config: cannot read {os.fspath(path)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{os.fspath(path)}: expected JSON in UTF-8: {error}") from None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{os.fspath(path)}: expected JSON: {error}") from None
    try:
        return make_config(given)
    except ArgumentError as error:
        raise ArgumentError(f"{os.fspath(path)}: {error}") from None


def make_config(given: Any, folder: Path | None = None) -> Config:
    """Make a config of what a file contains.

    Args:
        given: The content.
        folder: Folder that paths in the file are relative to; by default the current one.

    Raises:
        ArgumentError: If something is wrong; the message lists everything.
    """
    problems = _Problems(folder or Path.cwd())
    config = _read(problems, given)
    if problems.found:
        count = len(problems.found)
        raise ArgumentError(
            f"{count} problem{'s' if count > 1 else ''} in the configuration:\n"
            + "\n".join(f"- {problem}" for problem in problems.found)
        )
    return config


def check_config(given: Any) -> list[str]:
    """Return all that is wrong with what a file contains, each with its path and what to do."""
    problems = _Problems(Path.cwd())
    _read(problems, given)
    return problems.found


# -- reading -----------------------------------------------------------------------------------------------


class _Problems:
    """Collects what is wrong, so that the user hears of everything at once."""

    def __init__(self, folder: Path) -> None:
        self.found: list[str] = []
        self.folder = folder

    def add(self, path: str, message: str) -> None:
        self.found.append(f"{path}: {message}")


class _Part:
    """An object of the file, whose keys are taken one after another; `end` tells of unknown ones."""

    def __init__(self, problems: _Problems, path: str, given: Any) -> None:
        self._problems, self._path = problems, path
        if not isinstance(given, dict):
            problems.add(path or "the file", f"expected an object, {{...}}, got {given!r}")
        self._given: dict[str, Any] = given if isinstance(given, dict) else {}
        self._known: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        self._known.add(name)
        return name in self._given and self._given[name] is not None

    def take(self, name: str, expected: str, fits: Callable[[Any], bool], default: Any = ...) -> Any:
        """Return a value that fits; the default, or a message, if it is missing or does not."""
        self._known.add(name)
        if name not in self._given:
            if default is ...:
                self.problem(name, f"missing: expected {expected}")
            return None if default is ... else default
        value = self._given[name]
        if not fits(value):
            self.problem(name, f"expected {expected}, got {value!r}")
            return None if default is ... else default
        return value

    def number(
        self, name: str, default: Any = ..., *, low: float | None = 0.0, high: float | None = None
    ) -> Any:
        limits = "a number"
        if low is not None:
            limits += f" of {low:g} or more" if high is None else f" from {low:g} to {high:g}"

        def fits(value: Any) -> bool:
            return _is_number(value) and (low is None or value >= low) and (high is None or value <= high)

        return self.take(name, limits, fits, default)

    def whole(self, name: str, default: Any = ..., *, low: int = 0) -> Any:
        found = self.take(
            name,
            f"a whole number of {low} or more",
            lambda value: _is_number(value) and value == int(value) and value >= low,
            default,
        )
        return found if found is None or found is default else int(found)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.take(name, "true or false", lambda value: isinstance(value, bool), default))

    def part(self, name: str) -> _Part:
        self._known.add(name)
        if name not in self._given:
            self.problem(name, "missing: expected an object, {...}")
        return _Part(self._problems, self.path(name), self._given.get(name, {}))

    def problem(self, name: str, message: str) -> None:
        self._problems.add(self.path(name), message)

    def end(self) -> None:
        for name in self._given:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, 1)
                hint = f": did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(self._known))}"
                self.problem(name, f"there is no such key{hint}")


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_one_of(value: Any, known: Collection[str]) -> bool:
    return isinstance(value, str) and value in known


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _read(problems: _Problems, given: Any) -> Config:
    whole = _Part(problems, "", given)
    phases = _read_phases(problems, whole.part("curriculum"))
    agent = _read_agent(whole.part("agent"))
    training = _read_training(whole.part("training"))
    shared = _Part(
        problems, "hyperparameters", given["hyperparameters"] if whole.has("hyperparameters") else {}
    )
    own = agent.hyperparameters
    rate = shared.number("learning_rate", own.get("learning_rate", Config.learning_rate), low=1e-12)
    size = shared.whole("batch_size", own.get("batch_size", Config.batch_size), low=1)
    shared.end()
    whole.end()
    return Config(phases, agent, training, rate, size, given if isinstance(given, dict) else {})


def _read_phases(problems: _Problems, part: _Part) -> tuple[Phase, ...]:
    listed = part.take("phases", "a list of phases", _is_filled) or []
    part.end()
    return tuple(
        _read_phase(_Part(problems, part.path(f"phases[{place}]"), each)) for place, each in enumerate(listed)
    )


def _read_phase(part: _Part) -> Phase:
    name = part.take("name", "a text", lambda value: isinstance(value, str))
    episodes = part.whole("episodes", low=1)
    environment = part.part("environment")
    modes = _read_modes(environment)
    if not environment.flag("keep_mode", True):
        environment.problem("keep_mode", "expected true: agents see and act as in games with keep mode")
    environment.end()
    opponents, rivals = _read_opponents(part.part("opponent"))
    shaping = None
    if part.has("reward_shaping"):
        shaping = _read_shaping(part.part("reward_shaping"))
    clears = part.flag("clear_buffer", True)
    part.end()
    return Phase(name, episodes, modes, opponents, rivals, shaping, clears)


def _read_modes(part: _Part) -> dict[Mode, float]:
    if not part.has("mixture"):
        mode = part.take("mode", _modes(), _is_mode)
        return {} if mode is None else {mode_of(mode): 1.0}
    if part.has("mode"):
        part.problem("mode", "expected either mode or mixture, got both")
    modes: dict[Mode, float] = {}
    for each in _parts(part, "mixture"):
        mode, weight = each.take("mode", _modes(), _is_mode), each.number("weight", 1.0)
        each.end()
        if mode is not None:
            modes[mode_of(mode)] = modes.get(mode_of(mode), 0.0) + weight
    if modes and not any(modes.values()):
        part.problem("mixture", "expected at least one weight above 0")
    return modes


def _modes() -> str:
    return "one of " + ", ".join(mode.name for mode in Mode)


def _is_mode(value: Any) -> bool:
    return isinstance(value, str) and value in Mode.__members__


def _parts(part: _Part, name: str) -> list[_Part]:
    listed = part.take(name, "a list of objects", _is_filled) or []
    return [_Part(part._problems, part.path(f"{name}[{place}]"), each) for place, each in enumerate(listed)]


def _read_opponents(part: _Part) -> tuple[dict[str, float], tuple[Rival, ...]]:
    """Return the weights of the engine's opponents, and the opponents that policies play."""
    opponents: dict[str, float] = {}
    rivals: list[Rival] = []
    if part.take("type", _kinds(), lambda value: _is_one_of(value, (*BOTS, *RIVALS, MIXTURE))) == MIXTURE:
        part.number("weight", 1.0)  # of a single opponent, it means nothing
        part.flag("deterministic", True)
        for each in _parts(part, "opponents"):
            _read_opponent(each, opponents, rivals)
        total = sum(opponents.values()) + sum(rival.weight for rival in rivals)
        if (opponents or rivals) and abs(total - 1) > 0.01:
            part.problem("opponents", f"expected weights that sum up to 1, got {total:g}")
        part.end()
    else:
        _read_opponent(part, opponents, rivals)
        opponents = dict.fromkeys(opponents, 1.0)
        rivals = [replace(rival, weight=1.0) for rival in rivals]
    return opponents, tuple(rivals)


def _read_opponent(part: _Part, opponents: dict[str, float], rivals: list[Rival]) -> None:
    kind = part.take("type", _kinds(), lambda value: _is_one_of(value, (*BOTS, *RIVALS, MIXTURE)))
    if kind == MIXTURE:
        part.problem("type", "expected a single opponent inside a mixture")
    weight, deterministic = part.number("weight", 1.0), part.flag("deterministic", True)
    if kind in BOTS:
        opponents[BOTS[kind]] = opponents.get(BOTS[kind], 0.0) + weight
        part.take("checkpoint", "null", lambda value: value is None, None)  # bots have none
    elif kind in RIVALS:
        checkpoint, distribution, skill_range = None, {}, 50.0
        if kind == "self_play":
            checkpoint = part.take("checkpoint", 'null, "latest" or a path', _is_checkpoint, None)
            if checkpoint not in (None, "latest"):
                checkpoint = str(part._problems.folder / checkpoint)
                if not Path(checkpoint).exists():
                    part.problem("checkpoint", f"there is no file {checkpoint}")
        if kind == "archive":
            distribution = _read_distribution(part)
            skill_range = part.number("skill_range", 50.0)
        rivals.append(Rival(kind, weight, checkpoint, deterministic, distribution, skill_range))
    part.end()


def _read_distribution(part: _Part) -> dict[str, float]:
    if not part.has("distribution"):
        return {}
    ways = part.part("distribution")
    found = {name: ways.number(name, 0.0) for name in WAYS}
    ways.end()
    if not any(found.values()):
        part.problem("distribution", "expected at least one weight above 0")
    return found


def _is_checkpoint(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _kinds() -> str:
    return f"one of {', '.join((*BOTS, *RIVALS))} or {MIXTURE}"


def _read_shaping(part: _Part) -> Shaping:
    found = {
        one.name: part.whole(one.name, one.default)
        if one.type == "int"
        else part.number(one.name, one.default, low=None)
        for one in fields(Shaping)
    }
    part.end()
    return Shaping(**found)


def _read_training(part: _Part) -> Training:
    found = {
        "max_episode_steps": part.whole("max_episode_steps", Training.max_episode_steps, low=1),
        "updates_per_step": part.number("updates_per_step", Training.updates_per_step),
        "train_freq": part.whole("train_freq", Training.train_freq, low=1),
        "warmup_steps": part.whole("warmup_steps", Training.warmup_steps),
        "reward_scale": part.number("reward_scale", Training.reward_scale, low=None),
        "checkpoint_save_freq": part.whole("checkpoint_save_freq", Training.checkpoint_save_freq, low=1),
    }
    part.end()
    return Training(**found)


def _read_agent(part: _Part) -> Agent:
    kind = part.take("type", "DDDQN or SAC", lambda value: _is_one_of(value, AGENTS))
    settings = part.part("hyperparameters") if part.has("hyperparameters") else None
    found: dict[str, Any] = {}
    if settings is not None:
        found = _read_hyperparameters(settings, kind)
    part.end()
    return Agent(kind, found)


def _read_hyperparameters(part: _Part, kind: str) -> dict[str, Any]:
    """Return the settings that are given, by the names of the file."""
    found: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        if part.has(name):
            found[name] = value

    keep("learning_rate", part.number("learning_rate", None, low=1e-12))
    keep("batch_size", part.whole("batch_size", None, low=1))
    keep("gamma", part.number("gamma", None, high=1.0))
    keep("discount", part.number("discount", None, high=1.0))
    if "gamma" in found and "discount" in found:
        part.problem("discount", "expected either gamma or discount, got both")
    keep("buffer_max_size", part.whole("buffer_max_size", None, low=1))
    widths = "a list of whole numbers above 0"
    keep("hidden_dim", part.take("hidden_dim", widths, _are_widths, None))
    keep("n_step", part.whole("n_step", None, low=1))
    keep("prioritized", part.flag("prioritized", False))
    keep("normalize_observations", part.flag("normalize_observations", True))
    keep("mirror", part.flag("mirror", False))
    keep("max_grad_norm", part.number("max_grad_norm", None))
    if kind == "SAC":
        noise = f"one of {', '.join(NOISES)}"
        keep("noise", part.take("noise", noise, lambda value: _is_one_of(value, NOISES), None))
        keep("tau", part.number("tau", None, high=1.0))
        keep("learn_alpha", part.flag("learn_alpha", True))
        keep("alpha", part.number("alpha", None))
        keep("target_entropy", part.number("target_entropy", None, low=None))
        if "alpha" in found and found.get("learn_alpha", True):
            part.problem("alpha", "expected only with learn_alpha false, because otherwise it is learnt")
    else:
        keep("target_update_freq", part.whole("target_update_freq", None, low=1))
        keep("tau", part.number("tau", None, high=1.0))
        keep("eps", part.number("eps", None, high=1.0))
        keep("eps_min", part.number("eps_min", None, high=1.0))
        keep("eps_decay", part.number("eps_decay", None, high=1.0))
        keep("use_huber_loss", part.flag("use_huber_loss", False))
        keep("double", part.flag("double", True))
        keep("dueling", part.flag("dueling", True))
        keep("action_fineness", part.whole("action_fineness", None, low=2))
        sets = f"one of {', '.join(SETS)}"
        keep("action_set", part.take("action_set", sets, lambda value: _is_one_of(value, SETS), None))
        if "action_fineness" in found and "action_set" in found:
            part.problem("action_set", "expected either action_set or action_fineness, got both")
    part.end()
    return found


def _are_widths(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(n) is int and n > 0 for n in value)


def actions_of(hyperparameters: Mapping[str, Any]) -> tuple[Action, ...]:
    """Return the discrete actions that the settings of a DDDQN agent ask for."""
    if (fineness := hyperparameters.get("action_fineness")) is not None:
        return fine_actions(fineness)
    return SETS[hyperparameters.get("action_set") or "basic"]
