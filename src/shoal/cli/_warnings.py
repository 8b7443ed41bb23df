"""Warnings about problems of a run, found in its updates. Each names the option to change.

Figures are judged by their medians over several updates, because a single update is noisy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from shoal.cli._format import number

if TYPE_CHECKING:
    from shoal.learn import Update

RECENT = 10  # the number of updates that are judged together
LONG = 20  # the number of updates after which a trend is no accident

MOST_KL, LEAST_KL = 0.05, 1e-4  # of an update; 0.005 to 0.03 are usual
MOST_CLIPPED = 0.4  # of the samples; 0.05 to 0.3 are usual
LEAST_CPU = 0.7  # of the CPU time that torch's threads could have


def warnings_for(history: Sequence[Update]) -> dict[str, str]:
    """Return warnings about the latest updates: for each kind of problem, a sentence with a remedy.

    Most problems are judged only after several updates, because the first ones compile and warm up.

    Args:
        history: The updates so far, oldest first.
    """
    kinds = AT_ONCE if len(history) < RECENT else AT_ONCE | LATER
    found = {kind: warn(history) for kind, warn in kinds.items()} if history else {}
    return {kind: sentence for kind, sentence in found.items() if sentence}


# -- each kind of problem: a sentence, or an empty one if there is no problem ------------------------------


def _no_episodes(history: Sequence[Update]) -> str:
    latest = history[-1]
    if latest.episodes or latest.steps < 0.1 * latest.total_steps:
        return ""
    return "no episode has finished yet: there are no returns to show"


def _not_finite(history: Sequence[Update]) -> str:
    if not any(math.isnan(history[-1].losses.get(name, 0.0)) for name in ("policy", "value")):
        return ""
    return "the losses are NaN: look for NaN in rewards and observations, and lower --learning-rate"


def _policy_moves_far(history: Sequence[Update]) -> str:
    moved = _recent(history, "approx_kl")
    if not moved > MOST_KL:
        return ""
    return (
        f"updates move the policy too far: KL {number(moved)}, where 0.005 to 0.03 are usual. Lower "
        "--learning-rate, or bound it with --target-kl 0.02"
    )


def _policy_hardly_moves(history: Sequence[Update]) -> str:
    """A policy at its best may stay, and late in a run the learning rate is low.

    A policy without entropy does not move either: that is another problem.
    """
    moved, entropy = _recent(history, "approx_kl"), _recent(history, "entropy")
    is_early = history[-1].learning_rate >= 0.5 * history[0].learning_rate
    tries = entropy > 0.5 * _loss(history[0], "entropy")
    if not (moved < LEAST_KL and is_early and tries and _is_below_best(history)):
        return ""
    return f"updates hardly move the policy: KL {number(moved)}. Raise --learning-rate or --epochs"


def _much_is_clipped(history: Sequence[Update]) -> str:
    clipped = _recent(history, "clip_fraction")
    if not clipped > MOST_CLIPPED:
        return ""
    return (
        f"{clipped:.0%} of the samples are clipped, where 5% to 30% are usual: they teach the policy nothing "
        "more. Lower --learning-rate or --epochs"
    )


def _updates_end_early(history: Sequence[Update]) -> str:
    passes = median(update.passes for update in history[-RECENT:])
    if not passes < 1:
        return ""
    return (
        f"--target-kl ends updates after {passes:.0%} of the samples: the rest is not used. Lower "
        "--learning-rate"
    )


def _entropy_is_low(history: Sequence[Update]) -> str:
    """The entropy of continuous actions may pass 0. Far below it, actions have 1 % of their first deviation.

    A policy that is certain and as good as ever has not collapsed.
    """
    first, recent = _loss(history[0], "entropy"), [_loss(update, "entropy") for update in history[-RECENT:]]
    collapsed = all(0 <= entropy < 0.01 * first or entropy < -2 * first < 0 for entropy in recent)
    if not (collapsed and _is_below_best(history)):
        return ""
    return (
        f"entropy has collapsed from {number(first)} to {number(recent[-1])} and the return is below its "
        "best: the policy tries nothing new. Raise --entropy or lower --learning-rate"
    )


def _entropy_is_high(history: Sequence[Update]) -> str:
    """The entropy of discrete actions is at its highest where it begins; that of continuous ones may rise."""
    first, recent = _loss(history[0], "entropy"), _recent(history, "entropy")
    if first > 0 and recent > 1.5 * first and _is_below_best(history):
        return (
            f"entropy has risen from {number(first)} to {number(recent)} and the return is below its best: "
            "actions become noise. Lower --entropy"
        )
    part = history[-1].steps / history[-1].total_steps
    if first > 0 and part >= 0.3 and recent > 0.99 * first and not _is_above_middle(history):
        return (
            f"entropy is {number(recent)} after {part:.0%} of the steps, as high as at the beginning, and "
            "the return has not risen: the policy still acts at random. Lower --entropy or raise "
            "--learning-rate"
        )
    return ""


def _values_are_useless(history: Sequence[Update]) -> str:
    """If all returns are alike, there is little variance to explain, and small errors are no problem."""
    if len(history) < RECENT + LONG:
        return ""
    late = history[-LONG:]
    error = sum(_loss(update, "value") for update in late) / LONG
    largest = max(_loss(update, "value") for update in history)
    if not all(_loss(update, "explained_variance") < 0 for update in late) or error < 0.01 * largest:
        return ""
    return (
        f"explained variance has been below 0 for {LONG} updates: the value function predicts nothing. Raise "
        "--value-weight, or show the policy more of what returns depend on"
    )


def _threads_wait(history: Sequence[Update]) -> str:
    """Torch's threads wait for each other without sleeping: CPU time is missing only if others have it.

    Three updates after the first are enough, because updates may take long then.
    """
    recent, threads = history[1:][-RECENT:], history[-1].learning_threads
    if threads == 1 or len(recent) < 3:
        return ""
    share = median(update.learning_cpu for update in recent) / threads
    if not share < LEAST_CPU:
        return ""
    seconds = median(update.split.get("learn", math.nan) for update in recent)
    return (
        f"torch learns with {threads} threads, but they get only {share:.0%} of the CPU time of {threads} "
        f"cores, and an update takes {number(seconds)} s: other programs use the cores. One thread may be "
        "several times faster there: --torch-threads 1, also with --resume"
    )


def _learning_takes_long(history: Sequence[Update]) -> str:
    share = shares(history[-RECENT:]).get("learn", 0.0)
    if not share > 0.8:
        return ""
    fewer = (
        "fewer --epochs, a larger --minibatch-size"
        if "approx_kl" in history[-1].losses
        else "fewer --updates-per-step, a smaller --batch-size"
    )
    return (
        f"learning takes {share:.0%} of the time: more envs will not help; {fewer} or a smaller network "
        "(--hidden) would"
    )


def _envs_take_long(history: Sequence[Update]) -> str:
    share = shares(history[-RECENT:]).get("wait", 0.0)
    if not share > 0.8:
        return ""
    return f"waiting for envs takes {share:.0%} of the time: more --num-workers or compiled envs may help"


AT_ONCE: dict[str, Callable[[Sequence[Update]], str]] = {
    "no episodes": _no_episodes,
    "not finite": _not_finite,
    "threads wait": _threads_wait,
}
LATER: dict[str, Callable[[Sequence[Update]], str]] = {
    "entropy is low": _entropy_is_low,
    "entropy is high": _entropy_is_high,
    "policy moves far": _policy_moves_far,
    "policy hardly moves": _policy_hardly_moves,
    "much is clipped": _much_is_clipped,
    "updates end early": _updates_end_early,
    "values are useless": _values_are_useless,
    "learning takes long": _learning_takes_long,
    "envs take long": _envs_take_long,
}


# -- figures -------------------------------------------------------------------------------------------------


def _loss(update: Update, name: str) -> float:
    # Comparisons with NaN are false, so a missing loss causes no warning.
    return update.losses.get(name, math.nan)


def _recent(history: Sequence[Update], name: str) -> float:
    return median(_loss(update, name) for update in history[-RECENT:])


def _known_returns(history: Sequence[Update]) -> list[float]:
    return [update.mean_return for update in history if math.isfinite(update.mean_return)]


def _is_below_best(history: Sequence[Update]) -> bool:
    """Return whether the latest return is below the best by more than 5 % of the range, which is noise."""
    known = _known_returns(history)
    if not known:
        return False
    low, high = min(known), max(known)
    return known[-1] < high - 0.05 * (high - low)


def _is_above_middle(history: Sequence[Update]) -> bool:
    """Return whether the latest return is nearer the best than the worst; also if there is none."""
    known = _known_returns(history)
    return not known or known[-1] > (min(known) + max(known)) / 2


def shares(updates: Iterable[Update]) -> dict[str, float]:
    """Return the share of each hop in the sum of the times of all hops, because hops may overlap."""
    seconds: dict[str, float] = {}
    for update in updates:
        for hop, taken in update.split.items():
            seconds[hop] = seconds.get(hop, 0.0) + taken
    total = sum(seconds.values())
    return {hop: taken / total for hop, taken in seconds.items()} if total > 0 else {}
