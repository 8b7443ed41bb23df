// transitions: copies the results of a step from the columns of the arena, and counts steps, episodes and time.
#pragma once

#include <chrono>
#include <cstring>

#include "shoal/python.hpp"

namespace shoal {

class Transitions {
   public:
    explicit Transitions(nb::object arena)
        : rewards_(holder.hold(arena.attr("rewards"))),
          terminations_(holder.hold(arena.attr("terminations"))),
          truncations_(holder.hold(arena.attr("truncations"))),
          count_(static_cast<npy_intp>(nb::len(arena))) {
        column<double>(rewards_, NPY_DOUBLE, count_);
        terminated_ = column<npy_bool>(terminations_, NPY_BOOL, count_);
        truncated_ = column<npy_bool>(truncations_, NPY_BOOL, count_);
    }

    // Note that a step with `acting` actions is sent now.
    void begin(npy_intp acting) {
        begun_ = now();
        acting_ = acting;
        if (ended_ > 0) outside_ += begun_ - ended_;
        ended_ = 0;
        stepping_ = true;
    }

    // The caller does something else between `pause` and `resume`, while the step goes on. This time does not count for
    // the step.
    void pause() { paused_ = now(); }
    void resume() {
        if (!stepping_ || paused_ == 0) return;
        const double paused_for = now() - paused_;
        outside_ += paused_for;
        begun_ += paused_for;
        paused_ = 0;
    }

    // Forget the step that was begun, if there is one: it is dropped and does not count.
    void drop() {
        stepping_ = false;
        paused_ = 0;
    }

    // Returns copies of (rewards, terminations, truncations), and the number of episodes that ended. Ends the step, if
    // one was begun.
    nb::object take() {
        if (count_ == 0) throw std::runtime_error("the arena is closed");
        npy_intp ended = 0;
        for (npy_intp row = 0; row < count_; ++row) ended += terminated_[row] | truncated_[row];
        if (stepping_) {
            count(begun_, acting_, ended);
            stepping_ = false;
        }
        Owned made = own(PyTuple_New(4));
        if (!made.is_valid()) nb::raise_python_error();
        PyObject* parts[] = {copy_of(rewards_), copy_of(terminations_), copy_of(truncations_),
                             PyLong_FromSsize_t(ended)};
        bool good = true;
        for (int i = 0; i < 4; ++i) {
            good &= parts[i] != nullptr;
            PyTuple_SET_ITEM(made.ptr(), i, parts[i]);
        }
        if (!good) nb::raise_python_error();
        return made;
    }

    // Count a whole step that has just ended, which something else than `begin` and `take` carried out.
    void add(double begun, npy_int64 acted, npy_int64 ended) {
        if (ended_ > 0) outside_ += begun - ended_;
        count(begun, acted, ended);
    }

    static double now() {
        using namespace std::chrono;
        return duration<double>(steady_clock::now().time_since_epoch()).count();
    }

    // Returns the number of vector steps, of transitions and of episodes, and the seconds inside steps and between
    // them.
    nb::object figures() const { return nb::make_tuple(steps_, transitions_, episodes_, inside_, outside_); }

    void clear() {
        count_ = 0;
        holder.release();
    }

    Holder holder;

   private:
    void count(double begun, npy_int64 acted, npy_int64 ended) {
        ended_ = now();
        inside_ += ended_ - begun;
        ++steps_;
        transitions_ += acted;
        episodes_ += ended;
    }

    static PyObject* copy_of(PyObject* column) {
        auto* from = reinterpret_cast<PyArrayObject*>(column);
        Py_INCREF(PyArray_DESCR(from));
        PyObject* to = PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(from), 1, PyArray_DIMS(from), nullptr,
                                            nullptr, 0, nullptr);
        if (to)
            std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(to)), PyArray_DATA(from),
                        static_cast<std::size_t>(PyArray_NBYTES(from)));
        return to;
    }

    PyObject *rewards_, *terminations_, *truncations_;
    npy_intp count_;
    const npy_bool *terminated_ = nullptr, *truncated_ = nullptr;
    bool stepping_ = false;
    npy_int64 acting_ = 0, steps_ = 0, transitions_ = 0, episodes_ = 0;
    double begun_ = 0, paused_ = 0, ended_ = 0, inside_ = 0, outside_ = 0;
};

}  // namespace shoal
