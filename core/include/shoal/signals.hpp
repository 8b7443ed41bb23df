// The two ends of the handshake as Python sees them: ParentSignals calls all workers of a pool and waits for them,
// WorkerSignals serves one of them.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/handshake.hpp"
#include "shoal/python.hpp"
#include "shoal/seats.hpp"

namespace shoal {

constexpr std::uint32_t step_verb = 0;        // all that needs no request beside it
constexpr std::uint32_t plain_outcome = 0;    // nothing but the rows
constexpr std::uint32_t message_outcome = 1;  // a message follows
constexpr std::uint32_t failed_outcome = 2;   // an error follows
constexpr std::uint64_t look_around = 50'000'000;  // nanoseconds: how late a death is noticed at most

// The desks and rings of a pool, in shared memory that somebody else keeps mapped.
inline Office office_in(nb::handle memory, std::size_t workers, std::size_t blocks) {
    auto* array = reinterpret_cast<PyArrayObject*>(memory.ptr());
    if (!PyArray_Check(memory.ptr()) || PyArray_TYPE(array) != NPY_UINT8 || !PyArray_IS_C_CONTIGUOUS(array) ||
        !PyArray_ISWRITEABLE(array) || blocks == 0 ||
        static_cast<std::size_t>(PyArray_SIZE(array)) < Office::nbytes(workers, blocks) ||
        reinterpret_cast<std::uintptr_t>(PyArray_DATA(array)) % cache_line != 0) {
        throw std::invalid_argument("a pool needs aligned, writeable bytes: office_nbytes(workers, blocks)");
    }
    return Office(PyArray_DATA(array), workers, blocks);
}

// Time as this process has lived it, in nanoseconds. While a process is stopped, by Ctrl-Z say, time passes for
// others only. It notices this afterwards: the clock has advanced more between two readings than any wait could last.
class LivedTime {
   public:
    std::uint64_t at(std::uint64_t clock) {
        lived_ += std::min(clock - std::min(clock, looked_), longest_gap);
        looked_ = clock;
        return lived_;
    }
    std::uint64_t now() { return at(nanoseconds_now()); }
    // The wait took `slept`, though it was limited to `limit`: the difference does not count.
    void overslept(std::uint64_t slept, std::uint64_t limit) { looked_ += slept - std::min(slept, limit); }

   private:
    static constexpr std::uint64_t longest_gap = 1'000'000'000;  // between two calls of the user's
    std::uint64_t looked_ = nanoseconds_now(), lived_ = 0;
};

// Blocks are counted through the whole pool here, in the order of their rows; at a desk they are counted by worker.
class ParentSignals {
   public:
    // All that was waited for has been answered, with nothing but rows, or with more to say; a message must be read
    // first; somebody has died; no time left.
    enum Waited { all_plain, all_answered, messages, news, timed_out };

    // `owners`: the worker of each block.
    ParentSignals(nb::object memory, std::vector<std::uint32_t> owners, int pauses, int yields, int news_descriptor,
                  bool parent_steps, std::size_t usable_cores)
        : office_(office_in(memory, workers_of(owners), longest_of(owners))),
          owners_(std::move(owners)),
          numbers_(owners_.size()),
          calls_(owners_.size()),
          states_(owners_.size(), idle),
          steps_(owners_.size()),
          outcomes_(owners_.size()),
          blocks_(office_.workers()),
          seen_(office_.workers()),
          moved_(office_.workers()),
          patience_{pauses, yields},
          news_{pollfd{news_descriptor, POLLIN, 0}},
          parent_steps_(parent_steps),
          cores_(1 + office_.workers()) {
        holder.hold(memory);
        if (cores_.size() <= usable_cores) seats_.emplace(allowed_cores());
        for (std::uint32_t block = 0; block < owners_.size(); ++block) {
            numbers_[block] = static_cast<std::uint32_t>(blocks_[owners_[block]].size());
            blocks_[owners_[block]].push_back(block);
            all_.push_back(block);
        }
        new (&office_.bell()) Bell{};
        for (std::size_t worker = 0; worker < office_.workers(); ++worker) renew(worker);
    }

    // Forget what was there: a new process takes this worker's place.
    void renew(std::size_t worker) {
        Desk& desk = desk_of(worker);
        before_ += desk.answers.waited.load(std::memory_order_relaxed);
        new (&desk) Desk{};
        desk.progress.env = -1;
        seen_[worker] = 0;
        for (const std::uint32_t block : blocks_[worker]) {
            if (states_[block] == called) states_[block] = idle;
            forget(speakers_, block);
        }
    }

    // A step of all.
    void post_steps() {
        posted_ = nanoseconds_now();
        slowest_now_ = 0;
        post(all_, step_verb);
    }

    void post(const std::vector<std::uint32_t>& blocks, std::uint32_t verb) {
        for (const std::uint32_t block : blocks) check(block);
        const std::uint64_t now = lived_.now();
        // First all words, so that those who look begin at once; then the system calls.
        for (const std::uint32_t block : blocks) {
            const std::size_t worker = owners_[block];
            const Number number = desk(worker).calls.number.load(std::memory_order_relaxed);
            office_.call(worker, number) = Call{numbers_[block], verb};
            calls_[block] = number + 1;
            states_[block] = called;
            outcomes_[block] = plain_outcome;
            steps_[block] = verb == step_verb;
            moved_[worker] = now;
            ring(desk(worker).calls, 1);
        }
        for (std::size_t worker = 0; worker < moved_.size(); ++worker) {
            if (moved_[worker] != now) continue;
            Bell& bell = desk(worker).calls;
            wake_if_parked(bell, bell.number.load(std::memory_order_relaxed));
        }
    }

    // Wait until every call is answered, or for something that the caller must look at first.
    Waited wait(double timeout) {
        return await(timeout, [this] { return count(all_); });
    }
    // The same, and take them all, if they say nothing but rows.
    Waited wait_and_take(double timeout) {
        const Waited waited = wait(timeout);
        if (waited == all_plain) {
            std::fill(states_.begin(), states_.end(), idle);
            arrived_.clear();
        }
        return waited;
    }
    // Until these are.
    Waited wait_for(const std::vector<std::uint32_t>& blocks, double timeout) {
        for (const std::uint32_t block : blocks) check(block);
        return await(timeout, [&] { return count(blocks); });
    }
    // Until so many are there that have not been taken. Others may come all the time, so that one who has died might
    // never be missed: hence the look.
    Waited wait_for_any(std::size_t wanted, double timeout) {
        if (has_news(1)) return news;
        return await(timeout, [&] { return wanted - std::min(wanted, arrived_.size()); });
    }

    // Workers that have been called, and for so long neither called nor heard again.
    std::vector<std::size_t> overdue(double seconds) {
        collect();
        std::vector<std::size_t> found;
        const std::uint64_t now = lived_.now();
        for (std::size_t worker = 0; worker < blocks_.size(); ++worker)
            if (static_cast<double>(now - moved_[worker]) > 1e9 * seconds && count(blocks_[worker]) > 0)
                found.push_back(worker);
        return found;
    }

    // Seconds that this process has lived since the pool was made.
    double lived() { return seconds(lived_.now()); }

    // Let a wait of this thread, which a signal handler interrupts, or of another one end now, and every later one.
    void interrupt() {
        interrupted_.store(true, std::memory_order_relaxed);
        Bell& bell = office_.bell();
        wake_if_parked(bell, ring(bell, 0, true), true);
    }

    // Where deaths are told from now on.
    void watch(int news_descriptor) { news_.front().fd = news_descriptor; }
    // Sockets whose other ends are the workers': if one is closed, that is news too.
    void watch_lines(const std::vector<int>& descriptors) {
        news_.resize(1);
        for (const int descriptor : descriptors) news_.push_back(pollfd{descriptor, 0, 0});
    }

    // The blocks of a worker that have been called and have not answered.
    std::vector<std::uint32_t> due(std::size_t worker) {
        desk_of(worker);
        collect();
        std::vector<std::uint32_t> found;
        for (const std::uint32_t block : blocks_[worker])
            if (states_[block] == called) found.push_back(block);
        return found;
    }

    // All that have answered and have not been taken, in that order.
    std::vector<std::uint32_t> arrived() {
        collect();
        return arrived_;
    }

    // Of those, all that have something to say that has not been heard, or have failed: in the order of each worker.
    std::vector<std::uint32_t> speakers() {
        collect();
        return speakers_;
    }

    // What it comes with is being heard now.
    std::uint32_t hear(std::uint32_t block) {
        check(block);
        forget(speakers_, block);
        return outcomes_[block];
    }

    // Their rows are the caller's, or nobody's any more. What one has to say must still be heard.
    void take(const std::vector<std::uint32_t>& blocks) {
        for (const std::uint32_t block : blocks) {
            check(block);
            states_[block] = idle;
            forget(arrived_, block);
        }
    }

    std::int64_t last_env(std::size_t worker) const { return desk_of(worker).progress.env; }

    // Whether its worker has kept its rows before it touched them in the last call. It takes calls in order, so it has if
    // it has kept those of a later one.
    bool kept(std::uint32_t block) const {
        check(block);
        return reached(desk(owners_[block]).progress.kept, calls_[block]);
    }

    // These are not called, though the caller meant to: their worker is lost, and has not touched them.
    void skip(const std::vector<std::uint32_t>& blocks) {
        for (const std::uint32_t block : blocks) {
            check(block);
            calls_[block] = desk(owners_[block]).calls.number.load(std::memory_order_relaxed) + 1;
        }
    }

    // Seconds of all steps together: that the parent waited; that were neither its own nor the slowest worker's;
    // that the slowest of all worked, that all workers did, and that they waited for a call.
    nb::object figures() const {
        std::uint64_t idle = before_;
        for (std::size_t worker = 0; worker < office_.workers(); ++worker)
            idle += desk(worker).answers.waited.load(std::memory_order_relaxed);
        return nb::make_tuple(seconds(waited_), seconds(overhead_), seconds(slowest_), seconds(worked_),
                              seconds(idle));
    }

    void clear() {
        owners_.clear();
        holder.release();
    }

    Holder holder;

   private:
    enum State : char { idle, called, answered };

    static std::size_t workers_of(const std::vector<std::uint32_t>& owners) {
        return owners.empty() ? 0 : 1 + *std::max_element(owners.begin(), owners.end());
    }
    static std::size_t longest_of(const std::vector<std::uint32_t>& owners) {
        std::vector<std::size_t> counts(workers_of(owners));
        for (const std::uint32_t owner : owners) ++counts[owner];
        return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    }
    void check(std::uint32_t block) const {
        if (block >= owners_.size()) throw std::out_of_range("no such block");
    }
    Desk& desk(std::size_t worker) const { return office_.desk(worker); }
    Desk& desk_of(std::size_t worker) const {
        if (owners_.empty() || worker >= office_.workers()) throw std::out_of_range("no such worker");
        return desk(worker);
    }
    static void forget(std::vector<std::uint32_t>& list, std::uint32_t block) {
        const auto found = std::find(list.begin(), list.end(), block);
        if (found != list.end()) list.erase(found);
    }
    std::size_t count(const std::vector<std::uint32_t>& blocks) const {
        return static_cast<std::size_t>(
            std::count_if(blocks.begin(), blocks.end(), [this](auto block) { return states_[block] == called; }));
    }

    // Take note of all answers that are there. Another worker comes first each time, so that none is always last.
    void collect() {
        const std::size_t workers = owners_.empty() ? 0 : office_.workers();
        const std::uint64_t now = lived_.now();
        if (workers) first_ = (first_ + 1) % workers;
        for (std::size_t turn = 0; turn < workers; ++turn) {
            const std::size_t worker = (first_ + turn) % workers;
            const Number number = desk(worker).answers.number.load(std::memory_order_seq_cst);
            for (; seen_[worker] != number; ++seen_[worker]) {
                const Answer& answer = office_.answer(worker, seen_[worker]);
                const std::uint32_t block = blocks_[worker][answer.block];
                // The nth answer is to the nth call; one that nobody waits for any more may come late.
                if (states_[block] != called || calls_[block] != seen_[worker] + 1) continue;
                states_[block] = answered;
                outcomes_[block] = answer.outcome;
                moved_[worker] = now;
                arrived_.push_back(block);
                if (answer.outcome != plain_outcome) speakers_.push_back(block);
                if (!steps_[block]) continue;
                slowest_now_ = std::max(slowest_now_, answer.worked);
                worked_ += answer.worked;
            }
        }
    }

    // Whether somebody may be unable to go on before it is heard, or has failed.
    bool must_hear() const {
        return std::any_of(speakers_.begin(), speakers_.end(), [this](auto block) {
            return outcomes_[block] == failed_outcome || count(blocks_[owners_[block]]) > 0;
        });
    }

    template <class Missing>
    Waited await(double timeout, Missing missing) {
        const std::uint64_t begun = nanoseconds_now(), since = lived_.at(begun);
        const bool endless = timeout < 0;
        const auto limit = endless ? 0 : static_cast<std::uint64_t>(std::min(timeout, 1e9) * 1e9);
        Bell& bell = office_.bell();
        for (bool looking = false;; looking = true) {
            // Before the answers are looked at: one that comes meanwhile is rung for after this.
            const Awaited heard{bell.number.load(std::memory_order_acquire),
                                bell.urgent.load(std::memory_order_acquire)};
            collect();
            const std::size_t left = missing();
            if (left == 0) break;
            if (must_hear()) return messages;
            if (looking) {
                if (PyErr_CheckSignals() < 0) nb::raise_python_error();
                if (has_news(news_.size())) return news;
            }
            if (interrupted_.load(std::memory_order_relaxed)) return news;  // by a signal handler just now, say
            const std::uint64_t waited = lived_.now() - since;
            if (!endless && looking && waited >= limit) return timed_out;
            const std::uint64_t rest = endless ? look_around : std::min(look_around, limit - std::min(limit, waited));
            const Awaited awaited{heard.number + static_cast<Number>(left), heard.urgent};
            std::uint64_t slept = 0;
            {
                const OthersMayRun others_may_run;
                if (!rings_soon(bell, awaited, patience_)) {
                    slept = nanoseconds_now();
                    rings_while_parked(bell, awaited, rest);
                    slept = nanoseconds_now() - slept;
                }
            }
            lived_.overslept(slept, rest + look_around);  // as much again, for a busy machine
        }
        settle(begun, nanoseconds_now());
        if (!speakers_.empty()) return all_answered;
        return all_plain;
    }

    // Poll the first `descriptors` entries of `news_`.
    bool has_news(std::size_t descriptors) { return poll(news_.data(), descriptors, 0) > 0; }
    static double seconds(std::uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

    void settle(std::uint64_t begun, std::uint64_t ended) {
        waited_ += ended - begun;
        if (!posted_) return;
        if (seats_) seat(ended - posted_, ended);
        // If it steps a share itself, that is what it did from the post until it began to wait.
        slowest_ += parent_steps_ ? std::max(slowest_now_, begun - posted_) : slowest_now_;
        // Before `begun` the parent had something else to do.
        overhead_ += ended - std::min(ended, std::max(begun, posted_ + slowest_now_));
        posted_ = 0;
    }

    // Ask whoever should work on another core to go there before the next step.
    void seat(std::uint64_t took, std::uint64_t now) {
        if (moving_) std::exchange(moving_, nullptr)->seat.store(0, std::memory_order_relaxed);
        cores_[0] = core_here();
        for (std::size_t worker = 0; worker < office_.workers(); ++worker)
            cores_[1 + worker] = desk(worker).answers.core;
        if (const auto move = seats_->after_step(cores_, took, now)) {
            moving_ = &desk(move->who - 1);
            moving_->seat.store(move->to + 1, std::memory_order_relaxed);
        }
    }

    Office office_;
    std::vector<std::uint32_t> owners_, numbers_;        // of each block: its worker, its number there
    std::vector<Number> calls_;                          // the last call to it, counted by its worker
    std::vector<State> states_;
    std::vector<char> steps_;                            // whether that was a step
    std::vector<std::uint32_t> outcomes_;
    std::vector<std::vector<std::uint32_t>> blocks_;     // of each worker
    std::vector<std::uint32_t> all_, arrived_, speakers_;
    std::vector<Number> seen_;                           // answers of each worker
    LivedTime lived_;
    std::vector<std::uint64_t> moved_;                   // when each was last called or heard, in that time
    std::size_t first_ = 0;
    Patience patience_;
    std::vector<pollfd> news_;  // of the launcher, then of each worker's line
    bool parent_steps_;
    std::atomic<bool> interrupted_{false};
    std::optional<Seats> seats_;  // if there is a core for everybody
    std::vector<Core> cores_;     // on which each has worked, the parent first
    Desk* moving_ = nullptr;      // of the worker that has been asked to move
    std::uint64_t posted_ = 0;    // when the step under way was; 0 if none is, or only of some
    std::uint64_t waited_ = 0, overhead_ = 0, slowest_ = 0, slowest_now_ = 0, worked_ = 0, before_ = 0;
};

// What becomes of a worker's memory if one of its envs forks: in the child it is a copy, so that nothing which the
// child does there is seen by the parent, or by the worker itself.
class ForkedMemory {
   public:
    static void watch(nb::handle memory, int descriptor) {
        static const int registered = pthread_atfork(nullptr, nullptr, leave);
        (void)registered;
        auto* array = reinterpret_cast<PyArrayObject*>(memory.ptr());
        data_ = PyArray_DATA(array);
        nbytes_ = static_cast<std::size_t>(PyArray_NBYTES(array));
        descriptor_ = descriptor;
        left_ = false;
    }
    // Whether this process is such a child.
    static bool left() { return left_; }

   private:
    static void leave() {
        left_ = true;
        if (data_) mmap(data_, nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, descriptor_, 0);
    }

    inline static void* data_ = nullptr;
    inline static std::size_t nbytes_ = 0;
    inline static int descriptor_ = -1;
    inline static bool left_ = false;
};

class WorkerSignals {
   public:
    // `descriptor`: of the memory, which begins on a page.
    WorkerSignals(nb::object memory, std::size_t workers, std::size_t blocks, std::size_t worker, int pauses,
                  int yields, int descriptor)
        : office_(office_in(memory, workers, blocks)), worker_(worker), patience_{pauses, yields} {
        if (worker >= workers) throw std::out_of_range("no such worker");
        holder.hold(memory);
        open_ = true;
        if (descriptor >= 0) ForkedMemory::watch(memory, descriptor);
    }

    // Answer steps until there is something to say: returns the verb of a call that is no step, or the infos of
    // one that is. Either way, and if the step raises, `answer` is still to be called. `steps`: of each block.
    nb::object serve(nb::list steps) {
        for (;;) {
            await_call();
            if (call_.verb != step_verb) return nb::int_(call_.verb);
            if (call_.block >= nb::len(steps)) throw std::out_of_range("no such block");
            Owned infos = own(call(PyList_GET_ITEM(steps.ptr(), call_.block)));
            if (!infos.is_valid()) nb::raise_python_error();
            if (!PyList_CheckExact(infos.ptr()) || PyList_GET_SIZE(infos.ptr()) != 0) return infos;
            answer(plain_outcome);
        }
    }

    // The block that was called last.
    std::uint32_t block() const { return call_.block; }

    // The rows have been copied, and will now be touched.
    void keep() {
        std::atomic_thread_fence(std::memory_order_release);
        desk().progress.kept = taken_;
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    void answer(std::uint32_t outcome) {
        // A child of an env's that came back where only the worker should: nobody waits for it.
        if (ForkedMemory::left()) _exit(1);
        Desk& desk = this->desk();
        free_since_ = nanoseconds_now();
        const Number number = desk.answers.number.load(std::memory_order_relaxed);
        office_.answer(worker_, number) = Answer{call_.block, outcome, free_since_ - called_};
        desk.answers.core = core_here();
        // In one order with `post` and `collect`: if the parent has not seen this answer, we see its next call.
        desk.answers.number.store(number + 1, std::memory_order_seq_cst);
        // With a message under way, what is still to be done waits until it is heard.
        const bool queue = desk.calls.number.load(std::memory_order_seq_cst) != taken_;
        const bool urgent = outcome == failed_outcome || (outcome != plain_outcome && queue);
        wake_if_parked(office_.bell(), ring(office_.bell(), 1, urgent), urgent);
    }

    void clear() {
        open_ = false;
        holder.release();
    }

    Holder holder;

   private:
    Desk& desk() const {
        if (!open_) throw std::runtime_error("the pool is gone");
        return office_.desk(worker_);
    }
    void await_call() {
        Desk& desk = this->desk();
        const Awaited awaited{taken_ + 1, desk.calls.urgent.load(std::memory_order_relaxed)};
        while (!has_rung(desk.calls, awaited)) {
            {
                const OthersMayRun others_may_run;
                if (rings_soon(desk.calls, awaited, patience_)) break;
                // For as long as it takes: if the parent dies, so do we.
                if (rings_while_parked(desk.calls, awaited, 3'600'000'000'000)) break;
            }
            // A signal handler of an env's that raises has nobody to raise to: nobody has called.
            if (PyErr_CheckSignals() < 0) PyErr_WriteUnraisable(nullptr);
        }
        call_ = office_.call(worker_, taken_++);
        if (const Core seat = desk.seat.load(std::memory_order_relaxed)) move_to(seat - 1);
        called_ = nanoseconds_now();
        if (free_since_) desk.answers.waited.fetch_add(called_ - free_since_, std::memory_order_relaxed);
    }

    Office office_;
    std::size_t worker_;
    Patience patience_;
    bool open_ = false;
    Call call_{};
    Number taken_ = 0;  // calls so far
    std::uint64_t called_ = 0, free_since_ = 0;
};

// Have the kernel end this process when the one that started it ends; false if that has ended already.
inline bool die_with_parent(int parent) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    return getppid() == parent;
}

}  // namespace shoal
