"""The kit must find what it is there to find: each broken backend breaks one promise."""

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal
from shoal.testing import ContractViolation, check_vector_env
from shoal.testing.check_vector_env import cast_for, check_flat

pytestmark = pytest.mark.twins


@pytest.mark.parametrize("num_envs", [1, 5])
def test_serial_keeps_the_whole_contract(num_envs):
    check_vector_env(shoal.Serial, num_envs=num_envs, steps=40)


class SwapsRows(shoal.Serial):
    def step(self, actions):
        obs, *rest = super().step(actions)
        return obs[::-1].copy() if isinstance(obs, np.ndarray) else obs, *rest


class ForgetsSeeds(shoal.Serial):
    def _seeds(self, seed):
        return [None if s is None else 0 for s in super()._seeds(seed)]


class ReturnsItsMemory(shoal.Serial):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "copy": False})


class EatsOptions(shoal.Serial):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if options:
            options["reset_mask"] = None
        return result


class TakesAnyAction(shoal.Serial):
    def step(self, actions):
        try:
            return super().step(actions)
        except shoal.errors.ActionError:
            return super().step(self.action_space.sample())


class MergesFlags(shoal.Serial):
    def step(self, actions):
        obs, rewards, terminations, truncations, infos = super().step(actions)
        return obs, rewards, terminations | truncations, truncations & False, infos


class LosesInfos(shoal.Serial):
    def step(self, actions):
        *moment, _ = super().step(actions)
        return *moment, {}


class IgnoresTheMode(shoal.Serial):
    def __init__(self, *args, autoreset_mode=None, **kwargs):
        super().__init__(*args, **kwargs)


class LiesAboutMask(shoal.Serial):
    def recv(self):
        batch = super().recv()
        return batch._replace(mask=np.ones_like(batch.mask))


class HidesErrors(shoal.Serial):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        step = self._step_all

        def hiding():
            try:
                return step()
            except ValueError:
                return []

        self._step_all = hiding


class StepsAfterClose(shoal.Serial):
    def _check_open(self):
        pass


class StepsFinishedEnvs(shoal.Serial):
    def _refuse_finished(self, mask):
        pass


class AnswersInAnotherOrder(shoal.Serial):
    def call(self, name, *args, **kwargs):
        return super().call(name, *args, **kwargs)[::-1]


class LosesEpisodes(shoal.Serial):
    def step(self, actions):
        *moment, infos = super().step(actions)
        if "episode" in infos:
            infos["episode"]["l"] += 1
        return *moment, infos


class RestoresNothing(shoal.Serial):
    def restore(self, snapshot):
        pass


class ForgetsPlannedSeeds(shoal.Serial):
    def seed(self, seed):
        pass


class AsksTheDead(shoal.Serial):
    @property
    def mask(self):
        return np.ones(self.num_rows, bool)


BROKEN = {
    StepsFinishedEnvs: "stepping a finished env",
    AnswersInAnotherOrder: "get_attr",
    LosesEpisodes: "lengths",
    RestoresNothing: "restore: the same results",
    ForgetsPlannedSeeds: r"seed\(9\)",
    AsksTheDead: "lengths|mask at",
    SwapsRows: "step 0, observations",
    ForgetsSeeds: "observations|seed",
    ReturnsItsMemory: "a returned observation stays as it was",
    EatsOptions: "options are not changed",
    TakesAnyAction: "actions .*: nothing was raised",
    MergesFlags: "truncations",
    LosesInfos: "infos",
    IgnoresTheMode: "mode SAME_STEP",
    LiesAboutMask: "recv: mask",
    HidesErrors: "an env's exception reaches the caller",
    StepsAfterClose: "after close",
}


@pytest.mark.parametrize("backend", BROKEN)
def test_a_broken_backend_is_found(backend):
    with pytest.raises(ContractViolation, match=BROKEN[backend]):
        check_vector_env(backend, num_envs=3, steps=30)


def test_flat_rows_that_change_are_found():
    with pytest.raises(ContractViolation, match="unpacks to the original values"):
        check_flat(cast_for(ReturnsItsMemory), 2, 8)


def test_options_of_a_backend_may_be_bound():
    check_vector_env(partial(shoal.Serial, seed=3), num_envs=2, steps=5)


def test_the_oracle_follows_gymnasium_itself():
    """The judge is judged: by hand, and by Gymnasium's own vector env."""
    import gymnasium

    from shoal.testing.by_hand import ByHand

    creators = [partial(gymnasium.make, "CartPole-v1")] * 2
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        oracle, theirs = ByHand(creators, mode), gymnasium.vector.SyncVectorEnv(creators, autoreset_mode=mode)
        oracle.reset([1, 2], [True, True], None)
        theirs.reset(seed=1)
        for number in range(80):
            actions = np.array([number % 2, 1])
            moment = oracle.step(list(actions))
            obs, rewards, terminations, truncations, infos = theirs.step(actions)
            np.testing.assert_array_equal(moment.obs, obs)
            np.testing.assert_array_equal(moment.rewards, rewards)
            np.testing.assert_array_equal(moment.terminations, terminations)
            np.testing.assert_array_equal(moment.truncations, truncations)
            assert moment.infos.keys() == infos.keys()
        theirs.close()
