"""An LSTM over columns of experience in which episodes may begin at any step.

The core computes it in one pass forwards and one backwards, because torch's own layer cannot reset its state
inside a sequence. Without the core, or on a device other than the CPU, it consists of small torch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoal import _core


class LSTM(nn.Module):
    """One LSTM layer. One step at a time, as in acting, gives the same results as whole columns in learning.

    A state is [2, rows, width]: the outputs (hidden state) and the cell state.

    Args:
        inputs: Number of inputs.
        width: Number of outputs.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width, self.threads = width, 1
        self._spare: list[Tensor] = []  # memory of a finished pass, reused by the next one
        # Maps outputs, inputs and a 1 (bias) to input gate, forget gate, cell candidate and output gate.
        self.weights = nn.Parameter(torch.zeros(width + inputs + 1, 4 * width))
        with torch.no_grad():
            nn.init.orthogonal_(self.weights[:width])
            nn.init.orthogonal_(self.weights[width:-1])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without the spare memory."""
        return {**self.__dict__, "_spare": []}

    def forward(
        self, inputs: Tensor, starts: Tensor, state: Tensor, *, in_core: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the outputs of columns, [steps, rows, width], and the state after them.

        Gradients do not flow through states.

        Args:
            inputs: Inputs, [steps, rows, inputs].
            starts: True where an episode begins and the state is reset to 0, [steps, rows].
            state: State before the first step.
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
        outputs, after = _LSTMInCore.apply(inputs, starts, state, self.weights, self.threads, self._spare)  # type: ignore[no-untyped-call]
        return outputs, after


def _by_torch(inputs: Tensor, starts: Tensor, state: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    (hidden, cell), outputs = state, []
    for inputs_now, starts_now in zip(inputs, starts, strict=True):
        hidden, cell = hidden.masked_fill(starts_now[:, None], 0), cell.masked_fill(starts_now[:, None], 0)
        gates = torch.addmm(weights[-1], torch.cat([hidden, inputs_now], 1), weights[:-1])
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        hidden = output_gate.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), torch.stack([hidden, cell]).detach()


def _forward(
    inputs: Tensor, starts: Tensor, state: Tensor, weights: Tensor, threads: int, spare: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Run the forward pass in the core.

    Returns the outputs, the state after them, the memory used, and the arrays in it for the backward pass.
    """
    from shoal._core._native import lstm_forward

    (steps, rows, _), width = inputs.shape, state.shape[-1]
    after = state.clone(memory_format=torch.contiguous_format)
    outputs = inputs.new_empty(steps, rows, width)
    widths = 4 * width, len(weights), width
    size = steps * rows * sum(widths)
    try:
        memory = spare.pop()
    except IndexError:  # the first pass, or another thread uses the memory
        memory = inputs.new_empty(size)
    if len(memory) < size:
        memory = inputs.new_empty(size)
    parts = torch.split(memory[:size], [steps * rows * n for n in widths])
    gates, factors, cells = (part.view(steps, rows, n).numpy() for part, n in zip(parts, widths, strict=True))
    arrays = starts.contiguous().numpy(), weights.detach().numpy(), gates, factors, cells
    given = inputs.detach().contiguous().numpy()
    lstm_forward(given, *arrays, outputs.numpy(), after.numpy(), threads)
    return outputs, after, memory, arrays


class _LSTMInCore(torch.autograd.Function):
    """Forward and backward pass in the core."""

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
        ctx.arrays = None  # the backward pass overwrites the gates with their gradients
        weights_grad = torch.empty_like(weights)
        given = grads[0].contiguous().numpy()
        lstm_backward(given, *arrays, weights_grad.numpy(), ctx.threads)  # type: ignore[call-arg]
        inputs_grad = None
        if ctx.needs_input_grad[0]:
            inputs_grad = torch.from_numpy(arrays[2]) @ weights[given.shape[-1] : -1].t()
        ctx.spare[:] = [ctx.memory]
        ctx.memory = None
        return inputs_grad, None, None, weights_grad, None, None
