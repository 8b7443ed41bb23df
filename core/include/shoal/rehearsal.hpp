// rehearsal: measures what a vector step would take in this process and in workers, on this machine as busy as it is.
//
//   alone     one thread does the work of all envs
//   together  the caller posts a step, each worker does its share, the caller waits for all
//
// The workers are threads here, but they wait, call and answer by the handshake of the processes (handshake.hpp), and to
// the scheduler the two are the same. Both kinds take turns of some milliseconds, so that both meet the same load. The
// work is a loop of a fixed number of turns: a thread that is preempted, or shares its core, takes longer for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/handshake.hpp"

namespace shoal {

class Rehearsal {
   public:
    // `shares`: nanoseconds of work for each worker in a step.
    Rehearsal(const std::vector<double>& shares, Patience own, Patience theirs)
        : memory_(Office::nbytes(shares.size(), 1) / cache_line + 1),
          office_(memory_.data(), shares.size(), 1),
          own_(own),
          theirs_(theirs) {
        const double turn = nanoseconds_of_a_turn();
        for (const double share : shares) turns_.push_back(static_cast<std::uint64_t>(share / turn));
        new (&office_.bell()) Bell{};
        for (std::size_t worker = 0; worker < shares.size(); ++worker) new (&office_.desk(worker)) Desk{};
        try {
            for (std::size_t worker = 0; worker < shares.size(); ++worker)
                threads_.emplace_back([this, worker] { serve(worker); });
        } catch (...) {
            end();
            throw;
        }
    }
    Rehearsal(const Rehearsal&) = delete;
    Rehearsal& operator=(const Rehearsal&) = delete;
    ~Rehearsal() { end(); }

    // Nanoseconds of a step, alone and together. Ends after so many seconds, or as soon as one is clearly faster.
    std::pair<double, double> run(double seconds) {
        Tally alone, together;
        const std::uint64_t begun = nanoseconds_now();
        for (int turn = 1;; ++turn) {
            play(alone, [this] { work(std::accumulate(turns_.begin(), turns_.end(), std::uint64_t{0})); });
            // Parked workers are woken by a first step that does not count: in a loop of steps they are awake.
            step_together();
            play(together, [this] { step_together(); });
            const double ratio = alone.mean() / together.mean();
            const bool clear = turn >= fewest_turns && (ratio > clear_ratio || ratio * clear_ratio < 1);
            if (clear || static_cast<double>(nanoseconds_now() - begun) > 1e9 * seconds)
                return {alone.mean(), together.mean()};
        }
    }

   private:
    static constexpr std::uint64_t length_of_a_turn = 2'000'000;  // nanoseconds
    static constexpr int fewest_turns = 6;
    static constexpr double clear_ratio = 1.5;

    struct alignas(cache_line) Line {
        std::array<char, cache_line> bytes;
    };

    struct Tally {
        std::uint64_t nanoseconds = 0, steps = 0;
        double mean() const { return static_cast<double>(nanoseconds) / static_cast<double>(steps); }
    };

    template <class Step>
    static void play(Tally& tally, Step step) {
        const std::uint64_t begun = nanoseconds_now();
        std::uint64_t now = begun;
        for (; now - begun < length_of_a_turn; now = nanoseconds_now()) {
            step();
            ++tally.steps;
        }
        tally.nanoseconds += now - begun;
    }

    static void work(std::uint64_t turns) {
        std::uint64_t number = turns;
        for (std::uint64_t turn = 0; turn < turns; ++turn) {
            number = number * 6364136223846793005u + 1442695040888963407u;
            asm volatile("" : "+r"(number));  // so that the loop is not computed away
        }
    }

    // By the time of this thread, which does not go on while another has the core.
    static double nanoseconds_of_a_turn() {
        constexpr std::uint64_t turns = 100'000;
        double least = 1e9;
        for (int trial = 0; trial < 3; ++trial) {
            const std::uint64_t begun = thread_nanoseconds();
            work(turns);
            least = std::min(least, static_cast<double>(thread_nanoseconds() - begun));
        }
        return std::max(least, 1.0) / turns;
    }
    static std::uint64_t thread_nanoseconds() {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
    }

    void step_together() {
        call_all();
        await(office_.bell(), called_ * static_cast<Number>(threads_.size()), own_);
    }
    void call_all() {
        ++called_;
        for (std::size_t worker = 0; worker < threads_.size(); ++worker) ring(office_.desk(worker).calls, 1);
        for (std::size_t worker = 0; worker < threads_.size(); ++worker)
            wake_if_parked(office_.desk(worker).calls, called_);
    }
    void serve(std::size_t worker) {
        for (Number taken = 1;; ++taken) {
            await(office_.desk(worker).calls, taken, theirs_);
            if (ends_.load(std::memory_order_acquire)) return;
            work(turns_[worker]);
            wake_if_parked(office_.bell(), ring(office_.bell(), 1));
        }
    }
    static void await(Bell& bell, Number number, Patience patience) {
        const Awaited awaited{number, 0};
        while (!rings_soon(bell, awaited, patience) && !rings_while_parked(bell, awaited, 50'000'000)) {
        }
    }

    void end() {
        ends_.store(true, std::memory_order_release);
        call_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

    std::vector<Line> memory_;
    Office office_;
    Patience own_, theirs_;
    std::vector<std::uint64_t> turns_;  // of each worker's loop
    Number called_ = 0;
    std::atomic<bool> ends_{false};
    std::vector<std::thread> threads_;
};

}  // namespace shoal
