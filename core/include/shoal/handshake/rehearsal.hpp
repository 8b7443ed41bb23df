// rehearsal: measures how long a vector step would take in one process and with workers, under the machine's current
// load.
//
//   alone     one thread does the work of all envs
//   together  the caller does the parent's work and posts a step, each worker does its share, the caller waits for all
//
// The workers are threads here, but they wait, call and answer through the handshake of the processes (handshake.hpp).
// The two ways alternate in slices of some milliseconds, so that both meet the same load. The work is a loop with a
// fixed number of iterations: a thread that is preempted, or shares its core, takes longer for it.
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

#include "shoal/handshake/handshake.hpp"
#include "shoal/threads/masked_signals.hpp"
#include "shoal/handshake/core_placement.hpp"

namespace shoal {

// The work of one vector step, in nanoseconds.
struct StepCost {
    double alone;                // in one process
    double parent;               // in the process that has workers
    std::vector<double> shares;  // in each worker
};

class Rehearsal {
   public:
    Rehearsal(const StepCost& cost, Patience of_parent, Patience of_workers)
        : memory_(HandshakeMemory::nbytes(cost.shares.size(), 1) / cache_line + 1),
          handshake_(memory_.data(), cost.shares.size(), 1),
          parent_patience_(of_parent),
          worker_patience_(of_workers) {
        const double iteration = nanoseconds_per_iteration();
        const auto iterations = [iteration](double work) { return static_cast<std::uint64_t>(work / iteration); };
        alone_ = iterations(cost.alone);
        parent_ = iterations(cost.parent);
        for (const double share : cost.shares) shares_.push_back(iterations(share));
        // A slice has several steps: the scheduler prefers a thread that has slept, but not for long.
        slice_nanoseconds_ = static_cast<std::uint64_t>(std::clamp(4 * cost.alone, 2e6, 40e6));
        const double slowest_worker = *std::max_element(cost.shares.begin(), cost.shares.end());
        workers_could_gain_ = cost.parent + slowest_worker < 0.8 * cost.alone;
        new (&handshake_.parent_doorbell()) Doorbell{};
        for (std::size_t worker = 0; worker < shares_.size(); ++worker) new (&handshake_.slot(worker)) WorkerSlot{};
        try {
            const MaskedSignals masked;
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

    // Returns the nanoseconds of a step, alone and together. Ends after `seconds`, or as soon as the ratio is known
    // well enough: one of the two is surely faster by 10 %, or the ratio is known to a few percent.
    std::pair<double, double> run(double seconds) {
        Tally alone, together;
        LogRatios ratios;
        const std::uint64_t begun = nanoseconds_now();
        for (;;) {
            const double time_alone = measure(alone, [this] { work(alone_); });
            // A first step wakes parked workers, and does not count: in a loop of steps, workers are awake. It also
            // spreads them over cores, which the parent of real workers does whenever two share one.
            spreading_.store(true, std::memory_order_relaxed);
            step_together();
            spreading_.store(false, std::memory_order_relaxed);
            const double time_together = measure(together, [this] { step_together(); });
            ratios.add(std::log(time_alone / time_together));
            const double passed = static_cast<double>(nanoseconds_now() - begun);
            // If workers could be faster and are not, two threads may have shared a core for a while. Measure longer.
            const double least = workers_could_gain_ && !ratios.favours_workers() ? 100e6 : 40e6;
            if ((passed > least && ratios.is_settled()) || passed > 1e9 * seconds)
                return {alone.mean(), alone.mean() / ratios.mean()};
        }
    }

   private:
    struct alignas(cache_line) CacheLine {
        std::array<char, cache_line> bytes;
    };

    struct Tally {
        std::uint64_t nanoseconds = 0, steps = 0;
        double mean() const { return static_cast<double>(nanoseconds) / static_cast<double>(steps); }
    };

    // Logarithms of the ratio alone / together, one for each pair of slices.
    class LogRatios {
       public:
        void add(double ratio) {
            sum_ += ratio;
            squares_ += ratio * ratio;
            ++count_;
        }
        // Whether the mean surely differs by more than 10 %, or is known to a few percent.
        bool is_settled() const {
            if (count_ < 4) return false;
            const double variance = std::max(0.0, squares_ / count_ - mean_log() * mean_log());
            const double error = std::sqrt(variance / (count_ - 1));
            return error < std::max(0.03, (std::abs(mean_log()) - tie) / 3);
        }
        bool favours_workers() const { return mean_log() > tie; }
        // The geometric mean: a slice that was preempted counts as one slice, however long it took.
        double mean() const { return std::exp(mean_log()); }

       private:
        double mean_log() const { return sum_ / count_; }
        static constexpr double tie = 0.1;
        double sum_ = 0, squares_ = 0;
        int count_ = 0;
    };

    // Repeat the step for one slice. Returns the mean time of a step.
    template <class Step>
    double measure(Tally& tally, Step step) {
        Tally slice;
        const std::uint64_t begun = nanoseconds_now();
        for (; slice.nanoseconds < slice_nanoseconds_; slice.nanoseconds = nanoseconds_now() - begun) {
            step();
            ++slice.steps;
        }
        tally.nanoseconds += slice.nanoseconds;
        tally.steps += slice.steps;
        return slice.mean();
    }

    static void work(std::uint64_t iterations) {
        std::uint64_t number = iterations;
        for (std::uint64_t i = 0; i < iterations; ++i) {
            number = number * 6364136223846793005u + 1442695040888963407u;
            asm volatile("" : "+r"(number));  // keeps the compiler from removing the loop
        }
    }

    // Measured in CPU time of this thread, which stops while another thread has the core.
    static double nanoseconds_per_iteration() {
        constexpr std::uint64_t iterations = 100'000;
        double least = 1e9;
        for (int trial = 0; trial < 3; ++trial) {
            const std::uint64_t begun = thread_nanoseconds();
            work(iterations);
            least = std::min(least, static_cast<double>(thread_nanoseconds() - begun));
        }
        return std::max(least, 1.0) / iterations;
    }
    static std::uint64_t thread_nanoseconds() {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
    }

    void step_together() {
        work(parent_);
        call_all();
        await(handshake_.parent_doorbell(), num_calls_ * static_cast<Number>(threads_.size()), parent_patience_);
    }
    void call_all() {
        ++num_calls_;
        for (std::size_t worker = 0; worker < threads_.size(); ++worker) ring(handshake_.slot(worker).calls, 1);
        for (std::size_t worker = 0; worker < threads_.size(); ++worker)
            wake_if_parked(handshake_.slot(worker).calls, num_calls_);
    }
    void serve(std::size_t worker) {
        const auto cores = allowed_cores();
        for (Number taken = 1;; ++taken) {
            await(handshake_.slot(worker).calls, taken, worker_patience_);
            if (closing_.load(std::memory_order_acquire)) return;
            if (spreading_.load(std::memory_order_relaxed) && !cores.empty()) move_to(cores[worker % cores.size()]);
            work(shares_[worker]);
            wake_if_parked(handshake_.parent_doorbell(), ring(handshake_.parent_doorbell(), 1));
        }
    }
    static void await(Doorbell& doorbell, Number number, Patience patience) {
        const WaitTarget target{number, 0};
        while (!spin_until_rung(doorbell, target, patience) && !park_until_rung(doorbell, target, 50'000'000)) {
        }
    }

    void end() {
        closing_.store(true, std::memory_order_release);
        call_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

    std::vector<CacheLine> memory_;
    HandshakeMemory handshake_;
    Patience parent_patience_, worker_patience_;
    std::uint64_t alone_ = 0, parent_ = 0;  // iterations of the loop: of all work alone, and of the parent's work
    std::vector<std::uint64_t> shares_;     // iterations of each worker
    std::uint64_t slice_nanoseconds_ = 0;
    bool workers_could_gain_ = false;
    Number num_calls_ = 0;
    std::atomic<bool> spreading_{false}, closing_{false};
    std::vector<std::thread> threads_;
};

}  // namespace shoal
