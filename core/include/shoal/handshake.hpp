// handshake: how the parent calls a worker and how the worker answers, over memory that both can see.
//
// Guarantees
//   - Each worker has two words, each on a cache line of its own: the parent counts calls up in `Call`, the worker
//     repeats the number in `Answer` when it is done. Nobody else writes them.
//   - What was written before a post is seen by whoever saw the post (release and acquire), so rows need no lock:
//     between call and answer they are the worker's, else the parent's.
//   - A wait has three phases: some pauses, then yielding the core, then parking on a futex. A post makes a system
//     call only if the other side is parked. No wake-up is lost: the waiter says that it parks and then looks
//     at the word again, the poster writes the word and then looks whether somebody parks, all in one total
//     order, so that at least one of them sees the other; and the kernel compares the word once more.
//   - A park has a limit, after which the caller looks around: for signals, dead peers, its deadline.
// Nothing in here knows Python; core/tests/handshake_test.cpp runs it on threads under ThreadSanitizer.
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

using Number = std::uint32_t;

static_assert(std::atomic<Number>::is_always_lock_free, "a futex is a plain word of 32 bits");
static_assert(sizeof(std::atomic<Number>) == sizeof(Number), "a futex is a plain word of 32 bits");

// Written by the parent, but for `worker_parks`.
struct alignas(cache_line) Call {
    std::atomic<Number> number;        // of calls posted so far
    std::uint32_t verb;                // of the last of them
    std::int32_t core;                 // to move to before it, plus one; 0: none
    std::atomic<Number> worker_parks;  // the worker sleeps until `number` changes
};

// Written by the worker, but for `parent_parks`.
struct alignas(cache_line) Answer {
    std::atomic<Number> number;        // of the last call that has been answered
    std::uint32_t outcome;             // of that call
    std::int32_t core;                 // on which it was worked
    std::uint64_t worked;              // nanoseconds from seeing that call to its answer
    std::atomic<std::uint64_t> waited; // nanoseconds without a call, all together; read at any time
    std::atomic<Number> parent_parks;  // the parent sleeps until `number` changes
};

// Written by the worker all the time, read by the parent only when something went wrong.
struct alignas(cache_line) Progress {
    std::int64_t env;  // that was last entered
    Number kept;       // the last call whose rows were copied before they were touched
};

struct Line {
    Call call;
    Answer answer;
    Progress progress;
};

// How long to wait in each phase, in turns. Counted, not timed: a yield that lets another process work for a
// millisecond costs nothing, and is no reason to go to sleep.
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
    asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; this one takes its time
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
// No futex: sleep a little longer each time, so that a busy wait is noticed soon and an idle one costs nothing.
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

inline bool changed(const std::atomic<Number>& word, Number old) {
    return word.load(std::memory_order_acquire) != old;
}

// What `answer.number` is until the last call is answered. Follows from the call, not from a look at the answer:
// whoever looks whether it has come, and then what to wait for, sleeps over one that comes in between.
inline Number unanswered(const Line& line) { return line.call.number.load(std::memory_order_relaxed) - 1; }

// The first two phases: true if the word has changed.
inline bool changes_soon(const std::atomic<Number>& word, Number old, Patience patience) {
    for (int turn = 0; turn < patience.pauses; ++turn) {
        if (changed(word, old)) return true;
        pause_core();
    }
    for (int turn = 0; turn < patience.yields; ++turn) {
        if (changed(word, old)) return true;
        sched_yield();
    }
    return changed(word, old);
}

// The third: sleeps until the word changes, a signal comes or the limit (in nanoseconds) is over.
inline bool changes_while_parked(std::atomic<Number>& word, Number old, std::atomic<Number>& parks,
                                 std::uint64_t limit) {
    parks.store(1, std::memory_order_seq_cst);
    if (word.load(std::memory_order_seq_cst) == old) detail::sleep_while(word, old, limit);
    parks.store(0, std::memory_order_relaxed);
    return changed(word, old);
}

inline void post(std::atomic<Number>& word, Number value) { word.store(value, std::memory_order_seq_cst); }

inline void wake_if_parked(std::atomic<Number>& word, const std::atomic<Number>& parks) {
    if (parks.load(std::memory_order_seq_cst)) detail::wake(word);
}

}  // namespace shoal
