"""backend="auto": what is measured, what is chosen, and what the measurement leaves as it was."""

import pickle
import random
import threading
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence

import shoal
from shoal import _core, making
from shoal.testing import SampleEnv, SentinelEnv, SlowEnv
from shoal.vector import choosing

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    for module in (making, choosing):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)


@pytest.fixture
def rehearsed(monkeypatch):
    """Let a rehearsal find what it is told, in nanoseconds."""
    return lambda *found: monkeypatch.setattr(choosing, "rehearse", lambda *_: found)


class Counted(SentinelEnv):
    """Counts, in this process, the envs that were built and those that were closed."""

    built = closed = 0

    def __init__(self):
        super().__init__(0)
        type(self).built += 1

    def close(self):
        type(self).closed += 1


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (
            (650_000, 360_000),
            "Multiprocessing(num_envs=4, num_workers=2, auto: a step takes 650 us here and ",
        ),
        ((41_000, 46_000), "Serial(num_envs=4, auto: a step takes 41 us here and 46 us in 2 workers)"),
        (
            (500_000, 490_000),
            "Serial(num_envs=4, auto: a step takes 500 us here and 490 us in 2 workers, too little to gain)",
        ),
    ],
    ids=["processes", "serial", "hardly a gain"],
)
def test_the_shorter_step_is_chosen_and_repr_says_why(rehearsed, found, shown):
    rehearsed(*found)
    with shoal.make(partial(SentinelEnv, 0), 4) as vec:
        assert repr(vec).startswith(shown)
        reason = f"a step takes {found[0] // 1000} us here and {found[1] // 1000} us in 2 workers"
        assert vec.chosen_because.startswith(reason)


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (7, "7 ns"),
        (1234, "1.2 us"),
        (99_600, "100 us"),
        (9.996e7, "100 ms"),
        (9.94e6, "9.9 ms"),
        (2e9, "2 s"),
    ],
)
def test_durations_are_read_without_exponents(nanoseconds, shown):
    assert choosing.duration(nanoseconds) == shown


@pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)
@pytest.mark.parametrize("where", ["observations", "infos"])
def test_only_allowed_actions_are_played(where, mode):
    class Masked(gymnasium.Env):
        """One of four moves is allowed, another one each time."""

        action_space = Discrete(4, start=2)
        observation_space = Discrete(4)
        if where == "observations":
            observation_space = Dict(action_mask=Box(0, 255, (4,), np.uint8), place=Discrete(4))

        def reset(self, *, seed=None, options=None):
            self.place = 0
            return self._look()

        def step(self, action):
            assert action == 2 + self.place, "this move is not allowed"
            self.place = (self.place + 1) % 4
            obs, info = self._look()
            return obs, 0.0, self.place == 3, False, info

        def _look(self):
            mask = 255 * np.eye(4, dtype=np.uint8)[self.place]
            if where == "observations":
                return {"action_mask": mask, "place": self.place}, {}
            return self.place, {"action_mask": mask}

    assert choosing.measure(Masked, mode).working > 0  # and nothing was raised


def test_one_env_is_built_for_it_and_closed(rehearsed):
    rehearsed(1.0, 2.0)
    Counted.built = Counted.closed = 0
    with shoal.make(Counted, 3) as vec:
        assert type(vec) is shoal.Serial
        assert (Counted.built, Counted.closed) == (4, 1)
    assert Counted.closed == 4


def test_a_backend_that_is_named_is_not_measured(monkeypatch):
    monkeypatch.setattr(choosing, "measure", None)
    Counted.built = 0
    for options in ({"backend": "serial"}, {"backend": "multiprocessing"}, {"num_workers": 2}):
        with shoal.make(Counted, 2, **options) as vec:
            assert not vec.chosen_because
            assert "auto" not in repr(vec)
    assert Counted.built == 2  # by Serial; workers build their own


def test_random_streams_and_warnings_are_left_alone(rehearsed):
    torch = pytest.importorskip("torch")

    class Careless(SentinelEnv):
        def reset(self, *, seed=None, options=None):
            warnings.warn("reset with a warning", stacklevel=1)
            random.random()
            np.random.random()  # noqa: NPY002
            torch.rand(1)
            return super().reset(seed=seed, options=options)

    rehearsed(1.0, 2.0)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    with shoal.make(lambda: Careless(0), 2) as vec:
        found = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
        assert found == expected
        with pytest.warns(UserWarning, match="reset with a warning"):
            vec.reset(seed=0)


def test_an_env_that_waits_goes_to_processes():
    with shoal.make(lambda: SlowEnv(0, seconds=0.002), 4) as vec:
        assert type(vec) is shoal.Multiprocessing
        assert vec.chosen_because.startswith("an env waits for ")


@pytest.mark.parametrize("when", ["reset", "step"])
def test_an_env_that_raises_in_the_measurement_raises_in_its_time(when):
    class Picky(SentinelEnv):
        def reset(self, *, seed=None, options=None):
            if when == "reset" and options is None:
                raise KeyError("options are needed")
            return super().reset(seed=seed, options=options)

        def step(self, action):
            if when == "step":
                raise KeyError("no such move")
            return super().step(action)

    with shoal.make(lambda: Picky(0), 2) as vec:
        assert type(vec) is shoal.Multiprocessing
        assert vec.chosen_because == "the probe failed with KeyError"
        obs, _ = vec.reset(seed=0, options={"any": 1})
        assert len(obs) == 2


def test_a_creator_that_raises_is_heard():
    def create():
        raise LookupError("no licence")

    with pytest.raises(LookupError, match="no licence"):
        shoal.make(create, 2)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_every_mode_and_kind_of_env_is_measured(mode):
    def nested():
        return gymnasium.vector.SyncVectorEnv([partial(SentinelEnv, 0)] * 2, autoreset_mode=mode)

    kinds = [partial(SentinelEnv, 0, max_length=3), "shoal/Foragers-v0", nested]
    for env in kinds:
        with shoal.make(env, 2, autoreset_mode=mode) as vec:
            assert vec.chosen_because.startswith("a step takes ")
            vec.reset(seed=0)
            vec.step(vec.action_space.sample())


def test_the_measurement_grows_with_the_work():
    def working(turns):
        class Working(SentinelEnv):
            def step(self, action):
                sum(range(turns))
                return super().step(action)

        return choosing.measure(lambda: Working(0), shoal.make.__kwdefaults__["autoreset_mode"])

    little, much = working(10), working(20_000)
    assert much.working > little.working  # two thousand times as many turns


@pytest.mark.parametrize(("cost", "part"), [(50_000, 1), (20_000_000, 64)])
def test_a_rehearsal_is_of_all_envs_or_of_a_part_of_a_long_step(monkeypatch, cost, part):
    def fake(alone, parent, shares, own, theirs, seconds):
        assert shares == [3 * cost / part, 2 * cost / part]
        return alone, parent + max(shares)

    monkeypatch.setattr("shoal._core._native.rehearse", fake)
    monkeypatch.setattr(choosing, "LONGEST_STEP", 5 * cost / part)
    alone, together = choosing.rehearse(choosing.Cost(cost), [3, 2], 2)
    assert alone == pytest.approx(5 * cost + choosing.SERIAL)
    assert together == pytest.approx(3 * cost + choosing.PARENT)
    # Infos after every second step of an env: seven times of eight a worker of three envs sends a message.
    talking = choosing.Cost(cost - 1000, packing=1000, unpacking=10, sends=0.5)
    alone, together = choosing.rehearse(talking, [3, 2], 2)
    assert alone == pytest.approx(5 * (cost - 1000) + choosing.SERIAL)
    messages = (7 / 8 + 3 / 4) * choosing.MESSAGE + 5 * 0.5 * choosing.INFO
    assert together == pytest.approx(3 * cost + choosing.PARENT + messages + 5 * 10)


def test_the_core_rehearses_both_ways():
    alone, together = _core._native.rehearse(30_000.0, 1000.0, [10_000.0, 20_000.0], (0, 20), (0, 20), 0.01)
    assert alone > 0
    assert together > 0


def test_the_work_of_each_kind_counts():
    def rehearse(alone, parent, share):
        return _core._native.rehearse(alone, parent, [share, share], (0, 20), (0, 20), 0.2)

    much = 20e6
    assert rehearse(much, 0.0, 0.0)[0] > much / 4  # by far more than any handshake takes
    assert rehearse(0.0, much, 0.0)[1] > much / 4
    assert rehearse(0.0, 0.0, much)[1] > much / 4


def test_infos_have_a_price_in_workers():
    class Talks(SentinelEnv):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"seen": [{"number": n} for n in range(200)]}

    class Silent(SentinelEnv):
        def step(self, action):
            return *super().step(action)[:4], {}

    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    talks, silent = (choosing.measure(partial(kind, 0, max_length=10**6), mode) for kind in (Talks, Silent))
    assert talks.packing > 0
    assert talks.unpacking > 0
    assert silent.packing == silent.unpacking == 0


def test_large_infos_are_pickled_for_a_moment_only(monkeypatch):
    pickled = []
    monkeypatch.setattr(choosing, "dumps", lambda each: pickled.append(each) or pickle.dumps(each))

    class Bulky(SentinelEnv):
        numbers = list(range(20_000))

        def step(self, action):
            return *super().step(action)[:4], {"numbers": self.numbers}

    cost = choosing.measure(partial(Bulky, 0, max_length=10**6), gymnasium.vector.AutoresetMode.NEXT_STEP)
    assert cost.sends == 1.0
    assert cost.packing > 0
    assert len(pickled) <= 2 * choosing.SAMPLE


def test_objects_have_a_price_in_workers():
    create = partial(SampleEnv, Sequence(Discrete(9)), Discrete(2))
    cost = choosing.measure(create, gymnasium.vector.AutoresetMode.NEXT_STEP)
    assert cost.packing > 0
    assert cost.unpacking > 0


def test_what_cannot_be_pickled_stays_here():
    class Locked(SentinelEnv):
        def step(self, action):
            return *super().step(action)[:4], {"lock": threading.Lock()}

    with shoal.make(lambda: Locked(0), 2) as vec:
        assert type(vec) is shoal.Serial
        assert vec.chosen_because == "its infos or observations cannot be pickled"


def test_a_run_keeps_the_choice(rehearsed, tmp_path):
    pytest.importorskip("torch")
    from shoal.learn import PPO, PPOConfig, Run, resume

    rehearsed(1.0, 2.0)
    config = PPOConfig(total_steps=512, num_envs=2, horizon=32, minibatch_size=32)
    with PPO("CartPole-v1", config) as ppo, Run(tmp_path / "run", ppo, "CartPole-v1") as run:
        assert type(ppo.vec) is shoal.Serial
        ppo.stop()
        ppo.train(on_update=run)
        run.save()
    rehearsed(2.0, 1.0)
    with resume(tmp_path / "run") as again:
        assert type(again.learner.vec) is shoal.Serial
