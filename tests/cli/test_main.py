"""What all commands have in common."""

import os
import subprocess
import sys

import pytest

from shoal import __version__, registry
from shoal.cli import main
from shoal.cli._numbers import whole
from tests.cli.running import python, shoal


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"shoal {__version__}\n"


@pytest.mark.parametrize("args", [[], ["--help"]])
def test_help_lists_the_commands(args, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(args)
    out = capsys.readouterr().out
    assert "Example: shoal bench CartPole-v1" in out
    assert "--version" in out
    assert "List the names of all envs" in out
    assert "Measure how fast an env steps" in out


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("envs", ["Example: shoal envs cartpole", "[TEXT]", "one per line"]),
        (
            "bench",
            ["Example: shoal bench", "ENV", "--num-envs", "--num-workers", "--seconds", "--env-kwargs"],
        ),
    ],
)
def test_help_of_a_command(command, texts, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    out = capsys.readouterr().out
    for text in texts:
        assert text in out


@pytest.mark.parametrize("args", [["bnech"], ["bench"], ["bench", "CartPole-v1", "--num-envs", "many"]])
def test_what_cannot_be_parsed(args, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--help" in captured.err


@pytest.mark.parametrize("text", ["1e5", "1E5", "100_000", "1.0e+5", "100000.0"])
def test_whole_numbers(text):
    assert whole(text) == 100_000


@pytest.mark.parametrize("text", ["1.5", "1e-1", "many", "nan", "1e999", ""])
def test_numbers_that_are_not_whole(text):
    with pytest.raises(ValueError, match="expected a whole number, such as 100000 or 1e5, got"):
        whole(text)


def test_errors_of_ours_take_one_line(capsys, monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", {})  # else all of them are searched for what was meant
    assert main(["bench", "CartPole-v99"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("shoal: env: no env is called 'CartPole-v99'. Did you mean")
    assert captured.err.count("\n") == 1


def test_a_missing_package_of_a_family(capsys, monkeypatch):
    family = registry.Family("absent", "not there", "absent_module", "absent", ("absent_package",))
    monkeypatch.setitem(registry.FAMILIES, "absent", family)
    assert main(["bench", "absent-one"]) == 2
    assert 'pip install "shoal[absent]"' in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["tyro", "rich"])
def test_without_its_extra_it_says_what_to_install(missing):
    code = (
        "import sys; sys.modules[sys.argv.pop()] = None; from shoal.cli import main; sys.exit(main(['envs']))"
    )
    done = python(code, missing)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'shoal: the command line needs packages: pip install "shoal[cli]"\n'


def test_shoal_itself_needs_no_packages_of_the_command_line():
    done = python("import shoal, sys; print({'tyro', 'rich', 'shoal.cli'} & set(sys.modules))")
    assert done.stdout == "set()\n"


def test_as_a_module():
    done = shoal("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"shoal {__version__}\n", "")


@pytest.mark.parametrize("args", [["envs"], ["--version"]])
def test_a_reader_that_has_gone(args):
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "shoal", *args]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("option", [["--ent-coef", "0.1"], ["--ent_coef=0.1"]])
def test_an_option_of_other_libraries_is_understood(option, capsys):
    assert main(["train", "ppo", "--env", "CartPole-v1", *option]) == 2
    name = option[0].partition("=")[0]
    assert capsys.readouterr().err == f"shoal: {name}: did you mean --entropy?\n"
