"""`shoal hockey play`: the server, what it refuses, and the page in a real browser."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from socket import SHUT_RDWR

import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from shoal import _core
from shoal.errors import ArgumentError, Diverged
from shoal.hockey.play.match import BREAK, BadMessage, Match, opponents_with
from shoal.hockey.play.server import MOST_MATCHES, Server, _step
from tests.cli.running import in_process
from tests.conftest import wait_until
from tests.hockey.browser import CHROMIUM, browser

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")
SECONDS = 60  # a guard against hanging


@contextmanager
def serving(against="none", opponents=None):
    offered, first = opponents_with(against)
    server = Server(opponents or offered, first)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


class Page:
    """What a page does, without a browser."""

    def __init__(self, socket):
        self._socket = socket
        self.hello = json.loads(socket.recv(timeout=SECONDS))

    def send(self, **message):
        self._socket.send(json.dumps(message))

    def until(self, holds):
        """Receive frames until one is as expected; returns it."""
        for _ in range(3000):
            frame = json.loads(self._socket.recv(timeout=SECONDS))
            if holds(frame):
                return frame
        raise AssertionError(f"no frame is as expected; the last one is {frame}")


def drain(socket):
    """Receive until the server closes the websocket, which raises."""
    for _ in range(3000):
        socket.recv(timeout=SECONDS)


def open_socket(server, *, origin=None, **options):
    address = server.url.replace("http", "ws") + "game"
    return connect(address, origin=origin or server.url.rstrip("/"), compression=None, proxy=None, **options)


@contextmanager
def page_of(server):
    with open_socket(server) as socket:
        yield Page(socket)


def get(server, **headers):
    """The status of the page, and the response."""
    request = urllib.request.Request(server.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def refuses(open_one):
    """Whether the server refuses a websocket, in the way that is expected."""
    with pytest.raises(InvalidStatus, match="HTTP 403"), open_one():
        pass
    return True


# -- a match -------------------------------------------------------------------------------------------


@pytest.fixture
def match():
    with Match(*opponents_with("none"), seed=0) as made:
        yield made


def test_a_match_begins_paused_and_counts_draws(match):
    match.step()
    assert match.tell()["time"] == 0
    match.obey({"paused": False})
    for _ in range(match.tell()["limit"]):
        assert match.tell()["result"] is None
        match.step()
    told = match.tell()
    assert (told["result"], told["draws"], told["score"]) == (0, 1, [0, 0])
    for _ in range(BREAK):
        match.step()
    assert (match.tell()["time"], match.tell()["result"]) == (0, None)


def test_goals_count_for_the_player_who_scores():
    offered, _ = opponents_with("strong")
    with Match(offered, "strong", seed=0) as match:
        match.obey({"paused": False, "one": [-1, 1, 0, 0]})  # into a corner, out of the way
        for _ in range(60 * 250):
            match.step()
            if match.tell()["result"]:
                break
        assert match.tell()["score"] == ([1, 0] if match.tell()["result"] == 1 else [0, 1])


def test_persons_take_both_sides(match):
    match.obey({"two": [1, 0, 0, 0], "paused": False})
    match.step()
    assert match.tell()["state"][9] == 0.0  # there is no second person yet
    match.obey({"opponent": "person", "paused": False})
    match.obey({"one": [1, 0, 0, 0], "two": [1, 0, 0, 0]})
    match.step()
    state = match.tell()["state"]
    assert state[3] > 0.5
    assert state[9] == -state[3]  # each to the middle


@pytest.mark.parametrize(
    "message",
    [
        *(None, 3, [], {"one": [0, 0, 0]}, {"one": [0, 0, 0, "x"]}, {"one": [0, 0, 0, float("nan")]}),
        *({"one": [0, 0, 0, True]}, {"opponent": "champion"}, {"opponent": ["weak"]}, {"paused": 1}),
        *({"speed": 9}, {"speed": True}, {"cheat": True}),
    ],
)
def test_messages_without_a_meaning_change_nothing(match, message):
    before = match.tell()
    with pytest.raises(BadMessage, match=r"expected an object|unknown key|unexpected value"):
        match.obey(message)
    assert match.tell() == before


# -- the server ----------------------------------------------------------------------------------------


def test_a_page_moves_shoots_and_switches_opponents():
    with serving() as server, page_of(server) as page:
        assert page.hello["opponents"] == ["none", "weak", "strong", "person"]
        assert len(page.hello["shapes"]["walls"]) == 6
        first = page.until(lambda frame: True)
        assert first["paused"]
        page.send(paused=False, one=[1, 0.5, 1, 0])
        moved = page.until(lambda frame: frame["time"] >= 5)["state"]
        assert moved[0] > first["state"][0] + 0.05
        assert moved[1] > first["state"][1] + 0.02
        assert moved[2] > 0.1
        page.send(speed=0.5)
        page.until(lambda frame: frame["speed"] == 0.5)
        page.send(opponent="strong")
        switched = page.until(lambda frame: frame["opponent"] == "strong")
        assert switched["paused"]
        assert (switched["time"], switched["score"]) == (0, [0, 0])
        page.send(paused=False, speed=1)
        page.until(lambda frame: abs(frame["state"][9]) > 0.5)  # the bot moves
        page.send(restart=True)
        page.until(lambda frame: frame["time"] < 5)


def test_a_person_catches_the_puck_and_shoots_it():
    with serving() as server, page_of(server) as page:
        page.send(paused=False)
        frame = page.until(lambda frame: True)
        for _ in range(3000):  # run after the puck until it is caught
            state = frame["state"]
            ahead = state[12] - 0.2 - state[0], state[13] - state[1]
            page.send(one=[max(-1, min(1, 2 * way)) for way in ahead] + [0, 0])
            frame = page.until(lambda frame: True)
            if frame["state"][16] > 0:
                break
        else:
            raise AssertionError(f"the puck was not caught: {frame}")
        page.send(one=[0, 0, 0, 1])
        page.until(lambda frame: frame["state"][14] > 15)


def test_each_page_has_a_match_of_its_own():
    with serving() as server, page_of(server) as one, page_of(server) as other:
        one.send(opponent="weak", paused=False)
        one.until(lambda frame: frame["time"] > 3)
        frame = other.until(lambda frame: True)
        assert (frame["opponent"], frame["time"]) == ("none", 0)


def test_garbage_closes_the_page_with_a_reason():
    garbage = ("{", "[" * 4000, '{"one": [1, NaN, 0, 0]}', '{"cheat": 1}', b"{}", "x" * 5000)
    with serving() as server:
        for message in garbage:
            with open_socket(server) as socket:
                Page(socket)
                socket.send(message)
                with pytest.raises(ConnectionClosed, match=r"message:|1009"):
                    drain(socket)
        with page_of(server) as page:  # the server goes on
            page.until(lambda frame: True)


def test_a_slow_page_skips_frames(match):
    class SlowPage:
        sent, took_one = [], asyncio.Event()

        async def send_text(self, text):
            self.sent.append(json.loads(text)["time"])
            await self.took_one.wait()

    async def play(page):
        match.obey({"paused": False})
        stepping = asyncio.create_task(_step(match, page))
        while match.tell()["time"] < 10:
            await asyncio.sleep(0)
        assert len(page.sent) == 1  # the others were not queued
        page.took_one.set()
        while len(page.sent) == 1:
            await asyncio.sleep(0)
        assert page.sent[1] >= 10
        stepping.cancel()
        await asyncio.gather(stepping, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(SlowPage()), SECONDS))


def test_a_page_that_goes_away_ends_its_match():
    with serving() as server:
        for _ in range(3):
            with page_of(server) as page:
                page.send(paused=False)
                page.until(lambda frame: frame["time"] > 0)
        with open_socket(server) as socket:
            Page(socket)
            socket.socket.shutdown(SHUT_RDWR)  # without a word
        assert wait_until(lambda: server.matches == 0, SECONDS)


def test_there_is_a_limit_of_matches():
    with serving() as server, ExitStack() as stack:
        for _ in range(MOST_MATCHES):
            Page(stack.enter_context(open_socket(server))).until(lambda frame: True)
        with open_socket(server) as late, pytest.raises(ConnectionClosed, match="16 games are open already"):
            late.recv(timeout=SECONDS)


def test_an_error_of_an_opponent_is_told():
    class Broken:
        name = "broken"

        def begin(self):
            pass

        def act(self, obs):
            raise Diverged("the policy's actions are NaN")

    with serving("none", {"none": Broken}) as server, open_socket(server) as socket:
        Page(socket).send(paused=False)
        with pytest.raises(ConnectionClosed, match="the policy's actions are NaN"):
            drain(socket)


def test_only_its_own_page_is_answered():
    with serving() as server:
        status, headers, text = get(server)
        assert status == 200
        assert "<canvas" in text
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert get(server, Host=f"localhost:{server.port}")[0] == 200
        own = f"http://127.0.0.1:{server.port}"
        assert get(server, Origin=own)[0] == 200
        for host in (
            "example.com",
            f"example.com:{server.port}",
            "127.0.0.1",
            f"127.0.0.1:{server.port + 1}",
        ):
            assert get(server, Host=host)[0] == 403
        foreign = ("http://example.com", "null", f"https://127.0.0.1:{server.port}", "http://127.0.0.1:1")
        for origin in foreign:
            assert get(server, Origin=origin)[0] == 403
        for origin in (*foreign, f"http://localhost:{server.port}"):  # Host is 127.0.0.1
            assert refuses(lambda origin=origin: open_socket(server, origin=origin))
        assert refuses(lambda: connect(server.url.replace("http", "ws") + "game"))  # without an origin
        rebound, at = f"example.com:{server.port}", {"address": ("127.0.0.1", server.port), "proxy": None}
        assert refuses(lambda: connect(f"ws://{rebound}/game", origin=f"http://{rebound}", **at))
        assert refuses(lambda: connect(f"ws://{rebound}/game", origin=own, **at))


def test_the_server_listens_on_this_machine_only():
    with serving() as server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert server._socket.getsockname()[0] == "127.0.0.1"


def test_ports_that_cannot_be_used():
    offered, first = opponents_with("weak")
    with serving() as server, pytest.raises(ArgumentError, match="cannot be used: Address already in use"):
        Server(offered, first, server.port)
    with pytest.raises(ArgumentError, match="port: expected 0 to 65535, got 70000"):
        Server(offered, first, 70000)


# -- the command ---------------------------------------------------------------------------------------


def test_wrong_opponents_are_told_before_the_server_starts(tmp_path, capsys):
    done = in_process(capsys, "hockey", "play", "--against", "champion")
    assert done.returncode == 2
    assert "expected none, weak, strong, person, the folder of a run or the file of" in done.stderr
    assert "got 'champion', which does not exist" in done.stderr
    done = in_process(capsys, "hockey", "play", "--against", tmp_path)
    assert done.returncode == 2
    assert "has no policy.safetensors" in done.stderr


def test_ctrl_c_ends_the_command_cleanly():
    command = [sys.executable, "-m", "shoal", "hockey", "play"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        address = process.stdout.readline().split()[-1]
        origin = address.rstrip("/")
        with connect(address.replace("http", "ws") + "game", origin=origin) as socket:
            Page(socket).until(lambda frame: True)
            process.send_signal(signal.SIGINT)
            with pytest.raises(ConnectionClosed, match=r"1012|1001"):
                drain(socket)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in errors


# -- the page ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_person_plays_in_a_browser(tmp_path):
    with serving("weak") as server, browser(tmp_path / "profile") as chromium:
        chromium.open(server.url)
        chromium.screen(900, 900)
        chromium.wait_for("window.framesSeen > 0 && lastState[16] === 0")
        x, y = chromium.read("lastState.slice(0, 2)")
        chromium.press("ArrowRight")
        chromium.press("ArrowUp")
        chromium.press("KeyQ")
        chromium.wait_for(f"lastState[0] > {x} + 0.2 && lastState[1] > {y} + 0.2 && lastState[2] > 0.1")
        for code in ("ArrowRight", "ArrowUp", "KeyQ"):
            chromium.release(code)
        chromium.press("KeyP")
        chromium.wait_for("document.getElementById('shout-title').textContent === 'Paused'")
        picture = tmp_path / "page.png"
        chromium.screenshot(picture)
        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        for color in ((235, 98, 53), (93, 158, 199), (239, 203, 138)):
            assert (pixels == color).all(1).sum() > 100
        chromium.read(
            "const o = document.getElementById('opponent'); o.value = 'person'; o.onchange({target: o})"
        )
        chromium.wait_for("!document.getElementById('keys-two').hidden")
        chromium.press("ArrowRight")  # of the second person now
        chromium.wait_for("lastState[9] > 0.5 && lastState[3] === 0")
