// What a step wrote into the columns of the arena, for a caller to keep, and what all steps together came to.
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

    // A step with so many actions is being sent.
    void begin(npy_intp acting) {
        begun_ = now();
        acting_ = acting;
        if (ended_ > 0) outside_ += begun_ - ended_;
        ended_ = 0;
        stepping_ = true;
    }

    // The step is under way, and the caller does something else; and is back.
    void pause() { paused_ = now(); }
    void resume() {
        if (!stepping_ || paused_ == 0) return;
        const double elsewhere = now() - paused_;
        outside_ += elsewhere;
        begun_ += elsewhere;
        paused_ = 0;
    }

    // (rewards, terminations, truncations, number of episodes that ended); the end of the step, if one was begun.
    nb::object take() {
        if (count_ == 0) throw std::runtime_error("the arena is gone");
        npy_intp ended = 0;
        for (npy_intp row = 0; row < count_; ++row) ended += terminated_[row] | truncated_[row];
        if (stepping_) {
            ended_ = now();
            inside_ += ended_ - begun_;
            ++steps_;
            transitions_ += acting_;
            episodes_ += ended;
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

    // Vector steps, transitions, episodes; seconds from sending a step to its rows, and between steps.
    nb::object figures() const { return nb::make_tuple(steps_, transitions_, episodes_, inside_, outside_); }

    void clear() {
        count_ = 0;
        holder.release();
    }

    Holder holder;

   private:
    static double now() {
        using namespace std::chrono;
        return duration<double>(steady_clock::now().time_since_epoch()).count();
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
