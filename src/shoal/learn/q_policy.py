"""The policy of DQN: flat observations -> value of every alternative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import ArgumentTypeError
from shoal.learn.base_policy import BasePolicy, EncoderOrMaker
from shoal.learn.mlp import Mlp
from shoal.rows.layout import Layout


class QPolicy(BasePolicy):
    """An encoder, layers, and one output for each alternative of each discrete choice: its value.

    With dueling heads, the value of an alternative is the value of the observation plus the advantage of the
    alternative, relative to the mean advantage of its choice.

    Args:
        layout: Layout of the observations: ``vec.observation_layout``.
        action_space: Action space of one row: ``vec.single_action_space``.
        hidden: Widths of the layers.
        activation: Activation function, "tanh" or "relu".
        dueling: Whether the heads are dueling.
        normalize_observations: Whether the default encoder normalises vectors.
        encoder: Module to use instead of the default encoder, or its class; see `BasePolicy`.
        action_table: Actions to choose among, if the action space is a Box; see `DQNConfig`.

    Attributes:
        epsilon: Chance of a random action, unless actions are chosen deterministically.

    Example:
        >>> import shoal
        >>> from shoal.learn import QPolicy
        >>> with shoal.make("shoal/CartPole-v1", num_envs=3) as vec:
        ...     policy = QPolicy(vec.observation_layout, vec.single_action_space)
        ...     obs, infos = vec.reset(seed=0)
        ...     actions = policy.act_batch(obs, deterministic=True)
        >>> actions.shape, tuple(policy(policy.to_rows(obs)).shape)
        ((3,), (3, 2))
    """

    algorithm: ClassVar[str] = "dqn"
    epsilon: Tensor

    def __init__(
        self,
        layout: Layout,
        action_space: Space[Any],
        *,
        hidden: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        dueling: bool = True,
        normalize_observations: bool = True,
        encoder: EncoderOrMaker | None = None,
        action_table: Sequence[Sequence[float]] = (),
    ) -> None:
        arguments = {"hidden": tuple(hidden), "activation": activation, "dueling": dueling}
        if len(action_table):
            arguments["action_table"] = tuple(tuple(map(float, line)) for line in action_table)
        super().__init__(
            layout,
            action_space,
            normalize_observations=normalize_observations,
            encoder=encoder,
            arguments=arguments,
            action_table=action_table,
        )
        if self.actions.num_continuous:
            raise ArgumentTypeError(
                f"DQN chooses among alternatives: expected a Discrete, MultiDiscrete or MultiBinary action "
                f"space, got {action_space}. For continuous actions: SAC or PPO, or DQN with an "
                "action_table to choose from"
            )
        sizes = self.actions.sizes
        outputs = sum(sizes) + int(dueling)
        mixing = dueling_matrix(sizes) if dueling else None
        self.layers = Mlp((self.num_features, *hidden, outputs), activation, mixing=mixing)
        self.register_buffer("epsilon", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values of all alternatives, [rows, alternatives of all choices]."""
        values: Tensor = self.layers(self.features(obs))
        return values

    @torch.no_grad()
    def choose(
        self,
        obs: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        epsilon: float | Tensor = 0.0,
    ) -> Tensor:
        """Choose flat actions: the best ones, or with the chance `epsilon`, drawn per row, random ones."""
        mask = self.mask_from_obs(obs) if mask is None else mask
        best = self.actions.best(self(obs), mask)
        if isinstance(epsilon, float) and not epsilon:
            return best
        coins = torch.rand(len(best), generator=generator, device=best.device)
        drawn = self.actions.draw_uniformly(len(best), mask, generator).to(best.device)
        return torch.where((coins < epsilon)[:, None], drawn, best)

    def _act_rows(
        self,
        rows: Tensor,
        mask: Tensor | None,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool,
    ) -> NDArray[Any]:
        epsilon = 0.0 if deterministic else self.epsilon
        return self.actions.to_env(self.choose(rows, mask, generator, epsilon))

    @torch.no_grad()
    def value_batch(self, obs: Any, state: Tensor | None = None) -> NDArray[Any]:
        """Predict the returns of a batch of observations under the best actions."""
        rows = self.to_rows(obs)
        values = self.actions.table(self(rows), self.mask_from_obs(rows)).amax(-1)
        return values.mean(-1).double().cpu().numpy()


def dueling_matrix(sizes: list[int]) -> Tensor:
    """Return the matrix from advantages of all alternatives, and one value, to values of alternatives.

    From each advantage, the mean advantage of its choice is subtracted, and the value is added.
    """
    blocks = [torch.eye(size) - 1 / size for size in sizes]
    centred = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return torch.cat([centred, torch.ones(1, sum(sizes))])
