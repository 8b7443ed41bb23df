// native_loop: steps all envs of a compiled kind with their kernel, on a thread pool.
//
//   actions -(check)-> kernel over chunks of envs -> rows of the arena, in place
//
// NativeLoop measures how long the kernel takes per env. If waking threads costs more than it saves, the caller does
// all the work. Otherwise the envs are divided into chunks: large enough that counting them costs little, and small
// enough that no thread waits long for another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/stepping/actions.hpp"
#include "shoal/stepping/transitions.hpp"
#include "shoal/threads/thread_pool.hpp"

namespace shoal {

// What a kernel returns for a range of envs: rows that acted, and episodes that ended.
inline std::int64_t acted_in(std::int64_t result) { return result & 0xffffffff; }
inline std::int64_t ended_in(std::int64_t result) { return result >> 32; }

// Throws if a second caller enters while the first is inside, for example from another thread.
class SingleCaller {
   public:
    explicit SingleCaller(bool& busy) : busy_(busy) {
        if (busy) throw std::runtime_error("the envs are moving: another thread steps them");
        busy = true;
    }
    ~SingleCaller() { busy_ = false; }
    SingleCaller(const SingleCaller&) = delete;
    SingleCaller& operator=(const SingleCaller&) = delete;

   private:
    bool& busy_;
};

class NativeLoop {
   public:
    // `columns`: the addresses of the arrays, in the order that the kernel expects. `keeps`: owns these arrays.
    // `about`: the text to print after the signal's name if the process crashes inside the kernel.
    NativeLoop(std::uintptr_t kernel, std::string about, nb::object columns, nb::object keeps, std::int64_t envs,
               std::size_t threads, int pauses, int yields)
        : about_(std::move(about)),
          thread_pool_(std::make_unique<ThreadPool>(threads, Patience{pauses, yields})),
          envs_(envs) {
        auto* array = reinterpret_cast<PyArrayObject*>(holder.hold(columns));
        if (!PyArray_Check(columns.ptr()) || PyArray_TYPE(array) != NPY_UINT64 || !PyArray_IS_C_CONTIGUOUS(array))
            throw std::invalid_argument("expected addresses");
        holder.hold(keeps);
        columns_ = static_cast<npy_uint64*>(PyArray_DATA(array));
        work_ = Work{reinterpret_cast<Kernel>(kernel), columns_, 0, &failed_, about_.c_str()};
        CrashHandler::install();
    }

    // Run the kernel on all envs. Returns (rows that acted, episodes that ended), or None if the kernel raised.
    nb::object run(std::int64_t verb) {
        const std::int64_t result = run_all(verb);
        if (has_failed()) return nb::none();
        return nb::make_tuple(acted_in(result), ended_in(result));
    }

    // Enable `step`. `place`: the index of the actions among `columns`; `verb`: the verb of a step; `actions`: checks
    // the actions; `mask`: the rows that need an action; `results`: what a step returns before its infos;
    // `transitions`: counts the steps.
    void prepare(std::size_t place, std::int64_t verb, nb::object actions, nb::object mask, nb::tuple results,
                 nb::object transitions) {
        transitions_ = nb::inst_ptr<Transitions>(nb::handle(holder.hold(transitions)));
        actions_ = nb::inst_ptr<ActionColumn>(nb::handle(holder.hold(actions)));
        mask_ = column<npy_bool>(mask, NPY_BOOL, nb::cast<npy_intp>(nb::int_(mask.attr("size"))));
        holder.hold(mask);
        results_ = holder.hold(results);
        place_ = place;
        verb_ = verb;
    }

    // Step all envs with actions that are read in place, without a copy. Returns None if the actions cannot be used so:
    // then no env has stepped. Returns False if the kernel raised.
    nb::object step(nb::handle actions) {
        const char* data = actions_ ? actions_->data_of(actions) : nullptr;
        if (!data || !are_valid(data)) return nb::none();
        const double begun = Transitions::now();
        const AddressSwap swap(columns_[place_], reinterpret_cast<npy_uint64>(data));
        const std::int64_t result = run_all(verb_);
        if (has_failed()) return nb::bool_(false);
        Owned made = own_results();
        transitions_->add(begun, acted_in(result), ended_in(result));
        return made;
    }

    std::size_t threads() const { return thread_pool_ ? thread_pool_->threads() : 0; }

    // End the threads.
    void close() {
        const SingleCaller caller(busy_);
        actions_ = nullptr;
        thread_pool_.reset();
    }
    void clear() {
        actions_ = nullptr;
        thread_pool_.reset();
        holder.release();
    }

    Holder holder;

   private:
    // Replaces an address until the end of its scope.
    class AddressSwap {
       public:
        AddressSwap(npy_uint64& place, npy_uint64 other) : place_(place), original_(std::exchange(place, other)) {}
        ~AddressSwap() { place_ = original_; }
        AddressSwap(const AddressSwap&) = delete;
        AddressSwap& operator=(const AddressSwap&) = delete;

       private:
        npy_uint64& place_;
        npy_uint64 original_;
    };

    static constexpr double short_work = 8e3;  // nanoseconds; to wake a thread takes about 1e3
    static constexpr double chunk_work = 5e3;  // nanoseconds; the least work of a chunk
    static constexpr npy_intp many_rows = 8192;  // from here on, threads share the check of the actions

    // Check all actions before any env steps. Threads share the check of many rows, so that none waits for one thread.
    bool are_valid(const char* data) {
        const npy_intp rows = actions_->rows();
        if (rows < many_rows || !thread_pool_ || thread_pool_->threads() == 1)
            return actions_->are_valid(data, mask_, 0, rows);
        const SingleCaller caller(busy_);
        const Check check{actions_, data, mask_};
        const GilRelease gil_released;
        const auto chunks = static_cast<std::int64_t>(thread_pool_->threads());
        return thread_pool_->run(Work{&has_invalid, &check}, rows, chunks) == 0;
    }
    struct Check {
        const ActionColumn* actions;
        const char* data;
        const npy_bool* needed;
    };
    static std::int64_t has_invalid(const void* check, std::int64_t, std::int64_t first, std::int64_t last) {
        const auto& [actions, data, needed] = *static_cast<const Check*>(check);
        return actions->are_valid(data, needed, first, last) ? 0 : 1;
    }

    std::int64_t run_all(std::int64_t verb) {
        if (!thread_pool_) throw std::runtime_error("the threads have ended");
        const SingleCaller caller(busy_);
        AlternateStack::use();  // here, because another thread than this one may have made the vec
        work_.verb = verb;
        const double expected = env_cost_ * static_cast<double>(envs_);
        const auto threads = static_cast<double>(thread_pool_->threads());
        if (expected < short_work) {
            // Measure one step in 16: reading the clock takes a tenth of the shortest step.
            if (env_cost_ > 0 && ++unmeasured_ % 16) return work_(0, envs_);
            const std::uint64_t begun = nanoseconds_now();
            const std::int64_t result = work_(0, envs_);
            update_cost(static_cast<double>(nanoseconds_now() - begun));
            return result;
        }
        const double chunks_per_thread = std::clamp(expected / threads / chunk_work, 1.0, 8.0);
        const GilRelease gil_released;
        const std::uint64_t begun = nanoseconds_now();
        const std::int64_t result =
            thread_pool_->run(work_, envs_, static_cast<std::int64_t>(chunks_per_thread) * thread_pool_->threads());
        update_cost(static_cast<double>(nanoseconds_now() - begun) * threads);
        return result;
    }

    bool has_failed() {
        if (!failed_.exchange(false)) return false;
        PyErr_Clear();  // the error was printed, or could not be printed
        return true;
    }

    // A step may take long because another process interrupted it. So one step can at most double the estimate, and has
    // little weight.
    void update_cost(double took) {
        const double cost = took / static_cast<double>(envs_);
        env_cost_ = env_cost_ > 0 ? env_cost_ + 0.1 * (std::min(cost, 2 * env_cost_) - env_cost_) : cost;
    }

    Owned own_results() const {
        const Py_ssize_t count = PyTuple_GET_SIZE(results_);
        Owned made = own(PyTuple_New(count + 1));
        PyObject* infos = made.is_valid() ? PyDict_New() : nullptr;
        if (!infos) nb::raise_python_error();
        for (Py_ssize_t i = 0; i < count; ++i)
            PyTuple_SET_ITEM(made.ptr(), i, Py_NewRef(PyTuple_GET_ITEM(results_, i)));
        PyTuple_SET_ITEM(made.ptr(), count, infos);
        return made;
    }

    std::string about_;
    std::unique_ptr<ThreadPool> thread_pool_;
    std::int64_t envs_;
    npy_uint64* columns_ = nullptr;
    std::atomic<bool> failed_{false};
    Work work_;
    bool busy_ = false;
    double env_cost_ = 0;  // estimated nanoseconds that one thread needs for one env; 0: not yet measured
    unsigned unmeasured_ = 0;

    const ActionColumn* actions_ = nullptr;
    const npy_bool* mask_ = nullptr;
    PyObject* results_ = nullptr;
    std::size_t place_ = 0;
    std::int64_t verb_ = 0;
    Transitions* transitions_ = nullptr;
};

// NativeQueue: steps blocks of compiled envs, each block independently of the others.
class NativeQueue {
   public:
    NativeQueue(std::uintptr_t kernel, std::string about, nb::object columns, nb::object keeps,
                const std::vector<std::int64_t>& ends, std::size_t threads, int pauses, int yields)
        : about_(std::move(about)) {
        auto* array = reinterpret_cast<PyArrayObject*>(holder.hold(columns));
        if (!PyArray_Check(columns.ptr()) || PyArray_TYPE(array) != NPY_UINT64 || !PyArray_IS_C_CONTIGUOUS(array))
            throw std::invalid_argument("expected addresses");
        holder.hold(keeps);
        const Patience patience{pauses, yields};
        const Work work{reinterpret_cast<Kernel>(kernel), PyArray_DATA(array), 0, &failed_, about_.c_str()};
        queue_ = std::make_unique<BlockQueue>(threads, patience, patience, work, ends);
        CrashHandler::install();
    }

    // Run the kernel on these blocks, which must be idle.
    void submit(const std::vector<std::uint32_t>& blocks, std::int64_t verb) {
        for (const std::uint32_t block : blocks)
            if (block >= queue().blocks()) throw std::out_of_range("no such block");
        queue().submit(blocks, verb);
    }

    // Wait until at least `wanted` blocks are done and not yet collected. Returns all such blocks, in the order in
    // which they were done.
    std::vector<std::uint32_t> collect(std::size_t wanted) {
        std::vector<std::uint32_t> found;
        for (;;) {
            for (std::int64_t block; (block = queue().collect()) >= 0;)
                found.push_back(static_cast<std::uint32_t>(block));
            if (found.size() >= wanted) return found;
            if (PyErr_CheckSignals() < 0) {
                uncollected_.insert(uncollected_.end(), found.begin(), found.end());
                nb::raise_python_error();
            }
            BlockQueue& open_queue = queue();  // throws if a signal handler has closed it
            const SingleCaller caller(busy_);
            const GilRelease gil_released;
            if (open_queue.wait(50'000'000)) sched_yield();
        }
    }

    // Whether the kernel has raised since the last call of this.
    bool has_failed() { return failed_.exchange(false); }

    // The blocks that an interrupted `collect` had collected. Each is returned once.
    std::vector<std::uint32_t> kept() { return std::exchange(uncollected_, {}); }

    void close() {
        const SingleCaller caller(busy_);
        end();
    }
    void clear() {
        end();
        holder.release();
    }
    ~NativeQueue() { end(); }

    Holder holder;

   private:
    // Without the GIL: a thread may need it to print an error of its kernel.
    void end() {
        const GilRelease gil_released;
        queue_.reset();
    }
    BlockQueue& queue() const {
        if (!queue_) throw std::runtime_error("the threads have ended");
        return *queue_;
    }
    bool busy_ = false;
    std::string about_;
    std::atomic<bool> failed_{false};
    std::unique_ptr<BlockQueue> queue_;  // after the members that its threads use, so that it ends before them
    std::vector<std::uint32_t> uncollected_;
};

}  // namespace shoal
