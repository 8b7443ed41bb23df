// advantage: generalised advantage estimation (GAE) over columns of transitions, backwards in time.
//
// An entry is what a row did and saw at one step. There are three kinds:
//   acts      the row had an action to choose: a transition, which gets an advantage
//   waits     the row had none, but its rewards count: they belong to its last action, undiscounted
//   neither   the row was being reset, or its agent is gone: no transition. Its value is the value of the last
//             observation of the previous episode, with which a truncated episode is bootstrapped
// This is the only place where terminated and truncated meet: after a terminated transition there is no future, and
// after a truncated one there is a value but no advantage.
#pragma once

#include <cstddef>
#include <vector>

namespace shoal {

struct Advantage {
    std::size_t steps, columns;  // the shape of the arrays
    const float *rewards, *values, *last_values;
    const bool *terminations, *truncations, *acts, *carries;  // carries: the entry was followed by a transition
    float gamma, lambda;

    void operator()(float* advantages) const {
        struct Later {
            float value, advantage;  // of the next entry that acts
            float reward;            // the sum over the entries that wait before it
        };
        std::vector<Later> later(columns);
        for (std::size_t column = 0; column < columns; ++column) later[column] = {last_values[column], 0, 0};
        for (std::size_t step = steps; step-- > 0;) {
            const std::size_t first = step * columns;
            for (std::size_t column = 0; column < columns; ++column) {
                const std::size_t entry = first + column;
                Later& next = later[column];
                advantages[entry] = 0;
                if (!acts[entry] && !carries[entry]) {
                    next = {values[entry], 0, 0};
                    continue;
                }
                if (terminations[entry])
                    next = {0, 0, 0};
                else if (truncations[entry])
                    next = {step + 1 < steps ? values[entry + columns] : last_values[column], 0, 0};
                if (!acts[entry]) {
                    next.reward += rewards[entry];
                    continue;
                }
                const float delta = rewards[entry] + next.reward + gamma * next.value - values[entry];
                advantages[entry] = delta + gamma * lambda * next.advantage;
                next = {values[entry], advantages[entry], 0};
            }
        }
    }
};

}  // namespace shoal
