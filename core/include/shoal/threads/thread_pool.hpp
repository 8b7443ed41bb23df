// thread_pool: persistent threads that run a compiled kernel on envs.
//
//   ThreadPool   runs all envs at once: the caller works too, and returns when all envs are done
//   BlockQueue   runs blocks of envs independently: the caller submits some, and collects those that are done
//
// Guarantees
//   - The kernel is called for ranges of envs that never overlap, and once for each range. Its results are added up.
//   - The kernel sees everything that the caller wrote before `run` or `submit`. The caller sees everything that the
//     kernel wrote after `run` returns, or after it has collected the block.
//   - Only one thread calls `run`, `submit` and `collect`. No kernel calls them.
//   - A forked child has none of the threads. There, a ThreadPool or BlockQueue can only be destroyed.
//   - Nothing is allocated after construction. Idle threads are parked, as in handshake.hpp, and use no CPU time.
//   - Each thread of a ThreadPool begins with its own share of the envs, the same in every run, so that they stay in
//     the cache of its core. A thread that has finished its share takes chunks of the others' shares. So a thread that
//     wakes late finds no work, and delays nothing.
// This header does not use Python. core/tests/thread_pool_test.cpp runs it under ThreadSanitizer.
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

#include "shoal/threads/crash.hpp"
#include "shoal/handshake/handshake.hpp"
#include "shoal/threads/masked_signals.hpp"

namespace shoal {

// A compiled function that handles the envs from `first` up to but not including `last`.
using Kernel = std::int64_t (*)(const void* columns, std::int64_t verb, std::int64_t first, std::int64_t last);

struct Work {
    Kernel kernel = nullptr;
    const void* columns = nullptr;
    std::int64_t verb = 0;
    std::atomic<bool>* failed = nullptr;  // set if a result lacks the bit `done`: the kernel raised
    const char* about = nullptr;          // what to print if the process crashes in the kernel

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

// Wait until the doorbell reaches `number`, without a limit.
inline void await_doorbell(Doorbell& doorbell, Number number, Patience patience) {
    constexpr std::uint64_t second = 1'000'000'000;
    const WaitTarget target{number, 0};
    if (spin_until_rung(doorbell, target, patience)) return;
    while (!park_until_rung(doorbell, target, second)) {
    }
}

inline void ring_and_wake(Doorbell& doorbell) { wake_if_parked(doorbell, ring(doorbell, 1)); }

// Threads that run a task whenever their doorbell rings, until this object is destroyed.
class HelperThreads {
   public:
    HelperThreads(std::size_t count, Patience patience, std::function<void(std::size_t)> task)
        : count_(count), doorbells_(new Doorbell[count]()), patience_(patience), task_(std::move(task)) {
        try {
            const MaskedSignals masked;
            for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {  // the system has no more threads
            end();
            throw;
        }
    }
    ~HelperThreads() { end(); }
    HelperThreads(const HelperThreads&) = delete;
    HelperThreads& operator=(const HelperThreads&) = delete;

    std::size_t count() const { return count_; }
    void call(std::size_t thread) { ring_and_wake(doorbells_[thread]); }

   private:
    void serve(std::size_t thread) {
        AlternateStack::use();
        for (Number seen = 0;;) {
            await_doorbell(doorbells_[thread], seen + 1, patience_);
            seen = doorbells_[thread].number.load(std::memory_order_acquire);  // before looking for work
            if (closing_.load(std::memory_order_acquire)) return;
            task_(thread);
        }
    }
    void end() {
        if (getpid() != process_) {
            // A forked child: the threads do not exist here. To join them would block, and to detach them could write
            // to memory that is in use again. So their objects are leaked.
            new std::vector<std::thread>(std::move(threads_));
            return;
        }
        closing_.store(true, std::memory_order_release);
        for (std::size_t i = 0; i < threads_.size(); ++i) call(i);
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

    std::size_t count_;
    std::unique_ptr<Doorbell[]> doorbells_;
    Patience patience_;
    std::function<void(std::size_t)> task_;
    std::atomic<bool> closing_{false};
    pid_t process_ = getpid();  // the process that has the threads
    std::vector<std::thread> threads_;
};

class ThreadPool {
   public:
    // `threads` counts the caller.
    ThreadPool(std::size_t threads, Patience patience)
        : shares_(std::max<std::size_t>(threads, 1)),
          patience_(patience),
          helpers_(shares_.size() - 1, patience, [this](std::size_t helper) { help(helper + 1); }) {}

    // Run the kernel on all envs, in at most `chunks` chunks. Returns the sum of its results.
    std::int64_t run(const Work& work, std::int64_t envs, std::int64_t chunks) {
        const auto threads = static_cast<std::int64_t>(shares_.size());
        chunks = std::min({chunks, envs, max_chunks});
        if (threads == 1 || chunks < 2) return work(0, envs);
        // A chunk covers whole cache lines of flags (one byte per env), so that no two threads write to the same line.
        constexpr auto line = static_cast<std::int64_t>(cache_line);
        chunk_size_ = (envs + chunks - 1) / chunks;
        if (chunk_size_ > line) chunk_size_ = (chunk_size_ + line - 1) / line * line;
        chunks = (envs + chunk_size_ - 1) / chunk_size_;
        work_ = work;
        envs_ = envs;
        helpers_result_.store(0, std::memory_order_relaxed);
        // Read this before helpers can see the run: a helper that woke late for the last run may join this one at once.
        const Number before = chunk_done_.number.load(std::memory_order_relaxed);
        const std::uint32_t number = run_number_.load(std::memory_order_relaxed) + 1;
        for (std::int64_t i = 0; i < threads; ++i)
            shares_[static_cast<std::size_t>(i)].store(
                Share{number, chunks * i / threads, chunks * (i + 1) / threads});
        run_number_.store(number, std::memory_order_release);
        const std::size_t needed = std::min(helpers_.count(), static_cast<std::size_t>(chunks - 1));
        for (std::size_t i = 0; i < needed; ++i) helpers_.call(i);
        const auto [mine, result] = run_chunks(0, number, false);
        const auto theirs = static_cast<Number>(chunks - mine);
        if (theirs) await_doorbell(chunk_done_, before + theirs, patience_);
        return result + helpers_result_.load(std::memory_order_relaxed);
    }

    std::size_t threads() const { return shares_.size(); }

   private:
    static constexpr std::int64_t max_chunks = 4096;

    // The chunks that are left of one thread's share, together with the number of the run, in one word. So a thread
    // takes a chunk of the run that it means, or none. A thread reads the other members of a run only after it has
    // taken a chunk, and the run cannot end before that chunk is done.
    struct alignas(cache_line) Share {
        Share() = default;
        Share(std::uint32_t number, std::int64_t next, std::int64_t end)
            : word(static_cast<std::uint64_t>(number) << 32 | static_cast<std::uint64_t>(next) << 16 |
                   static_cast<std::uint64_t>(end)) {}
        void store(const Share& other) {
            word.store(other.word.load(std::memory_order_relaxed), std::memory_order_release);
        }
        // The next chunk of this run, or -1.
        std::int64_t take(std::uint32_t number) {
            std::uint64_t now = word.load(std::memory_order_acquire);
            for (;;) {
                const auto next = static_cast<std::int64_t>(now >> 16 & 0xffff);
                const auto end = static_cast<std::int64_t>(now & 0xffff);
                if (now >> 32 != number || next >= end) return -1;
                if (word.compare_exchange_weak(now, now + (1 << 16), std::memory_order_acq_rel,
                                               std::memory_order_acquire))
                    return next;
            }
        }
        std::atomic<std::uint64_t> word{0};
    };

    // Run chunks until none are left. Returns (number of chunks, sum of results); a helper also reports each chunk.
    std::pair<std::int64_t, std::int64_t> run_chunks(std::size_t thread, std::uint32_t number, bool is_helper) {
        std::int64_t count = 0, sum = 0;
        for (std::size_t turn = 0; turn < shares_.size(); ++turn) {
            Share& share = shares_[(thread + turn) % shares_.size()];
            for (std::int64_t chunk; (chunk = share.take(number)) >= 0; ++count) {
                const std::int64_t first = chunk * chunk_size_;
                const std::int64_t result = work_(first, std::min(first + chunk_size_, envs_));
                if (is_helper) {
                    helpers_result_.fetch_add(result, std::memory_order_relaxed);
                    ring_and_wake(chunk_done_);
                } else {
                    sum += result;
                }
            }
        }
        return {count, sum};
    }
    void help(std::size_t thread) { run_chunks(thread, run_number_.load(std::memory_order_acquire), true); }

    std::vector<Share> shares_;
    std::atomic<std::uint32_t> run_number_{0};
    Work work_;
    std::int64_t envs_ = 0, chunk_size_ = 1;
    std::atomic<std::int64_t> helpers_result_{0};  // the sum of the helpers' results
    Doorbell chunk_done_{};  // rings for each chunk that a helper has done
    Patience patience_;
    HelperThreads helpers_;  // the last member, so that its threads end first
};

class BlockQueue {
   public:
    // Block i has the envs from ends[i - 1] (or 0) up to ends[i].
    BlockQueue(std::size_t threads, Patience patience, Patience of_caller, Work work, std::vector<std::int64_t> ends)
        : work_(work),
          ends_(std::move(ends)),
          mask_(entries_for(ends_.size()) - 1),
          verbs_(ends_.size()),
          results_(ends_.size()),
          submitted_(mask_ + 1),
          done_(mask_ + 1),
          patience_(of_caller),
          threads_(threads, patience, [this](std::size_t) { run_submitted(); }) {}

    // Queue these blocks, which must be idle.
    void submit(const std::vector<std::uint32_t>& blocks, std::int64_t verb) {
        const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            verbs_[blocks[i]] = verb;
            submitted_[(tail + i) & mask_].store(blocks[i], std::memory_order_relaxed);
        }
        tail_.store(tail + static_cast<std::uint32_t>(blocks.size()), std::memory_order_release);
        // Wake all threads: some may be busy for long.
        for (std::size_t i = 0; i < threads_.count(); ++i) threads_.call(i);
    }

    // The next block that is done, in the order in which they were done; -1 if there is none.
    std::int64_t collect() {
        std::atomic<std::uint32_t>& entry = done_[num_collected_ & mask_];
        const std::uint32_t block = entry.load(std::memory_order_acquire);
        if (block == nothing) return -1;
        entry.store(nothing, std::memory_order_relaxed);
        ++num_collected_;
        return block - 1;
    }

    // Wait for a block to collect, for at most `limit` nanoseconds. Returns whether there is one.
    bool wait(std::uint64_t limit) {
        const WaitTarget target{num_collected_ + 1, 0};
        return spin_until_rung(block_done_, target, patience_) || park_until_rung(block_done_, target, limit);
    }

    std::int64_t result(std::size_t block) const { return results_[block]; }
    std::size_t blocks() const { return ends_.size(); }

   private:
    static constexpr std::uint32_t nothing = 0;

    static std::uint32_t entries_for(std::size_t blocks) {
        std::uint32_t entries = 1;
        while (entries < blocks) entries *= 2;
        return entries;
    }

    void run_submitted() {
        // With acquire: a thread that sees a head also sees the tail that was there before it.
        std::uint32_t head = head_.load(std::memory_order_acquire);
        while (head != tail_.load(std::memory_order_acquire)) {
            const std::uint32_t block = submitted_[head & mask_].load(std::memory_order_relaxed);
            if (!head_.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            Work work = work_;
            work.verb = verbs_[block];
            results_[block] = work(block ? ends_[block - 1] : 0, ends_[block]);
            const std::uint32_t entry = num_done_.fetch_add(1, std::memory_order_acq_rel);
            done_[entry & mask_].store(block + 1, std::memory_order_release);
            ring_and_wake(block_done_);
            head = head_.load(std::memory_order_acquire);
        }
    }

    Work work_;
    std::vector<std::int64_t> ends_;
    std::uint32_t mask_;
    std::vector<std::int64_t> verbs_, results_;
    std::vector<std::atomic<std::uint32_t>> submitted_, done_;  // ring buffers of blocks; in `done_`, plus one
    alignas(cache_line) std::atomic<std::uint32_t> tail_{0};
    alignas(cache_line) std::atomic<std::uint32_t> head_{0};
    alignas(cache_line) std::atomic<std::uint32_t> num_done_{0};
    Doorbell block_done_{};  // rings for each block that is done
    std::uint32_t num_collected_ = 0;
    Patience patience_;
    HelperThreads threads_;  // the last member, so that its threads end first
};

}  // namespace shoal
