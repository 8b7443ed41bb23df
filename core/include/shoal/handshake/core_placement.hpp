// core_placement: decides which process of a process pool should move to another core.
//
// A scheduler tends to put a process that it wakes on the core of the process that woke it. It needs tens of
// milliseconds to see that another core is free, and until then every step takes as long as two. So the parent looks
// where each process has worked. If two share a core, it asks one of them to move to a core without a process of the
// pool.
//
// Guarantees
//   - A move is a hint: afterwards the process may run on any core again.
//   - A process moves only if it has shared its core for several steps in a row. It moves to a core that it may use and
//     on which no other process of the pool works.
//   - Processes move only while steps are short.
//   - A move may fail to make steps faster, because another program is busy on the new core. Then the next move comes
//     later, and the pauses between moves grow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <sched.h>

namespace shoal {

using Core = std::int32_t;

constexpr Core unknown_core = -1;

#if defined(__linux__)
inline Core core_here() { return sched_getcpu(); }

// The cores that this thread may use.
inline std::vector<Core> allowed_cores() {
    std::vector<Core> found;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
    for (Core core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) found.push_back(core);
    return found;
}

// Move this thread to a core, if it may use that core. Afterwards the scheduler may move it again.
inline void move_to(Core core) {
    cpu_set_t allowed, one;
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (!CPU_ISSET(core, &allowed)) return;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
inline Core core_here() { return unknown_core; }
inline std::vector<Core> allowed_cores() { return {}; }
inline void move_to(Core) {}
#endif

class CorePlacement {
   public:
    static constexpr int crowded_steps = 8;  // steps in a row on a shared core before a process moves
    static constexpr int trial_steps = 16;   // steps after a move that show whether it has helped
    static constexpr double longest_step = 500'000;  // nanoseconds; in longer steps the scheduler is fast enough
    static constexpr std::uint64_t shortest_rest = 2'000'000, longest_rest = 4'000'000'000;  // nanoseconds

    struct Move {
        std::size_t process;
        Core to;
    };

    explicit CorePlacement(std::vector<Core> allowed) : allowed_(std::move(allowed)) {}

    // Call this after each step. `cores`: where each process has worked; `took`: the duration of the step, and `now`:
    // the time, in nanoseconds. The first process never moves.
    std::optional<Move> after_step(const std::vector<Core>& cores, std::uint64_t took, std::uint64_t now) {
        if (tried_ < trial_steps) {
            mean_after_move_ += static_cast<double>(took) / trial_steps;
            const bool helps = mean_after_move_ < 0.9 * mean_when_crowded_;
            tried_ = helps ? tried_ + 1 : trial_steps;
            if (tried_ == trial_steps) {
                rest_ = helps ? shortest_rest : std::min(4 * rest_, longest_rest);
                next_move_ = now + rest_;
            }
            return std::nullopt;
        }
        const std::size_t process = sharer(cores);
        if (process == cores.size()) {
            crowded_ = 0;
            return std::nullopt;
        }
        const double weight = crowded_ ? 1.0 / crowded_steps : 1.0;  // the first crowded step sets the mean
        mean_when_crowded_ += weight * (static_cast<double>(took) - mean_when_crowded_);
        if (++crowded_ < crowded_steps || now < next_move_ || mean_when_crowded_ > longest_step) return std::nullopt;
        for (const Core core : allowed_) {
            if (std::find(cores.begin(), cores.end(), core) != cores.end()) continue;
            crowded_ = tried_ = 0;
            mean_after_move_ = 0;
            return Move{process, core};
        }
        return std::nullopt;
    }

   private:
    // The first process that shares its core with an earlier one; `cores.size()` if there is none.
    static std::size_t sharer(const std::vector<Core>& cores) {
        for (std::size_t process = 1; process < cores.size(); ++process) {
            const auto before = cores.begin() + static_cast<std::ptrdiff_t>(process);
            const Core core = cores[process];
            if (core != unknown_core && std::find(cores.begin(), before, core) != before) return process;
        }
        return cores.size();
    }

    std::vector<Core> allowed_;
    int crowded_ = 0;          // steps in a row in which processes shared a core
    int tried_ = trial_steps;  // steps since the last move, up to `trial_steps`
    double mean_when_crowded_ = 0, mean_after_move_ = 0;  // nanoseconds per step
    std::uint64_t rest_ = shortest_rest, next_move_ = 0;  // the pause after a move; the earliest time of the next
};

}  // namespace shoal
