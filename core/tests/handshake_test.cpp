// The handshake between threads instead of processes, so that ThreadSanitizer sees both sides: `make test-tsan`.
//
// First single moves, then a parent and its workers, who call, ring and wait as ParentSignals and WorkerSignals do.
// Nothing here orders the threads but the handshake itself: counters are per thread, what peeks at the other side
// is relaxed, and the rows are plain memory, so that a ring that publishes nothing is a race.
// Ends at the first failure: after a lost wake-up, nothing that follows can be trusted.
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

using shoal::Awaited;
using shoal::Bell;
using shoal::Desk;
using shoal::Number;
using shoal::Office;
using shoal::Patience;
using Word = std::atomic<Number>;
using Random = std::minstd_rand;

constexpr Number last_number = std::numeric_limits<Number>::max();  // after which they begin again

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

Bell bell_at(Number number) { return Bell{{number}, {0}, {0}, {0}}; }

void ring_and_wake(Bell& bell, Number times = 1, bool urgent = false) {
    shoal::wake_if_parked(bell, shoal::ring(bell, times, urgent), urgent);
}

void numbers_begin_again() {
    const Number half = Number{1} << 31;
    for (const Number number : {Number{0}, Number{7}, half, last_number - 1, last_number}) {
        for (const Number ahead : {Number{0}, Number{1}, Number{2}, half - 1})
            check(shoal::reached(number + ahead, number), "a number that was passed is not reached");
        for (const Number behind : {Number{1}, Number{2}, half - 1})
            check(!shoal::reached(number - behind, number), "a number that is to come is reached");
    }
}

void ring_counts() {
    Bell bell = bell_at(last_number - 1);
    check_equal(shoal::ring(bell, 1), last_number, "the number after one ring");
    check_equal(bell.urgent.load(), 0, "urgent rings");
    check_equal(shoal::ring(bell, 3), 2, "the number after three more");
    check_equal(shoal::ring(bell, 1, true), 3, "the number after an urgent one");
    check_equal(bell.number.load(), 3, "the number");
    check_equal(bell.urgent.load(), 1, "urgent rings");
}

void idle_park_ends_at_its_limit() {
    Bell bell = bell_at(7);
    asked.before = [&](int) {
        check_equal(bell.parks.load(), 1, "parks, when falling asleep");
        check_equal(bell.wanted.load(), 9, "the number that is wanted, when falling asleep");
    };
    const std::uint64_t begun = shoal::nanoseconds_now();
    check(!shoal::rings_while_parked(bell, Awaited{9, 0}, short_limit), "heard what was not rung");
    const std::uint64_t took = shoal::nanoseconds_now() - begun;
    check(took >= short_limit, "the park was over before its limit");
    check(took < long_limit, "the park went on after its limit");
    check_equal(asked.sleeps, 1, "sleeps");
    check_equal(asked.timeouts, 1, "sleeps that ended by their limit");
    check_equal(bell.parks.load(), 0, "parks, when awake");
}

void ring_is_not_slept_over() {
    const auto hears = [](Bell& bell, Awaited awaited) {
        check(shoal::has_rung(bell, awaited), "the ring was overlooked");
        check(shoal::rings_soon(bell, awaited, Patience{}), "no patience, and no look at the bell either");
        check(shoal::rings_soon(bell, awaited, Patience{3, 3}), "the ring was overlooked while awake");
        check(shoal::rings_while_parked(bell, awaited, long_limit), "the ring was overlooked by the park");
    };
    for (const Number old : {Number{7}, last_number}) {
        Bell bell = bell_at(old);
        shoal::ring(bell, 2);
        hears(bell, Awaited{old + 2, 0});
        hears(bell, Awaited{old + 1, 0});
        shoal::ring(bell, 1, true);
        hears(bell, Awaited{old + 9, 0});
    }
    check_equal(asked.sleeps, 0, "sleeps");
}

void waiting_awake_asks_nothing() {
    Bell bell = bell_at(7);
    for (const Patience patience : {Patience{}, Patience{50, 0}, Patience{0, 50}, Patience{50, 50}})
        check(!shoal::rings_soon(bell, Awaited{8, 0}, patience), "heard what was not rung");
    check_equal(asked.sleeps + asked.wakes, 0, "futex calls");
    check_equal(bell.parks.load(), 0, "parks, when awake");
}

void ring_for_nobody_wakes_nobody() {
    Bell bell = bell_at(7);
    ring_and_wake(bell);
    ring_and_wake(bell, 1, true);
    check(!shoal::rings_while_parked(bell, Awaited{10, 1}, short_limit), "heard what was not rung");
    ring_and_wake(bell);  // somebody has parked, and is up again
    ring_and_wake(bell, 1, true);
    check_equal(asked.wakes, 0, "wakes");
}

// Also where the numbers begin again.
void ring_just_before_sleep_is_seen() {
    const auto rings = [](Number old, Number wanted, bool urgent) {
        Bell bell = bell_at(old);
        asked = Asked{};
        asked.before = [&](int operation) {
            if (operation == FUTEX_WAIT) ring_and_wake(bell, 1, urgent);
        };
        const bool heard = shoal::rings_while_parked(bell, Awaited{old + wanted, 0}, long_limit);
        check_equal(asked.sleeps, 1, "sleeps");
        check_equal(asked.timeouts, 0, "sleeps that ended by their limit");
        return heard;
    };
    for (const Number old : {Number{7}, last_number - 1, last_number}) {
        check(rings(old, 1, false), "the ring was overlooked");
        check_equal(asked.wakes, 1, "wakes");
        check(rings(old, 2, true), "the urgent ring was overlooked");
        check_equal(asked.wakes, 1, "wakes by an urgent ring");
        // The kernel does not know what is wanted: the caller parks again.
        check(!rings(old, 2, false), "heard what was not rung");
        check_equal(asked.wakes, 0, "wakes by a ring before the one that is wanted");
    }
}

// Not before the kernel has put it there: a ring meanwhile would end its park without a wake.
void until_asleep(const Word& parks, const std::atomic<pid_t>& thread) {
    const std::uint64_t begun = shoal::nanoseconds_now();
    for (char state = 0; state != 'S';) {
        if (shoal::nanoseconds_now() - begun > long_limit) fail("the other side does not fall asleep");
        sched_yield();
        if (!parks.load(std::memory_order_relaxed)) continue;
        std::ifstream file("/proc/self/task/" + std::to_string(thread.load(std::memory_order_relaxed)) + "/stat");
        const std::string stat{std::istreambuf_iterator<char>(file), {}};
        const std::size_t name_ends = stat.rfind(')');
        if (name_ends != std::string::npos && name_ends + 2 < stat.size()) state = stat[name_ends + 2];
    }
}

// Somebody who sleeps until a bell has rung so many times.
class Sleeper {
   public:
    Sleeper(Bell& bell, Number times) : thread_([this, &bell, awaited = Awaited{bell.number.load() + times, 0}] {
        id_.store(gettid(), std::memory_order_relaxed);
        heard_ = shoal::rings_while_parked(bell, awaited, long_limit);
        asked_ = asked;
    }) {
        until_asleep(bell.parks, id_);
    }
    // After a single sleep: no ring before the last has disturbed it.
    void is_up() {
        thread_.join();
        check(heard_, "up without having heard what it waits for");
        check_equal(asked_.sleeps, 1, "sleeps");
        check_equal(asked_.timeouts, 0, "sleeps that ended by their limit");
    }

   private:
    bool heard_ = false;
    Asked asked_;
    std::atomic<pid_t> id_{0};
    std::thread thread_;
};

void nobody_is_woken_before_the_ring_that_is_wanted() {
    for (const Number old : {Number{7}, last_number - 1, last_number}) {
        for (const Number times : {1, 2, 5}) {
            Bell bell = bell_at(old);
            Sleeper sleeper(bell, times);
            asked = Asked{};
            for (Number ring = 1; ring < times; ++ring) ring_and_wake(bell);
            check_equal(asked.wakes, 0, "wakes by rings before the one that is wanted");
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            check_equal(bell.parks.load(std::memory_order_relaxed), 1, "parks, after rings that are not wanted");
            ring_and_wake(bell);
            check_equal(asked.wakes, 1, "wakes by the one that is wanted");
            sleeper.is_up();
        }
        Bell bell = bell_at(old);
        Sleeper sleeper(bell, 2);
        asked = Asked{};
        ring_and_wake(bell, 3);
        check_equal(asked.wakes, 1, "wakes by several rings at once, beyond the one that is wanted");
        sleeper.is_up();
    }
}

void urgent_ring_wakes_at_once() {
    for (const Number old : {Number{7}, last_number}) {
        Bell bell = bell_at(old);
        Sleeper sleeper(bell, 9);
        asked = Asked{};
        ring_and_wake(bell);
        check_equal(asked.wakes, 0, "wakes by a ring before the one that is wanted");
        ring_and_wake(bell, 1, true);
        check_equal(asked.wakes, 1, "wakes by an urgent ring");
        sleeper.is_up();
    }
}

// Memory for an office.
struct alignas(shoal::cache_line) Chunk {
    char bytes[shoal::cache_line];
};
std::vector<Chunk> memory_for(std::size_t workers, std::size_t blocks) {
    return std::vector<Chunk>((Office::nbytes(workers, blocks) + sizeof(Chunk) - 1) / sizeof(Chunk));
}

// Calls that are under way together must not lie in one place, also where the numbers begin again.
void office_has_room_for_all() {
    using Place = std::pair<const char*, const char*>;
    const auto place_of = [](const auto& what) {
        const char* begin = reinterpret_cast<const char*>(&what);
        check(reinterpret_cast<std::uintptr_t>(begin) % alignof(std::decay_t<decltype(what)>) == 0, "not aligned");
        return Place{begin, begin + sizeof what};
    };
    for (const std::size_t workers : {1, 2, 5}) {
        for (const Number blocks : {1, 2, 3, 4, 5, 7, 8}) {
            std::vector<Chunk> memory = memory_for(workers, blocks);
            const Office office(memory.data(), workers, blocks);
            std::vector<Number> firsts{0, 1, 1000};
            for (Number before = 0; before <= blocks; ++before) firsts.push_back(last_number - before);
            for (const Number first : firsts) {
                std::vector<Place> places{place_of(office.bell())};
                for (std::size_t worker = 0; worker < workers; ++worker) {
                    places.push_back(place_of(office.desk(worker)));
                    for (Number block = 0; block < blocks; ++block) {
                        places.push_back(place_of(office.call(worker, first + block)));
                        places.push_back(place_of(office.answer(worker, first + block)));
                    }
                }
                std::sort(places.begin(), places.end());
                for (std::size_t i = 1; i < places.size(); ++i)
                    check(places[i - 1].second <= places[i].first, "two things in one place");
                const char* begin = memory.front().bytes;
                check(places.front().first == begin, "the bell is not the first");
                check(places.back().second <= begin + Office::nbytes(workers, blocks), "something lies outside");
            }
        }
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

constexpr int rounds = 500;
constexpr std::uint32_t work = 0, stop = 1;
constexpr std::uint32_t plain = 0, message = 1, failed = 2;
// So that each run wraps. Not the same: who takes one for the other is found out.
constexpr Number first_ring = last_number - rounds / 4, first_call = last_number - rounds / 8;

// The worker's between call and answer, else the parent's. Some cache lines, to keep the stores before a ring busy.
struct alignas(shoal::cache_line) Rows {
    std::uint64_t values[64];
};

// How many blocks there are, and who has them: in turns, so that the last worker has one less than fit its rings.
struct Shape {
    std::size_t workers, most;

    std::size_t blocks() const { return workers * most - (workers > 1 && most > 1); }
    std::size_t owner(std::size_t block) const { return block % workers; }
    std::uint32_t number(std::size_t block) const { return std::uint32_t(block / workers); }  // counted by its worker
    std::size_t block(std::size_t worker, std::uint32_t number) const { return number * workers + worker; }
};

struct Party {
    explicit Party(Shape its)
        : shape(its),
          memory(memory_for(shape.workers, shape.most)),
          office(memory.data(), shape.workers, shape.most),
          rows(shape.blocks()),
          heard(shape.workers) {
        (new (&office.bell()) Bell{})->number.store(first_ring, std::memory_order_relaxed);
        for (std::size_t worker = 0; worker < shape.workers; ++worker) {
            Desk& desk = *new (&office.desk(worker)) Desk{};
            desk.calls.number.store(first_call, std::memory_order_relaxed);
            desk.answers.number.store(first_call, std::memory_order_relaxed);
        }
    }
    const Shape shape;
    std::vector<Chunk> memory;
    const Office office;
    std::vector<Rows> rows;
    std::vector<Word> heard;  // messages of each worker; what stands for the line that they go over orders nothing
};

// What a thread did, told when it has ended.
struct Deeds {
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

// Both sides know it beforehand. Scattered, so that it comes at any place in a row of calls.
std::uint32_t outcome_of(Number number, std::size_t worker) {
    const Number scattered = ((number + 77 * Number(worker)) * 2654435761u) >> 28;
    return scattered == 0 ? failed : scattered < 4 ? message : plain;
}

void pause_for(unsigned turns) {
    for (; turns; --turns) shoal::pause_core();
}

// A ring right when the other side goes to sleep is the one that could be missed.
bool parks_within(const Word& parks, std::uint64_t limit) {
    for (const std::uint64_t begun = shoal::nanoseconds_now(); !parks.load(std::memory_order_relaxed); sched_yield())
        if (shoal::nanoseconds_now() - begun > limit) return false;
    return true;
}

// `will_park`: the other side has nothing else to do; otherwise it may wait for somebody else, even for us.
void dawdle(Random& random, const Word& parks, bool will_park) {
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
            if (!parks_within(parks, will_park ? long_limit : 200'000) && will_park)
                fail("the other side waits, but does not park");
            return pause_for(random() % 300);
        default: return;
    }
}

// Makes the moment longer between the last look at the number and the kernel's, or between ring and wake.
void dawdle_before_the_kernel(Random& random) {
    asked.before = [&random](int) {
        if (random() % 4 == 0) pause_for(random() % 500);
    };
}

bool park(Bell& bell, Awaited awaited, Deeds& deeds) {
    ++deeds.parks;
    const bool rings = shoal::rings_while_parked(bell, awaited, long_limit);
    if (asked.timeouts) fail(rings ? "a wake-up was lost" : "a park was over without a ring");
    return rings;
}

// As WorkerSignals.
class Worker {
   public:
    Worker(Party& party, std::size_t number, Patience patience, unsigned seed)
        : party_(party),
          office_(party.office),
          number_(number),
          desk_(office_.desk(number)),
          patience_(patience),
          random_(seed) {}

    Deeds run() {
        dawdle_before_the_kernel(random_);
        do {
            await_call();
            const std::size_t block = party_.shape.block(number_, call_.block);
            check(block < party_.shape.blocks(), "a call to a block that is not there");
            check_filled(party_.rows[block], request(taken_, block), "what came with the call");
            // Either right before the ring, or with many stores between, which may be on their way when it comes.
            const bool ring_at_once = random_() % 2;
            if (!ring_at_once) dawdle(random_, office_.bell().parks, false);
            fill(party_.rows[block], reply(taken_, block));
            if (ring_at_once) dawdle(random_, office_.bell().parks, false);
            answer(outcome_of(taken_, number_));
        } while (call_.verb != stop);
        deeds_.wakes = asked.wakes;
        return deeds_;
    }

   private:
    void await_call() {
        const Awaited awaited{taken_ + 1, desk_.calls.urgent.load(std::memory_order_relaxed)};
        while (!shoal::has_rung(desk_.calls, awaited)) {
            if (shoal::rings_soon(desk_.calls, awaited, patience_)) break;
            if (park(desk_.calls, awaited, deeds_)) break;
        }
        call_ = office_.call(number_, taken_++);
    }

    void answer(std::uint32_t outcome) {
        const Number number = desk_.answers.number.load(std::memory_order_relaxed);
        check_equal(number + 1, taken_, "number of the answer");
        office_.answer(number_, number) = shoal::Answer{call_.block, outcome, taken_};  // here: which call it was
        desk_.answers.core = std::int32_t(taken_ % 64);
        // In one total order with the parent's ring and its look: else it could call again and not see this answer,
        // while we do not see that call, and then it would sleep until the send is over that waits for it.
        desk_.answers.number.store(number + 1, std::memory_order_seq_cst);
        const bool queue = desk_.calls.number.load(std::memory_order_seq_cst) != taken_;
        const bool urgent = outcome == failed || (outcome != plain && queue);
        const Number rung = shoal::ring(office_.bell(), 1, urgent);
        ++deeds_.rings;
        if (random_() % 8 == 0) pause_for(random_() % 500);
        shoal::wake_if_parked(office_.bell(), rung, urgent);
        if (outcome == plain) return;
        // Its message is so large that the send takes until it is heard.
        for (++said_; party_.heard[number_].load(std::memory_order_relaxed) != said_;) sched_yield();
    }

    Party& party_;
    const Office& office_;
    const std::size_t number_;
    Desk& desk_;
    Patience patience_;
    Random random_;
    shoal::Call call_{};
    Number taken_ = first_call, said_ = 0;
    Deeds deeds_;
};

// As ParentSignals.
class Parent {
   public:
    using Blocks = std::vector<std::size_t>;

    Parent(Party& party, Patience patience, unsigned seed)
        : party_(party),
          office_(party.office),
          shape_(party.shape),
          patience_(patience),
          random_(seed),
          states_(shape_.blocks(), idle),
          calls_(shape_.blocks()),
          queues_(shape_.workers),
          seen_(shape_.workers, first_call) {
        dawdle_before_the_kernel(random_);
    }

    void run() {
        for (int round = 0; round < rounds; ++round) {
            const std::size_t worker = random_() % shape_.workers;
            dawdle(random_, office_.desk(worker).calls.parks, queues_[worker].empty());
            post(some(in_state(idle)), work);
            if (random_() % 2) pause_for(random_() % 1000);
            reach_some_goal();
        }
        reach_all();
        Blocks last;
        for (std::size_t worker = 0; worker < shape_.workers; ++worker) last.push_back(shape_.block(worker, 0));
        post(last, stop);
        reach_all();
        deeds.wakes = asked.wakes;
    }

    Deeds deeds;

   private:
    enum State : char { idle, called, answered };

    void post(const Blocks& blocks, std::uint32_t verb) {
        for (const std::size_t block : blocks) {
            const std::size_t worker = shape_.owner(block);
            Bell& bell = office_.desk(worker).calls;
            const Number number = bell.number.load(std::memory_order_relaxed);
            fill(party_.rows[block], request(number + 1, block));
            office_.call(worker, number) = shoal::Call{shape_.number(block), verb};
            calls_[block] = number + 1;
            states_[block] = called;
            queues_[worker].push_back(block);
            shoal::ring(bell, 1);
            ++deeds.rings;
        }
        for (const std::size_t block : blocks) {
            Bell& bell = office_.desk(shape_.owner(block)).calls;
            shoal::wake_if_parked(bell, bell.number.load(std::memory_order_relaxed));
        }
    }

    void reach_all() {
        wait([&] { return in_state(called).size(); });
        take(Blocks(arrived_));
        check(in_state(idle).size() == shape_.blocks(), "a block is still under way");
    }

    void reach_some_goal() {
        const Blocks under_way = in_state(called);
        switch (random_() % 3) {
            case 0: return reach_all();
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
        while (!await(missing)) hear();
        hear();
    }

    // False: a message must be heard first.
    template <class Missing>
    bool await(Missing missing) {
        Bell& bell = office_.bell();
        for (;;) {
            const Awaited heard{bell.number.load(std::memory_order_acquire),
                                bell.urgent.load(std::memory_order_acquire)};
            collect();
            const std::size_t left = missing();
            if (left == 0) return true;
            if (must_hear()) return false;
            const Awaited awaited{heard.number + Number(left), heard.urgent};
            if (!shoal::rings_soon(bell, awaited, patience_)) park(bell, awaited, deeds);
        }
    }

    void collect() {
        first_ = (first_ + 1) % shape_.workers;
        for (std::size_t turn = 0; turn < shape_.workers; ++turn) {
            const std::size_t worker = (first_ + turn) % shape_.workers;
            const Number number = office_.desk(worker).answers.number.load(std::memory_order_seq_cst);
            for (; seen_[worker] != number; ++seen_[worker]) note(worker, office_.answer(worker, seen_[worker]));
            // Only then: it lies in no ring, and the worker may be writing it for the next answer.
            if (queues_[worker].empty() && number != first_call)
                check_equal(office_.desk(worker).answers.core, number % 64, "core of the last answer");
        }
    }

    void note(std::size_t worker, const shoal::Answer& answer) {
        check(!queues_[worker].empty(), "an answer to no call");
        const std::size_t block = queues_[worker].front();
        queues_[worker].pop_front();
        check_equal(answer.block, shape_.number(block), "block of the answer, in the order of the calls");
        check_equal(answer.worked, calls_[block], "number of the answer");
        check_equal(answer.outcome, outcome_of(calls_[block], worker), "outcome");
        check(states_[block] == called, "a call was answered twice");
        states_[block] = answered;
        arrived_.push_back(block);
        if (answer.outcome != plain) speakers_.push_back(block);
    }

    bool must_hear() const {
        return std::any_of(speakers_.begin(), speakers_.end(), [this](auto block) {
            const std::size_t worker = shape_.owner(block);
            return outcome_of(calls_[block], worker) == failed || !queues_[worker].empty();
        });
    }

    void hear() {
        for (const std::size_t block : speakers_)
            party_.heard[shape_.owner(block)].fetch_add(1, std::memory_order_relaxed);
        speakers_.clear();
    }

    void take(const Blocks& blocks) {
        for (const std::size_t block : blocks) {
            check(states_[block] == answered, "a block was taken without an answer");
            check_filled(party_.rows[block], reply(calls_[block], block), "what came with the answer");
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
    // In any order; often all.
    Blocks some(Blocks blocks) {
        std::shuffle(blocks.begin(), blocks.end(), random_);
        if (random_() % 3) blocks.resize(random_() % (blocks.size() + 1));
        return blocks;
    }

    Party& party_;
    const Office& office_;
    const Shape shape_;
    Patience patience_;
    Random random_;
    std::vector<State> states_;
    std::vector<Number> calls_;                    // the last to each block, counted by its worker
    std::vector<std::deque<std::size_t>> queues_;  // of each worker: its blocks that have been called, in that order
    std::vector<Number> seen_;
    Blocks arrived_, speakers_;
    std::size_t first_ = 0;
};

void parent_and_workers(Shape shape, Patience of_parent, Patience of_workers, unsigned seed) {
    Party party(shape);
    Parent parent(party, of_parent, seed);
    std::vector<Deeds> told(shape.workers);
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < shape.workers; ++worker)
        threads.emplace_back([&, worker] {
            told[worker] = Worker(party, worker, of_workers, seed + 1 + unsigned(worker)).run();
        });
    parent.run();
    for (std::thread& thread : threads) thread.join();

    Deeds all;
    for (std::size_t worker = 0; worker < shape.workers; ++worker) {
        all.rings += told[worker].rings;
        all.parks += told[worker].parks;
        all.wakes += told[worker].wakes;
        check(party.office.desk(worker).calls.number.load() < first_call, "the calls of a worker did not wrap");
    }
    check(party.office.bell().number.load() < first_ring, "the answers did not wrap");
    check_equal(all.rings, parent.deeds.rings, "answers to all calls");
    check_equal(party.office.bell().number.load(), first_ring + Number(all.rings), "the parent's bell");
    // A park meets the wakes of at most all blocks. Twice: who is quick may park again before they come.
    const int most = 2 * int(shape.blocks());
    check(parent.deeds.wakes <= most * all.parks, "the parent woke workers that did not park");
    check(all.wakes <= most * parent.deeds.parks, "the workers woke a parent that did not park");
    const auto parks_at_once = [](Patience patience) { return patience.pauses + patience.yields == 0; };
    check(all.parks > 0 || !parks_at_once(of_workers), "no worker parked, so no wake-up was tried");
    check(parent.deeds.parks > 0 || !parks_at_once(of_parent), "the parent did not park, so no wake-up was tried");
    asked.before = nullptr;
}

std::string text(Patience patience) {
    return std::to_string(patience.pauses) + " pauses and " + std::to_string(patience.yields) + " yields";
}

}  // namespace

int main() {
    alarm(whole_run);
    test("numbers begin again", numbers_begin_again);
    test("a ring counts", ring_counts);
    test("an idle park ends at its limit", idle_park_ends_at_its_limit);
    test("a ring is not slept over", ring_is_not_slept_over);
    test("waiting awake asks nothing of the kernel", waiting_awake_asks_nothing);
    test("a ring for nobody wakes nobody", ring_for_nobody_wakes_nobody);
    test("a ring just before the sleep is seen", ring_just_before_sleep_is_seen);
    test("nobody is woken before the ring that is wanted", nobody_is_woken_before_the_ring_that_is_wanted);
    test("an urgent ring wakes at once", urgent_ring_wakes_at_once);
    test("an office has room for all", office_has_room_for_all);

    test("who shares a core moves to a free one", who_shares_a_core_moves_to_a_free_one);
    test("nobody moves without a free core, or for long steps", nobody_moves_without_a_free_core_or_for_long_steps);
    test("a move that does not help is tried seldom", move_that_does_not_help_is_tried_seldom);
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
