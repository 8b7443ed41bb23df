"""Matchmaking: which member of an archive a game is played against."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shoal.errors import ArgumentError
from shoal.learn.league.archive import LEARNER, Archive, Member


@dataclass(frozen=True)
class Matchmaking:
    """Weights of the ways to choose an opponent. A way that finds none is left out.

    Example:
        >>> from shoal.learn.league import Matchmaking
        >>> Matchmaking(pfsp=1, random=0, baseline=0)
        Matchmaking(pfsp=1, random=0, baseline=0, skill=0.0, latest=0.0, skill_range=50.0)
    """

    pfsp: float = 0.5
    """By prioritized fictitious self-play: members against which the learner wins about half of the games are
    chosen most often, by w (1 - w) for a mean result of w."""
    random: float = 0.3
    """Any member with a policy."""
    baseline: float = 0.2
    """Any player that the game itself has."""
    skill: float = 0.0
    """A member whose rating differs from the learner's by at most `skill_range`."""
    latest: float = 0.0
    """The newest member."""
    skill_range: float = 50.0

    def __post_init__(self) -> None:
        weights = [getattr(self, one.name) for one in fields(self) if one.name != "skill_range"]
        if any(weight < 0 for weight in weights) or not any(weights):
            raise ArgumentError(f"matchmaking: expected weights of 0 or more, not all 0, got {self}")

    def choose(self, archive: Archive, random: np.random.Generator) -> str:
        """Return the id of the next opponent; the learner's own if the archive has nobody else.

        Args:
            archive: Archive to choose from.
            random: Generator to draw from.
        """
        learner = archive.members[LEARNER]
        bots = [one for one in archive.members.values() if not one.has_policy and one.id != LEARNER]
        groups: dict[str, list[Member]] = {
            "pfsp": archive.policies,
            "random": archive.policies,
            "baseline": bots,
            "skill": [
                one for one in archive.policies if abs(one.rating - learner.rating) <= self.skill_range
            ],
            "latest": archive.policies[-1:],
        }
        ways = [name for name, group in groups.items() if group and getattr(self, name) > 0]
        if not ways:
            return LEARNER
        weights = np.array([getattr(self, name) for name in ways], np.float64)
        way = ways[int(random.choice(len(ways), p=weights / weights.sum()))]
        group = groups[way]
        chances = np.ones(len(group))
        if way == "pfsp":
            beaten = np.array([one.beaten for one in group])
            chances = np.maximum(beaten * (1 - beaten), 1e-3)  # so that nobody is forgotten
        return group[int(random.choice(len(group), p=chances / chances.sum()))].id
