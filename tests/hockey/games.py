"""Games for the tests: recorded ones, and ours set to a given state."""

from pathlib import Path

import numpy as np

import shoal
from shoal.hockey import Hockey
from shoal.hockey.table import CENTER_OFFSET

RECORDED = Path(__file__).parent / "golden.npz"


def recorded_games():
    """The games recorded from the original, as a list of structured arrays: one row per step."""
    with np.load(RECORDED) as file:
        names, data = [str(name) for name in file["cols"]], file["data"].astype(np.float64)
    parts = {"before": "s0", "action": "a0", "after": "n0", "other": "o2_0"}
    widths = {"before": 18, "action": 8, "after": 18, "other": 18}
    games = []
    for number in np.unique(data[:, names.index("episode")]):
        rows = data[data[:, names.index("episode")] == number]
        game = {name: rows[:, names.index(name)] for name in names if not name[-1].isdigit()}
        game |= {
            name: rows[:, names.index(name)] for name in ("reward2", "closeness2", "touch2", "direction2")
        }
        for part, first in parts.items():
            start = names.index(first)
            game[part] = rows[:, start : start + widths[part]]
        games.append(game)
    return games


def one_game(**options):
    """A vec of one game with two agents, which can be set to any state."""
    return shoal.Native(Hockey, 1, num_workers=1, infos=True, autoreset_mode="Disabled", **options)


def put(vec, obs=None, puck_spin=0.0, *, racket=(-3, 0), velocity=(0, 0), puck=(0, 0, 0, 0)):
    """Set the state of a game: from an observation of player one, or racket one and the puck only."""
    if obs is None:
        obs = [*racket, 0, *velocity, 0, 3, 0, 0, 0, 0, 0, *puck, 0, 0]
    for player, own in ((0, obs[:6]), (1, obs[6:12])):
        sign = 1 - 2 * player
        x, y, angle, vx, vy, spin = own
        vec.column_of("rackets")[0, player] = [
            sign * x - CENTER_OFFSET * np.cos(angle),
            sign * y - CENTER_OFFSET * np.sin(angle),
            *(angle, sign * vx, sign * vy, spin),
        ]
    vec.column_of("puck")[0] = [*obs[12:16], puck_spin]
    vec.column_of("possession")[0] = obs[16:18]


def follow(vec, steps, action=(0, 0, 0, 0)):
    """Observations of player one, whose racket does the same action in each step; player two rests."""
    seen = []
    for _ in range(steps):
        obs, rewards, terminations, _, infos = vec.step(np.array([action, (0, 0, 0, 0)], np.float32))
        seen.append(obs[0])
    return np.array(seen), rewards, terminations, infos
