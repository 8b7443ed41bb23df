// The two ends of the handshake as Python sees them: ParentSignals calls all workers of a pool and waits for them,
// WorkerSignals serves one of them.
#pragma once

#include <poll.h>
#include <signal.h>
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

// The lines of a pool, in shared memory that somebody else keeps mapped.
inline Line* lines_in(nb::handle memory, std::size_t workers) {
    auto* array = reinterpret_cast<PyArrayObject*>(memory.ptr());
    if (!PyArray_Check(memory.ptr()) || PyArray_TYPE(array) != NPY_UINT8 || !PyArray_IS_C_CONTIGUOUS(array) ||
        !PyArray_ISWRITEABLE(array) || static_cast<std::size_t>(PyArray_SIZE(array)) < workers * sizeof(Line) ||
        reinterpret_cast<std::uintptr_t>(PyArray_DATA(array)) % alignof(Line) != 0) {
        throw std::invalid_argument("the lines of a pool need aligned, writeable bytes: lines_nbytes(workers)");
    }
    return static_cast<Line*>(PyArray_DATA(array));
}

// Lets other threads of Python run, and says so. Not nanobind's own guard: a daemon thread that comes back when
// Python is gone must not come back at all, or it would take the process down with it.
class OthersMayRun {
   public:
    explicit OthersMayRun(std::atomic<bool>& waits) : waits_(waits), thread_(PyEval_SaveThread()) { waits_ = true; }
    ~OthersMayRun() {
        while (finalizing()) pause();
        PyEval_RestoreThread(thread_);
        waits_ = false;
    }
    OthersMayRun(const OthersMayRun&) = delete;
    OthersMayRun& operator=(const OthersMayRun&) = delete;

   private:
    static bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
        return Py_IsFinalizing();
#else
        return _Py_IsFinalizing();
#endif
    }

    std::atomic<bool>& waits_;
    PyThreadState* thread_;
};

class ParentSignals {
   public:
    // All have answered, with nothing but rows, or with more to say; one has failed; somebody has died; no time left.
    enum Waited { all_plain, all_answered, some_failed, news, timed_out };

    ParentSignals(nb::object memory, std::size_t workers, int pauses, int yields, int news_descriptor,
                  bool parent_steps, std::size_t usable_cores)
        : lines_(lines_in(memory, workers)),
          pending_(workers, false),
          patience_{pauses, yields},
          news_descriptor_(news_descriptor),
          parent_steps_(parent_steps),
          cores_(1 + workers) {
        holder.hold(memory);
        if (cores_.size() <= usable_cores) seats_.emplace(allowed_cores());
        for (std::size_t worker = 0; worker < workers; ++worker) renew(worker);
    }

    // Forget what was there: a new process takes this worker's place.
    void renew(std::size_t worker) {
        check(worker);
        idle_ += lines_[worker].answer.waited.load(std::memory_order_relaxed);
        new (&lines_[worker]) Line{};
        lines_[worker].progress.env = -1;
        pending_[worker] = false;
    }

    void post(std::uint32_t verb) {
        posted_ = nanoseconds_now();
        const std::size_t workers = pending_.size();
        // First all words, so that those who look begin at once; then the system calls.
        for (std::size_t worker = 0; worker < workers; ++worker) write(worker, verb);
        for (std::size_t worker = 0; worker < workers; ++worker) wake(worker);
    }

    void post_to(std::size_t worker, std::uint32_t verb) {
        check(worker);
        write(worker, verb);
        wake(worker);
    }

    // Wait until every call is answered, or for something that the caller must look at first.
    Waited wait(double timeout) {
        const std::uint64_t begun = nanoseconds_now();
        const bool endless = timeout < 0;
        const auto limit = endless ? 0 : static_cast<std::uint64_t>(std::min(timeout, 1e9) * 1e9);
        std::size_t first = 0;  // all before it have answered
        for (bool looking = false;; looking = true) {
            if (looking) {
                if (PyErr_CheckSignals() < 0) nb::raise_python_error();
                if (has_news()) return news;
                if (any(failed_outcome)) return some_failed;
            }
            const std::uint64_t waited = nanoseconds_now() - begun;
            if (!endless && looking && waited >= limit) return timed_out;
            const std::uint64_t left = endless ? look_around : std::min(look_around, limit - std::min(limit, waited));
            {
                const OthersMayRun others_may_run(waits_);
                while (first < pending_.size() && answers(first, left)) ++first;
            }
            if (first == pending_.size()) break;
        }
        const std::uint64_t ended = nanoseconds_now();
        settle(begun, ended);
        return any(message_outcome) ? all_answered : all_plain;
    }

    // Whether a thread is in `wait`, and can do nothing else meanwhile.
    bool waits() const { return waits_; }

    // Where deaths are told from now on.
    void watch(int news_descriptor) { news_descriptor_ = news_descriptor; }

    bool pending(std::size_t worker) const {
        check(worker);
        return pending_[worker] && !has_answered(worker);
    }

    // What the worker said last, and that it has been heard.
    std::uint32_t take(std::size_t worker) {
        check(worker);
        pending_[worker] = false;
        return lines_[worker].answer.outcome;
    }

    // All that have something to say, or have failed, in order.
    nb::list speakers() const {
        nb::list found;
        for (std::size_t worker = 0; worker < pending_.size(); ++worker)
            if (pending_[worker] && has_answered(worker) && lines_[worker].answer.outcome != plain_outcome)
                found.append(worker);
        return found;
    }

    std::int64_t last_env(std::size_t worker) const {
        check(worker);
        return lines_[worker].progress.env;
    }

    // Whether the worker has kept its rows before it touched them in the call under way.
    bool kept(std::size_t worker) const {
        check(worker);
        return lines_[worker].progress.kept == lines_[worker].call.number.load(std::memory_order_relaxed);
    }

    // Seconds of all steps together: that the parent waited; that were neither its own nor the slowest worker's;
    // that the slowest of all worked, that all workers did, and that they waited for a call.
    nb::object figures() const {
        std::uint64_t idle = idle_;
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) idle += lines_[worker].answer.waited.load(std::memory_order_relaxed);
        return nb::make_tuple(seconds(waited_), seconds(overhead_), seconds(slowest_), seconds(worked_),
                              seconds(idle));
    }

    void clear() {
        pending_.clear();
        holder.release();
    }

    Holder holder;

   private:
    void check(std::size_t worker) const {
        if (worker >= pending_.size()) throw std::out_of_range("no such worker");
    }
    void write(std::size_t worker, std::uint32_t verb) {
        Call& call = lines_[worker].call;
        call.verb = verb;
        pending_[worker] = true;
        shoal::post(call.number, call.number.load(std::memory_order_relaxed) + 1);
    }
    void wake(std::size_t worker) {
        Call& call = lines_[worker].call;
        wake_if_parked(call.number, call.worker_parks);
    }
    bool has_answered(std::size_t worker) const {
        const Line& line = lines_[worker];
        return line.answer.number.load(std::memory_order_acquire) ==
               line.call.number.load(std::memory_order_relaxed);
    }
    bool answers(std::size_t worker, std::uint64_t limit) {
        if (!pending_[worker]) return true;
        Answer& answer = lines_[worker].answer;
        const Number before = unanswered(lines_[worker]);
        return changes_soon(answer.number, before, patience_) ||
               changes_while_parked(answer.number, before, answer.parent_parks, limit);
    }
    // Whether one that has not been heard has answered with this outcome, or a worse one.
    bool any(std::uint32_t outcome) const {
        for (std::size_t worker = 0; worker < pending_.size(); ++worker)
            if (pending_[worker] && has_answered(worker) && lines_[worker].answer.outcome >= outcome) return true;
        return false;
    }
    bool has_news() const {
        pollfd descriptor{news_descriptor_, POLLIN, 0};
        return poll(&descriptor, 1, 0) > 0;
    }
    static double seconds(std::uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

    void settle(std::uint64_t begun, std::uint64_t ended) {
        if (!posted_) return;
        waited_ += ended - begun;
        std::uint64_t slowest = 0;
        for (std::size_t worker = 0; worker < pending_.size(); ++worker) {
            const Answer& answer = lines_[worker].answer;
            slowest = std::max(slowest, answer.worked);
            worked_ += answer.worked;
        }
        if (seats_) seat(ended - posted_, ended);
        // If it steps a share itself, that is what it did from the post until it began to wait.
        slowest_ += parent_steps_ ? std::max(slowest, begun - posted_) : slowest;
        // Before `begun` the parent had something else to do.
        overhead_ += ended - std::min(ended, std::max(begun, posted_ + slowest));
        posted_ = 0;
    }

    // Ask whoever should work on another core to go there before the next step.
    void seat(std::uint64_t took, std::uint64_t now) {
        if (moving_) std::exchange(moving_, nullptr)->call.core = 0;
        cores_[0] = core_here();
        for (std::size_t worker = 0; worker < pending_.size(); ++worker)
            cores_[1 + worker] = lines_[worker].answer.core;
        if (const auto move = seats_->after_step(cores_, took, now)) {
            moving_ = &lines_[move->who - 1];
            moving_->call.core = move->to + 1;
        }
    }

    Line* lines_;
    std::vector<char> pending_;  // called, and what it said has not been taken
    Patience patience_;
    int news_descriptor_;
    bool parent_steps_;
    std::atomic<bool> waits_{false};
    std::optional<Seats> seats_;  // if there is a core for everybody
    std::vector<Core> cores_;     // on which each has worked, the parent first
    Line* moving_ = nullptr;      // of the worker that has been asked to move
    std::uint64_t posted_ = 0;  // when the step under way was; 0 if none is
    std::uint64_t waited_ = 0, overhead_ = 0, slowest_ = 0, worked_ = 0, idle_ = 0;
};

class WorkerSignals {
   public:
    WorkerSignals(nb::object memory, std::size_t worker, int pauses, int yields)
        : line_(lines_in(memory, worker + 1) + worker), patience_{pauses, yields} {
        holder.hold(memory);
    }

    // Answer steps until there is something to say: returns the verb of a call that is no step, or the infos of
    // one that is. Either way, and if the step raises, `answer` is still to be called.
    nb::object serve(nb::handle step) {
        if (!line_) throw std::runtime_error("the pool is gone");
        for (;;) {
            await_call();
            if (line_->call.verb != step_verb) return nb::int_(line_->call.verb);
            Owned infos = own(PyObject_CallNoArgs(step.ptr()));
            if (!infos.is_valid()) nb::raise_python_error();
            if (!PyList_CheckExact(infos.ptr()) || PyList_GET_SIZE(infos.ptr()) != 0) return infos;
            answer(plain_outcome);
        }
    }

    // The rows have been copied, and will now be touched.
    void keep() {
        if (!line_) throw std::runtime_error("the pool is gone");
        std::atomic_thread_fence(std::memory_order_release);
        line_->progress.kept = line_->call.number.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    void answer(std::uint32_t outcome) {
        if (!line_) throw std::runtime_error("the pool is gone");
        Answer& answer = line_->answer;
        free_since_ = nanoseconds_now();
        answer.outcome = outcome;
        answer.core = core_here();
        answer.worked = free_since_ - called_;
        post(answer.number, line_->call.number.load(std::memory_order_relaxed));
        wake_if_parked(answer.number, answer.parent_parks);
    }

    void clear() {
        line_ = nullptr;
        holder.release();
    }

    Holder holder;

   private:
    void await_call() {
        Call& call = line_->call;
        const Number answered = line_->answer.number.load(std::memory_order_relaxed);
        while (!changed(call.number, answered)) {
            {
                const OthersMayRun others_may_run(waits_);
                if (changes_soon(call.number, answered, patience_)) break;
                // For as long as it takes: if the parent dies, so do we.
                if (changes_while_parked(call.number, answered, call.worker_parks, 3'600'000'000'000)) break;
            }
            // A signal handler of an env's that raises has nobody to raise to: nobody has called.
            if (PyErr_CheckSignals() < 0) PyErr_WriteUnraisable(nullptr);
        }
        if (call.core) move_to(call.core - 1);
        called_ = nanoseconds_now();
        if (free_since_) line_->answer.waited.fetch_add(called_ - free_since_, std::memory_order_relaxed);
    }

    Line* line_;
    Patience patience_;
    std::atomic<bool> waits_{false};
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
