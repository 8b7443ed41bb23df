"""Serial: all envs in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from shoal.adapters.single import SingleEnv
from shoal.rows.arena import Arena
from shoal.stepping.block import Block, Unit, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard
from shoal.stepping.row_slice import Infos, RowSlice
from shoal.vector.batching import Batching
from shoal.vector.engine import BlockRange, Engine, Reset
from shoal.vector.options import VecOptions, autoreset, creators_of
from shoal.vector.spaces import ObservationMode, UnitFacts, VecSpaces, combine
from shoal.vector.vec import VectorEnv


class Serial(VectorEnv):
    """Many envs in this process, stepped one after another. It is the simplest backend to debug.

    Args:
        env: A creator (a class, or a function without arguments that returns an env), or a list of
            creators, one per env. A creator may return a vector env: its envs become envs of this vec.
        num_envs: How often to call the creator, if `env` is one creator.
        autoreset_mode: ``NEXT_STEP`` (default), ``SAME_STEP`` or ``DISABLED``, as Gymnasium defines them.
        flat: Return observations and accept actions as one flat array per row (see `shoal.Layout`).
        copy: Return copies of observations, which the caller may keep. Otherwise return views, which are
            valid until the next step.
        seed: The seed of the first reset and of the action space.
        episode_stats: Report finished episodes as ``infos["episode"]``.
        observation_mode: ``"same"`` if all envs have the same observation space, ``"different"`` if their
            spaces share shape and dtype, or a pair of spaces (batched, single).
        rows_as_envs: Present each agent's row as an env, for code that does not support several agents.

    Example:
        >>> import gymnasium, shoal
        >>> with shoal.Serial(lambda: gymnasium.make("CartPole-v1"), num_envs=3) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step([0, 1, 0])
        >>> rewards
        array([1., 1., 1.])
    """

    def __init__(
        self,
        env: Callable[[], Any] | Sequence[Callable[[], Any]],
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        copy: bool = True,
        seed: int | None = None,
        episode_stats: bool = False,
        observation_mode: ObservationMode = "same",
        rows_as_envs: bool = False,
    ) -> None:
        options = VecOptions(
            autoreset(autoreset_mode), flat, copy, seed, episode_stats, observation_mode, rows_as_envs
        )
        self.env_fns = creators_of(env, num_envs)
        units = build_envs(self.env_fns)
        try:
            spaces, arena, engine = serve(units, options)
            self._serial_engine = engine
            super().__init__(spaces, arena, engine, options, Batching.all_of(self.env_fns))
        except BaseException:
            close_all(units)
            raise

    @property
    def envs(self) -> list[Any]:
        """The envs that the creators returned."""
        envs: list[Any] = []
        for unit in self._serial_engine.units:
            if isinstance(unit, GymnasiumVectorEnv):
                envs.extend(getattr(unit, "envs", [unit]))
            else:
                envs.append(unit.env if isinstance(unit, SingleEnv) else unit)
        return envs


def serve(
    units: list[Unit], options: VecOptions, kind: type[SerialEngine] | None = None
) -> tuple[VecSpaces, Arena, SerialEngine]:
    """Combine the spaces of the envs, allocate their rows, and make the engine that steps them.

    Args:
        units: The units that the creators returned.
        options: The options of the vec.
        kind: The class of the engine; by default `SerialEngine`.
    """
    mode, flat = options.autoreset_mode, options.flat
    with Guard("a space or a property of an env"):
        facts = [UnitFacts.of(unit, names_of(unit)) for unit in units]
        spaces = combine(facts, options.observation_mode, mode, objects=not flat)
    arena = Arena.allocate(spaces.num_envs * len(spaces.agents), spaces.observation, spaces.action)
    block = Block(units, RowSlice(arena, spaces.observation, spaces.action, mode, flat=flat))
    return spaces, arena, (kind or SerialEngine)(block, spaces.num_envs)


class SerialEngine(Engine):
    """Steps all envs in this process, as one block. Each verb is complete when its call returns.

    Args:
        block: The envs and their rows.
        num_envs: The number of envs.

    Attributes:
        block: The envs and their rows, until the engine is closed.
    """

    def __init__(self, block: Block, num_envs: int) -> None:
        self.block, self.blocks = block, [BlockRange(0, 0, num_envs)]
        self._infos: Infos = []
        self._closed_units: list[Unit] = []

    @property
    def units(self) -> list[Unit]:
        """The units, also after `close`."""
        return self.block.units if "block" in vars(self) else self._closed_units

    @property
    def step_all(self) -> Callable[[], Infos]:
        """The function of the block that steps all envs and returns their infos."""
        return self.block.step

    def begin_reset(self, blocks: Sequence[int], reset: Reset) -> None:
        """Reset the chosen envs."""
        self._infos = self.block.reset(reset.chosen, reset.seeds, reset.options)

    def begin_steps(self, blocks: Sequence[int]) -> None:
        """Step all envs."""
        self._infos = self.block.step()

    def wait_for(self, blocks: Sequence[int]) -> None:
        """Return at once, because every verb is complete."""

    def take_infos(self, blocks: Sequence[int]) -> Infos:
        """Return the infos of the last verb."""
        infos, self._infos = self._infos, []
        return infos

    def finish(self) -> None:
        """Return at once, because every verb is complete."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of every env, or read an attribute; return one result per env."""
        return self.block.call(name, args, kwargs)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env to its own value."""
        self.block.set_attr(name, values)

    def render(self) -> list[Any]:
        """Return the frame of every env."""
        return self.block.render()

    def snapshot(self) -> Any:
        """Return all envs, pickled."""
        return self.block.snapshot()

    def restore(self, state: Any) -> None:
        """Continue from pickled envs."""
        self.block.restore(state)

    def close(self) -> list[Exception]:
        """Close all envs, drop the rows, and return the errors of the envs."""
        if "block" not in vars(self):  # an earlier close() was interrupted after it had done this
            return []
        errors = self.block.close()
        self._closed_units, self._infos = self.block.units, []
        del self.block
        return errors
