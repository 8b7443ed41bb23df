// handshake: how the parent calls workers and how they answer, over memory that all of them can see.
//
//   bell of the parent | desk of worker 0 | its ring of calls, of answers | desk of worker 1 | ...
//
// Guarantees
//   - A block of rows is called, and then answered, and then called again. The parent writes calls into the worker's
//     ring, each with the block and what to do, and rings the bell at its desk; the worker takes them in that order,
//     writes each answer into the other ring, and rings the parent's bell. A ring has room for a call to every block of
//     its worker, so it never overflows. Nobody else writes either.
//   - What was written before a bell rang is seen by whoever heard it (release and acquire), so rows need no lock:
//     between call and answer they are the worker's, else the parent's.
//   - A wait has three phases: some pauses, then yielding the core, then parking on a futex. Ringing makes a system
//     call only if the other side is parked, and has heard what it waits for. No wake-up is lost: the waiter says that
//     it parks and then looks at the number again, the ringer raises the number and then looks whether somebody parks,
//     all in one total order, so that at least one of them sees the other; and the kernel compares the number again.
//   - A park has a limit, after which the caller looks around: for signals, dead peers, its deadline.
// Nothing in here knows Python; core/tests/handshake_test.cpp runs it on threads under ThreadSanitizer, and
// tests/core/test_protocol.py walks through every interleaving of a model of it.
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

// Raised by one side (or several), waited for by the other.
struct alignas(cache_line) Bell {
    std::atomic<Number> number;  // how often it has rung
    std::atomic<Number> urgent;  // how often for something that must be heard at once
    std::atomic<Number> parks;   // somebody sleeps until it rings
    std::atomic<Number> wanted;  // the number that it waits for, meanwhile
};

struct Call {
    std::uint32_t block;  // counted by its worker
    std::uint32_t verb;
};

struct Answer {
    std::uint32_t block;
    std::uint32_t outcome;
    std::uint64_t worked;  // nanoseconds from taking the call to its answer
};

// What a worker and the parent share, beside rows and rings.
struct Desk {
    Bell calls;                            // rings for each
    std::atomic<std::int32_t> seat;        // the core to move to before the next, plus one; 0: none
    struct alignas(cache_line) {
        std::atomic<Number> number;        // of answers so far
        std::int32_t core;                 // on which the last was worked
        std::atomic<std::uint64_t> waited; // nanoseconds without a call, all together; read at any time
    } answers;
    // Written by the worker all the time, read by the parent only when something went wrong.
    struct alignas(cache_line) {
        std::int64_t env;  // that was last entered
        Number kept;       // the last call whose rows were copied before they were touched
    } progress;
};

// Where everything is, in memory that somebody else keeps mapped. All rings are equally long, a power of two: numbers
// begin again after the largest, and their places must go on in order.
class Office {
   public:
    Office(void* memory, std::size_t workers, std::size_t blocks)
        : memory_(static_cast<char*>(memory)), workers_(workers), places_(places_for(blocks)) {}

    // For so many workers, with so many blocks each at most.
    static std::size_t nbytes(std::size_t workers, std::size_t blocks) { return offset(workers, blocks); }
    static std::size_t offset(std::size_t worker, std::size_t blocks) {
        return sizeof(Bell) + worker * room(places_for(blocks));
    }

    std::size_t workers() const { return workers_; }
    Bell& bell() const { return *reinterpret_cast<Bell*>(memory_); }
    Desk& desk(std::size_t worker) const { return *reinterpret_cast<Desk*>(at(worker)); }
    Call& call(std::size_t worker, Number number) const {
        return reinterpret_cast<Call*>(at(worker) + sizeof(Desk))[number % places_];
    }
    Answer& answer(std::size_t worker, Number number) const {
        char* calls = at(worker) + sizeof(Desk);
        return reinterpret_cast<Answer*>(calls + padded(places_ * sizeof(Call)))[number % places_];
    }

   private:
    static std::size_t places_for(std::size_t blocks) {
        std::size_t places = 1;
        while (places < blocks) places *= 2;
        return places;
    }
    static std::size_t padded(std::size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }
    static std::size_t room(std::size_t places) {
        return sizeof(Desk) + padded(places * sizeof(Call)) + padded(places * sizeof(Answer));
    }
    char* at(std::size_t worker) const { return memory_ + sizeof(Bell) + worker * room(places_); }

    char* memory_;
    std::size_t workers_, places_;
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

// Numbers begin again after the largest.
inline bool reached(Number number, Number wanted) { return static_cast<std::int32_t>(number - wanted) >= 0; }

// What the waiter has heard before it waits, and waits for.
struct Awaited {
    Number number;
    Number urgent;  // as it was
};

inline bool has_rung(const Bell& bell, Awaited awaited) {
    return reached(bell.number.load(std::memory_order_acquire), awaited.number) ||
           bell.urgent.load(std::memory_order_acquire) != awaited.urgent;
}

// The first two phases: true if it has rung.
inline bool rings_soon(const Bell& bell, Awaited awaited, Patience patience) {
    for (int turn = 0; turn < patience.pauses; ++turn) {
        if (has_rung(bell, awaited)) return true;
        pause_core();
    }
    for (int turn = 0; turn < patience.yields; ++turn) {
        if (has_rung(bell, awaited)) return true;
        sched_yield();
    }
    return has_rung(bell, awaited);
}

// The third: sleeps until it rings, a signal comes or the limit (in nanoseconds) is over.
inline bool rings_while_parked(Bell& bell, Awaited awaited, std::uint64_t limit) {
    bell.wanted.store(awaited.number, std::memory_order_relaxed);
    bell.parks.store(1, std::memory_order_seq_cst);
    const Number number = bell.number.load(std::memory_order_seq_cst);
    if (!reached(number, awaited.number) && bell.urgent.load(std::memory_order_acquire) == awaited.urgent)
        detail::sleep_while(bell.number, number, limit);
    bell.parks.store(0, std::memory_order_relaxed);
    return has_rung(bell, awaited);
}

// Raise the number by so many; `wake_if_parked` is still to be called.
inline Number ring(Bell& bell, Number times, bool urgent = false) {
    // First, and released: whoever sees it sees what it is about, and whoever sees the number sees it too.
    if (urgent) bell.urgent.fetch_add(1, std::memory_order_release);
    return bell.number.fetch_add(times, std::memory_order_seq_cst) + times;
}

inline void wake_if_parked(Bell& bell, Number number, bool urgent = false) {
    if (bell.parks.load(std::memory_order_seq_cst) &&
        (urgent || reached(number, bell.wanted.load(std::memory_order_relaxed))))
        detail::wake(bell.number);
}

}  // namespace shoal
