// surrogate: PPO's loss of a minibatch, and its gradient by the policy's outputs, in one pass over the rows.
//
// Only for policies whose actions are choices: a row of outputs has a logit for each alternative of each choice, then
// the value. The computation is that of shoal/learn/losses.py. There, as many small operations of torch, it takes
// longer than the layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

struct Surrogate {
    std::size_t rows;
    const std::int64_t* sizes;  // alternatives of each choice
    std::size_t choices;
    float clip, clip_value, entropy, value_weight;

    struct Figures {
        double policy = 0, value = 0, entropy = 0, kl = 0, clipped = 0;
    };

    // numbers: old log-probability, advantage, return, old value. mask and weights may be null.
    Figures operator()(const float* outputs, const std::int64_t* actions, const float* numbers, const bool* mask,
                       const float* weights, float* gradient) const {
        std::size_t logits = 0;
        for (std::size_t i = 0; i < choices; ++i) logits += static_cast<std::size_t>(sizes[i]);
        double total = static_cast<double>(rows);
        if (weights) {
            total = 0;
            for (std::size_t row = 0; row < rows; ++row) total += weights[row];
            total = std::max(total, 1.0);
        }
        Figures sums;
        std::vector<float> log_probs(logits), entropies(choices);
        for (std::size_t row = 0; row < rows; ++row) {
            const float weight = weights ? weights[row] : 1.0f;
            const float* output = outputs + row * (logits + 1);
            float* to_output = gradient + row * (logits + 1);
            if (weight == 0) {
                std::fill(to_output, to_output + logits + 1, 0.0f);
                continue;
            }
            const bool* allowed = mask ? mask + row * logits : nullptr;
            const float log_prob = log_probability(output, actions + row * choices, allowed, log_probs, entropies);
            const float *number = numbers + row * 4, advantage = number[1], target = number[2];
            const float change = log_prob - number[0], ratio = std::exp(change);
            const float unclipped = advantage * ratio;
            const float clipped = advantage * std::min(std::max(ratio, 1 - clip), 1 + clip);
            const float share = weight / static_cast<float>(total);
            const float to_log_prob = unclipped <= clipped ? -unclipped * share : 0.0f;
            sums.policy -= weight * std::min(unclipped, clipped);
            sums.kl += weight * (ratio - 1 - change);
            sums.clipped += weight * (std::fabs(ratio - 1) > clip ? 1.0f : 0.0f);
            std::size_t logit = 0;
            for (std::size_t i = 0; i < choices; ++i) {
                sums.entropy += weight * entropies[i];
                const auto taken = static_cast<std::size_t>(actions[row * choices + i]);
                for (std::size_t j = 0; j < static_cast<std::size_t>(sizes[i]); ++j, ++logit) {
                    if (allowed && !allowed[logit]) {
                        to_output[logit] = 0;
                        continue;
                    }
                    const float prob = std::exp(log_probs[logit]);
                    to_output[logit] = to_log_prob * ((j == taken ? 1.0f : 0.0f) - prob) +
                                       entropy * share * prob * (log_probs[logit] + entropies[i]);
                }
            }
            float error = output[logits] - target, slope = error;
            if (clip_value > 0) {
                const float moved = output[logits] - number[3];
                const float clipped_error = number[3] + std::min(std::max(moved, -clip_value), clip_value) - target;
                if (clipped_error * clipped_error > error * error) {
                    error = clipped_error;
                    slope = std::fabs(moved) < clip_value ? clipped_error : 0.0f;
                }
            }
            sums.value += weight * 0.5f * error * error;
            to_output[logits] = 2 * value_weight * slope * share;
        }
        for (double* sum : {&sums.policy, &sums.value, &sums.entropy, &sums.kl, &sums.clipped}) *sum /= total;
        return sums;
    }

   private:
    // The log-probability of the actions that were taken. Also fills `log_probs`, and the entropy of each choice.
    float log_probability(const float* output, const std::int64_t* taken, const bool* allowed,
                          std::vector<float>& log_probs, std::vector<float>& entropies) const {
        float log_prob = 0;
        std::size_t first = 0;
        for (std::size_t i = 0; i < choices; ++i) {
            const auto size = static_cast<std::size_t>(sizes[i]);
            const auto logit = [&](std::size_t j) {
                return allowed && !allowed[first + j] ? -1e9f : output[first + j];  // as in shoal/learn/actions.py
            };
            float largest = logit(0), sum = 0;
            for (std::size_t j = 1; j < size; ++j) largest = std::max(largest, logit(j));
            for (std::size_t j = 0; j < size; ++j) sum += std::exp(logit(j) - largest);
            const float log_sum = largest + std::log(sum);
            float entropy_of_choice = 0;
            for (std::size_t j = 0; j < size; ++j) {
                log_probs[first + j] = logit(j) - log_sum;
                entropy_of_choice -= std::exp(log_probs[first + j]) * log_probs[first + j];
            }
            entropies[i] = entropy_of_choice;
            log_prob += log_probs[first + static_cast<std::size_t>(taken[i])];
            first += size;
        }
        return log_prob;
    }
};

}  // namespace shoal
