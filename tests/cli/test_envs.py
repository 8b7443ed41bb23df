"""`shoal envs`."""

import re
import sys
from types import ModuleType

import gymnasium
import pytest

from shoal import registry
from shoal.cli import main
from shoal.registry import Family
from tests.cli.running import in_a_terminal, shoal


@pytest.fixture
def families(monkeypatch):
    """A few instead of all: one that is there, one that is not, and one that does not work."""
    monkeypatch.setattr(registry, "_registered", {})
    known = {
        "classic": registry.FAMILIES["classic"],
        "absent": Family("absent", "not there", "absent_module", "absent", ("absent_package",)),
        "broken": Family("broken", "there, but broken", "broken_module"),
        "loud": Family("loud", "says too much", "loud_module"),
    }
    loud = ModuleType("loud_module")

    def names():
        print("Hello from the loud community")
        print("and a complaint", file=sys.stderr)
        return ["noise"]

    loud.names = names
    monkeypatch.setitem(sys.modules, "loud_module", loud)
    # The two that look, and the one that registers.
    for module in (registry, sys.modules["shoal.cli.envs"]):
        monkeypatch.setattr(module, "FAMILIES", known)


@pytest.fixture(autouse=True, scope="module")
def _command():
    import shoal.cli.envs  # noqa: F401 - `families` changes it


def line_of(name, out):
    (found,) = [line for line in out.splitlines() if line.startswith(name)]
    return found


def test_the_summary(families, capfd):
    assert main(["envs"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    others = sum(not name.startswith("shoal/") for name in gymnasium.registry)
    assert re.search(rf"{others} .*CartPole-v1 +installed", line_of("Gymnasium ids", out))
    assert re.search(r"\d+ .*classic control.* installed", line_of("classic-", out))
    assert 'pip install "shoal[absent]"' in line_of("absent-", out)
    assert "fails: ModuleNotFoundError: No module named 'broken_module'" in line_of("broken-", out)
    assert "Shoal's own" in line_of("shoal/", out)
    assert " 1 " in line_of("loud-", out)
    assert "Hello" not in out


def test_names_one_per_line(families, capsys):
    assert main(["envs", "cartPOLE"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"CartPole-v1", "classic-cartpole"} <= set(names)
    assert all("cartpole" in name.casefold() for name in names)
    assert len(names) == len(set(names))


def test_no_name(families, capsys):
    assert main(["envs", "no such thing"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "shoal: no name contains 'no such thing'\n")


@pytest.mark.slow
def test_all_families_through_a_pipe():
    done = shoal("envs")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for name, family in registry.FAMILIES.items():
        line = line_of(f"{name}-...", done.stdout)
        assert family.about in line
        assert line.rstrip().endswith("installed" if family.is_installed else family.pip)


@pytest.mark.slow
def test_names_of_all_families_through_a_pipe():
    done = shoal("envs", "-")
    assert (done.returncode, done.stderr) == (0, "")
    names = done.stdout.splitlines()
    for name, family in registry.FAMILIES.items():
        assert any(each.startswith(f"{name}-") for each in names) == family.is_installed
    assert "CartPole-v1" in names


@pytest.mark.slow
def test_in_a_terminal_it_says_what_it_looks_at():
    written, code = in_a_terminal("envs")
    assert code == 0
    assert "looking at classic" in written
    assert "Gymnasium's classic control" in written
