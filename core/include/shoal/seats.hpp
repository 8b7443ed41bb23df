// Seats: who of a pool works on which core, while there is one for each.
//
// A scheduler likes to put a process that it wakes beside the one that woke it, and needs tens of milliseconds to see
// that another core is free. Meanwhile every step takes as long as two. So the parent looks where everybody has
// worked, and asks one of two that share a core to go where nobody of the pool is.
//
// Guarantees
//   - A hint, not a rule: whoever has moved may run anywhere again.
//   - Only who shares a core for several steps in a row moves, to a core that it may use and that nobody else of the
//     pool is on.
//   - Only while steps are short.
//   - A move that does not make steps faster, because a stranger is busy there, is tried again ever more seldom.
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

// The cores this thread may use.
inline std::vector<Core> allowed_cores() {
    std::vector<Core> found;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
    for (Core core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) found.push_back(core);
    return found;
}

// Go there, if this thread may, and be free to leave.
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

class Seats {
   public:
    static constexpr int row = 8;     // steps to see whether it is crowded
    static constexpr int trial = 16;  // and whether a move has helped
    static constexpr double longest_step = 500'000;  // nanoseconds; with longer ones the scheduler keeps up
    static constexpr std::uint64_t shortest_rest = 2'000'000, longest_rest = 4'000'000'000;  // nanoseconds

    struct Move {
        std::size_t who;
        Core to;
    };

    explicit Seats(std::vector<Core> allowed) : allowed_(std::move(allowed)) {}

    // After a step: where everybody has worked, how long it took, and the time, in nanoseconds. Who comes first stays.
    std::optional<Move> after_step(const std::vector<Core>& cores, std::uint64_t took, std::uint64_t now) {
        if (tried_ < trial) {
            mean_of_trial_ += static_cast<double>(took) / trial;
            const bool helps = mean_of_trial_ < 0.9 * mean_of_row_;
            tried_ = helps ? tried_ + 1 : trial;
            if (tried_ == trial) {
                rest_ = helps ? shortest_rest : std::min(4 * rest_, longest_rest);
                next_ = now + rest_;
            }
            return std::nullopt;
        }
        const std::size_t who = sharer(cores);
        if (who == cores.size()) {
            crowded_ = 0;
            return std::nullopt;
        }
        const double pace = crowded_ ? 1.0 / row : 1.0;  // the first step of a row counts whole
        mean_of_row_ += pace * (static_cast<double>(took) - mean_of_row_);
        if (++crowded_ < row || now < next_ || mean_of_row_ > longest_step) return std::nullopt;
        for (const Core core : allowed_) {
            if (std::find(cores.begin(), cores.end(), core) != cores.end()) continue;
            crowded_ = tried_ = 0;
            mean_of_trial_ = 0;
            return Move{who, core};
        }
        return std::nullopt;
    }

   private:
    // The first that is where somebody before it is, or their number.
    static std::size_t sharer(const std::vector<Core>& cores) {
        for (std::size_t who = 1; who < cores.size(); ++who) {
            const auto before = cores.begin() + static_cast<std::ptrdiff_t>(who);
            if (cores[who] != unknown_core && std::find(cores.begin(), before, cores[who]) != before) return who;
        }
        return cores.size();
    }

    std::vector<Core> allowed_;
    int crowded_ = 0;       // steps in a row
    int tried_ = trial;     // steps since the last move, up to `trial`
    double mean_of_row_ = 0, mean_of_trial_ = 0;  // nanoseconds per step
    std::uint64_t rest_ = shortest_rest, next_ = 0;
};

}  // namespace shoal
