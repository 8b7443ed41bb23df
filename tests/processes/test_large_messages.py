"""Requests to a worker that cannot read them, because it sends large messages itself."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import _core
from shoal.processes.calls import LARGE
from tests.conftest import wait_until
from tests.processes.faulty_envs import Bulky

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

NUM_BLOCKS = 100  # their requests do not fit into a socket together, though each of them is small
BULK = LARGE - 1000


def test_many_blocks_of_one_worker():
    options = {"num_workers": 1, "batch_size": 1, "order": "ready"}
    with shoal.Multiprocessing(Bulky, NUM_BLOCKS, **options) as vec, ThreadPoolExecutor(1) as thread:

        def run():
            vec.async_reset(options={"pad": bytes(BULK)})
            yield [vec.recv() for _ in range(NUM_BLOCKS)]
            for env in range(NUM_BLOCKS):
                vec.send([(0,) * (BULK // 10)], env_ids=[env])
            yield [vec.recv() for _ in range(NUM_BLOCKS)]

        verbs = run()
        for obs in (0, 1):  # of the reset, of the step
            done = thread.submit(next, verbs)
            try:
                assert wait_until(done.done, 60)
            except AssertionError:
                vec.close()  # ends a wait that would not end
                raise
            batches = done.result()
            assert sorted(int(batch.env_ids[0]) for batch in batches) == list(range(NUM_BLOCKS))
            assert {int(batch.obs[0]) for batch in batches} == {obs}
