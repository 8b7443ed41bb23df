import os
import subprocess
import sys
from importlib.metadata import version

import pytest

pytestmark = pytest.mark.twins


def test_the_compiled_core_is_there_and_of_this_version():
    from shoal._core import _native

    assert _native.__version__ == version("shoal")


def core_chosen_by(value):
    """What a fresh Python with this SHOAL_CORE says of its core."""
    script = "from shoal import _core; print(_core.NAME, _core.Packer.__module__, _core.StepLoop.__module__)"
    environment = {name: text for name, text in os.environ.items() if name != "SHOAL_CORE"}
    if value is not None:
        environment["SHOAL_CORE"] = value
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("value", "name"), [(None, "native"), ("", "native"), ("native", "native"), ("reference", "reference")]
)
def test_the_core_is_chosen_behind_one_list_of_names(value, name):
    done = core_chosen_by(value)
    assert done.stdout.split() == [name, f"shoal._core._{name}", f"shoal._core._{name}"], done.stderr


def test_a_core_that_does_not_exist_is_refused():
    done = core_chosen_by("fast")
    assert done.returncode != 0
    assert "SHOAL_CORE: expected native or reference, got 'fast'" in done.stderr


def test_the_twins_provide_the_same_names():
    from shoal import _core
    from shoal._core import _native, _reference

    for name in set(_core.__all__) - {"NAME"}:
        assert {getattr(_native, name), getattr(_reference, name)} >= {getattr(_core, name)}
