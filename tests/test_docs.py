"""Every code block of the README and the guide runs, and so does every example in a docstring."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import shoal
from shoal import _core

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page, fonts):
    text = page.read_text()
    if _core.NAME != "native" and re.search(r"Multiprocessing\(|NativeEnv|as_vec_env|PPO\(|DQN\(", text):
        pytest.skip("the page needs the compiled core")
    # As in a script. Kernels of a module that cannot be imported would not be found on disk the next time.
    namespace: dict = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        # Padded, so that a traceback shows the line of the page.
        exec(compile("\n" * line + match.group(1), str(page), "exec"), namespace)
    assert page.name != "README.md" or "shoal" in namespace or page.parent.name == "docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_pages_are_found():
    assert len(PAGES) > 3


MODULES = [
    info.name for info in pkgutil.walk_packages(shoal.__path__, "shoal.") if not info.name.endswith("_native")
]
NEED_THE_CORE = {
    "shoal.envs.breakout",
    "shoal.envs.snake",
    "shoal.native.env",
    "shoal.cli._panel",
    *(f"shoal.learn.{name}" for name in ["dqn", "evaluate", "policy", "ppo", "q_policy", "replay", "sac"]),
    *(f"shoal.learn.{name}" for name in ["runs.resuming", "sac_policy", "stopping"]),
    *(f"shoal.vector.{name}" for name in ["multiprocessing", "native"]),
    *(name for name in MODULES if name.startswith(("shoal.hockey.", "shoal.processes."))),
}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    if _core.NAME != "native" and name in NEED_THE_CORE:
        pytest.skip("needs the compiled core")
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


def test_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    for thing in (
        shoal.Serial,
        shoal.Multiprocessing,
        shoal.Env,
        shoal.Layout,
        shoal.testing.check_env,
        shoal.testing.check_vector_env,
    ):
        assert any(test.examples for test in finder.find(thing)), thing
