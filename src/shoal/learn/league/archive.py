"""The archive of a league: policies on disk, and how well they play.

    archive/registry.json              who is there, ratings, counts of games
    archive/policies/<id>.safetensors  the policies

Ratings are those of Weng and Lin (the package openskill): a mean `mu` and a deviation `sigma`. The table
sorts by mu - 3 sigma, which a player exceeds almost surely.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, MissingExtra, RunError
from shoal.learn.base_policy import BasePolicy
from shoal.learn.runs.files import file_errors_in_words, read_file, write_file
from shoal.learn.runs.policy_file import Origin, load_file, save_policy

REGISTRY, POLICIES = "registry.json", "policies"
LEARNER = "learner"  # the id of the policy that learns
MOST_LOADED = 256  # policies that are kept in memory
INERTIA = 0.95  # of the mean of the learner's results against a member
DAMAGED = "Remove it to begin a new archive; the policies can be added again"


@dataclass
class Member:
    """A player of the league."""

    id: str
    steps: int = 0
    """Number of transitions that its policy had learnt from."""
    mu: float = 25.0
    """Mean of the rating."""
    sigma: float = 25.0 / 3
    """Deviation of the rating."""
    games: int = 0
    """Number of games."""
    beaten: float = 0.5
    """Running mean of the learner's results against it: 1 for a win, 0.5 for a draw, 0 for a loss."""
    has_policy: bool = True
    """Whether its policy is in the archive; a bot has none."""

    @property
    def rating(self) -> float:
        """What the player's skill exceeds almost surely: mu - 3 sigma."""
        return self.mu - 3 * self.sigma


_TYPES: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}
KINDS = {one.name: _TYPES[str(one.type)] for one in fields(Member)}


class Archive:
    """Policies on disk, and how well they play.

    Args:
        folder: Folder of the archive. It is made when something is saved.

    Attributes:
        folder: The folder.
        members: All players by their ids, the learner included.

    Raises:
        RunError: If the registry is damaged.
        MissingExtra: If openskill is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from openskill.models import PlackettLuce
        except ModuleNotFoundError as error:
            raise MissingExtra(f'a league needs openskill ({error}): pip install "shoal[league]"') from error
        self._model = PlackettLuce()
        self.folder = Path(folder)
        self.members: dict[str, Member] = self._read()
        self.members.setdefault(LEARNER, Member(LEARNER, has_policy=False))
        self._loaded: OrderedDict[str, BasePolicy] = OrderedDict()

    def _read(self) -> dict[str, Member]:
        path = self.folder / REGISTRY
        if not path.exists():
            return {}
        try:
            saved = json.loads(read_file(path, DAMAGED))["members"]
            for each in saved:
                if set(each) != set(KINDS) or not all(isinstance(each[name], KINDS[name]) for name in KINDS):
                    raise ValueError(f"{each!r} is no member")
                if not re.fullmatch(r"[\w.-]+", each["id"]):
                    raise ValueError(f"{each['id']!r} is no id")
            return {each["id"]: Member(**each) for each in saved}
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: is damaged: {error}. {DAMAGED}") from None

    # -- policies ----------------------------------------------------------------------------------------

    def add(self, policy: BasePolicy, steps: int, member_id: str | None = None) -> Member:
        """Save a policy as a new member. It begins with the learner's mean, and a deviation of 25/6 or more.

        Args:
            policy: Policy to copy.
            steps: Number of transitions that it has learnt from.
            member_id: Its id; by default made of the steps.

        Raises:
            ArgumentError: If there is such a member already, or if the id is no name for a file.
        """
        name = f"steps-{steps:09d}" if member_id is None else member_id
        if not re.fullmatch(r"[\w.-]+", name) or name in self.members:
            raise ArgumentError(f"member_id: expected a new name of letters, digits and -_., got {name!r}")
        self._make_folders()
        save_policy(self._path(name), policy, Origin(steps=steps))
        learner = self.members[LEARNER]
        # Less is known about it than about the learner, which has played more since.
        self.members[name] = Member(name, steps, learner.mu, max(learner.sigma, 25.0 / 6))
        self.save()
        return self.members[name]

    def add_bot(self, name: str) -> None:
        """Add a player that the game itself has, if it is not there yet."""
        self.members.setdefault(name, Member(name, has_policy=False))

    def policy(self, member_id: str) -> BasePolicy:
        """Return the policy of a member.

        Raises:
            RunError: If there is none.
        """
        if member_id not in self._loaded:
            self._loaded[member_id] = load_file(self._path(member_id)).policy
            while len(self._loaded) > MOST_LOADED:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(member_id)
        return self._loaded[member_id]

    @property
    def policies(self) -> list[Member]:
        """All members with a policy, the oldest first."""
        return [member for member in self.members.values() if member.has_policy]

    def remove(self, member_id: str) -> None:
        """Remove a member with its policy."""
        del self.members[member_id]
        self._loaded.pop(member_id, None)
        with file_errors_in_words(self._path(member_id)):
            self._path(member_id).unlink(missing_ok=True)

    def _make_folders(self) -> None:
        with file_errors_in_words(self.folder):
            (self.folder / POLICIES).mkdir(parents=True, exist_ok=True)

    def _path(self, member_id: str) -> Path:
        return self.folder / POLICIES / f"{member_id}.safetensors"

    # -- results -----------------------------------------------------------------------------------------

    def record(self, member_id: str, result: float) -> None:
        """Add the result of a game of the learner: 1 if it has won, 0.5 for a draw, 0 if it has lost."""
        learner, other = self.members[LEARNER], self.members[member_id]
        if member_id == LEARNER:
            return  # nothing is learnt about a player from games against itself
        teams = [[self._model.rating(mu=one.mu, sigma=one.sigma)] for one in (learner, other)]
        ((first,), (second,)) = self._model.rate(teams, scores=[result, 1 - result])
        for member, rating in ((learner, first), (other, second)):
            member.mu, member.sigma = float(rating.mu), float(rating.sigma)
            member.games += 1
        other.beaten = INERTIA * other.beaten + (1 - INERTIA) * result

    def save(self) -> None:
        """Write the registry durably."""
        self._make_folders()
        content: Any = {"members": [asdict(member) for member in self.members.values()]}
        write_file(self.folder / REGISTRY, json.dumps(content, indent=1).encode())

    def table(self) -> Sequence[Member]:
        """Return all members, the best one first."""
        return sorted(self.members.values(), key=lambda member: -member.rating)
