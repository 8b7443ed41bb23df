"""Faces of other libraries on Shoal's vecs."""


def install_as_pufferlib() -> None:
    """Let ``import pufferlib`` find Shoal, in this process and in the workers of `shoal.compat.pufferlib`.

    May be called twice. `shoal.compat.pufferlib` says what is offered, and in which form.

    Raises:
        CallError: If PufferLib itself is installed or imported; nothing of it is replaced.

    Example:
        >>> import shoal.compat
        >>> shoal.compat.install_as_pufferlib()
        >>> import pufferlib
        >>> with pufferlib.vectorization.Serial("CartPole-v1", num_envs=3) as env:
        ...     obs = env.reset()
        ...     obs, rewards, dones, infos = env.step(env.action_space.sample())
        >>> rewards, infos
        (array([1., 1., 1.]), [{}, {}, {}])
    """
    from shoal.compat.pufferlib import install  # only now: nobody else needs it

    install()


def install_as_rl_hockey() -> None:
    """Let ``import rl_hockey`` find Shoal, so that scripts of the course's students run as they are.

    May be called twice. `shoal.compat.rl_hockey` says what is offered.

    Raises:
        CallError: If rl_hockey itself is installed or imported; nothing of it is replaced.

    Example:
        >>> import shoal.compat
        >>> shoal.compat.install_as_rl_hockey()
        >>> from rl_hockey.common.vectorized_env import VectorizedHockeyEnvOptimized
        >>> envs = VectorizedHockeyEnvOptimized(4)
        >>> envs.reset().shape
        (4, 18)
        >>> envs.close()
    """
    from shoal.compat.rl_hockey import FACADE  # only now: nobody else needs it

    FACADE.install()
