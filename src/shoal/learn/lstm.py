"""An LSTM, a step at a time and over whole sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """One layer of torch's own. Acting it takes a step, learning whole sequences, with the same numbers.

    A state is [2, rows, width]: what the layer gives out, and what it keeps to itself.

    Args:
        inputs: Numbers that come in.
        width: Numbers that go out.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.LSTM(inputs, width)
        for name, parameter in self.layer.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def step(self, inputs: Tensor, state: Tensor) -> Tensor:
        """The next state; its first half is the output. Without gradients."""
        width = self.width
        of_input, of_state, bias, other_bias = (parameter.data for parameter in self.layer.parameters())
        # Written out: torch prepares its weights anew for each sequence, however short.
        gates = torch.addmm(bias + other_bias, inputs, of_input.t()).addmm_(state[0], of_state.t())
        gates[:, 2 * width : 3 * width] *= 2  # tanh(x) = 2 sigmoid(2 x) - 1, which is faster
        gates.sigmoid_()
        enter, stay, content, leave = torch.split(gates, width, 1)
        after = torch.empty_like(state)
        kept = torch.mul(stay, state[1], out=after[1]).addcmul_(enter, content.mul(2).sub_(1))
        torch.mul(leave, torch.sigmoid(kept + kept).mul_(2).sub_(1), out=after[0])
        return after

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Outputs of sequences, [steps, rows, inputs], that begin with these states."""
        outputs: Tensor = self.layer(inputs, (state[:1].contiguous(), state[1:].contiguous()))[0]
        return outputs
