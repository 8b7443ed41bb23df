"""An LSTM over columns of experience, in which episodes begin anywhere.

It is computed in the core, in one pass forwards and one backwards, because torch's own layer cannot forget on
its way. Without the core, or on another device than the CPU, it is small operations of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoal import _core


class LSTM(nn.Module):
    """One layer. Acting it takes a step, learning whole columns, with the same numbers.

    A state is [2, rows, width]: what the layer gives out, and what it keeps to itself.

    Args:
        inputs: Numbers that come in.
        width: Numbers that go out.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width, self.threads = width, 1
        self._spare: list[Tensor] = []  # memory of a pass that is over: the next need not ask the system
        # From a state, an input and a 1 to four gates: what enters, what stays, its content, what leaves.
        self.weights = nn.Parameter(torch.zeros(width + inputs + 1, 4 * width))
        with torch.no_grad():
            nn.init.orthogonal_(self.weights[:width])
            nn.init.orthogonal_(self.weights[width:-1])

    def __getstate__(self) -> dict[str, Any]:
        """Without the spare memory, for copies and pickles."""
        return {**self.__dict__, "_spare": []}

    def forward(
        self, inputs: Tensor, starts: Tensor, state: Tensor, *, in_core: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs of columns, [steps, rows, width], and the state after them. States carry no gradient.

        Args:
            inputs: [steps, rows, inputs].
            starts: [steps, rows]: where episodes begin; there the layer forgets.
            state: Before the first step.
            in_core: Whether the core computes it; by default if it can.
        """
        if in_core is None:
            suits = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and self.width % 16 == 0
            in_core = _core.NAME == "native" and suits
        state = state.detach()
        if not in_core:
            return _by_torch(inputs, starts, state, self.weights)
        if not torch.is_grad_enabled():
            outputs, after, memory, _ = _forward(
                inputs, starts, state, self.weights, self.threads, self._spare
            )
            self._spare[:] = [memory]
            return outputs, after
        outputs, after = _InCore.apply(inputs, starts, state, self.weights, self.threads, self._spare)  # type: ignore[no-untyped-call]
        return outputs, after


def _by_torch(inputs: Tensor, starts: Tensor, state: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    (seen, kept), outputs = state, []
    for numbers, begins in zip(inputs, starts, strict=True):
        seen, kept = seen.masked_fill(begins[:, None], 0), kept.masked_fill(begins[:, None], 0)
        gates = torch.addmm(weights[-1], torch.cat([seen, numbers], 1), weights[:-1])
        enter, stay, content, leave = gates.chunk(4, 1)
        kept = stay.sigmoid() * kept + enter.sigmoid() * content.tanh()
        seen = leave.sigmoid() * kept.tanh()
        outputs.append(seen)
    return torch.stack(outputs), torch.stack([seen, kept]).detach()


def _forward(
    inputs: Tensor, starts: Tensor, state: Tensor, weights: Tensor, threads: int, spare: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """In the core: outputs, the state after them, the memory that it was done in, and what is there."""
    from shoal._core._native import lstm_forward

    (steps, rows, _), width = inputs.shape, state.shape[-1]
    after = state.clone(memory_format=torch.contiguous_format)
    outputs = inputs.new_empty(steps, rows, width)
    widths = 4 * width, len(weights), width
    size = steps * rows * sum(widths)
    try:
        memory = spare.pop()
    except IndexError:  # none yet, or another thread has it
        memory = inputs.new_empty(size)
    if len(memory) < size:
        memory = inputs.new_empty(size)
    parts = torch.split(memory[:size], [steps * rows * n for n in widths])
    gates, factors, cells = (part.view(steps, rows, n).numpy() for part, n in zip(parts, widths, strict=True))
    arrays = starts.contiguous().numpy(), weights.detach().numpy(), gates, factors, cells
    given = inputs.detach().contiguous().numpy()
    lstm_forward(given, *arrays, outputs.numpy(), after.numpy(), threads)
    return outputs, after, memory, arrays


class _InCore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        starts: Tensor,
        state: Tensor,
        weights: Tensor,
        threads: int,
        spare: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        outputs, after, ctx.memory, ctx.arrays = _forward(inputs, starts, state, weights, threads, spare)
        ctx.spare, ctx.threads = spare, threads
        ctx.save_for_backward(weights)
        ctx.mark_non_differentiable(after)
        return outputs, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from shoal._core._native import lstm_backward

        (weights,), arrays = ctx.saved_tensors, ctx.arrays
        if arrays is None:
            raise RuntimeError("LSTM: expected one backward pass for each forward pass, got another")
        ctx.arrays = None  # gates are written over by the gradient by them
        to_weights = torch.empty_like(weights)
        given = grads[0].contiguous().numpy()
        lstm_backward(given, *arrays, to_weights.numpy(), ctx.threads)  # type: ignore[call-arg]
        to_inputs = None
        if ctx.needs_input_grad[0]:
            to_inputs = torch.from_numpy(arrays[2]) @ weights[given.shape[-1] : -1].t()
        ctx.spare[:] = [ctx.memory]
        ctx.memory = None
        return to_inputs, None, None, to_weights, None, None
