"""No process, thread, descriptor or memory to be had: an error says what to do, and nothing is left behind.

Each case runs in a process of its own, because limits that were lowered cannot always be raised again.
"""

import pytest

from shoal import _core
from tests.vector.scripts import said_by

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

BEGIN = """
import gc, os, resource, sys
import shoal
from shoal.errors import OutOfResources, ShoalError
from shoal.testing import SentinelEnv

gc.disable()

def descriptors():
    return len(os.listdir("/proc/self/fd")) - 1  # without that of the listing

def limit(what, soft):
    resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))

def no_more_processes():
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.getuid() == 0:  # to whom no such limit applies
        os.setgid(65534)
        os.setuid(65534)

def make():
    with shoal.Multiprocessing(SentinelEnv, 4, num_workers=2, start_method="METHOD") as vec:
        vec.reset(seed=0)
        vec.step([0] * 4)

def refused():
    before = descriptors()
    try:
        make()
    except OutOfResources as error:
        print(error)
    assert descriptors() == before
    assert "memfd:shoal" not in open("/proc/self/maps").read()
"""


def run(code, method="forkserver"):
    return said_by((BEGIN + code).replace("METHOD", method))


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_no_descriptors(method):
    """Whichever is the one that is missing."""
    code = """
make()  # what is imported only then is imported now
before, usual = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for more in range(30):
    limit(resource.RLIMIT_NOFILE, before + more)
    try:
        make()
        print("works")
        break
    except ShoalError as error:
        assert "ulimit -n" in str(error), error
    finally:
        limit(resource.RLIMIT_NOFILE, usual)
        assert descriptors() == before
assert more > 2
"""
    assert run(code, method) == "works\n"


def test_a_launcher_made_when_there_were_few_descriptors_can_be_used_when_there_are_more():
    code = """
import shoal.processes.workers, shoal.processes.calls, shoal.processes.restarts  # they may need descriptors
usual, launched = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 0
for more in range(20):  # a little more each time, until there is a launcher, but too little for workers
    limit(resource.RLIMIT_NOFILE, descriptors() + more)
    try:
        shoal.Multiprocessing(SentinelEnv, 40, num_workers=20)
    except ShoalError as error:
        assert "ulimit -n" in str(error), error
    limit(resource.RLIMIT_NOFILE, usual)
    launched += bool(open(f"/proc/self/task/{os.getpid()}/children").read())
    if launched == 3:
        break
assert launched
make()
print("works")
"""
    assert run(code) == "works\n"


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_no_processes(method):
    said = run("no_more_processes(); refused()", method)
    assert "cannot get the process that starts workers: Resource temporarily unavailable" in said
    assert "ulimit -u" in said


def test_no_room_for_a_new_worker_in_the_place_of_another():
    code = """
import signal
from pathlib import Path
from shoal.errors import WorkerDied

class Pid(SentinelEnv):
    def pid(self):
        return os.getpid()

vec = shoal.Multiprocessing(Pid, 2, num_workers=2)
vec.reset(seed=0)
(launcher,) = map(int, Path("/proc/self/task", str(os.getpid()), "children").read_text().split())
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
few = len(os.listdir(f"/proc/{launcher}/fd"))
usual = resource.prlimit(launcher, resource.RLIMIT_NOFILE, (few, hard))
os.kill(vec.call("pid")[0], signal.SIGKILL)
for verb in (lambda: vec.step([0, 0]), lambda: vec.reset(seed=0), lambda: vec.reset(seed=0)):
    try:
        verb()
    except WorkerDied as error:
        print(error)
resource.prlimit(launcher, resource.RLIMIT_NOFILE, usual)
vec.reset(seed=0)
print(vec.step([0, 0])[0][:, 2].tolist())
vec.close()
"""
    killed, refused, again, works = run(code).splitlines()
    assert "was killed by signal 9" in killed
    for said in (refused, again):
        assert "could not be started: too many open files" in said
        assert "ulimit -n" in said
    assert works == "[1, 1]"


def test_no_room_for_shared_memory():
    said = run("make(); limit(resource.RLIMIT_FSIZE, 1000); refused()")
    assert "bytes of shared memory: File too large" in said


def test_no_addresses_for_shared_memory():
    code = """
make()
import gymnasium.spaces as sp, numpy as np
from shoal.rows.arena import SharedMemory
limit(resource.RLIMIT_AS, 4096 * int(open("/proc/self/statm").read().split()[0]) + 10**8)
before = descriptors()
try:
    SharedMemory(10**9)
except OutOfResources as error:
    print(error)
assert descriptors() == before
"""
    assert "cannot get 1,000,000,000 bytes of shared memory: Cannot allocate memory" in run(code)


@pytest.mark.parametrize("batch", ["", ", batch_size=32"])
def test_no_threads(batch):
    code = f"""
def native():
    with shoal.make("shoal/CartPole-v1", 64, backend="native", num_workers=4{batch}):
        pass

native()
no_more_processes()
try:
    native()
except OutOfResources as error:
    print(error)
"""
    said = run(code)
    assert "cannot get 4 threads: Resource temporarily unavailable" in said
    assert "ulimit -u" in said
    assert "Use fewer by num_workers" in said
