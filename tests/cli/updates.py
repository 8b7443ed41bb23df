"""Updates of a training that never was, and a clock that is set by hand."""

from shoal.learn import Update

SPLIT = {"wait": 0.2, "act": 0.2, "store": 0.1, "send": 0.1, "learn": 0.4}
LOSSES = {
    "policy": -0.01,
    "value": 0.5,
    "entropy": 0.546,
    "approx_kl": 0.007,
    "clip_fraction": 0.1,
    "grad_norm": 0.4,
    "explained_variance": 0.83,
}


def an_update(
    updates,
    mean_return=79.9,
    *,
    split=SPLIT,
    episodes=12,
    total_steps=100_000,
    learning_rate=2.5e-3,
    passes=8.0,
    threads=1,
    cpu=0.95,
    **losses,
):
    return Update(
        steps=1024 * updates,
        total_steps=total_steps,
        updates=updates,
        seconds=0.02 * updates,
        steps_per_second=51_200.0,
        episodes=episodes,
        mean_return=mean_return,
        mean_length=mean_return,
        learning_rate=learning_rate,
        losses=LOSSES | losses,
        split=split,
        passes=passes,
        learning_threads=threads,
        learning_cpu=cpu,
    )


def some(count, **changes):
    """Updates that differ only in their entropy, which has fallen after the first as it does in learning."""
    return [
        an_update(1, **{"entropy": 0.6} | changes),
        *(an_update(index, **changes) for index in range(2, count + 1)),
    ]


class Clock:
    """Stands still until it is set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now
