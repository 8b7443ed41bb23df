"""Several threads only while the cores are free."""

import pytest

from shoal.learn.threads import Crowding
from tests.learn.off_policy import LEARNERS, digest, trained


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def learn(crowding, clock, seconds, share):
    """Learn for so long, with a share of the CPU time of two threads."""
    threads = []
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        crowding.add(0.1, 0.1 * 2 * share if crowding.threads == 2 else 0.1)
        threads.append(crowding.threads)
    return threads


def test_free_cores_are_all_used(clock):
    crowding = Crowding(2, clock)
    assert set(learn(crowding, clock, 10, share=0.98)) == {2}


def test_one_thread_in_a_crowd_and_now_and_then_another_try(clock):
    crowding = Crowding(2, clock)
    threads = learn(crowding, clock, 100, share=0.5)
    assert threads[:2] == [2, 1]
    assert threads.count(2) < 15
    again = threads[2:].index(2) + 2
    assert 15 < again < 30


def test_all_threads_again_when_the_crowd_has_gone(clock):
    crowding = Crowding(2, clock)
    learn(crowding, clock, 3, share=0.5)
    assert set(learn(crowding, clock, 30, share=0.98)[-100:]) == {2}


def test_one_thread_stays_one(clock):
    assert set(learn(Crowding(1, clock), clock, 3, share=0.2)) == {1}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_result_does_not_depend_on_the_number_of_threads(name):
    settings = {"hidden": (256, 256), "batch_size": 256, "total_steps": 200, "updates_per_step": 0.1}
    one, two = (trained(name, torch_threads=threads, **settings) for threads in (1, 2))
    assert digest(one) == digest(two)
