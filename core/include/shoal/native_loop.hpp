// NativeLoop: all envs of a compiled kind, stepped by their kernel on a pool of threads.
//
//   actions -(check)-> kernel over chunks of envs -> rows of the arena, in place
//
// How long a kernel takes for an env is measured as it runs: work too short to be worth waking anybody is done by the
// caller, and the rest is cut into chunks that are neither lost in counting nor waited for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/actions.hpp"
#include "shoal/pool.hpp"

namespace shoal {

// What a kernel returns for a range of envs: rows that acted, and episodes that ended.
inline std::int64_t acted_in(std::int64_t result) { return result & 0xffffffff; }
inline std::int64_t ended_in(std::int64_t result) { return result >> 32; }

class Lock {  // no second caller, from another thread say
   public:
    explicit Lock(bool& busy) : busy_(busy) {
        if (busy) throw std::runtime_error("the envs are moving: another thread steps them");
        busy = true;
    }
    ~Lock() { busy_ = false; }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    bool& busy_;
};

class NativeLoop {
   public:
    // `columns`: addresses, of which the kernel knows the order; the arrays there are kept by `keeps`. `about`: what to
    // say after the signal's name if the process dies inside the kernel.
    NativeLoop(std::uintptr_t kernel, std::string about, nb::object columns, nb::object keeps, std::int64_t envs,
               std::size_t threads, int pauses, int yields)
        : about_(std::move(about)), pool_(std::make_unique<Pool>(threads, Patience{pauses, yields})), envs_(envs) {
        auto* array = reinterpret_cast<PyArrayObject*>(holder.hold(columns));
        if (!PyArray_Check(columns.ptr()) || PyArray_TYPE(array) != NPY_UINT64 || !PyArray_IS_C_CONTIGUOUS(array))
            throw std::invalid_argument("expected addresses");
        holder.hold(keeps);
        columns_ = static_cast<npy_uint64*>(PyArray_DATA(array));
        work_ = Work{reinterpret_cast<Kernel>(kernel), columns_, 0, &failed_, about_.c_str()};
        CrashHandler::install();
    }

    // (rows that acted, episodes that ended); None if something was raised inside the kernel
    nb::object run(std::int64_t verb) {
        const std::int64_t result = run_all(verb);
        if (has_failed()) return nb::none();
        return nb::make_tuple(acted_in(result), ended_in(result));
    }

    // From now on `step` can be called. `place`: of the address of the actions among the columns; `verb`: of a step;
    // `actions`: the column they are checked for; `results`: what a step returns beside its infos.
    void prepare(std::size_t place, std::int64_t verb, nb::object actions, nb::object mask, nb::tuple results) {
        actions_ = nb::inst_ptr<ActionColumn>(nb::handle(holder.hold(actions)));
        mask_ = column<npy_bool>(mask, NPY_BOOL, nb::cast<npy_intp>(nb::int_(mask.attr("size"))));
        holder.hold(mask);
        results_ = holder.hold(results);
        place_ = place;
        verb_ = verb;
    }

    // A step with actions that are used where they lie; nothing has happened if the result is None, and something was
    // raised inside the kernel if it is False.
    nb::object step(nb::handle actions) {
        const char* data = actions_ ? actions_->data_of(actions) : nullptr;
        if (!data || !holds(data)) return nb::none();
        const std::uint64_t begun = nanoseconds_now();
        const Lent lent(columns_[place_], reinterpret_cast<npy_uint64>(data));
        const std::int64_t result = run_all(verb_);
        if (has_failed()) return nb::bool_(false);
        Owned made = own_results();
        if (left_) outside_ += begun - left_;
        left_ = nanoseconds_now();
        inside_ += left_ - begun;
        ++steps_;
        transitions_ += acted_in(result);
        episodes_ += ended_in(result);
        return made;
    }

    // Of `step`: as Transitions has them.
    nb::object figures() const {
        return nb::make_tuple(steps_, transitions_, episodes_, 1e-9 * static_cast<double>(inside_),
                              1e-9 * static_cast<double>(outside_));
    }
    std::size_t threads() const { return pool_ ? pool_->threads() : 0; }

    // The threads end.
    void close() {
        const Lock lock(busy_);
        actions_ = nullptr;
        pool_.reset();
    }
    void clear() {
        actions_ = nullptr;
        pool_.reset();
        holder.release();
    }

    Holder holder;

   private:
    // An address that is another for a while.
    class Lent {
       public:
        Lent(npy_uint64& place, npy_uint64 other) : place_(place), own_(std::exchange(place, other)) {}
        ~Lent() { place_ = own_; }
        Lent(const Lent&) = delete;
        Lent& operator=(const Lent&) = delete;

       private:
        npy_uint64& place_;
        npy_uint64 own_;
    };

    static constexpr double short_work = 8e3;  // nanoseconds; waking a thread and hearing of it takes about one
    static constexpr double chunk_work = 5e3;
    static constexpr npy_intp many_rows = 8192;

    // Before any env moves. Of many rows, each thread checks its share: else all would wait for one.
    bool holds(const char* data) {
        const npy_intp rows = actions_->rows();
        if (rows < many_rows || !pool_ || pool_->threads() == 1) return actions_->holds(data, mask_, 0, rows);
        const Lock lock(busy_);
        const Check check{actions_, data, mask_};
        const OthersMayRun others_may_run;
        return pool_->run(Work{&count_wrong, &check}, rows, static_cast<std::int64_t>(pool_->threads())) == 0;
    }
    struct Check {
        const ActionColumn* actions;
        const char* data;
        const npy_bool* needed;
    };
    static std::int64_t count_wrong(const void* check, std::int64_t, std::int64_t first, std::int64_t last) {
        const auto& [actions, data, needed] = *static_cast<const Check*>(check);
        return actions->holds(data, needed, first, last) ? 0 : 1;
    }

    std::int64_t run_all(std::int64_t verb) {
        if (!pool_) throw std::runtime_error("the threads have ended");
        const Lock lock(busy_);
        AlternateStack::use();  // of the thread that steps, which need not be the one that made the vec
        work_.verb = verb;
        const double expected = cost_ * static_cast<double>(envs_);
        const auto threads = static_cast<double>(pool_->threads());
        if (expected < short_work) {
            // Seldom measured: the clock takes a tenth of the smallest step.
            if (cost_ > 0 && ++unmeasured_ % 16) return work_(0, envs_);
            const std::uint64_t begun = nanoseconds_now();
            const std::int64_t result = work_(0, envs_);
            learn(static_cast<double>(nanoseconds_now() - begun));
            return result;
        }
        const double each = std::clamp(expected / threads / chunk_work, 1.0, 8.0);
        const OthersMayRun others_may_run;
        const std::uint64_t begun = nanoseconds_now();
        const std::int64_t result = pool_->run(work_, envs_, static_cast<std::int64_t>(each) * pool_->threads());
        learn(static_cast<double>(nanoseconds_now() - begun) * threads);
        return result;
    }

    bool has_failed() {
        if (!failed_.exchange(false)) return false;
        PyErr_Clear();  // it has been printed, or could not be
        return true;
    }

    // A step that was interrupted by another process tells nothing, so that only what lasts counts.
    void learn(double took) {
        const double cost = took / static_cast<double>(envs_);
        cost_ = cost_ > 0 ? cost_ + 0.1 * (std::min(cost, 2 * cost_) - cost_) : cost;
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
    std::unique_ptr<Pool> pool_;
    std::int64_t envs_;
    npy_uint64* columns_ = nullptr;
    std::atomic<bool> failed_{false};
    Work work_;
    bool busy_ = false;
    double cost_ = 0;  // nanoseconds of one thread for one env
    unsigned unmeasured_ = 0;

    const ActionColumn* actions_ = nullptr;
    const npy_bool* mask_ = nullptr;
    PyObject* results_ = nullptr;
    std::size_t place_ = 0;
    std::int64_t verb_ = 0;
    npy_int64 steps_ = 0, transitions_ = 0, episodes_ = 0;
    std::uint64_t inside_ = 0, outside_ = 0, left_ = 0;
};

// NativeQueue: the same in blocks, each of which goes its own way.
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
        queue_ = std::make_unique<Queue>(threads, patience, patience,
                                         Work{reinterpret_cast<Kernel>(kernel), PyArray_DATA(array), 0, &failed_, about_.c_str()},
                                         ends);
        CrashHandler::install();
    }

    void submit(const std::vector<std::uint32_t>& blocks, std::int64_t verb) {
        for (const std::uint32_t block : blocks)
            if (block >= queue().blocks()) throw std::out_of_range("no such block");
        queue().submit(blocks, verb);
    }

    // Blocks that are done and have not been collected, at least so many of them, in the order in which they were.
    std::vector<std::uint32_t> collect(std::size_t wanted) {
        std::vector<std::uint32_t> found;
        for (;;) {
            for (std::int64_t block; (block = queue().collect()) >= 0;) found.push_back(static_cast<std::uint32_t>(block));
            if (found.size() >= wanted) return found;
            if (PyErr_CheckSignals() < 0) {
                kept_.insert(kept_.end(), found.begin(), found.end());
                nb::raise_python_error();
            }
            Queue& still = queue();  // a signal handler may have closed it
            const Lock lock(busy_);
            const OthersMayRun others_may_run;
            if (still.wait(50'000'000)) sched_yield();
        }
    }

    // Whether something was raised inside the kernel since this was last asked.
    bool has_failed() { return failed_.exchange(false); }

    // Collected by a call that was interrupted.
    std::vector<std::uint32_t> kept() { return std::exchange(kept_, {}); }

    nb::object result(std::size_t block) {
        const std::int64_t result = block < queue().blocks() ? queue().result(block) : throw std::out_of_range("no such block");
        return nb::make_tuple(acted_in(result), ended_in(result));
    }

    void close() {
        const Lock lock(busy_);
        end();
    }
    void clear() {
        end();
        holder.release();
    }
    ~NativeQueue() { end(); }

    Holder holder;

   private:
    // A thread may need the GIL to print what was raised in its kernel.
    void end() {
        const OthersMayRun others_may_run;
        queue_.reset();
    }
    Queue& queue() const {
        if (!queue_) throw std::runtime_error("the threads have ended");
        return *queue_;
    }
    bool busy_ = false;
    std::string about_;
    std::atomic<bool> failed_{false};
    std::unique_ptr<Queue> queue_;  // after what its threads refer to
    std::vector<std::uint32_t> kept_;
};

}  // namespace shoal
