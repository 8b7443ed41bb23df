// Tests of the handshake, between threads instead of processes so that ThreadSanitizer sees both sides. Run them with
// `make test-tsan`.
//
// First single operations, then a parent and its workers, which call, ring and wait as ParentSignals and WorkerSignals
// do. Only the handshake orders the threads: counters are per thread, and loads that look at the other side are
// relaxed. The rows are plain memory, so a ring that does not publish them is a race.
//
// The program ends at the first failure, because after a lost wake-up no later result can be trusted.
#if !defined(__linux__)
#error "This test watches the futex calls, which only Linux has."
#endif

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <linux/futex.h>

// The futex calls of one thread.
struct KernelCalls {
    int sleeps = 0;
    int timeouts = 0;
    int wakes = 0;
    std::function<void(int)> before_call;  // runs after the handshake has read the number, and before the kernel does
};
thread_local KernelCalls kernel_calls;

static long watched_syscall(long number, std::uint32_t* word, int operation, std::uint32_t value,
                            const timespec* limit, std::nullptr_t, int) {
    if (kernel_calls.before_call) kernel_calls.before_call(operation);
    const long result = syscall(number, word, operation, value, limit, nullptr, 0);
    if (operation == FUTEX_WAIT) {
        ++kernel_calls.sleeps;
        if (result != 0 && errno == ETIMEDOUT) ++kernel_calls.timeouts;
    } else {
        ++kernel_calls.wakes;
    }
    return result;
}

// Everything that declares `syscall` is included above, so the macro changes only the calls in the header.
#define syscall watched_syscall
#include "shoal/handshake/handshake.hpp"
#undef syscall
#include "shoal/handshake/core_placement.hpp"

namespace {

using shoal::Doorbell;
using shoal::HandshakeMemory;
using shoal::Number;
using shoal::Patience;
using shoal::WaitTarget;
using shoal::WorkerSlot;
using Word = std::atomic<Number>;
using Random = std::minstd_rand;

constexpr Number last_number = std::numeric_limits<Number>::max();  // the next number is 0

constexpr std::uint64_t long_limit = 5'000'000'000;  // nanoseconds; a wait reaches it only if a wake-up was lost
constexpr std::uint64_t short_limit = 20'000'000;    // nanoseconds
constexpr unsigned whole_run = 300;  // seconds; reached only if a thread hangs without parking

int passed = 0;
std::string running;  // written only while there is one thread

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "handshake: %s: %s\n", running.c_str(), what.c_str());
    std::printf("handshake: %d passed, 1 failed\n", passed);
    std::fflush(stdout);
    std::_Exit(1);
}

void check(bool holds, const char* what) {
    if (!holds) fail(what);
}

template <class Value, class Other>
void check_equal(Value value, Other expected, const char* what) {
    if (value != static_cast<Value>(expected))
        fail(std::string(what) + ": expected " + std::to_string(expected) + ", got " + std::to_string(value));
}

void test(const std::string& name, const std::function<void()>& body) {
    running = name;
    kernel_calls = KernelCalls{};
    body();
    ++passed;
}

// --- Single operations --------------------------------------------------------------------------------------------

Doorbell doorbell_at(Number number) { return Doorbell{{number}, {0}, {0}, {0}}; }

void ring_and_wake(Doorbell& doorbell, Number times = 1, bool urgent = false) {
    shoal::wake_if_parked(doorbell, shoal::ring(doorbell, times, urgent), urgent);
}

void numbers_wrap_around() {
    const Number half = Number{1} << 31;
    for (const Number number : {Number{0}, Number{7}, half, last_number - 1, last_number}) {
        for (const Number ahead : {Number{0}, Number{1}, Number{2}, half - 1})
            check(shoal::reached(number + ahead, number), "a number that was passed is not reached");
        for (const Number behind : {Number{1}, Number{2}, half - 1})
            check(!shoal::reached(number - behind, number), "a number that is to come is reached");
    }
}

void ring_counts() {
    Doorbell doorbell = doorbell_at(last_number - 1);
    check_equal(shoal::ring(doorbell, 1), last_number, "the number after one ring");
    check_equal(doorbell.urgent.load(), 0, "urgent rings");
    check_equal(shoal::ring(doorbell, 3), 2, "the number after three more");
    check_equal(shoal::ring(doorbell, 1, true), 3, "the number after an urgent one");
    check_equal(doorbell.number.load(), 3, "the number");
    check_equal(doorbell.urgent.load(), 1, "urgent rings");
}

void idle_park_ends_at_its_limit() {
    Doorbell doorbell = doorbell_at(7);
    kernel_calls.before_call = [&](int) {
        check_equal(doorbell.parked.load(), 1, "parked, when falling asleep");
        check_equal(doorbell.wanted.load(), 9, "the wanted number, when falling asleep");
    };
    const std::uint64_t begun = shoal::nanoseconds_now();
    check(!shoal::park_until_rung(doorbell, WaitTarget{9, 0}, short_limit), "the target counts as reached too early");
    const std::uint64_t took = shoal::nanoseconds_now() - begun;
    check(took >= short_limit, "the park ended before its limit");
    check(took < long_limit, "the park did not end at its limit");
    check_equal(kernel_calls.sleeps, 1, "sleeps");
    check_equal(kernel_calls.timeouts, 1, "sleeps that ended by their limit");
    check_equal(doorbell.parked.load(), 0, "parked, when awake");
}

void ring_before_wait_is_seen() {
    const auto check_seen = [](Doorbell& doorbell, WaitTarget target) {
        check(shoal::has_rung(doorbell, target), "the ring was missed");
        check(shoal::spin_until_rung(doorbell, target, Patience{}), "without patience, the doorbell was not read");
        check(shoal::spin_until_rung(doorbell, target, Patience{3, 3}), "the ring was missed while spinning");
        check(shoal::park_until_rung(doorbell, target, long_limit), "the ring was missed by the park");
    };
    for (const Number old : {Number{7}, last_number}) {
        Doorbell doorbell = doorbell_at(old);
        shoal::ring(doorbell, 2);
        check_seen(doorbell, WaitTarget{old + 2, 0});
        check_seen(doorbell, WaitTarget{old + 1, 0});
        shoal::ring(doorbell, 1, true);
        check_seen(doorbell, WaitTarget{old + 9, 0});
    }
    check_equal(kernel_calls.sleeps, 0, "sleeps");
}

void spinning_makes_no_system_call() {
    Doorbell doorbell = doorbell_at(7);
    for (const Patience patience : {Patience{}, Patience{50, 0}, Patience{0, 50}, Patience{50, 50}})
        check(!shoal::spin_until_rung(doorbell, WaitTarget{8, 0}, patience), "the target counts as reached too early");
    check_equal(kernel_calls.sleeps + kernel_calls.wakes, 0, "futex calls");
    check_equal(doorbell.parked.load(), 0, "parked, when awake");
}

void ring_without_a_parked_waiter_makes_no_system_call() {
    Doorbell doorbell = doorbell_at(7);
    ring_and_wake(doorbell);
    ring_and_wake(doorbell, 1, true);
    check(!shoal::park_until_rung(doorbell, WaitTarget{10, 1}, short_limit), "the target counts as reached too early");
    ring_and_wake(doorbell);  // the waiter has parked, and is awake again
    ring_and_wake(doorbell, 1, true);
    check_equal(kernel_calls.wakes, 0, "wakes");
}

// Also where the numbers wrap around.
void ring_just_before_sleep_is_seen() {
    const auto rings = [](Number old, Number wanted, bool urgent) {
        Doorbell doorbell = doorbell_at(old);
        kernel_calls = KernelCalls{};
        kernel_calls.before_call = [&](int operation) {
            if (operation == FUTEX_WAIT) ring_and_wake(doorbell, 1, urgent);
        };
        const bool reached = shoal::park_until_rung(doorbell, WaitTarget{old + wanted, 0}, long_limit);
        check_equal(kernel_calls.sleeps, 1, "sleeps");
        check_equal(kernel_calls.timeouts, 0, "sleeps that ended by their limit");
        return reached;
    };
    for (const Number old : {Number{7}, last_number - 1, last_number}) {
        check(rings(old, 1, false), "the ring was missed");
        check_equal(kernel_calls.wakes, 1, "wakes");
        check(rings(old, 2, true), "the urgent ring was missed");
        check_equal(kernel_calls.wakes, 1, "wakes by an urgent ring");
        // The kernel does not know the target, so it ends the sleep, and the caller parks again.
        check(!rings(old, 2, false), "the target counts as reached too early");
        check_equal(kernel_calls.wakes, 0, "wakes by a ring before the target");
    }
}

// Wait until the kernel has put the thread to sleep: an earlier ring would end its park without a wake.
void wait_until_asleep(const Word& parked, const std::atomic<pid_t>& thread) {
    const std::uint64_t begun = shoal::nanoseconds_now();
    for (char state = 0; state != 'S';) {
        if (shoal::nanoseconds_now() - begun > long_limit) fail("the other side does not fall asleep");
        sched_yield();
        if (!parked.load(std::memory_order_relaxed)) continue;
        std::ifstream file("/proc/self/task/" + std::to_string(thread.load(std::memory_order_relaxed)) + "/stat");
        const std::string stat{std::istreambuf_iterator<char>(file), {}};
        const std::size_t name_ends = stat.rfind(')');
        if (name_ends != std::string::npos && name_ends + 2 < stat.size()) state = stat[name_ends + 2];
    }
}

// A thread that parks until a doorbell has rung `times` more times.
class Sleeper {
   public:
    Sleeper(Doorbell& doorbell, Number times)
        : thread_([this, &doorbell, target = WaitTarget{doorbell.number.load() + times, 0}] {
              id_.store(gettid(), std::memory_order_relaxed);
              target_reached_ = shoal::park_until_rung(doorbell, target, long_limit);
              kernel_calls_ = kernel_calls;
          }) {
        wait_until_asleep(doorbell.parked, id_);
    }
    // It must have slept only once: no ring before the last one may wake it.
    void check_woken() {
        thread_.join();
        check(target_reached_, "awake before the target was reached");
        check_equal(kernel_calls_.sleeps, 1, "sleeps");
        check_equal(kernel_calls_.timeouts, 0, "sleeps that ended by their limit");
    }

   private:
    bool target_reached_ = false;
    KernelCalls kernel_calls_;
    std::atomic<pid_t> id_{0};
    std::thread thread_;
};

void no_wake_before_the_target() {
    for (const Number old : {Number{7}, last_number - 1, last_number}) {
        for (const Number times : {1, 2, 5}) {
            Doorbell doorbell = doorbell_at(old);
            Sleeper sleeper(doorbell, times);
            kernel_calls = KernelCalls{};
            for (Number ring = 1; ring < times; ++ring) ring_and_wake(doorbell);
            check_equal(kernel_calls.wakes, 0, "wakes by rings before the target");
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            check_equal(doorbell.parked.load(std::memory_order_relaxed), 1, "parked, after rings before the target");
            ring_and_wake(doorbell);
            check_equal(kernel_calls.wakes, 1, "wakes by the target");
            sleeper.check_woken();
        }
        Doorbell doorbell = doorbell_at(old);
        Sleeper sleeper(doorbell, 2);
        kernel_calls = KernelCalls{};
        ring_and_wake(doorbell, 3);
        check_equal(kernel_calls.wakes, 1, "wakes by several rings at once, beyond the target");
        sleeper.check_woken();
    }
}

void urgent_ring_wakes_at_once() {
    for (const Number old : {Number{7}, last_number}) {
        Doorbell doorbell = doorbell_at(old);
        Sleeper sleeper(doorbell, 9);
        kernel_calls = KernelCalls{};
        ring_and_wake(doorbell);
        check_equal(kernel_calls.wakes, 0, "wakes by a ring before the target");
        ring_and_wake(doorbell, 1, true);
        check_equal(kernel_calls.wakes, 1, "wakes by an urgent ring");
        sleeper.check_woken();
    }
}

// Memory for a handshake.
struct alignas(shoal::cache_line) Chunk {
    char bytes[shoal::cache_line];
};
std::vector<Chunk> memory_for(std::size_t workers, std::size_t blocks) {
    return std::vector<Chunk>((HandshakeMemory::nbytes(workers, blocks) + sizeof(Chunk) - 1) / sizeof(Chunk));
}

// Calls that are unanswered at the same time must not share memory, also where the numbers wrap around.
void handshake_memory_has_room_for_all() {
    using Place = std::pair<const char*, const char*>;
    const auto place_of = [](const auto& what) {
        const char* begin = reinterpret_cast<const char*>(&what);
        check(reinterpret_cast<std::uintptr_t>(begin) % alignof(std::decay_t<decltype(what)>) == 0, "not aligned");
        return Place{begin, begin + sizeof what};
    };
    for (const std::size_t workers : {1, 2, 5}) {
        for (const Number blocks : {1, 2, 3, 4, 5, 7, 8}) {
            std::vector<Chunk> memory = memory_for(workers, blocks);
            const HandshakeMemory handshake(memory.data(), workers, blocks);
            std::vector<Number> firsts{0, 1, 1000};
            for (Number before = 0; before <= blocks; ++before) firsts.push_back(last_number - before);
            for (const Number first : firsts) {
                std::vector<Place> places{place_of(handshake.parent_doorbell())};
                for (std::size_t worker = 0; worker < workers; ++worker) {
                    places.push_back(place_of(handshake.slot(worker)));
                    for (Number block = 0; block < blocks; ++block) {
                        places.push_back(place_of(handshake.call(worker, first + block)));
                        places.push_back(place_of(handshake.answer(worker, first + block)));
                    }
                }
                std::sort(places.begin(), places.end());
                for (std::size_t i = 1; i < places.size(); ++i)
                    check(places[i - 1].second <= places[i].first, "two objects overlap");
                const char* begin = memory.front().bytes;
                check(places.front().first == begin, "the parent's doorbell is not the first");
                const char* end = begin + HandshakeMemory::nbytes(workers, blocks);
                check(places.back().second <= end, "an object is outside the memory");
            }
        }
    }
}

// --- Placement on cores -------------------------------------------------------------------------------------------

using shoal::Core;
using shoal::CorePlacement;

// Makes steps of some microseconds until a process is asked to move. Returns their number, or -1 if none moves.
struct Steps {
    CorePlacement placement{{0, 1, 2}};
    std::uint64_t now = 1;
    std::optional<CorePlacement::Move> move;

    int until_move(const std::vector<Core>& cores, int count, std::uint64_t microseconds = 50) {
        for (int step = 1; step <= count; ++step) {
            now += 1000 * microseconds;
            move = placement.after_step(cores, 1000 * microseconds, now);
            if (move) return step;
        }
        return -1;
    }
};

void process_on_a_shared_core_moves_to_a_free_one() {
    Steps steps;
    check_equal(steps.until_move({0, 1, 2}, 100), -1, "moves where each process has a core");
    check_equal(steps.until_move({0, 2, 2}, CorePlacement::crowded_steps - 1), -1, "moves that come too soon");
    check_equal(steps.until_move({0, 1, 2}, 1), -1, "moves where each process has a core again");
    check_equal(steps.until_move({2, 0, 2}, 100), CorePlacement::crowded_steps, "steps until the move");
    check_equal(steps.move->process, 2, "the process that moves: the last");
    check_equal(steps.move->to, 1, "the core without a process");
}

void no_move_without_a_free_core_or_for_long_steps() {
    Steps steps;
    check_equal(steps.until_move({0, 1, 2, 2}, 100), -1, "moves without a free core");
    check_equal(steps.until_move({0, -1, -1}, 100), -1, "moves where cores are unknown");
    check_equal(steps.until_move({0, 1, 1}, 100, 2000), -1, "moves where the scheduler keeps up");
}

void useless_move_is_repeated_seldom() {
    Steps steps;
    const auto moves_in = [&](int trials, std::uint64_t afterwards) {
        int moves = 0;
        for (int step = 0; step < trials; ++step) {
            if (steps.until_move({0, 0}, 1) < 0) continue;
            ++moves;
            steps.until_move({0, 1}, CorePlacement::trial_steps, afterwards);
        }
        return moves;
    };
    const int helpful = moves_in(20'000, 25), useless = moves_in(20'000, 60);
    check(helpful > 300, "a move that helps is made too seldom");
    check(useless > 1 && useless < 10, "a move that does not help is made too often, or only once");
}

void move_leaves_its_thread_free() {
    const std::vector<Core> allowed = shoal::allowed_cores();
    check(!allowed.empty(), "no core is allowed");
    for (const Core core : allowed) {
        shoal::move_to(core);
        check(shoal::allowed_cores() == allowed, "a move keeps its thread from other cores");
    }
    for (const Core core : {-1, 1 << 30}) shoal::move_to(core);
    check(shoal::allowed_cores() == allowed, "a move to no core");
}

// --- Parent and workers -------------------------------------------------------------------------------------------

constexpr int rounds = 500;
constexpr std::uint32_t work = 0, stop = 1;
constexpr std::uint32_t plain = 0, message = 1, failed = 2;
// Each run wraps around. The two differ, so that using one in place of the other fails.
constexpr Number first_ring = last_number - rounds / 4, first_call = last_number - rounds / 8;

// The worker owns them from call to answer, and the parent otherwise. They take some cache lines, so that stores before
// a ring take a while.
struct alignas(shoal::cache_line) Rows {
    std::uint64_t values[64];
};

// The number of blocks, and the worker of each. Workers get blocks in turn, and the last worker gets one block fewer
// than its ring buffers have room for.
struct Shape {
    std::size_t workers, most;

    std::size_t blocks() const { return workers * most - (workers > 1 && most > 1); }
    std::size_t owner(std::size_t block) const { return block % workers; }
    std::uint32_t local_index(std::size_t block) const { return std::uint32_t(block / workers); }
    std::size_t block(std::size_t worker, std::uint32_t number) const { return number * workers + worker; }
};

struct Shared {
    explicit Shared(Shape its)
        : shape(its),
          memory(memory_for(shape.workers, shape.most)),
          handshake(memory.data(), shape.workers, shape.most),
          rows(shape.blocks()),
          messages_read(shape.workers) {
        (new (&handshake.parent_doorbell()) Doorbell{})->number.store(first_ring, std::memory_order_relaxed);
        for (std::size_t worker = 0; worker < shape.workers; ++worker) {
            WorkerSlot& slot = *new (&handshake.slot(worker)) WorkerSlot{};
            slot.calls.number.store(first_call, std::memory_order_relaxed);
            slot.answers.number.store(first_call, std::memory_order_relaxed);
        }
    }
    const Shape shape;
    std::vector<Chunk> memory;
    const HandshakeMemory handshake;
    std::vector<Rows> rows;
    std::vector<Word> messages_read;  // by worker; relaxed, so that it orders nothing
};

// What a thread did; read after it has ended.
struct Counts {
    int rings = 0;
    int parks = 0;
    int wakes = 0;
};

void fill(Rows& rows, std::uint64_t with) {
    for (std::uint64_t& value : rows.values) value = with++;
}

void check_filled(const Rows& rows, std::uint64_t with, const char* what) {
    for (const std::uint64_t value : rows.values) check_equal(value, with++, what);
}

std::uint64_t request(Number number, std::size_t block) { return (std::uint64_t{number} << 16) + (block << 8); }
std::uint64_t reply(Number number, std::size_t block) { return ~request(number, block); }

// Both sides can compute the outcome. It is scattered, so that messages come at any place in a sequence of calls.
std::uint32_t outcome_of(Number number, std::size_t worker) {
    const Number scattered = ((number + 77 * Number(worker)) * 2654435761u) >> 28;
    return scattered == 0 ? failed : scattered < 4 ? message : plain;
}

void pause_for(unsigned turns) {
    for (; turns; --turns) shoal::pause_core();
}

// Whether the other side parks within the limit. A ring at the moment when it parks is the one that could be missed.
bool is_parked_within(const Word& parked, std::uint64_t limit) {
    for (const std::uint64_t begun = shoal::nanoseconds_now(); !parked.load(std::memory_order_relaxed); sched_yield())
        if (shoal::nanoseconds_now() - begun > limit) return false;
    return true;
}

// Wait for a random time. `will_park`: the other side can only park; otherwise it may wait for this thread.
void delay(Random& random, const Word& parked, bool will_park) {
    switch (random() % 8) {
        case 0:
        case 1: return pause_for(random() % 100);
        case 2: return pause_for(random() % 3000);
        case 3:
            for (unsigned turns = random() % 10; turns; --turns) sched_yield();
            return;
        case 4: return std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
        case 5:
        case 6:
            if (!is_parked_within(parked, will_park ? long_limit : 200'000) && will_park)
                fail("the other side waits, but does not park");
            return pause_for(random() % 300);
        default: return;
    }
}

// Delay system calls: between the handshake's last read of the number and the kernel's, or between ring and wake.
void delay_system_calls(Random& random) {
    kernel_calls.before_call = [&random](int) {
        if (random() % 4 == 0) pause_for(random() % 500);
    };
}

bool park(Doorbell& doorbell, WaitTarget target, Counts& counts) {
    ++counts.parks;
    const bool rings = shoal::park_until_rung(doorbell, target, long_limit);
    if (kernel_calls.timeouts) fail(rings ? "a wake-up was lost" : "a park ended without a ring");
    return rings;
}

// Works like WorkerSignals.
class Worker {
   public:
    Worker(Shared& shared, std::size_t number, Patience patience, unsigned seed)
        : shared_(shared),
          handshake_(shared.handshake),
          number_(number),
          slot_(handshake_.slot(number)),
          patience_(patience),
          random_(seed) {}

    Counts run() {
        delay_system_calls(random_);
        do {
            await_call();
            const std::size_t block = shared_.shape.block(number_, call_.block);
            check(block < shared_.shape.blocks(), "a call to a block that is not there");
            check_filled(shared_.rows[block], request(calls_taken_, block), "what came with the call");
            // The delay comes right before the ring, or before many stores, which may still be pending at the ring.
            const bool ring_at_once = random_() % 2;
            if (!ring_at_once) delay(random_, handshake_.parent_doorbell().parked, false);
            fill(shared_.rows[block], reply(calls_taken_, block));
            if (ring_at_once) delay(random_, handshake_.parent_doorbell().parked, false);
            answer(outcome_of(calls_taken_, number_));
        } while (call_.verb != stop);
        counts_.wakes = kernel_calls.wakes;
        return counts_;
    }

   private:
    void await_call() {
        const WaitTarget target{calls_taken_ + 1, slot_.calls.urgent.load(std::memory_order_relaxed)};
        while (!shoal::has_rung(slot_.calls, target)) {
            if (shoal::spin_until_rung(slot_.calls, target, patience_)) break;
            if (park(slot_.calls, target, counts_)) break;
        }
        call_ = handshake_.call(number_, calls_taken_++);
    }

    void answer(std::uint32_t outcome) {
        const Number number = slot_.answers.number.load(std::memory_order_relaxed);
        check_equal(number + 1, calls_taken_, "number of the answer");
        // In this test, `worked` is the number of the call.
        handshake_.answer(number_, number) = shoal::Answer{call_.block, outcome, calls_taken_};
        slot_.answers.core = std::int32_t(calls_taken_ % 64);
        // In one total order with the parent's ring and load. Otherwise the parent could call again without seeing this
        // answer, while the worker does not see that call. Then the parent would sleep, and the worker's send would
        // wait for the parent.
        slot_.answers.number.store(number + 1, std::memory_order_seq_cst);
        const bool has_next_call = slot_.calls.number.load(std::memory_order_seq_cst) != calls_taken_;
        const bool urgent = outcome == failed || (outcome != plain && has_next_call);
        const Number rung = shoal::ring(handshake_.parent_doorbell(), 1, urgent);
        ++counts_.rings;
        if (random_() % 8 == 0) pause_for(random_() % 500);
        shoal::wake_if_parked(handshake_.parent_doorbell(), rung, urgent);
        if (outcome == plain) return;
        // The message is so large that the send lasts until the parent reads it.
        ++messages_sent_;
        while (shared_.messages_read[number_].load(std::memory_order_relaxed) != messages_sent_) sched_yield();
    }

    Shared& shared_;
    const HandshakeMemory& handshake_;
    const std::size_t number_;
    WorkerSlot& slot_;
    Patience patience_;
    Random random_;
    shoal::Call call_{};
    Number calls_taken_ = first_call, messages_sent_ = 0;
    Counts counts_;
};

// Works like ParentSignals.
class Parent {
   public:
    using Blocks = std::vector<std::size_t>;

    Parent(Shared& shared, Patience patience, unsigned seed)
        : shared_(shared),
          handshake_(shared.handshake),
          shape_(shared.shape),
          patience_(patience),
          random_(seed),
          states_(shape_.blocks(), idle),
          calls_(shape_.blocks()),
          queues_(shape_.workers),
          seen_(shape_.workers, first_call) {
        delay_system_calls(random_);
    }

    void run() {
        for (int round = 0; round < rounds; ++round) {
            const std::size_t worker = random_() % shape_.workers;
            delay(random_, handshake_.slot(worker).calls.parked, queues_[worker].empty());
            post(some(in_state(idle)), work);
            if (random_() % 2) pause_for(random_() % 1000);
            wait_for_some();
        }
        wait_for_all();
        Blocks last;
        for (std::size_t worker = 0; worker < shape_.workers; ++worker) last.push_back(shape_.block(worker, 0));
        post(last, stop);
        wait_for_all();
        counts.wakes = kernel_calls.wakes;
    }

    Counts counts;

   private:
    enum State : char { idle, called, answered };

    void post(const Blocks& blocks, std::uint32_t verb) {
        for (const std::size_t block : blocks) {
            const std::size_t worker = shape_.owner(block);
            Doorbell& doorbell = handshake_.slot(worker).calls;
            const Number number = doorbell.number.load(std::memory_order_relaxed);
            fill(shared_.rows[block], request(number + 1, block));
            handshake_.call(worker, number) = shoal::Call{shape_.local_index(block), verb};
            calls_[block] = number + 1;
            states_[block] = called;
            queues_[worker].push_back(block);
            shoal::ring(doorbell, 1);
            ++counts.rings;
        }
        for (const std::size_t block : blocks) {
            Doorbell& doorbell = handshake_.slot(shape_.owner(block)).calls;
            shoal::wake_if_parked(doorbell, doorbell.number.load(std::memory_order_relaxed));
        }
    }

    void wait_for_all() {
        wait([&] { return in_state(called).size(); });
        take(Blocks(arrived_));
        check(in_state(idle).size() == shape_.blocks(), "a block is still called");
    }

    void wait_for_some() {
        const Blocks under_way = in_state(called);
        switch (random_() % 3) {
            case 0: return wait_for_all();
            case 1: {
                const Blocks these = some(under_way);
                wait([&] {
                    return static_cast<std::size_t>(std::count_if(
                        these.begin(), these.end(), [this](auto block) { return states_[block] == called; }));
                });
                return take(these);
            }
            default: {
                const std::size_t wanted = random_() % (under_way.size() + arrived_.size() + 1);
                wait([&] { return wanted - std::min(wanted, arrived_.size()); });
                return take(Blocks(arrived_.begin(), arrived_.begin() + std::ptrdiff_t(wanted)));
            }
        }
    }

    template <class Missing>
    void wait(Missing missing) {
        while (!await(missing)) read_messages();
        read_messages();
    }

    // Returns false if a message must be read first.
    template <class Missing>
    bool await(Missing missing) {
        Doorbell& doorbell = handshake_.parent_doorbell();
        for (;;) {
            const WaitTarget before{doorbell.number.load(std::memory_order_acquire),
                                doorbell.urgent.load(std::memory_order_acquire)};
            collect();
            const std::size_t left = missing();
            if (left == 0) return true;
            if (must_read_messages()) return false;
            const WaitTarget target{before.number + Number(left), before.urgent};
            if (!shoal::spin_until_rung(doorbell, target, patience_)) park(doorbell, target, counts);
        }
    }

    void collect() {
        first_worker_ = (first_worker_ + 1) % shape_.workers;
        for (std::size_t turn = 0; turn < shape_.workers; ++turn) {
            const std::size_t worker = (first_worker_ + turn) % shape_.workers;
            const Number number = handshake_.slot(worker).answers.number.load(std::memory_order_seq_cst);
            for (; seen_[worker] != number; ++seen_[worker]) note(worker, handshake_.answer(worker, seen_[worker]));
            // Only without an unanswered call: otherwise the worker may be writing `core`, which is in no ring buffer.
            if (queues_[worker].empty() && number != first_call)
                check_equal(handshake_.slot(worker).answers.core, number % 64, "core of the last answer");
        }
    }

    void note(std::size_t worker, const shoal::Answer& answer) {
        check(!queues_[worker].empty(), "an answer without a call");
        const std::size_t block = queues_[worker].front();
        queues_[worker].pop_front();
        check_equal(answer.block, shape_.local_index(block), "block of the answer, in the order of the calls");
        check_equal(answer.worked, calls_[block], "number of the answer");
        check_equal(answer.outcome, outcome_of(calls_[block], worker), "outcome");
        check(states_[block] == called, "a call was answered twice");
        states_[block] = answered;
        arrived_.push_back(block);
        if (answer.outcome != plain) unread_.push_back(block);
    }

    bool must_read_messages() const {
        return std::any_of(unread_.begin(), unread_.end(), [this](auto block) {
            const std::size_t worker = shape_.owner(block);
            return outcome_of(calls_[block], worker) == failed || !queues_[worker].empty();
        });
    }

    void read_messages() {
        for (const std::size_t block : unread_)
            shared_.messages_read[shape_.owner(block)].fetch_add(1, std::memory_order_relaxed);
        unread_.clear();
    }

    void take(const Blocks& blocks) {
        for (const std::size_t block : blocks) {
            check(states_[block] == answered, "a block was taken without an answer");
            check_filled(shared_.rows[block], reply(calls_[block], block), "what came with the answer");
            states_[block] = idle;
            arrived_.erase(std::find(arrived_.begin(), arrived_.end(), block));
        }
    }

    Blocks in_state(State state) const {
        Blocks blocks;
        for (std::size_t block = 0; block < states_.size(); ++block)
            if (states_[block] == state) blocks.push_back(block);
        return blocks;
    }
    // Some of these blocks, in random order; often all.
    Blocks some(Blocks blocks) {
        std::shuffle(blocks.begin(), blocks.end(), random_);
        if (random_() % 3) blocks.resize(random_() % (blocks.size() + 1));
        return blocks;
    }

    Shared& shared_;
    const HandshakeMemory& handshake_;
    const Shape shape_;
    Patience patience_;
    Random random_;
    std::vector<State> states_;
    std::vector<Number> calls_;                    // the last call of each block, counted per worker
    std::vector<std::deque<std::size_t>> queues_;  // by worker: its called blocks, in order
    std::vector<Number> seen_;
    Blocks arrived_, unread_;
    std::size_t first_worker_ = 0;
};

void parent_and_workers(Shape shape, Patience of_parent, Patience of_workers, unsigned seed) {
    Shared shared(shape);
    Parent parent(shared, of_parent, seed);
    std::vector<Counts> worker_counts(shape.workers);
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < shape.workers; ++worker)
        threads.emplace_back([&, worker] {
            worker_counts[worker] = Worker(shared, worker, of_workers, seed + 1 + unsigned(worker)).run();
        });
    parent.run();
    for (std::thread& thread : threads) thread.join();

    Counts all;
    for (std::size_t worker = 0; worker < shape.workers; ++worker) {
        all.rings += worker_counts[worker].rings;
        all.parks += worker_counts[worker].parks;
        all.wakes += worker_counts[worker].wakes;
        check(shared.handshake.slot(worker).calls.number.load() < first_call, "the calls of a worker did not wrap");
    }
    check(shared.handshake.parent_doorbell().number.load() < first_ring, "the answers did not wrap");
    check_equal(all.rings, parent.counts.rings, "answers to all calls");
    const Number rung = shared.handshake.parent_doorbell().number.load();
    check_equal(rung, first_ring + Number(all.rings), "the parent's doorbell");
    // At most all blocks wake a parked thread. Twice as many, because a fast thread may park again before the wakes
    // come.
    const int most = 2 * int(shape.blocks());
    check(parent.counts.wakes <= most * all.parks, "the parent woke workers that did not park");
    check(all.wakes <= most * parent.counts.parks, "the workers woke a parent that did not park");
    const auto parks_at_once = [](Patience patience) { return patience.pauses + patience.yields == 0; };
    check(all.parks > 0 || !parks_at_once(of_workers), "no worker parked, so no wake-up was tried");
    check(parent.counts.parks > 0 || !parks_at_once(of_parent), "the parent did not park, so no wake-up was tried");
    kernel_calls.before_call = nullptr;
}

std::string text(Patience patience) {
    return std::to_string(patience.pauses) + " pauses and " + std::to_string(patience.yields) + " yields";
}

}  // namespace

int main() {
    alarm(whole_run);
    test("numbers wrap around", numbers_wrap_around);
    test("a ring counts", ring_counts);
    test("an idle park ends at its limit", idle_park_ends_at_its_limit);
    test("a ring before the wait is seen", ring_before_wait_is_seen);
    test("spinning makes no system call", spinning_makes_no_system_call);
    test("a ring without a parked waiter makes no system call", ring_without_a_parked_waiter_makes_no_system_call);
    test("a ring just before the sleep is seen", ring_just_before_sleep_is_seen);
    test("no wake before the target", no_wake_before_the_target);
    test("an urgent ring wakes at once", urgent_ring_wakes_at_once);
    test("the handshake memory has room for all", handshake_memory_has_room_for_all);

    test("a process on a shared core moves to a free one", process_on_a_shared_core_moves_to_a_free_one);
    test("no move without a free core, or for long steps", no_move_without_a_free_core_or_for_long_steps);
    test("a useless move is repeated seldom", useless_move_is_repeated_seldom);
    test("a move leaves its thread free", move_leaves_its_thread_free);

    const Patience parks_at_once{}, only_pauses{300, 0}, only_yields{0, 20}, usual{20, 500};
    const Patience all[] = {parks_at_once, only_pauses, only_yields, usual};
    unsigned seed = 1;
    for (const Shape shape : {Shape{1, 1}, Shape{1, 4}, Shape{2, 2}, Shape{2, 3}, Shape{5, 1}, Shape{5, 4}})
        for (const Patience of_parent : all)
            for (const Patience of_workers : all)
                test(std::to_string(shape.workers) + " workers, " + std::to_string(shape.blocks()) + " blocks, with " +
                         text(of_workers) + ", a parent with " + text(of_parent),
                     [&] { parent_and_workers(shape, of_parent, of_workers, seed += 100); });

    std::printf("handshake: %d passed, 0 failed\n", passed);
    return 0;
}
