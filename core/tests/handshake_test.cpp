// The handshake between threads instead of processes, so that ThreadSanitizer sees both sides: `make test-tsan`.
//
// First single moves, then a parent and its workers, who post, wake and wait as ParentSignals and WorkerSignals do.
// Nothing here orders the threads but the handshake itself: counters are per thread, what peeks at the other side
// is relaxed, and the rows are plain memory, so that a post that publishes nothing is a race.
// Ends at the first failure: after a lost wake-up, nothing that follows can be trusted.
#if !defined(__linux__)
#error "This test watches the futex calls, which only Linux has."
#endif

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <linux/futex.h>

// What one thread asked of the kernel.
struct Asked {
    int sleeps = 0;
    int timeouts = 0;
    int wakes = 0;
    std::function<void(int)> before;  // runs between the handshake's last look and the kernel's
};
thread_local Asked asked;

static long watched_syscall(long number, std::uint32_t* word, int operation, std::uint32_t value,
                            const timespec* limit, std::nullptr_t, int) {
    if (asked.before) asked.before(operation);
    const long result = syscall(number, word, operation, value, limit, nullptr, 0);
    if (operation == FUTEX_WAIT) {
        ++asked.sleeps;
        if (result != 0 && errno == ETIMEDOUT) ++asked.timeouts;
    } else {
        ++asked.wakes;
    }
    return result;
}

// The header declares nothing of this name: what it needs from the system is included above.
#define syscall watched_syscall
#include "shoal/handshake.hpp"
#undef syscall
#include "shoal/seats.hpp"

namespace {

using shoal::Line;
using shoal::Number;
using shoal::Patience;
using Word = std::atomic<Number>;
using Random = std::minstd_rand;

constexpr std::uint64_t long_limit = 5'000'000'000;  // nobody waits that long, unless a wake-up was lost
constexpr std::uint64_t short_limit = 20'000'000;
constexpr unsigned whole_run = 300;  // seconds, after which something hangs that does not even park

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
    asked = Asked{};
    body();
    ++passed;
}

// --- Single moves -------------------------------------------------------------------------------------------------

void post_and_wake(Word& word, Number value, const Word& parks) {
    shoal::post(word, value);
    shoal::wake_if_parked(word, parks);
}

void idle_park_ends_at_its_limit() {
    Word word{7}, parks{0};
    asked.before = [&](int) { check_equal(parks.load(), 1, "parks, when falling asleep"); };
    const std::uint64_t begun = shoal::nanoseconds_now();
    check(!shoal::changes_while_parked(word, 7, parks, short_limit), "a change where nothing was posted");
    const std::uint64_t took = shoal::nanoseconds_now() - begun;
    check(took >= short_limit, "the park was over before its limit");
    check(took < long_limit, "the park went on after its limit");
    check_equal(asked.sleeps, 1, "sleeps");
    check_equal(asked.timeouts, 1, "sleeps that ended by their limit");
    check_equal(parks.load(), 0, "parks, when awake");
}

void change_is_not_slept_over() {
    Word word{8}, parks{0};
    check(shoal::changes_soon(word, 7, Patience{}), "no patience, and no look at the word either");
    check(shoal::changes_soon(word, 7, Patience{3, 3}), "the change was overlooked");
    check(shoal::changes_while_parked(word, 7, parks, long_limit), "the change was overlooked by the park");
    check_equal(asked.sleeps, 0, "sleeps");
    check_equal(parks.load(), 0, "parks, when awake");
}

void waiting_awake_asks_nothing() {
    Word word{7};
    for (const Patience patience : {Patience{}, Patience{50, 0}, Patience{0, 50}, Patience{50, 50}})
        check(!shoal::changes_soon(word, 7, patience), "a change where nothing was posted");
    check_equal(asked.sleeps + asked.wakes, 0, "futex calls");
}

void post_to_nobody_wakes_nobody() {
    Word word{7}, parks{0};
    post_and_wake(word, 8, parks);
    check_equal(word.load(), 8, "the word");
    check(!shoal::changes_while_parked(word, 8, parks, short_limit), "a change where nothing was posted");
    post_and_wake(word, 9, parks);  // somebody has parked, and is up again
    check_equal(asked.wakes, 0, "wakes");
}

// Also where the numbers begin again.
void post_just_before_sleep_is_seen() {
    for (const Number old : {Number{7}, std::numeric_limits<Number>::max()}) {
        Word word{old}, parks{0};
        asked = Asked{};
        asked.before = [&](int operation) {
            if (operation == FUTEX_WAIT) post_and_wake(word, old + 1, parks);
        };
        check(shoal::changes_while_parked(word, old, parks, long_limit), "the change was overlooked");
        check_equal(asked.timeouts, 0, "sleeps that ended by their limit");
        check_equal(asked.wakes, 1, "wakes");
    }
}

// --- Seats --------------------------------------------------------------------------------------------------------

using shoal::Core;
using shoal::Seats;

// Takes steps of some microseconds until somebody is asked to move; returns after how many, or -1.
struct Sitting {
    Seats seats{{0, 1, 2}};
    std::uint64_t now = 1;
    std::optional<Seats::Move> move;

    int steps(const std::vector<Core>& cores, int count, std::uint64_t microseconds = 50) {
        for (int step = 1; step <= count; ++step) {
            now += 1000 * microseconds;
            move = seats.after_step(cores, 1000 * microseconds, now);
            if (move) return step;
        }
        return -1;
    }
};

void who_shares_a_core_moves_to_a_free_one() {
    Sitting sitting;
    check_equal(sitting.steps({0, 1, 2}, 100), -1, "moves where everybody has a core");
    check_equal(sitting.steps({0, 2, 2}, Seats::row - 1), -1, "moves that come too soon");
    check_equal(sitting.steps({0, 1, 2}, 1), -1, "moves where everybody has a core again");
    check_equal(sitting.steps({2, 0, 2}, 100), Seats::row, "steps until the move");
    check_equal(sitting.move->who, 2, "who moves: the last");
    check_equal(sitting.move->to, 1, "to the core where nobody is");
}

void nobody_moves_without_a_free_core_or_for_long_steps() {
    Sitting sitting;
    check_equal(sitting.steps({0, 1, 2, 2}, 100), -1, "moves where all cores are taken");
    check_equal(sitting.steps({0, -1, -1}, 100), -1, "moves where nobody knows the core");
    check_equal(sitting.steps({0, 1, 1}, 100, 2000), -1, "moves where the scheduler keeps up");
}

void move_that_does_not_help_is_tried_seldom() {
    Sitting sitting;
    const auto moves_in = [&](int trials, std::uint64_t afterwards) {
        int moves = 0;
        for (int step = 0; step < trials; ++step) {
            if (sitting.steps({0, 0}, 1) < 0) continue;
            ++moves;
            sitting.steps({0, 1}, Seats::trial, afterwards);
        }
        return moves;
    };
    const int helpful = moves_in(20'000, 25), useless = moves_in(20'000, 60);
    check(helpful > 300, "a move that helps is made whenever it is crowded");
    check(useless > 1 && useless < 10, "a move that does not help is made again and again");
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

constexpr int rounds = 400;
constexpr std::uint32_t work = 0, stop = 1;
constexpr Number first_number = std::numeric_limits<Number>::max() - rounds / 4;  // so that each run wraps

// The worker's between call and answer, else the parent's. Some cache lines, to keep the stores before a post busy.
struct alignas(shoal::cache_line) Rows {
    std::uint64_t values[64];
};

struct Party {
    explicit Party(std::size_t workers) : lines(workers), rows(workers) {
        for (Line& line : lines) {
            line.call.number.store(first_number, std::memory_order_relaxed);
            line.answer.number.store(first_number, std::memory_order_relaxed);
        }
    }
    std::vector<Line> lines;
    std::vector<Rows> rows;
};

// What a thread did, told when it has ended.
struct Deeds {
    int posts = 0;
    int parks = 0;
    int wakes = 0;
};

void fill(Rows& rows, std::uint64_t with) {
    for (std::uint64_t& value : rows.values) value = with++;
}

void check_filled(const Rows& rows, std::uint64_t with, const char* what) {
    for (const std::uint64_t value : rows.values) check_equal(value, with++, what);
}

std::uint64_t request(Number number, std::size_t worker) { return (std::uint64_t{number} << 16) + (worker << 8); }
std::uint64_t reply(Number number, std::size_t worker) { return ~request(number, worker); }

void pause_for(unsigned turns) {
    for (; turns; --turns) shoal::pause_core();
}

// A post right when the other side goes to sleep is the one that could be missed.
void until_parked(const Word& parks) {
    for (const std::uint64_t begun = shoal::nanoseconds_now(); !parks.load(std::memory_order_relaxed); sched_yield())
        if (shoal::nanoseconds_now() - begun > long_limit) fail("the other side waits, but does not park");
}

void dawdle(Random& random, const Word& parks) {
    switch (random() % 8) {
        case 0:
        case 1: return pause_for(random() % 100);
        case 2: return pause_for(random() % 3000);
        case 3:
            for (unsigned turns = random() % 10; turns; --turns) sched_yield();
            return;
        case 4: return std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
        case 5:
        case 6: until_parked(parks); return pause_for(random() % 300);
        default: return;
    }
}

// Makes the moment longer between the last look at the word and the kernel's, or between post and wake.
void dawdle_before_the_kernel(Random& random) {
    asked.before = [&random](int) {
        if (random() % 4 == 0) pause_for(random() % 500);
    };
}

bool park(Word& word, Number old, Word& parks, Deeds& deeds) {
    ++deeds.parks;
    const bool changes = shoal::changes_while_parked(word, old, parks, long_limit);
    if (asked.timeouts) fail(changes ? "a wake-up was lost" : "a park was over without a change");
    return changes;
}

// As WorkerSignals.
void serve(Party& party, std::size_t worker, Patience patience, unsigned seed, Deeds& told) {
    Line& line = party.lines[worker];
    Random random(seed);
    Deeds deeds;
    dawdle_before_the_kernel(random);
    for (std::uint32_t verb = work; verb != stop;) {
        const Number answered = line.answer.number.load(std::memory_order_relaxed);
        while (!shoal::changed(line.call.number, answered)) {
            if (shoal::changes_soon(line.call.number, answered, patience)) break;
            if (park(line.call.number, answered, line.call.worker_parks, deeds)) break;
        }
        const Number number = line.call.number.load(std::memory_order_relaxed);
        check_equal(number, answered + 1, "number of the call");
        verb = line.call.verb;
        check_filled(party.rows[worker], request(number, worker), "what came with the call");
        dawdle(random, line.answer.parent_parks);
        fill(party.rows[worker], reply(number, worker));
        line.answer.outcome = number % 3;
        line.answer.worked += 1;  // here: how many calls
        shoal::post(line.answer.number, number);
        shoal::wake_if_parked(line.answer.number, line.answer.parent_parks);
        ++deeds.posts;
    }
    deeds.wakes = asked.wakes;
    told = deeds;
}

// As ParentSignals.
class Parent {
   public:
    Parent(Party& party, Patience patience, unsigned seed)
        : party_(party), patience_(patience), random_(seed), pending_(party.lines.size(), false) {
        dawdle_before_the_kernel(random_);
    }

    void post(std::uint32_t verb) {
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) write(worker, verb);
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) wake(worker);
    }

    void post_to_some() {
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) {
            if (random_() % 2) continue;
            write(worker, work);
            wake(worker);
        }
    }

    void wait() {
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) {
            while (!answers(worker)) {
            }
            if (pending_[worker]) take(worker);
        }
    }

    void run() {
        for (int round = 0; round < rounds; ++round) {
            dawdle(random_, party_.lines[random_() % pending_.size()].call.worker_parks);
            if (random_() % 4) {
                post(work);
            } else {
                post_to_some();
            }
            if (random_() % 2) pause_for(random_() % 1000);
            wait();
        }
        post(stop);
        wait();
        deeds.wakes = asked.wakes;
    }

    Deeds deeds;

   private:
    void write(std::size_t worker, std::uint32_t verb) {
        shoal::Call& call = party_.lines[worker].call;
        const Number number = call.number.load(std::memory_order_relaxed) + 1;
        fill(party_.rows[worker], request(number, worker));
        call.verb = verb;
        pending_[worker] = true;
        shoal::post(call.number, number);
        ++deeds.posts;
    }
    void wake(std::size_t worker) {
        shoal::Call& call = party_.lines[worker].call;
        shoal::wake_if_parked(call.number, call.worker_parks);
    }
    bool answers(std::size_t worker) {
        if (!pending_[worker]) return true;
        Line& line = party_.lines[worker];
        const Number before = shoal::unanswered(line);
        return shoal::changes_soon(line.answer.number, before, patience_) ||
               park(line.answer.number, before, line.answer.parent_parks, deeds);
    }
    void take(std::size_t worker) {
        const Line& line = party_.lines[worker];
        const Number number = line.call.number.load(std::memory_order_relaxed);
        check_equal(line.answer.number.load(std::memory_order_relaxed), number, "number of the answer");
        check_equal(line.answer.outcome, number % 3, "outcome");
        check_equal(line.answer.worked, Number(number - first_number), "calls that the worker has seen");
        check_filled(party_.rows[worker], reply(number, worker), "what came with the answer");
        pending_[worker] = false;
    }

    Party& party_;
    Patience patience_;
    Random random_;
    std::vector<char> pending_;
};

void parent_and_workers(std::size_t workers, Patience of_parent, Patience of_workers, unsigned seed) {
    Party party(workers);
    Parent parent(party, of_parent, seed);
    std::vector<Deeds> told(workers);
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < workers; ++worker)
        threads.emplace_back(serve, std::ref(party), worker, of_workers, seed + 1 + unsigned(worker),
                             std::ref(told[worker]));
    parent.run();
    for (std::thread& thread : threads) thread.join();

    Deeds all;
    for (const Deeds& deeds : told) {
        all.posts += deeds.posts;
        all.parks += deeds.parks;
        all.wakes += deeds.wakes;
    }
    check_equal(all.posts, parent.deeds.posts, "answers to all calls");
    // Twice: who is quick may park for the next number before the wake for this one, and so meet both.
    check(parent.deeds.wakes <= 2 * all.parks, "the parent woke workers that did not park");
    check(all.wakes <= 2 * parent.deeds.parks, "the workers woke a parent that did not park");
    asked.before = nullptr;
}

std::string text(Patience patience) {
    return std::to_string(patience.pauses) + " pauses and " + std::to_string(patience.yields) + " yields";
}

}  // namespace

int main() {
    alarm(whole_run);
    test("an idle park ends at its limit", idle_park_ends_at_its_limit);
    test("a change is not slept over", change_is_not_slept_over);
    test("waiting awake asks nothing of the kernel", waiting_awake_asks_nothing);
    test("a post to nobody wakes nobody", post_to_nobody_wakes_nobody);
    test("a post just before the sleep is seen", post_just_before_sleep_is_seen);

    test("who shares a core moves to a free one", who_shares_a_core_moves_to_a_free_one);
    test("nobody moves without a free core, or for long steps", nobody_moves_without_a_free_core_or_for_long_steps);
    test("a move that does not help is tried seldom", move_that_does_not_help_is_tried_seldom);
    test("a move leaves its thread free", move_leaves_its_thread_free);

    const Patience parks_at_once{}, only_pauses{300, 0}, only_yields{0, 20}, usual{20, 500};
    const Patience all[] = {parks_at_once, only_pauses, only_yields, usual};
    unsigned seed = 1;
    for (const std::size_t workers : {1, 2, 5})
        for (const Patience of_parent : all)
            for (const Patience of_workers : all)
                test(std::to_string(workers) + " workers with " + text(of_workers) + ", a parent with " +
                         text(of_parent),
                     [&] { parent_and_workers(workers, of_parent, of_workers, seed += 100); });

    std::printf("handshake: %d passed, 0 failed\n", passed);
    return 0;
}
