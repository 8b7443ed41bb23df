"""Random vecs, driven by random verbs and hurt by random faults, beside a model of what each row must say.

Every round has a seed, which a failure names: SHOAL_SOAK_SEED=<seed> runs that round again and again, since
what the workers do meanwhile is not for the seed to decide. `make soak` takes ten minutes, a test run 30 s.
"""

import copy
import gc
import os
import pickle
import random
import re
import signal
import time
import traceback
import warnings
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.utils import seeding
from tests.conftest import left_since, resources

import shoal
from shoal import _core
from shoal.errors import (
    AlreadyPending,
    Closed,
    EpisodeOver,
    NothingPending,
    ResetNeeded,
    RestartWarning,
    WorkerDied,
)
from shoal.testing import SentinelEnv

SECONDS = float(os.environ.get("SHOAL_SOAK_SECONDS", "30"))
SEED = os.environ.get("SHOAL_SOAK_SEED")
ROUND = (0.5, 3.0)  # seconds of one round, beside making and closing its vec
STUCK = 60.0  # seconds after which a round hangs
GROWTH = 48e6  # bytes that this process may have more at the end than after a fifth of the time

RAISE, DIE, NAP = 999, 998, 997  # actions that an env takes as orders
PLAIN = 990  # actions below are just actions
BULK = 400_000  # characters of an info: more than a worker can say before it is listened to

pytestmark = [
    pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core"),
    pytest.mark.slow,
    # The signal of the other method is needed here, to name the round that hangs.
    pytest.mark.timeout(SECONDS + 2 * STUCK, method="thread"),
]


# -- the envs ----------------------------------------------------------------------------------------------


class Soaked(SentinelEnv):
    """Says which process it is in, and fails or dawdles when its action says so."""

    def __init__(self, env_id, max_length, talk):
        super().__init__(env_id, max_length)
        self.talk = talk

    def pid(self):
        return os.getpid()

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs, {} if self.talk == "silent" else info

    def step(self, action):
        if action == RAISE:
            raise ValueError(f"env {self.env_id} failed as told")
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == NAP:
            time.sleep(0.01)
        *moment, info = super().step(action)
        if self.talk == "silent":
            info = {}
        if self.talk == "bulky" and self.count % 4 == 3:
            info["bulk"] = "x" * BULK
        return *moment, info


def inner_vec(envs, mode, keep):
    return shoal.Serial(envs, autoreset_mode=mode, copy=keep)


# -- the setup of a round ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a vec is made of."""

    asynchronous: bool
    creators: int
    workers: int
    batch: int
    surplus: int
    inner: int  # envs that each creator makes, in a Serial; 0: one, without
    mode: str
    order: str
    on_error: str
    keep: bool
    stats: bool
    talk: str
    max_length: int
    timeout: float | None
    start_method: str
    faults: float  # how often an action is an order to fail

    @classmethod
    def draw(cls, rng):
        creators = rng.randint(1, 9)
        asynchronous = rng.random() < 0.7
        surplus = rng.randint(1, 3) if asynchronous and rng.random() < 0.2 else 0
        return cls(
            asynchronous,
            creators,
            workers=rng.randint(1, min(4, creators)),
            batch=rng.randint(1, creators) if asynchronous and not surplus else creators,
            surplus=surplus,
            inner=0 if surplus or rng.random() < 0.7 else rng.randint(1, 3),
            mode=rng.choice(["NextStep", "SameStep", "Disabled"]),
            order=rng.choice(["fifo", "ready"]) if asynchronous else "fifo",
            on_error=rng.choice(["raise", "restart"]),
            keep=rng.random() < 0.5,
            stats=rng.random() < 0.5,
            talk=rng.choice(["chatty", "silent", "bulky"]),
            max_length=rng.choice([1, 3, 7, 40]),
            timeout=rng.choice([None, STUCK / 2]),
            start_method=rng.choice(["forkserver"] * 8 + ["fork", "spawn"]),
            faults=rng.choice([0.0, 0.01, 0.03]),
        )

    @property
    def ids(self):
        """What each env says it is; those of one creator are told apart by their seeds."""
        return [0] * (self.creators + self.surplus) if self.surplus else list(range(self.num_envs))

    @property
    def num_envs(self):
        return (self.creators + self.surplus) * (self.inner or 1)

    def make(self):
        envs = [partial(Soaked, env_id, self.max_length, self.talk) for env_id in self.ids]
        if self.surplus:
            envs = envs[0]
        elif self.inner:
            runs = [envs[first : first + self.inner] for first in range(0, len(envs), self.inner)]
            envs = [partial(inner_vec, run, self.mode, self.keep) for run in runs]
        options = {
            "batch_size": self.batch,
            "surplus_envs": self.surplus,
            "mode": "async",
            "order": self.order,
        }
        return shoal.Multiprocessing(
            envs,
            self.creators if self.surplus else None,
            num_workers=self.workers,
            autoreset_mode=self.mode,
            on_error=self.on_error,
            copy=self.keep,
            episode_stats=self.stats,
            timeout=self.timeout,
            start_method=self.start_method,
            **(options if self.asynchronous else {}),
        )


# -- the model ---------------------------------------------------------------------------------------------


class Row(NamedTuple):
    obs: tuple
    reward: float
    terminated: bool
    truncated: bool
    mask: bool
    reset: bool
    info: dict


@dataclass(frozen=True)
class Moment:
    """Where an env is, and what its row showed last."""

    seed: int
    episode: int
    count: int
    obs: tuple
    total: float = 0.0
    mask: bool = True
    fresh: bool = False  # a new env that has not been reset, in the place of the one that the row shows


@dataclass(frozen=True)
class Step:
    action: int
    cut: bool | None  # whether a restart before it was sent has still to be told; None if that is not known


@dataclass(frozen=True)
class Reset:
    chosen: bool
    seed: int | None
    options: dict | None
    before: frozenset  # the (seed, episode) that the env may be in when it is reset
    cut: bool | None = False  # as for a step, which is what tells of it


@dataclass
class State:
    """All of the model that a snapshot takes back."""

    moments: list  # of each env, as last received
    calls: list  # that each env is under way for, or None
    sent: list  # blocks, in their order
    hands: list = field(default_factory=list)  # lists of blocks
    last: list | None = None  # the hand that was received last, unless it has gone
    owing: dict = field(default_factory=dict)  # blocks in hand that have still to tell: True; may have: None
    restarted: dict = field(default_factory=dict)  # restarts since each block was sent


class Model:
    """What every env must report next. A block comes back as a whole, and is lost as a whole."""

    def __init__(self, setup, blocks, workers):
        self.setup, self.blocks = setup, blocks
        self.worker_of = workers  # of each env
        self.block_of = {env: number for number, envs in enumerate(blocks) for env in envs}
        self.state = State([None] * setup.num_envs, [None] * setup.num_envs, [])
        self.given = [set() for _ in range(setup.num_envs)]  # seeds, for those that are derived from them
        self.restarts = [0] * setup.workers  # at most
        self.draws = {}

    # -- one env

    def length(self, seed, episode):
        """The env draws one number for each episode."""
        stream, lengths = self.draws.setdefault(seed, (seeding.np_random(seed)[0], []))
        while len(lengths) <= episode:
            lengths.append(int(stream.integers(1, self.setup.max_length + 1)))
        return lengths[episode]

    def begun(self, env, seed, episode):
        return Moment(seed, episode, 0, (self.setup.ids[env], episode, 0, 0, seed))

    def seeds_derived(self, env):
        """As docs/multiprocessing.md has it: of the seed given, the env, and the restarts of its worker."""
        numbers = range(self.restarts[self.worker_of[env]] + 1)
        return {
            int(np.random.SeedSequence([seed, env, number]).generate_state(1)[0])
            for seed in self.given[env]
            for number in numbers
        }

    def begun_anew(self, env, obs):
        seed = obs[4]
        assert seed in self.seeds_derived(env), f"env {env} was made anew with seed {seed}: {obs}"
        return self.begun(env, seed, 0)

    def first_info(self, moment, options=None):
        if self.setup.talk == "silent":
            return {}
        return {"begun": moment.episode, **({"options": options} if options else {})}

    def stepped(self, env, moment, action):
        """The moment after a step of an env in its episode, and the row that tells of it."""
        env_id, episode, count = self.setup.ids[env], moment.episode, moment.count + 1
        obs = (env_id, episode, count, action, moment.seed)
        reward = env_id + 0.5 * episode + 0.25 * count + 0.125 * action
        over = count == self.length(moment.seed, episode)
        ending = (episode + env_id) % 3
        terminated, truncated = over and ending != 1, over and ending != 0
        info = self.step_info(env_id, episode, count, over)
        total = moment.total + reward
        after = Moment(moment.seed, episode, count, obs, total, mask=not over)
        if over and self.setup.mode == "SameStep":
            after = self.begun(env, moment.seed, episode + 1)
            info = {"final_obs": list(obs), "final_info": info, **self.first_info(after)}
        if over and self.setup.stats:
            info["episode"] = {"r": total, "l": count}
        return after, Row(after.obs, reward, terminated, truncated, after.mask, False, info)

    def step_info(self, env_id, episode, count, over):
        if self.setup.talk == "silent":
            return {}
        info = {"last": {"env": env_id, "text": f"episode {episode}"}} if over else {}
        if count % 2 and not over:
            info["odd"] = count
        if self.setup.talk == "bulky" and count % 4 == 3:
            info["bulk"] = "x" * BULK
        return info

    def cut_off(self, env, moment, call, row):
        """What an env reports whose worker was replaced: that its episode was cut off, if it was in one."""
        obs = row.obs
        of_a_step = call.cut is None and (obs == moment.obs or "final_obs" in row.info)
        if isinstance(call, Reset) and not of_a_step:
            after = self.begun_anew(env, obs)
            return after, reset_row(after, self.first_info(after, call.options))
        info = {"episode": {"r": moment.total, "l": moment.count}} if self.setup.stats and moment.mask else {}
        if self.setup.mode == "SameStep":
            after = self.begun_anew(env, obs)
            info |= {"final_obs": list(moment.obs), "final_info": {}, **self.first_info(after)}
        else:
            after = replace(moment, mask=False, fresh=True)
        return after, Row(after.obs, 0.0, False, moment.mask, after.mask, not moment.mask, info)

    def expected(self, env, call, row):
        """All that an env may report that nothing has happened to."""
        moment = self.state.moments[env]
        if isinstance(call, Step):
            if moment.mask:
                assert call.action not in (RAISE, DIE), f"env {env} has survived {call}"
                return [self.stepped(env, moment, call.action)]
            after = self.begun(env, moment.seed, moment.episode + 1)
            if moment.fresh:
                after = self.begun_anew(env, row.obs)
            return [(after, reset_row(after, self.first_info(after)))]
        begun = self.moments_after_reset(env, call)
        choices = [(after, reset_row(after, self.first_info(after, call.options))) for after in begun]
        return choices if call.chosen else [(moment, reset_row(moment, {})), *choices]

    def moments_after_reset(self, env, call):
        """Where a reset brings an env, if it is reset."""
        places = call.before if call.chosen else set()
        if call.seed is not None and call.chosen:
            places = {(call.seed, -1)}
        return [self.begun(env, seed, episode + 1) for seed, episode in places]

    def places(self, env, uncertain):
        """Each (seed, episode) that an env may be in once what is under way is over."""
        call, block = self.state.calls[env], self.block_of[env]
        told_later = self.state.restarted.get(block) or block in self.state.owing
        if uncertain or told_later or (call and call.cut is not False):
            new = {(seed, episode) for seed in self.seeds_derived(env) for episode in (-1, 0)}
            return frozenset(self.places_now(env) | new | self.places_after(env, call))
        return frozenset(self.places_after(env, call) if call else self.places_now(env))

    def places_now(self, env):
        moment = self.state.moments[env]
        if moment is None:
            return set()
        if moment.fresh:
            return {(seed, -1) for seed in self.seeds_derived(env)}
        return {(moment.seed, moment.episode)}

    def places_after(self, env, call):
        moment = self.state.moments[env]
        if call is None or (isinstance(call, Reset) and not call.chosen):
            return self.places_now(env)
        if isinstance(call, Reset):
            return {(each.seed, each.episode) for each in self.moments_after_reset(env, call)}
        if not moment.mask:
            return {(seed, episode + 1) for seed, episode in self.places_now(env)}
        after, _ = self.stepped(env, moment, call.action)
        return {(after.seed, after.episode)}

    # -- the vec

    def reset_all(self, seeds, options, uncertain):
        """`uncertain`: workers that something may have happened to."""
        state = self.state
        self.remember(range(len(seeds)), seeds)
        before = [self.places(env, self.worker_of[env] in uncertain) for env in range(len(seeds))]
        state.calls = [Reset(True, seed, options, known) for seed, known in zip(seeds, before, strict=True)]
        state.sent, state.hands, state.last = list(range(len(self.blocks))), [], None
        state.owing, state.restarted = {}, dict.fromkeys(state.sent, 0)

    def reset_some(self, chosen, seeds, options):
        """A batch comes back as a whole, as it was received."""
        state = self.state
        touched = {self.block_of[env] for env in chosen}
        gone = [hand for hand in state.hands if touched & set(hand)]
        for block in sorted({block for hand in gone for block in hand}):
            envs = self.blocks[block]
            new = any(state.moments[env].fresh for env in envs) and self.setup.mode == "NextStep"
            if new and block in touched:
                chosen = chosen | set(envs)  # they are all new, and begin together
            self.remember([env for env in envs if env in chosen], seeds)
            cut = state.owing.get(block, False)
            for env in envs:
                before = self.places(env, False)
                reset = Reset(env in chosen, seeds[env], options, before, cut)
                state.calls[env] = Step(0, True) if cut else reset  # what was to be reset is gone
        self.leave(gone)

    def send(self, hands, actions):
        state = self.state
        for block in [block for hand in hands for block in hand]:
            for env in self.blocks[block]:
                state.calls[env] = Step(actions[env], state.owing.get(block, False))
        self.leave(hands)

    def leave(self, hands):
        state = self.state
        for hand in hands:
            state.hands.remove(hand)
            state.sent.extend(hand)
            for block in hand:
                state.owing.pop(block, None)
                state.restarted[block] = 0
            if hand is state.last:
                state.last = None

    def remember(self, envs, seeds):
        for env in envs:
            if seeds[env] is not None:
                self.given[env].add(seeds[env])

    def restart(self, worker):
        """All blocks of a worker are to tell of it: at once if they have not answered, else next time."""
        self.restarts[worker] += 1
        for block, envs in enumerate(self.blocks):
            if self.worker_of[envs[0]] != worker:
                continue
            if block in self.state.sent:
                self.state.restarted[block] += 1
            else:
                self.state.owing[block] = True

    def receive(self, blocks, rows):
        """Check a batch: the rows of each env."""
        state = self.state
        for block in blocks:
            envs = self.blocks[block]
            told = [bool(rows[env].info.pop("restarted", False)) for env in envs]
            assert len(set(told)) == 1, f"of envs {envs}, which are lost together, some tell: {told}"
            self.settle_debts(block, told[0])
            for env in envs:
                self.check(env, rows[env], told[0])
                state.calls[env] = None
            state.sent.remove(block)
        state.hands.append(blocks)
        state.last = blocks

    def settle_debts(self, block, told):
        state, call, envs = self.state, self.state.calls[self.blocks[block][0]], self.blocks[block]
        since = state.restarted.pop(block, 0)
        if call.cut is True:
            assert told, f"envs {envs} were made anew, and do not tell"
        elif told and call.cut is False:
            assert since, f"envs {envs} tell of a restart that was none, or tell of it twice"
            since -= 1
        if (
            since
        ):  # after it had answered; or before it could tell of another, and then it tells of both at once
            state.owing[block] = None if told and call.cut is not False else True

    def check(self, env, row, told):
        call, moment = self.state.calls[env], self.state.moments[env]
        choices = [self.cut_off(env, moment, call, row)] if told else self.expected(env, call, row)
        for after, expected in choices:
            if row == expected:
                self.state.moments[env] = after
                return
        wanted = "\n or ".join(shown(expected) for _, expected in choices)
        raise AssertionError(
            f"env {env}, told={told}, after {moment} and {call}:\ngot {shown(row)}\nnot {wanted}"
        )


def reset_row(moment, info):
    return Row(moment.obs, 0.0, False, False, moment.mask, True, info)


def shown(row):
    return re.sub("x{50,}", "xxx", str(row))


def rows_of(batch):
    columns = (batch.obs, batch.rewards, batch.terminations, batch.truncations, batch.mask, batch.resets)
    lists = [np.asarray(column).tolist() for column in columns]
    return {
        env: Row(tuple(obs), *rest, info_of(batch.infos, row))
        for row, (env, obs, *rest) in enumerate(zip(batch.env_ids.tolist(), *lists, strict=True))
    }


def info_of(infos, row):
    """The info of one row, in plain Python."""
    info = {}
    for key, values in infos.items():
        if key.startswith("_") or not infos.get(f"_{key}", [True] * (row + 1))[row] or key == "t":
            continue
        value = info_of(values, row) if isinstance(values, dict) else values[row]
        info[key] = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return info


# -- a round -----------------------------------------------------------------------------------------------


class Round:
    """A vec and its model, and the verbs that move both."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.log = deque(maxlen=60)
        self.setup = Setup.draw(self.rng)
        self.vec = self.setup.make()
        try:
            pids = self.vec.call("pid")
            known = list(dict.fromkeys(pids))  # workers are numbered by their first rows
            # How rows are grouped into blocks is told nowhere else.
            blocks = [list(range(part.first_env, part.last_env)) for part in self.vec._engine.blocks]
            self.model = Model(self.setup, blocks, [known.index(pid) for pid in pids])
        except BaseException:
            self.vec.close()
            raise
        self.pids = list(known)  # None: not known
        self.killed = [None] * len(known)  # the process that was sent a signal, until another is seen there
        self.hurt = set()  # workers that something may have been done to that has not come out yet
        self.strikes = [0] * len(known)
        self.failed = False  # only a reset of everything works
        self.broken = False  # the same, but verbs may say so in their own ways
        self.saved = None
        self.views = {}  # by hand: its observations and what they were
        self.kept = deque(maxlen=20)  # copies, and what they were
        sizes = len(blocks[0])
        self.per_batch = self.vec.batch_size // sizes if self.setup.asynchronous else len(blocks)

    @property
    def state(self):
        return self.model.state

    def run(self, seconds):
        verbs = {
            self.recv: 40,
            self.send: 40,
            self.call: 2,
            self.reset_all: 1,
            self.reset_some: 4,
            self.kill: 1 if self.setup.faults else 0,
            self.snapshot: 1,
            self.restore: 1,
        }
        self.reset_all(seed=self.rng.randrange(10**6))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (self.failed or self.broken) and self.rng.random() < 0.5:
                self.recover()
            else:
                self.rng.choices(list(verbs), list(verbs.values()))[0]()

    def recover(self):
        self.rng.choice([self.reset_all, self.reset_all, self.restore])()

    # -- doing

    def attempt(self, verb, *args, **kwargs):
        """A verb of the vec; what it warns of has its place in the model."""
        self.log.append(f"{verb.__name__} {args or ''}{kwargs or ''}".replace("\n", " "))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return verb(*args, **kwargs)
            except BaseException as error:
                self.log.append(f"  {type(error).__name__}: {error}")
                raise
            finally:
                for warning in caught:
                    self.hear(warning)

    def hear(self, warning):
        text = str(warning.message)
        self.log.append(f"  warned: {text.splitlines()[0]}")
        if warning.category is not RestartWarning:
            assert "dropped by " in text, text
            assert self.hurt, f"nothing was done to it: {text}"
            return
        worker = int(re.match(r"worker (\d+) is restarted", text)[1])
        assert self.setup.on_error == "restart", text
        assert worker in self.hurt, f"nothing was done to it: {text}"
        self.hurt.discard(worker)
        self.pids[worker] = self.killed[worker] = None
        self.strikes[worker] += 1
        self.model.restart(worker)

    def refused(self, error, match, verb, *args, **kwargs):
        with pytest.raises(error, match=match):
            self.attempt(verb, *args, **kwargs)

    def excuse(self, error):
        """An error has come out, which it may only if there is a reason."""
        assert self.hurt, f"nothing was done to it: {error!r}"

    def fail(self, error):
        """The same, and it is one that is not mended."""
        self.excuse(error)
        assert isinstance(error, (WorkerDied, ResetNeeded)) or "as told" in str(error), repr(error)
        if self.setup.on_error == "restart":  # then it was given up
            assert max(self.strikes) >= 3, f"not restarted: {error!r}"

    # -- the verbs

    def recv(self):
        vec, state = self.vec, self.state
        if self.broken:
            return
        if self.failed:
            self.refused(ResetNeeded, "call (async_)?reset", vec.recv)
            return
        if len(state.sent) < self.per_batch:
            self.refused(NothingPending, "under way", vec.recv)
            return
        try:
            batch = self.attempt(vec.recv)
        except (ValueError, WorkerDied) as error:
            self.fail(error)
            self.failed = True
            return
        blocks = self.blocks_in(batch.env_ids.tolist())
        self.model.receive(blocks, rows_of(batch))
        assert np.array_equal(batch.mask, vec.mask)
        frozen = np.array(batch.obs)
        self.views[tuple(blocks)] = batch.obs, frozen
        if self.setup.keep:
            self.kept.append((batch.obs, frozen))

    def blocks_in(self, env_ids):
        blocks = list(dict.fromkeys(self.model.block_of[env] for env in env_ids))
        assert env_ids == self.envs_of(blocks)
        if self.setup.order == "fifo":
            assert blocks == self.state.sent[: self.per_batch]
        else:
            assert len(blocks) == self.per_batch
            assert set(blocks) <= set(self.state.sent)
        return blocks

    def envs_of(self, blocks):
        return [env for block in blocks for env in self.model.blocks[block]]

    def send(self):
        vec, state, rng = self.vec, self.state, self.rng
        if self.broken:
            return
        if self.failed:
            self.refused(ResetNeeded, "call (async_)?reset", vec.send, [0] * vec.batch_size)
            return
        if not state.hands:
            wrong = NothingPending if self.setup.asynchronous else AlreadyPending
            self.refused(wrong, "call recv", vec.send, [0] * vec.batch_size)
            return
        hands = rng.sample(state.hands, 2 if len(state.hands) > 1 and rng.random() < 0.2 else 1)
        envs = self.envs_of([block for hand in hands for block in hand])
        self.check_views(hands)
        actions = [self.action_of(env) for env in envs]
        env_ids = None if len(state.hands) == 1 and rng.random() < 0.7 else np.array(envs)
        over = [env for env in envs if not state.moments[env].mask]
        if over and self.setup.mode == "Disabled":
            self.refused(EpisodeOver, "have finished", vec.send, np.array(actions), env_ids)
            self.reset_some(set(over))
            return
        self.expect_harm(dict(zip(envs, actions, strict=True)))
        try:
            self.attempt(vec.send, np.array(actions), env_ids)
        except WorkerDied as error:
            self.fail(error)
            self.failed = True
            return
        self.model.send(hands, dict(zip(envs, actions, strict=True)))

    def action_of(self, env):
        if not self.state.moments[env].mask:
            return self.rng.choice([0, -1, 10**9])  # nobody reads it
        if self.rng.random() < self.setup.faults / 2:
            return self.rng.choice([RAISE, DIE])
        return NAP if self.rng.random() < 0.01 else self.rng.randrange(PLAIN)

    def expect_harm(self, actions):
        for env, action in actions.items():
            if action in (RAISE, DIE):
                worker = self.model.worker_of[env]
                self.hurt.add(worker)
                self.pids[worker] = None

    def check_views(self, hands):
        """What is in hand does not change, whatever happens elsewhere."""
        for hand in hands:
            seen, frozen = self.views.pop(tuple(hand), (None, None))
            assert np.array_equal(seen, frozen), (
                f"the rows of blocks {hand} have changed: {seen}, not {frozen}"
            )

    def draw_seeds(self):
        kind, count = self.rng.choice(["none", "one", "list"]), self.setup.num_envs
        first = self.rng.randrange(10**6)
        if kind == "none":
            return None, [None] * count
        if kind == "one":
            return first, list(range(first, first + count))
        seeds = [self.rng.choice([None, first + 7 * env]) for env in range(count)]
        return seeds, seeds

    def draw_options(self):
        return {"level": self.rng.randrange(9)} if self.rng.random() < 0.3 else None

    def reset_all(self, seed=None):
        seed, seeds = self.draw_seeds() if seed is None else (seed, None)
        # What failed half-way, or was made anew unseen, is known again only by a new seed.
        if self.failed or self.broken or (self.setup.on_error == "raise" and self.hurt):
            seed, seeds = self.rng.randrange(10**6), None
        seeds = seeds or [seed + env for env in range(self.setup.num_envs)]
        options = self.draw_options()
        self.attempt(self.vec.async_reset, seed=seed, options=options)
        self.expect_new_workers()
        self.model.reset_all(seeds, options, self.hurt)
        self.start_anew()

    def expect_new_workers(self):
        """Who was lost has been replaced without a word, since nothing is left to be told."""
        for worker in self.hurt:
            self.model.restarts[worker] += 1

    def start_anew(self):
        self.failed = self.broken = False
        self.views.clear()
        # An order that was under way has been followed by now. A signal may not have been.
        self.hurt = {worker for worker, pid in enumerate(self.killed) if pid is not None}
        self.strikes = [0] * len(self.strikes)

    def reset_some(self, chosen=None):
        state = self.state
        if self.broken or not state.hands:
            return
        chosen = self.draw_envs() if chosen is None else chosen
        if len(chosen) == self.setup.num_envs:
            self.reset_all()
            return
        seed, seeds = self.draw_seeds()
        options = self.draw_options()
        mask = np.isin(np.arange(self.setup.num_envs), list(chosen))
        arguments = {"seed": seed, "options": {**(options or {}), "reset_mask": mask}}
        if self.failed:
            self.refused(ResetNeeded, "call (async_)?reset", self.vec.async_reset, **arguments)
            return
        try:
            self.attempt(self.vec.async_reset, **arguments)
        except (WorkerDied, ResetNeeded) as error:
            self.fail(error)
            self.failed = True
            return
        self.model.reset_some(chosen, seeds, options)
        self.views = {hand: views for hand, views in self.views.items() if list(hand) in state.hands}

    def draw_envs(self):
        """Some that are in hand: of one batch, or of any."""
        hands = self.state.hands if self.rng.random() < 0.3 else [self.rng.choice(self.state.hands)]
        envs = self.envs_of([block for hand in hands for block in hand])
        return set(self.rng.sample(envs, self.rng.randint(1, len(envs))))

    def may_ask(self, verb, *args):
        """An asynchronous vec answers at any time, as long as it has not failed."""
        if self.failed or self.broken:
            return False
        if self.setup.asynchronous or self.state.hands:
            return True
        self.refused(AlreadyPending, "is under way", verb, *args)
        return False

    def ask(self, verb, *args):
        """Reach into the envs; None if a worker that was hurt makes it impossible."""
        if not self.may_ask(verb, *args):
            return None
        try:
            return self.attempt(verb, *args)
        except (ValueError, WorkerDied, ResetNeeded) as error:
            self.excuse(error)
            asked_in_vain = isinstance(error, (WorkerDied, ResetNeeded))
            if self.setup.on_error == "restart" and asked_in_vain and max(self.strikes) < 3:
                return None  # it is replaced by the next step
            self.fail(error)
            self.broken = True
            return None

    def call(self):
        if self.rng.random() < 0.5:
            ids = self.ask(self.vec.get_attr, "env_id")
            assert ids in (None, tuple(self.setup.ids))
            return
        pids = self.ask(self.vec.call, "pid")
        for env, pid in enumerate(pids or ()):
            worker = self.model.worker_of[env]
            self.pids[worker] = pid
            if pid != self.killed[worker]:  # whatever was done before has come out
                self.killed[worker] = None
                self.hurt.discard(worker)

    def kill(self):
        known = [worker for worker, pid in enumerate(self.pids) if pid is not None]
        if not known:
            return
        worker = self.rng.choice(known)
        pid = self.killed[worker] = self.pids[worker]
        self.pids[worker] = None
        self.hurt.add(worker)
        self.log.append(f"kill worker {worker}")
        os.kill(pid, signal.SIGKILL)

    def snapshot(self):
        saved = self.ask(self.vec.snapshot)
        if saved is not None:
            if self.rng.random() < 0.3:
                saved = pickle.loads(pickle.dumps(saved))
            self.saved = saved, copy.deepcopy(self.state)

    def restore(self):
        if self.saved is None:
            return
        saved, state = self.saved
        try:
            self.attempt(self.vec.restore, saved)
        except (WorkerDied, ResetNeeded) as error:
            self.excuse(error)
            self.failed = True
            return
        self.expect_new_workers()
        self.model.state = copy.deepcopy(state)
        self.start_anew()

    def close(self):
        self.log.append("close")
        try:
            self.vec.close()
        except WorkerDied:
            if not self.hurt:
                raise
        self.vec.close()
        with pytest.raises(Closed, match="closed"):
            self.vec.recv()
        for seen, frozen in self.kept:
            assert np.array_equal(seen, frozen), "a copy has changed"


# -- the soak ----------------------------------------------------------------------------------------------


@contextmanager
def watchdog(seconds):
    """A hang becomes an error: whoever waits for workers looks for signals now and then."""

    def bark(*_):
        raise TimeoutError(f"the round hangs for {seconds:g} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_round(seed, seconds):
    """What goes wrong is raised with the story of the round, and without frames that would hold the vec."""
    played, story = None, None
    try:
        with watchdog(seconds + STUCK):
            played = Round(seed)
            try:
                played.run(seconds)
            finally:
                played.close()
    except Exception:
        happened = [] if played is None else [played.setup, *played.log]
        story = "\n".join(map(str, [f"seed {seed}", *happened, traceback.format_exc(), f"seed {seed}"]))
    del played
    if story is not None:
        raise AssertionError(story)


def check_nothing_is_left(before, seed):
    end = time.monotonic() + 5.0
    while left := left_since(before):
        assert time.monotonic() < end, f"seed {seed} left behind: {left}"
        gc.collect()
        time.sleep(0.01)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_soak():
    seeds = random.Random()
    begun, warm = time.monotonic(), None
    before = resources()
    while (passed := time.monotonic() - begun) < SECONDS:
        if warm is None and passed > SECONDS / 5:
            warm = resident()
        seed = seeds.randrange(2**32) if SEED is None else int(SEED)
        print(f"{passed:.1f} s: seed {seed}")
        run_round(seed, random.Random(seed).uniform(*ROUND))
        check_nothing_is_left(before, seed)
    assert warm is None or resident() - warm < GROWTH
