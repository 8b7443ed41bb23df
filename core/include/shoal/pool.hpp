// pool: persistent threads that run a compiled kernel over envs.
//
//   Pool    all envs at once: the caller works too, and returns when all is done
//   Queue   blocks of envs, each by itself: the caller submits some and collects whichever are done
//
// Guarantees
//   - A kernel is called for ranges of envs that never overlap, each range once. What it returns is added up.
//   - What the caller wrote before `run` or `submit` is seen by the kernel; what the kernel wrote is seen by whoever
//     `run` returns to, or `collect`s the block.
//   - Only one thread calls `run`, `submit` and `collect`, and none of them from inside a kernel.
//   - A fork of the process has no threads of its pools: there, a pool can only be destroyed.
//   - Nothing is allocated after construction. Idle threads are parked, as in handshake.hpp, and use no time.
//   - Each thread of a Pool begins with its own share of the envs, the same each time, so that they stay in its
//     core's cache; whoever is done takes chunks of the others' shares. A thread that wakes late finds nothing to do.
// Nothing in here knows Python; core/tests/pool_test.cpp runs it under ThreadSanitizer.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/crash.hpp"
#include "shoal/handshake.hpp"
#include "shoal/quiet_threads.hpp"

namespace shoal {

// Does something to the envs from `first` up to but not including `last`.
using Kernel = std::int64_t (*)(const void* columns, std::int64_t verb, std::int64_t first, std::int64_t last);

struct Work {
    Kernel kernel = nullptr;
    const void* columns = nullptr;
    std::int64_t verb = 0;
    std::atomic<bool>* failed = nullptr;  // set if a result has not the bit that says that all is done
    const char* about = nullptr;          // what to say if the process dies of it

    static constexpr std::int64_t done = std::int64_t{1} << 62;

    std::int64_t operator()(std::int64_t first, std::int64_t last) const {
        const std::int64_t result = call(first, last);
        if (!failed) return result;
        if (!(result & done)) failed->store(true, std::memory_order_relaxed);
        return result & ~done;
    }

   private:
    std::int64_t call(std::int64_t first, std::int64_t last) const {
        const InsideKernel here(about);
        return kernel(columns, verb, first, last);
    }
};

// Waits for as long as it takes.
inline void await_bell(Bell& bell, Number number, Patience patience) {
    constexpr std::uint64_t second = 1'000'000'000;
    const Awaited awaited{number, 0};
    if (rings_soon(bell, awaited, patience)) return;
    while (!rings_while_parked(bell, awaited, second)) {
    }
}

inline void ring_and_wake(Bell& bell) { wake_if_parked(bell, ring(bell, 1)); }

// Threads that do their part whenever their bell rings, until they are gone.
class Threads {
   public:
    Threads(std::size_t count, Patience patience, std::function<void(std::size_t)> part)
        : count_(count), bells_(new Bell[count]()), patience_(patience), part_(std::move(part)) {
        try {
            const QuietThreads quiet;
            for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { live(i); });
        } catch (...) {  // the system has no more threads
            end();
            throw;
        }
    }
    ~Threads() { end(); }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    std::size_t count() const { return count_; }
    void call(std::size_t thread) { ring_and_wake(bells_[thread]); }

   private:
    void live(std::size_t thread) {
        AlternateStack::use();
        for (Number heard = 0;;) {
            await_bell(bells_[thread], heard + 1, patience_);
            heard = bells_[thread].number.load(std::memory_order_acquire);  // before looking for work
            if (ends_.load(std::memory_order_acquire)) return;
            part_(thread);
        }
    }
    void end() {
        if (getpid() != owner_) {
            // Neither joined nor detached, which would wait for them, or hit whoever has their memory now.
            new std::vector<std::thread>(std::move(threads_));
            return;
        }
        ends_.store(true, std::memory_order_release);
        for (std::size_t i = 0; i < threads_.size(); ++i) call(i);
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

    std::size_t count_;
    std::unique_ptr<Bell[]> bells_;
    Patience patience_;
    std::function<void(std::size_t)> part_;
    std::atomic<bool> ends_{false};
    pid_t owner_ = getpid();
    std::vector<std::thread> threads_;
};

class Pool {
   public:
    // `threads` counts the caller.
    Pool(std::size_t threads, Patience patience)
        : shares_(std::max<std::size_t>(threads, 1)),
          patience_(patience),
          helpers_(shares_.size() - 1, patience, [this](std::size_t helper) { help(helper + 1); }) {}

    // Over all envs, in so many chunks at most; returns the sum of what the kernel returned.
    std::int64_t run(const Work& work, std::int64_t envs, std::int64_t chunks) {
        const auto threads = static_cast<std::int64_t>(shares_.size());
        chunks = std::min({chunks, envs, most_chunks});
        if (threads == 1 || chunks < 2) return work(0, envs);
        // Whole cache lines of flags, so that no two threads write the same one.
        constexpr auto line = static_cast<std::int64_t>(cache_line);
        size_ = (envs + chunks - 1) / chunks;
        if (size_ > line) size_ = (size_ + line - 1) / line * line;
        chunks = (envs + size_ - 1) / size_;
        work_ = work;
        envs_ = envs;
        helped_.store(0, std::memory_order_relaxed);
        // Before the run can be seen: a helper that wakes late from the last one is in this one at once.
        const Number before = done_.number.load(std::memory_order_relaxed);
        const std::uint32_t number = number_.load(std::memory_order_relaxed) + 1;
        for (std::int64_t i = 0; i < threads; ++i)
            shares_[static_cast<std::size_t>(i)].store(
                Share{number, chunks * i / threads, chunks * (i + 1) / threads});
        number_.store(number, std::memory_order_release);
        for (std::size_t i = 0; i < helpers_.count() && static_cast<std::int64_t>(i) < chunks - 1; ++i) helpers_.call(i);
        const auto [mine, result] = do_part(0, number, false);
        const auto theirs = static_cast<Number>(chunks - mine);
        if (theirs) await_bell(done_, before + theirs, patience_);
        return result + helped_.load(std::memory_order_relaxed);
    }

    std::size_t threads() const { return shares_.size(); }

   private:
    static constexpr std::int64_t most_chunks = 4096;

    // The chunks of a run that are left of one thread's share, in one word: they are taken from the run that it is of,
    // or not at all. What else a run consists of is read by whoever has taken a chunk, and the run cannot end before.
    struct alignas(cache_line) Share {
        Share() = default;
        Share(std::uint32_t number, std::int64_t next, std::int64_t end)
            : word(static_cast<std::uint64_t>(number) << 32 | static_cast<std::uint64_t>(next) << 16 |
                   static_cast<std::uint64_t>(end)) {}
        void store(const Share& other) {
            word.store(other.word.load(std::memory_order_relaxed), std::memory_order_release);
        }
        std::int64_t take(std::uint32_t number) {
            std::uint64_t now = word.load(std::memory_order_acquire);
            for (;;) {
                const auto next = static_cast<std::int64_t>(now >> 16 & 0xffff), end = static_cast<std::int64_t>(now & 0xffff);
                if (now >> 32 != number || next >= end) return -1;
                if (word.compare_exchange_weak(now, now + (1 << 16), std::memory_order_acq_rel, std::memory_order_acquire))
                    return next;
            }
        }
        std::atomic<std::uint64_t> word{0};
    };

    std::pair<std::int64_t, std::int64_t> do_part(std::size_t thread, std::uint32_t number, bool tells) {
        std::int64_t count = 0, sum = 0;
        for (std::size_t turn = 0; turn < shares_.size(); ++turn) {
            Share& share = shares_[(thread + turn) % shares_.size()];
            for (std::int64_t chunk; (chunk = share.take(number)) >= 0; ++count) {
                const std::int64_t first = chunk * size_;
                const std::int64_t result = work_(first, std::min(first + size_, envs_));
                if (tells) {
                    helped_.fetch_add(result, std::memory_order_relaxed);
                    ring_and_wake(done_);
                } else {
                    sum += result;
                }
            }
        }
        return {count, sum};
    }
    void help(std::size_t thread) { do_part(thread, number_.load(std::memory_order_acquire), true); }

    std::vector<Share> shares_;
    std::atomic<std::uint32_t> number_{0};  // of the run
    Work work_;
    std::int64_t envs_ = 0, size_ = 1;
    std::atomic<std::int64_t> helped_{0};
    Bell done_{};  // rings for each chunk of a helper's
    Patience patience_;
    Threads helpers_;  // last: it ends first
};

class Queue {
   public:
    // Block i has the envs from ends[i - 1] (or 0) up to ends[i].
    Queue(std::size_t threads, Patience patience, Patience of_caller, Work work, std::vector<std::int64_t> ends)
        : work_(work),
          ends_(std::move(ends)),
          mask_(places_for(ends_.size()) - 1),
          verbs_(ends_.size()),
          results_(ends_.size()),
          waiting_(mask_ + 1),
          done_(mask_ + 1),
          patience_(of_caller),
          threads_(threads, patience, [this](std::size_t) { work_off(); }) {}

    // They must not be under way.
    void submit(const std::vector<std::uint32_t>& blocks, std::int64_t verb) {
        const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            verbs_[blocks[i]] = verb;
            waiting_[(tail + i) & mask_].store(blocks[i], std::memory_order_relaxed);
        }
        tail_.store(tail + static_cast<std::uint32_t>(blocks.size()), std::memory_order_release);
        for (std::size_t i = 0; i < threads_.count(); ++i) threads_.call(i);  // whoever is free: some may be busy for long
    }

    // The next one that is done, in that order, or -1.
    std::int64_t collect() {
        std::atomic<std::uint32_t>& place = done_[collected_ & mask_];
        const std::uint32_t block = place.load(std::memory_order_acquire);
        if (block == nothing) return -1;
        place.store(nothing, std::memory_order_relaxed);
        ++collected_;
        return block - 1;
    }

    // Wait for a block that has not been collected, at most so many nanoseconds.
    bool wait(std::uint64_t limit) {
        const Awaited awaited{collected_ + 1, 0};
        return rings_soon(bell_, awaited, patience_) || rings_while_parked(bell_, awaited, limit);
    }

    std::int64_t result(std::size_t block) const { return results_[block]; }
    std::size_t blocks() const { return ends_.size(); }

   private:
    static constexpr std::uint32_t nothing = 0;

    static std::uint32_t places_for(std::size_t blocks) {
        std::uint32_t places = 1;
        while (places < blocks) places *= 2;
        return places;
    }

    void work_off() {
        // Acquired: a head is never seen before the tail that it follows.
        std::uint32_t head = head_.load(std::memory_order_acquire);
        while (head != tail_.load(std::memory_order_acquire)) {
            const std::uint32_t block = waiting_[head & mask_].load(std::memory_order_relaxed);
            if (!head_.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            Work work = work_;
            work.verb = verbs_[block];
            results_[block] = work(block ? ends_[block - 1] : 0, ends_[block]);
            const std::uint32_t place = finished_.fetch_add(1, std::memory_order_acq_rel);
            done_[place & mask_].store(block + 1, std::memory_order_release);
            ring_and_wake(bell_);
            head = head_.load(std::memory_order_acquire);
        }
    }

    Work work_;
    std::vector<std::int64_t> ends_;
    std::uint32_t mask_;
    std::vector<std::int64_t> verbs_, results_;
    std::vector<std::atomic<std::uint32_t>> waiting_, done_;  // numbers of blocks; those done plus one
    alignas(cache_line) std::atomic<std::uint32_t> tail_{0};
    alignas(cache_line) std::atomic<std::uint32_t> head_{0};
    alignas(cache_line) std::atomic<std::uint32_t> finished_{0};
    Bell bell_{};  // rings for each
    std::uint32_t collected_ = 0;
    Patience patience_;
    Threads threads_;  // last: it ends first
};

}  // namespace shoal
