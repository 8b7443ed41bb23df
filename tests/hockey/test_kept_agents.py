"""The agents in examples/hockey/agents play as well as the guide says."""

from pathlib import Path

import pytest

from shoal import _core
from shoal.hockey import play_bot
from shoal.hockey.players import load_policy

AGENTS = Path(__file__).parents[2] / "examples" / "hockey" / "agents"


@pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")
@pytest.mark.parametrize("opponent", ["weak", "strong"])
def test_sac_wins(opponent):
    # 0.99 and more of 400 games; of 100, it wins less than 0.92 once in a million times.
    assert play_bot(load_policy(str(AGENTS / "sac.safetensors")), opponent, games=100).win_rate >= 0.92
