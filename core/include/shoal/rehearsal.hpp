// rehearsal: measures what a vector step would take in this process and in workers, on this machine as busy as it is.
//
//   alone     one thread does the work of all envs
//   together  the caller does the parent's work and posts a step, each worker does its share, the caller waits for all
//
// The workers are threads here, but they wait, call and answer by the handshake of the processes (handshake.hpp). Both kinds take turns of some milliseconds, so that both meet the same load. The
// work is a loop of a fixed number of turns: a thread that is preempted, or shares its core, takes longer for it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/handshake.hpp"
#include "shoal/quiet_threads.hpp"
#include "shoal/seats.hpp"

namespace shoal {

// The work of one vector step, in nanoseconds.
struct StepCost {
    double alone;                // in one process
    double parent;               // in the process that has workers
    std::vector<double> shares;  // in each worker
};

class Rehearsal {
   public:
    Rehearsal(const StepCost& cost, Patience own, Patience theirs)
        : memory_(Office::nbytes(cost.shares.size(), 1) / cache_line + 1),
          office_(memory_.data(), cost.shares.size(), 1),
          own_(own),
          theirs_(theirs) {
        const double turn = nanoseconds_of_a_turn();
        const auto turns = [turn](double work) { return static_cast<std::uint64_t>(work / turn); };
        alone_ = turns(cost.alone);
        parent_ = turns(cost.parent);
        for (const double share : cost.shares) shares_.push_back(turns(share));
        // Of several steps: a thread that has slept is preferred by the scheduler, but not for long.
        length_of_a_turn_ = static_cast<std::uint64_t>(std::clamp(4 * cost.alone, 2e6, 40e6));
        could_gain_ = cost.parent + *std::max_element(cost.shares.begin(), cost.shares.end()) < 0.8 * cost.alone;
        new (&office_.bell()) Bell{};
        for (std::size_t worker = 0; worker < shares_.size(); ++worker) new (&office_.desk(worker)) Desk{};
        try {
            const QuietThreads quiet;
            for (std::size_t worker = 0; worker < shares_.size(); ++worker)
                threads_.emplace_back([this, worker] { serve(worker); });
        } catch (...) {
            end();
            throw;
        }
    }
    Rehearsal(const Rehearsal&) = delete;
    Rehearsal& operator=(const Rehearsal&) = delete;
    ~Rehearsal() { end(); }

    // Nanoseconds of a step, alone and together. Ends after so many seconds, or as soon as the ratio is known well
    // enough: one of the two is faster by a tenth for certain, or they are alike to a few hundredths.
    std::pair<double, double> run(double seconds) {
        Tally alone, together;
        Spread ratios;
        const std::uint64_t begun = nanoseconds_now();
        for (;;) {
            const double one = play(alone, [this] { work(alone_); });
            // Parked workers are woken by a first step that does not count: in a loop of steps they are awake.
            step_together();
            const double other = play(together, [this] { step_together(); });
            ratios.add(std::log(one / other));
            const double passed = static_cast<double>(nanoseconds_now() - begun);
            // Where workers could gain and do not, both may have been on one core for a while.
            const double least = could_gain_ && !ratios.favours_workers() ? 100e6 : 40e6;
            if ((passed > least && ratios.settled()) || passed > 1e9 * seconds) return {alone.mean(), alone.mean() / ratios.mean()};
        }
    }

   private:
    struct alignas(cache_line) Line {
        std::array<char, cache_line> bytes;
    };

    struct Tally {
        std::uint64_t nanoseconds = 0, steps = 0;
        double mean() const { return static_cast<double>(nanoseconds) / static_cast<double>(steps); }
    };

    // Logarithms of the ratio alone / together, one for each turn.
    class Spread {
       public:
        void add(double ratio) {
            sum_ += ratio;
            squares_ += ratio * ratio;
            ++count_;
        }
        // Whether the mean is surely beyond a tenth, or surely known to a few hundredths.
        bool settled() const {
            if (count_ < 4) return false;
            const double variance = std::max(0.0, squares_ / count_ - mean_log() * mean_log());
            const double error = std::sqrt(variance / (count_ - 1));
            return error < std::max(0.03, (std::abs(mean_log()) - tie) / 3);
        }
        bool favours_workers() const { return mean_log() > tie; }
        // Geometric: one turn that was preempted counts as one turn, however long it took.
        double mean() const { return std::exp(mean_log()); }

       private:
        double mean_log() const { return sum_ / count_; }
        static constexpr double tie = 0.1;
        double sum_ = 0, squares_ = 0;
        int count_ = 0;
    };

    // Repeat the step for one turn, and return its mean time.
    template <class Step>
    double play(Tally& tally, Step step) {
        Tally turn;
        const std::uint64_t begun = nanoseconds_now();
        for (; turn.nanoseconds < length_of_a_turn_; turn.nanoseconds = nanoseconds_now() - begun) {
            step();
            ++turn.steps;
        }
        tally.nanoseconds += turn.nanoseconds;
        tally.steps += turn.steps;
        return turn.mean();
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
        work(parent_);
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
        // The scheduler takes its time to spread new threads; old processes are spread already.
        if (const auto cores = allowed_cores(); !cores.empty()) move_to(cores[worker % cores.size()]);
        for (Number taken = 1;; ++taken) {
            await(office_.desk(worker).calls, taken, theirs_);
            if (ends_.load(std::memory_order_acquire)) return;
            work(shares_[worker]);
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
    std::uint64_t alone_ = 0, parent_ = 0;  // turns of the loop
    std::vector<std::uint64_t> shares_;     // of each worker's loop
    std::uint64_t length_of_a_turn_ = 0;  // nanoseconds
    bool could_gain_ = false;
    Number called_ = 0;
    std::atomic<bool> ends_{false};
    std::vector<std::thread> threads_;
};

}  // namespace shoal
