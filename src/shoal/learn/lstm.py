"""An LSTM over rollouts in which episodes begin and end."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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
        """The next state; its first half is the output."""
        _, (output, kept) = self.layer(inputs[None], (state[:1].contiguous(), state[1:].contiguous()))
        return torch.cat([output, kept])

    def forward(self, inputs: Tensor, starts: Tensor, state: Tensor) -> Tensor:
        """Outputs of whole sequences.

        torch's layer cannot forget on the way, so each column is cut where episodes begin, and the pieces are
        laid beside each other.

        Args:
            inputs: [steps, rows, inputs].
            starts: [steps, rows]: an episode begins here, with a state of zeros.
            state: Before the first step.
        """
        steps, rows = starts.shape
        first, lengths, column = pieces(starts.cpu().numpy())
        if len(first) == rows:  # no cuts
            state = state * (~starts[0])[None, :, None]
            outputs: Tensor = self.layer(inputs, (state[:1].contiguous(), state[1:].contiguous()))[0]
            return outputs
        longest = int(lengths.max())
        # The entry of each place; beyond the end of its piece, the last one of it.
        place = np.minimum(np.arange(longest)[:, None], lengths - 1)
        entries = torch.from_numpy((first + place) * rows + column).to(inputs.device)
        carried = torch.from_numpy(column).to(inputs.device)
        goes_on = torch.from_numpy(first == 0).to(inputs.device) & ~starts[0][carried]
        begun = state[:, carried] * goes_on[None, :, None]
        laid = inputs.reshape(steps * rows, -1)[entries.reshape(-1)].reshape(longest, len(first), -1)
        found = self.layer(laid, (begun[:1].contiguous(), begun[1:].contiguous()))[0]
        # Back to where each entry was.
        inside = torch.from_numpy(np.arange(longest)[:, None] < lengths).to(inputs.device)
        back = torch.empty(steps * rows, dtype=torch.int64, device=inputs.device)
        back[entries[inside]] = torch.arange(longest * len(first), device=inputs.device).reshape(
            entries.shape
        )[inside]
        outputs = found.reshape(longest * len(first), -1)[back]
        return outputs.reshape(steps, rows, -1)


def pieces(starts: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Columns cut where an episode begins: the first step, the length and the column of each piece."""
    cuts = starts.T.copy()
    cuts[:, 0] = True
    column, first = np.nonzero(cuts)
    ends = np.append(first[1:], 0)
    last_of_column = np.append(column[1:] != column[:-1], True)
    lengths = np.where(last_of_column, len(starts), ends) - first
    return first, lengths, column
