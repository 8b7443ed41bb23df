"""Rivals: opponents that policies play, in the games of a run with self-play.

Rivals.choose(env)     the opponent of the next game: a bot of the engine, or a policy
Rivals.player_of(key)  the player of an opponent: its policy, for all of its games at once
Rivals.prepare(...)    tells the engine which bot plays which game
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.hockey.envs import Hockey
from shoal.hockey.players import BOTS, load_policy
from shoal.hockey.settings import OPPONENTS, Mode, settings
from shoal.hockey.training.config import Phase, Rival
from shoal.learn.base_policy import BasePolicy
from shoal.learn.league import Archive, Matchmaking, OnePlayer
from shoal.learn.league.archive import LEARNER
from shoal.learn.league.one_player import Player
from shoal.vector.native import Native
from shoal.vector.serial import Serial
from shoal.vector.vec import VectorEnv

SELF = "self"  # the key of the policy as it is now
SAMPLES = " (sampled)"  # the end of a key whose player draws its actions
MODEL = "model:"  # the beginning of a key that names a file of the run


class Rivals:
    """Chooses opponents for the games of a run, and keeps their policies.

    Args:
        num_envs: Number of games at once.
        env_kwargs: Parameters of the engine.
        models: Folder with the saved policies of the run.
        archive: Archive of the league; None if no phase needs one.
        seed: Seed of the choices.

    Attributes:
        vec: The vec that the learner plays in.
        archive: Archive of the league.
    """

    def __init__(
        self,
        num_envs: int,
        env_kwargs: dict[str, Any],
        models: Path,
        archive: Archive | None,
        seed: int,
    ) -> None:
        self.archive, self._models = archive, models
        self._phase: Phase | None = None
        self._own: Callable[[], BasePolicy] | None = None
        engine = Native(
            Hockey,
            num_envs,
            env_kwargs={**settings(opponent="agent"), **env_kwargs},
            num_workers=1,
            flat=True,
            copy=False,
        )
        self._engine = engine
        self._weights = {name: np.array(engine.get_attr(name), np.float64) for name in OPPONENTS.values()}
        self._loaded: dict[str, BasePolicy] = {}
        self._games = OnePlayer(
            engine,
            self._choose,
            self._player_of,
            on_game=self._add_result,
            prepare=self._prepare,
            seed=seed,
        )
        self.vec: VectorEnv = Serial(lambda: self._games, flat=True, copy=False)

    def begin(self, phase: Phase, own: Callable[[], BasePolicy]) -> None:
        """Choose the opponents of a phase from now on.

        Args:
            phase: The phase.
            own: Function that returns the policy that learns.
        """
        self._phase, self._own = phase, own
        if self.archive is not None:
            for name in ("weak", "strong"):
                self.archive.add_bot(name)

    def _choose(self, env: int) -> str:
        phase = self._phase
        if phase is None:
            return "none"
        kinds: list[Any] = [*phase.opponents, *phase.rivals]
        weights = np.array([*phase.opponents.values(), *(rival.weight for rival in phase.rivals)])
        chosen = kinds[int(self._games.random.choice(len(kinds), p=weights / weights.sum()))]
        if isinstance(chosen, str):
            return chosen
        return self._key_of(chosen) + ("" if chosen.deterministic else SAMPLES)

    def _key_of(self, rival: Rival) -> str:
        """Return the key of a rival's policy; the own one as long as there is no other."""
        if rival.kind == "archive" and self.archive is not None:
            found = Matchmaking(**rival.distribution, skill_range=rival.skill_range).choose(
                self.archive, self._games.random
            )
            key = SELF if found == LEARNER else found
        elif rival.kind == "run_checkpoints" or rival.checkpoint == "latest":
            saved = sorted(self._models.glob("*_ep*.safetensors"))
            if not saved:
                return SELF
            latest = rival.checkpoint == "latest"
            key = MODEL + saved[-1 if latest else int(self._games.random.integers(len(saved)))].name
        else:
            key = SELF if rival.checkpoint is None else rival.checkpoint
        return key

    def _player_of(self, key: str) -> Player | None:
        if key in BOTS:
            return None
        policy, deterministic = self._policy_of(key.removesuffix(SAMPLES)), not key.endswith(SAMPLES)

        def play(rows: NDArray[Any]) -> NDArray[Any]:
            # Seeded by a generator that is part of snapshots, on whatever device the policy is.
            seed = 0 if deterministic else int(self._games.random.integers(1 << 31))
            random = torch.Generator(policy.device).manual_seed(seed)
            return policy.act_batch(rows, deterministic, generator=random)

        return play

    def _policy_of(self, key: str) -> BasePolicy:
        if key == SELF:
            assert self._own is not None
            return self._own()
        if self.archive is not None and key in self.archive.members:
            return self.archive.policy(key)
        if key not in self._loaded:
            path = self._models / key.removeprefix(MODEL) if key.startswith(MODEL) else key
            self._loaded[key] = load_policy(str(path))
        return self._loaded[key]

    def _prepare(self, envs: Sequence[int], keys: Sequence[str]) -> None:
        """Tell the engine which of the next games its bots play."""
        for env, key in zip(envs, keys, strict=True):
            for name, parameter in OPPONENTS.items():
                plays = key if key in BOTS else "agent"
                self._weights[parameter][env] = float(name == plays)
        for parameter, weights in self._weights.items():
            self._engine.set_attr(parameter, list(weights))

    def _add_result(self, env: int, key: str, balance: float) -> None:
        key = key.removesuffix(SAMPLES)
        if self.archive is None or key not in self.archive.members:
            return
        if int(self._engine.get_attr("mode")[env]) == Mode.NORMAL.value:  # others are no whole games
            winner = int(self._engine.get_attr("winner")[env])
            self.archive.record(key, (winner + 1) / 2)
