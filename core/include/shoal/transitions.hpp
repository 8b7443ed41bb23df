// What a step wrote into the columns of the arena, for a caller to keep.
#pragma once

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

    // (rewards, terminations, truncations, number of episodes that ended)
    nb::object copy() const {
        if (count_ == 0) throw std::runtime_error("the arena is gone");
        npy_intp ended = 0;
        for (npy_intp row = 0; row < count_; ++row) ended += terminated_[row] | truncated_[row];
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

    void clear() {
        count_ = 0;
        holder.release();
    }

    Holder holder;

   private:
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
};

}  // namespace shoal
