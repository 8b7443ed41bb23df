// signals: the two ends of the handshake as Python sees them.
//
//   ParentSignals   the parent's end: posts calls to all workers of a process pool, and waits for their answers
//   WorkerSignals   a worker's end: takes calls, and answers them
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

#include "shoal/handshake/handshake.hpp"
#include "shoal/python.hpp"
#include "shoal/handshake/core_placement.hpp"

namespace shoal {

constexpr std::uint32_t step_verb = 0;        // the only verb that sends no request message
constexpr std::uint32_t plain_outcome = 0;    // the answer is the rows alone
constexpr std::uint32_t message_outcome = 1;  // a message follows on the socket
constexpr std::uint32_t failed_outcome = 2;   // an error follows on the socket
constexpr std::uint64_t check_interval = 50'000'000;  // nanoseconds; a death is noticed within this time

// Check that `memory` can hold the handshake of a process pool. The caller keeps the memory mapped.
inline HandshakeMemory handshake_memory_in(nb::handle memory, std::size_t workers, std::size_t blocks) {
    auto* array = reinterpret_cast<PyArrayObject*>(memory.ptr());
    if (!PyArray_Check(memory.ptr()) || PyArray_TYPE(array) != NPY_UINT8 || !PyArray_IS_C_CONTIGUOUS(array) ||
        !PyArray_ISWRITEABLE(array) || blocks == 0 ||
        static_cast<std::size_t>(PyArray_SIZE(array)) < HandshakeMemory::nbytes(workers, blocks) ||
        reinterpret_cast<std::uintptr_t>(PyArray_DATA(array)) % cache_line != 0) {
        throw std::invalid_argument("a process pool needs aligned, writeable bytes: handshake_nbytes(workers, blocks)");
    }
    return HandshakeMemory(PyArray_DATA(array), workers, blocks);
}

// The time during which this process could run, in nanoseconds. Time while the process is stopped (by Ctrl-Z, for
// example) does not count, because timeouts must not expire then. A stop is noticed afterwards: between two readings,
// the clock has advanced by more than any wait can last.
class RunningTime {
   public:
    std::uint64_t at(std::uint64_t clock) {
        running_ += std::min(clock - std::min(clock, last_reading_), longest_gap);
        last_reading_ = clock;
        return running_;
    }
    std::uint64_t now() { return at(nanoseconds_now()); }
    // A wait took `slept`, and its limit was `limit`. Do not count the difference.
    void exclude_excess(std::uint64_t slept, std::uint64_t limit) { last_reading_ += slept - std::min(slept, limit); }

   private:
    static constexpr std::uint64_t longest_gap = 1'000'000'000;  // the most that counts between two readings
    std::uint64_t last_reading_ = nanoseconds_now(), running_ = 0;
};

// A block's index here counts all blocks of the process pool, in the order of their rows. A call or answer holds the
// block's local index, which counts the blocks of one worker.
class ParentSignals {
   public:
    // How a wait ended. `calls.py` uses the same numbers.
    enum WaitResult {
        all_plain,      // all awaited blocks are answered, and there are no messages
        all_answered,   // all awaited blocks are answered, and there are messages to read
        messages,       // messages must be read before the wait can go on
        check_workers,  // a worker may have died, or `interrupt` was called
        timed_out,
    };

    // `owners`: the worker of each block.
    ParentSignals(nb::object memory, std::vector<std::uint32_t> owners, int pauses, int yields, int death_descriptor,
                  bool parent_steps, std::size_t usable_cores)
        : handshake_(handshake_memory_in(memory, workers_of(owners), most_blocks_of(owners))),
          owners_(std::move(owners)),
          local_index_(owners_.size()),
          calls_(owners_.size()),
          states_(owners_.size(), idle),
          steps_(owners_.size()),
          outcomes_(owners_.size()),
          blocks_(handshake_.workers()),
          seen_(handshake_.workers()),
          last_active_(handshake_.workers()),
          patience_{pauses, yields},
          watched_{pollfd{death_descriptor, POLLIN, 0}},
          parent_steps_(parent_steps),
          process_cores_(1 + handshake_.workers()) {
        holder.hold(memory);
        if (process_cores_.size() <= usable_cores) core_placement_.emplace(allowed_cores());
        for (std::uint32_t block = 0; block < owners_.size(); ++block) {
            local_index_[block] = static_cast<std::uint32_t>(blocks_[owners_[block]].size());
            blocks_[owners_[block]].push_back(block);
            all_.push_back(block);
        }
        new (&handshake_.parent_doorbell()) Doorbell{};
        for (std::size_t worker = 0; worker < handshake_.workers(); ++worker) renew(worker);
    }

    // Reset the slot of a worker, because a new process replaces it.
    void renew(std::size_t worker) {
        WorkerSlot& slot = checked_slot(worker);
        idle_before_renew_ += slot.answers.waited.load(std::memory_order_relaxed);
        new (&slot) WorkerSlot{};
        slot.progress.env = -1;
        seen_[worker] = 0;
        for (const std::uint32_t block : blocks_[worker]) {
            if (states_[block] == called) states_[block] = idle;
            remove(unread_, block);
        }
    }

    // Call all blocks for a step.
    void post_steps() {
        posted_ = nanoseconds_now();
        slowest_of_step_ = 0;
        post(all_, step_verb);
    }

    // Call these blocks, which must be idle.
    void post(const std::vector<std::uint32_t>& blocks, std::uint32_t verb) {
        for (const std::uint32_t block : blocks) check(block);
        const std::uint64_t now = running_time_.now();
        // Ring all doorbells first, so that workers which spin begin at once. Then make the system calls.
        for (const std::uint32_t block : blocks) {
            const std::size_t worker = owners_[block];
            const Number number = slot(worker).calls.number.load(std::memory_order_relaxed);
            handshake_.call(worker, number) = Call{local_index_[block], verb};
            calls_[block] = number + 1;
            states_[block] = called;
            outcomes_[block] = plain_outcome;
            steps_[block] = verb == step_verb;
            last_active_[worker] = now;
            ring(slot(worker).calls, 1);
        }
        for (std::size_t worker = 0; worker < last_active_.size(); ++worker) {
            if (last_active_[worker] != now) continue;
            Doorbell& doorbell = slot(worker).calls;
            wake_if_parked(doorbell, doorbell.number.load(std::memory_order_relaxed));
        }
    }

    // Wait until every call is answered, or until the caller must do something first (see WaitResult).
    WaitResult wait(double timeout) {
        return await(timeout, [this] { return count_called(all_); });
    }
    // Wait like `wait`, and take all blocks if the result is `all_plain`.
    WaitResult wait_and_take(double timeout) {
        const WaitResult waited = wait(timeout);
        if (waited == all_plain) {
            std::fill(states_.begin(), states_.end(), idle);
            arrived_.clear();
        }
        return waited;
    }
    // Wait until these blocks are answered.
    WaitResult wait_for(const std::vector<std::uint32_t>& blocks, double timeout) {
        for (const std::uint32_t block : blocks) check(block);
        return await(timeout, [&] { return count_called(blocks); });
    }
    // Wait until `wanted` blocks have arrived and are not yet taken. Other workers may answer all the time, so the wait
    // might never notice a dead worker: hence the first line.
    WaitResult wait_for_any(std::size_t wanted, double timeout) {
        if (has_death_report(1)) return check_workers;
        return await(timeout, [&] { return wanted - std::min(wanted, arrived_.size()); });
    }

    // Workers with an unanswered call that neither got a call nor gave an answer for `seconds`.
    std::vector<std::size_t> overdue(double seconds) {
        collect();
        std::vector<std::size_t> found;
        const std::uint64_t now = running_time_.now();
        for (std::size_t worker = 0; worker < blocks_.size(); ++worker)
            if (static_cast<double>(now - last_active_[worker]) > 1e9 * seconds && count_called(blocks_[worker]) > 0)
                found.push_back(worker);
        return found;
    }

    // Seconds since this object was made, without the time while the process was stopped.
    double running_seconds() { return seconds(running_time_.now()); }

    // End the wait that is going on, and every later one. A signal handler of the waiting thread may call this, or
    // another thread.
    void interrupt() {
        interrupted_.store(true, std::memory_order_relaxed);
        Doorbell& doorbell = handshake_.parent_doorbell();
        wake_if_parked(doorbell, ring(doorbell, 0, true), true);
    }

    // Set the descriptor on which the launcher reports deaths.
    void watch(int death_descriptor) { watched_.front().fd = death_descriptor; }
    // Set the sockets to the workers. A wait also ends if a worker's end is closed.
    void watch_connections(const std::vector<int>& descriptors) {
        watched_.resize(1);
        for (const int descriptor : descriptors) watched_.push_back(pollfd{descriptor, 0, 0});
    }

    // The blocks of a worker with an unanswered call.
    std::vector<std::uint32_t> due(std::size_t worker) {
        checked_slot(worker);
        collect();
        std::vector<std::uint32_t> found;
        for (const std::uint32_t block : blocks_[worker])
            if (states_[block] == called) found.push_back(block);
        return found;
    }

    // The blocks that are answered and not yet taken, in the order of their answers.
    std::vector<std::uint32_t> arrived() {
        collect();
        return arrived_;
    }

    // The blocks whose answer comes with a message or an error that is not yet read. Blocks of one worker are in the
    // order of their messages.
    std::vector<std::uint32_t> unread() {
        collect();
        return unread_;
    }

    // Note that the caller reads the message of this block now. Returns the outcome.
    std::uint32_t mark_read(std::uint32_t block) {
        check(block);
        remove(unread_, block);
        return outcomes_[block];
    }

    // Make these blocks idle: the caller has their rows, or gives them up. Their messages must still be read.
    void take(const std::vector<std::uint32_t>& blocks) {
        for (const std::uint32_t block : blocks) {
            check(block);
            states_[block] = idle;
            remove(arrived_, block);
        }
    }

    // The env that the worker entered last.
    std::int64_t last_env(std::size_t worker) const { return checked_slot(worker).progress.env; }

    // Whether the worker has saved a copy of this block's rows in the last call, before it wrote to them. The worker
    // takes calls in order, so a copy for a later call implies one for this call.
    bool kept(std::uint32_t block) const {
        check(block);
        return reached(slot(owners_[block]).progress.kept, calls_[block]);
    }

    // Note that the caller could not call these blocks: their worker is lost, and has not written to their rows.
    void skip(const std::vector<std::uint32_t>& blocks) {
        for (const std::uint32_t block : blocks) {
            check(block);
            calls_[block] = slot(owners_[block]).calls.number.load(std::memory_order_relaxed) + 1;
        }
    }

    // Sums over all steps, in seconds: the parent's waiting; the overhead (neither the parent nor the slowest worker
    // worked); the work of each step's slowest process; the work of all workers; the waiting of all workers for calls.
    nb::object figures() const {
        std::uint64_t idle = idle_before_renew_;
        for (std::size_t worker = 0; worker < handshake_.workers(); ++worker)
            idle += slot(worker).answers.waited.load(std::memory_order_relaxed);
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
    static std::size_t most_blocks_of(const std::vector<std::uint32_t>& owners) {
        std::vector<std::size_t> counts(workers_of(owners));
        for (const std::uint32_t owner : owners) ++counts[owner];
        return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    }
    void check(std::uint32_t block) const {
        if (block >= owners_.size()) throw std::out_of_range("no such block");
    }
    WorkerSlot& slot(std::size_t worker) const { return handshake_.slot(worker); }
    WorkerSlot& checked_slot(std::size_t worker) const {
        if (owners_.empty() || worker >= handshake_.workers()) throw std::out_of_range("no such worker");
        return slot(worker);
    }
    static void remove(std::vector<std::uint32_t>& list, std::uint32_t block) {
        const auto found = std::find(list.begin(), list.end(), block);
        if (found != list.end()) list.erase(found);
    }
    std::size_t count_called(const std::vector<std::uint32_t>& blocks) const {
        return static_cast<std::size_t>(
            std::count_if(blocks.begin(), blocks.end(), [this](auto block) { return states_[block] == called; }));
    }

    // Read all answers that have come. Begin with another worker each time, so that no worker is always last.
    void collect() {
        const std::size_t workers = owners_.empty() ? 0 : handshake_.workers();
        const std::uint64_t now = running_time_.now();
        if (workers) first_worker_ = (first_worker_ + 1) % workers;
        for (std::size_t turn = 0; turn < workers; ++turn) {
            const std::size_t worker = (first_worker_ + turn) % workers;
            const Number number = slot(worker).answers.number.load(std::memory_order_seq_cst);
            for (; seen_[worker] != number; ++seen_[worker]) {
                const Answer& answer = handshake_.answer(worker, seen_[worker]);
                const std::uint32_t block = blocks_[worker][answer.block];
                // The nth answer belongs to the nth call. An answer may come after its call was given up.
                if (states_[block] != called || calls_[block] != seen_[worker] + 1) continue;
                states_[block] = answered;
                outcomes_[block] = answer.outcome;
                last_active_[worker] = now;
                arrived_.push_back(block);
                if (answer.outcome != plain_outcome) unread_.push_back(block);
                if (!steps_[block]) continue;
                slowest_of_step_ = std::max(slowest_of_step_, answer.worked);
                worked_ += answer.worked;
            }
        }
    }

    // Whether a worker has failed, or may be unable to go on before its message is read.
    bool must_read_messages() const {
        return std::any_of(unread_.begin(), unread_.end(), [this](auto block) {
            return outcomes_[block] == failed_outcome || count_called(blocks_[owners_[block]]) > 0;
        });
    }

    template <class Missing>
    WaitResult await(double timeout, Missing missing) {
        const std::uint64_t begun = nanoseconds_now(), since = running_time_.at(begun);
        const bool endless = timeout < 0;
        const auto limit = endless ? 0 : static_cast<std::uint64_t>(std::min(timeout, 1e9) * 1e9);
        Doorbell& doorbell = handshake_.parent_doorbell();
        for (bool looking = false;; looking = true) {
            // Read the doorbell before the answers: an answer that comes in between rings after this.
            const WaitTarget before{doorbell.number.load(std::memory_order_acquire),
                                doorbell.urgent.load(std::memory_order_acquire)};
            collect();
            const std::size_t left = missing();
            if (left == 0) break;
            if (must_read_messages()) return messages;
            if (looking) {
                if (PyErr_CheckSignals() < 0) nb::raise_python_error();
                if (has_death_report(watched_.size())) return check_workers;
            }
            // Looked at here, because a signal handler may have set it just now.
            if (interrupted_.load(std::memory_order_relaxed)) return check_workers;
            const std::uint64_t waited = running_time_.now() - since;
            if (!endless && looking && waited >= limit) return timed_out;
            const std::uint64_t rest =
                endless ? check_interval : std::min(check_interval, limit - std::min(limit, waited));
            const WaitTarget target{before.number + static_cast<Number>(left), before.urgent};
            std::uint64_t slept = 0;
            {
                const GilRelease gil_released;
                if (!spin_until_rung(doorbell, target, patience_)) {
                    slept = nanoseconds_now();
                    park_until_rung(doorbell, target, rest);
                    slept = nanoseconds_now() - slept;
                }
            }
            // A busy machine may wake this thread late: allow for one more interval.
            running_time_.exclude_excess(slept, rest + check_interval);
        }
        record_times(begun, nanoseconds_now());
        if (!unread_.empty()) return all_answered;
        return all_plain;
    }

    // Poll the first `descriptors` entries of `watched_`.
    bool has_death_report(std::size_t descriptors) { return poll(watched_.data(), descriptors, 0) > 0; }
    static double seconds(std::uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

    void record_times(std::uint64_t begun, std::uint64_t ended) {
        waited_ += ended - begun;
        if (!posted_) return;
        if (core_placement_) improve_placement(ended - posted_, ended);
        // If the parent steps envs too, it did so from the post until it began to wait.
        slowest_ += parent_steps_ ? std::max(slowest_of_step_, begun - posted_) : slowest_of_step_;
        // Before `begun` the parent was busy, so that time is no overhead.
        overhead_ += ended - std::min(ended, std::max(begun, posted_ + slowest_of_step_));
        posted_ = 0;
    }

    // Ask a worker to move to another core before the next step, if that may help.
    void improve_placement(std::uint64_t took, std::uint64_t now) {
        if (moving_worker_) std::exchange(moving_worker_, nullptr)->move_to_core.store(0, std::memory_order_relaxed);
        process_cores_[0] = core_here();
        for (std::size_t worker = 0; worker < handshake_.workers(); ++worker)
            process_cores_[1 + worker] = slot(worker).answers.core;
        if (const auto move = core_placement_->after_step(process_cores_, took, now)) {
            moving_worker_ = &slot(move->process - 1);
            moving_worker_->move_to_core.store(move->to + 1, std::memory_order_relaxed);
        }
    }

    HandshakeMemory handshake_;
    // One entry per block.
    std::vector<std::uint32_t> owners_, local_index_;  // its worker, and its index among the worker's blocks
    std::vector<Number> calls_;                        // the number of its last call, counted per worker
    std::vector<State> states_;
    std::vector<char> steps_;                          // whether its last call was a step
    std::vector<std::uint32_t> outcomes_;
    // One entry per worker.
    std::vector<std::vector<std::uint32_t>> blocks_;
    std::vector<Number> seen_;                         // the number of answers that were read
    std::vector<std::uint64_t> last_active_;           // the running time of its last call or answer
    // Lists of blocks.
    std::vector<std::uint32_t> all_, arrived_, unread_;
    RunningTime running_time_;
    std::size_t first_worker_ = 0;  // the worker whose answers are read first
    Patience patience_;
    std::vector<pollfd> watched_;  // the launcher's channel, then the socket of each worker
    bool parent_steps_;
    std::atomic<bool> interrupted_{false};
    std::optional<CorePlacement> core_placement_;  // only if there is a core for each process
    std::vector<Core> process_cores_;              // where each process worked last, the parent first
    WorkerSlot* moving_worker_ = nullptr;          // the worker that was asked to move
    std::uint64_t posted_ = 0;  // when the current step of all blocks was posted; 0: there is none
    std::uint64_t waited_ = 0, overhead_ = 0, slowest_ = 0, slowest_of_step_ = 0, worked_ = 0, idle_before_renew_ = 0;
};

// Protects a worker's shared memory if one of its envs forks. The child gets a private copy, so that neither the parent
// nor the worker sees what the child writes there.
class ForkedMemory {
   public:
    static void watch(nb::handle memory, int descriptor) {
        static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
        (void)registered;
        auto* array = reinterpret_cast<PyArrayObject*>(memory.ptr());
        data_ = PyArray_DATA(array);
        nbytes_ = static_cast<std::size_t>(PyArray_NBYTES(array));
        descriptor_ = descriptor;
        forked_ = false;
    }
    // Whether this process is a forked child of a worker.
    static bool in_child() { return forked_; }

   private:
    static void after_fork() {
        forked_ = true;
        if (data_) mmap(data_, nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, descriptor_, 0);
    }

    inline static void* data_ = nullptr;
    inline static std::size_t nbytes_ = 0;
    inline static int descriptor_ = -1;
    inline static bool forked_ = false;
};

class WorkerSignals {
   public:
    // `descriptor`: the file of the memory, which begins on a page; -1 if it has none.
    WorkerSignals(nb::object memory, std::size_t workers, std::size_t blocks, std::size_t worker, int pauses,
                  int yields, int descriptor)
        : handshake_(handshake_memory_in(memory, workers, blocks)), worker_(worker), patience_{pauses, yields} {
        if (worker >= workers) throw std::out_of_range("no such worker");
        holder.hold(memory);
        open_ = true;
        if (descriptor >= 0) ForkedMemory::watch(memory, descriptor);
    }

    // Answer steps until the caller is needed. Returns the verb of a call that is no step, or the infos of a step that
    // has some. In both cases, and if a step raises, the caller must call `answer`. `steps`: one function per block.
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

    // The local index of the block that was called last.
    std::uint32_t block() const { return call_.block; }

    // Note that the rows are copied. From here on the worker writes to them.
    void keep() {
        std::atomic_thread_fence(std::memory_order_release);
        slot().progress.kept = calls_taken_;
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    void answer(std::uint32_t outcome) {
        // A forked child of an env has returned into the worker's loop. No process waits for its answer.
        if (ForkedMemory::in_child()) _exit(1);
        WorkerSlot& slot = this->slot();
        answered_at_ = nanoseconds_now();
        const Number number = slot.answers.number.load(std::memory_order_relaxed);
        handshake_.answer(worker_, number) = Answer{call_.block, outcome, answered_at_ - call_taken_at_};
        slot.answers.core = core_here();
        // In one total order with `post` and `collect`: if the parent has not seen this answer, the worker sees the
        // parent's next call.
        slot.answers.number.store(number + 1, std::memory_order_seq_cst);
        // The worker cannot take its next call before its message is read, so the message is urgent.
        const bool has_next_call = slot.calls.number.load(std::memory_order_seq_cst) != calls_taken_;
        const bool urgent = outcome == failed_outcome || (outcome != plain_outcome && has_next_call);
        wake_if_parked(handshake_.parent_doorbell(), ring(handshake_.parent_doorbell(), 1, urgent), urgent);
    }

    void clear() {
        open_ = false;
        holder.release();
    }

    Holder holder;

   private:
    WorkerSlot& slot() const {
        if (!open_) throw std::runtime_error("the process pool is closed");
        return handshake_.slot(worker_);
    }
    void await_call() {
        WorkerSlot& slot = this->slot();
        const WaitTarget target{calls_taken_ + 1, slot.calls.urgent.load(std::memory_order_relaxed)};
        while (!has_rung(slot.calls, target)) {
            {
                const GilRelease gil_released;
                if (spin_until_rung(slot.calls, target, patience_)) break;
                // Without a real limit: if the parent dies, the kernel ends this process.
                if (park_until_rung(slot.calls, target, 3'600'000'000'000)) break;
            }
            // An env's signal handler raised, and there is no call that could return the error.
            if (PyErr_CheckSignals() < 0) PyErr_WriteUnraisable(nullptr);
        }
        call_ = handshake_.call(worker_, calls_taken_++);
        if (const Core core = slot.move_to_core.load(std::memory_order_relaxed)) move_to(core - 1);
        call_taken_at_ = nanoseconds_now();
        if (answered_at_) slot.answers.waited.fetch_add(call_taken_at_ - answered_at_, std::memory_order_relaxed);
    }

    HandshakeMemory handshake_;
    std::size_t worker_;
    Patience patience_;
    bool open_ = false;
    Call call_{};
    Number calls_taken_ = 0;
    std::uint64_t call_taken_at_ = 0, answered_at_ = 0;
};

// Ask the kernel to end this process when its parent ends. Returns false if the parent has ended already.
inline bool die_with_parent(int parent) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    return getppid() == parent;
}

}  // namespace shoal
