// handshake: the parent calls workers, and workers answer, through shared memory.
//
//   parent's doorbell | slot of worker 0 | its ring buffers of calls and answers | slot of worker 1 | ...
//
// Guarantees
//   - A block of rows is called, then answered, then called again. The parent writes a call (block and verb) into the
//     worker's ring buffer of calls, and rings the worker's doorbell. The worker takes calls in that order. It writes
//     each answer into its ring buffer of answers, and rings the parent's doorbell. Only the parent writes calls, and
//     only the worker writes answers. A ring buffer has an entry for every block of its worker, so it never overflows.
//   - A waiter that sees a ring also sees everything that was written before the ring (release and acquire). So rows
//     need no lock: the worker owns them from call to answer, and the parent owns them otherwise.
//   - A wait has three phases: pauses, then yielding the core, then parking on a futex. A ring makes a system call only
//     if the waiter is parked, and its target is reached.
//   - No wake-up is lost. The waiter sets `parked`, and then reads the number again. The ringer raises the number, and
//     then reads `parked`. All four are in one total order, so at least one side sees the other. The kernel compares
//     the number once more before it puts the waiter to sleep.
//   - A park has a limit. After it, the caller checks for signals, dead processes and its own timeout.
// This header does not use Python. core/tests/handshake_test.cpp runs it on threads under ThreadSanitizer, and
// tests/core/test_protocol.py tries every interleaving of a model of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include <sched.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace shoal {

constexpr std::size_t cache_line = 64;

using Number = std::uint32_t;  // a sequence number: it counts up and wraps around

static_assert(std::atomic<Number>::is_always_lock_free, "a futex is a plain word of 32 bits");
static_assert(sizeof(std::atomic<Number>) == sizeof(Number), "a futex is a plain word of 32 bits");

// One side (or several) rings it, and one other side waits for it.
struct alignas(cache_line) Doorbell {
    std::atomic<Number> number;  // the number of rings
    std::atomic<Number> urgent;  // the number of urgent rings, which end any wait at once
    std::atomic<Number> parked;  // 1 while the waiter is parked
    std::atomic<Number> wanted;  // the number of rings for which the parked waiter waits
};

struct Call {
    std::uint32_t block;  // its index among the worker's blocks
    std::uint32_t verb;
};

struct Answer {
    std::uint32_t block;
    std::uint32_t outcome;
    std::uint64_t worked;  // nanoseconds from taking the call to answering it
};

// What a worker and the parent share, besides rows and ring buffers.
struct WorkerSlot {
    Doorbell calls;                          // rings once per call
    std::atomic<std::int32_t> move_to_core;  // the core to move to before the next call, plus one; 0: do not move
    struct alignas(cache_line) {
        std::atomic<Number> number;         // the number of answers
        std::int32_t core;                  // where the worker gave the last answer
        std::atomic<std::uint64_t> waited;  // total nanoseconds without a call; the parent may read it at any time
    } answers;
    // The worker writes this all the time. The parent reads it only after a failure.
    struct alignas(cache_line) {
        std::int64_t env;  // the env that was entered last
        Number kept;       // the last call for which the rows were copied before they were written
    } progress;
};

// Finds doorbells, slots and ring buffers in shared memory, which the caller keeps mapped. All ring buffers have the
// same number of entries, a power of two: it divides the range of Number, so that entries stay in order when numbers
// wrap around.
class HandshakeMemory {
   public:
    HandshakeMemory(void* memory, std::size_t workers, std::size_t blocks)
        : memory_(static_cast<char*>(memory)), workers_(workers), entries_(entries_for(blocks)) {}

    // The bytes for `workers` workers with at most `blocks` blocks each.
    static std::size_t nbytes(std::size_t workers, std::size_t blocks) { return offset(workers, blocks); }
    // Where the slot of a worker begins.
    static std::size_t offset(std::size_t worker, std::size_t blocks) {
        return sizeof(Doorbell) + worker * slot_nbytes(entries_for(blocks));
    }

    std::size_t workers() const { return workers_; }
    Doorbell& parent_doorbell() const { return *reinterpret_cast<Doorbell*>(memory_); }
    WorkerSlot& slot(std::size_t worker) const { return *reinterpret_cast<WorkerSlot*>(at(worker)); }
    Call& call(std::size_t worker, Number number) const {
        return reinterpret_cast<Call*>(at(worker) + sizeof(WorkerSlot))[number % entries_];
    }
    Answer& answer(std::size_t worker, Number number) const {
        char* calls = at(worker) + sizeof(WorkerSlot);
        return reinterpret_cast<Answer*>(calls + padded(entries_ * sizeof(Call)))[number % entries_];
    }

   private:
    static std::size_t entries_for(std::size_t blocks) {
        std::size_t entries = 1;
        while (entries < blocks) entries *= 2;
        return entries;
    }
    static std::size_t padded(std::size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }
    static std::size_t slot_nbytes(std::size_t entries) {
        return sizeof(WorkerSlot) + padded(entries * sizeof(Call)) + padded(entries * sizeof(Answer));
    }
    char* at(std::size_t worker) const { return memory_ + sizeof(Doorbell) + worker * slot_nbytes(entries_); }

    char* memory_;
    std::size_t workers_, entries_;
};

// How many times a waiter pauses, and then yields, before it parks. Counted, not timed: a yield that lets another
// process work for a millisecond costs nothing, and is no reason to park.
struct Patience {
    int pauses = 0;
    int yields = 0;
};

inline std::uint64_t nanoseconds_now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; `isb` is not
#endif
}

namespace detail {

#if defined(__linux__)
// Not FUTEX_PRIVATE: the two sides are different processes.
inline long futex(std::atomic<Number>& word, int operation, Number value, const timespec* limit) {
    return syscall(SYS_futex, reinterpret_cast<Number*>(&word), operation, value, limit, nullptr, 0);
}
inline void sleep_while(std::atomic<Number>& word, Number old, std::uint64_t limit) {
    const timespec time{static_cast<time_t>(limit / 1000000000), static_cast<long>(limit % 1000000000)};
    futex(word, FUTEX_WAIT, old, &time);
}
inline void wake(std::atomic<Number>& word) { futex(word, FUTEX_WAKE, 1, nullptr); }
#else
// Without a futex, sleep a little longer each time: a short wait ends soon, and a long wait costs almost no CPU time.
inline void sleep_while(std::atomic<Number>& word, Number old, std::uint64_t limit) {
    std::uint64_t slept = 0;
    for (std::uint64_t nap = 20000; slept < limit && word.load(std::memory_order_acquire) == old;
         nap = std::min<std::uint64_t>(2 * nap, 2000000)) {
        const timespec time{0, static_cast<long>(nap)};
        if (nanosleep(&time, nullptr) != 0) return;  // a signal
        slept += nap;
    }
}
inline void wake(std::atomic<Number>&) {}
#endif

}  // namespace detail

// Whether `number` is `wanted` or later. Numbers wrap around.
inline bool reached(Number number, Number wanted) { return static_cast<std::int32_t>(number - wanted) >= 0; }

// When a wait ends: the doorbell reaches `number`, or `urgent` changes.
struct WaitTarget {
    Number number;
    Number urgent;  // the number of urgent rings that the waiter has seen
};

inline bool has_rung(const Doorbell& doorbell, WaitTarget target) {
    return reached(doorbell.number.load(std::memory_order_acquire), target.number) ||
           doorbell.urgent.load(std::memory_order_acquire) != target.urgent;
}

// Wait in the first two phases, awake. Returns whether the target is reached.
inline bool spin_until_rung(const Doorbell& doorbell, WaitTarget target, Patience patience) {
    for (int turn = 0; turn < patience.pauses; ++turn) {
        if (has_rung(doorbell, target)) return true;
        pause_core();
    }
    for (int turn = 0; turn < patience.yields; ++turn) {
        if (has_rung(doorbell, target)) return true;
        sched_yield();
    }
    return has_rung(doorbell, target);
}

// Wait in the third phase, asleep: until the target, a signal, a spurious wake-up or the limit (in nanoseconds).
// Returns whether the target is reached.
inline bool park_until_rung(Doorbell& doorbell, WaitTarget target, std::uint64_t limit) {
    doorbell.wanted.store(target.number, std::memory_order_relaxed);
    doorbell.parked.store(1, std::memory_order_seq_cst);
    const Number number = doorbell.number.load(std::memory_order_seq_cst);
    if (!reached(number, target.number) && doorbell.urgent.load(std::memory_order_acquire) == target.urgent)
        detail::sleep_while(doorbell.number, number, limit);
    doorbell.parked.store(0, std::memory_order_relaxed);
    return has_rung(doorbell, target);
}

// Raise the number by `times`, and return it. The caller must then call `wake_if_parked`.
inline Number ring(Doorbell& doorbell, Number times, bool urgent = false) {
    // Before the number, and with release: a waiter that sees the new number also sees the new count of urgent rings.
    // A waiter that sees that count also sees everything that was written before it.
    if (urgent) doorbell.urgent.fetch_add(1, std::memory_order_release);
    return doorbell.number.fetch_add(times, std::memory_order_seq_cst) + times;
}

// Wake the waiter, if it is parked and its target is reached.
inline void wake_if_parked(Doorbell& doorbell, Number number, bool urgent = false) {
    if (doorbell.parked.load(std::memory_order_seq_cst) &&
        (urgent || reached(number, doorbell.wanted.load(std::memory_order_relaxed))))
        detail::wake(doorbell.number);
}

}  // namespace shoal
