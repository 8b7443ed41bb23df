"""Commands run here too, and load what their libraries keep for good."""

from tests.cli.conftest import _libraries_of_commands_that_hold_on  # noqa: F401
