// step_loop: one call from Python steps a row slice of Python envs, straight into their rows.
//
// The twin in Python does the same in fewer lines. Rare cases (old forms of results, unusual rewards, the end of an
// episode under SAME_STEP) are left to the functions of shoal/stepping/results.py, which both use.
#pragma once

#include <vector>

#include "shoal/stepping/actions.hpp"
#include "shoal/stepping/pack.hpp"

namespace shoal {

// A bound method, split into function and self. To call it so needs no new array of arguments.
struct Method {
    PyObject* function = nullptr;
    PyObject* self = nullptr;
    vectorcallfunc python = nullptr;  // runs the function, if it is written in Python; else null

    explicit Method(PyObject* callable) : function(callable) {
        if (PyMethod_Check(callable)) {
            function = PyMethod_GET_FUNCTION(callable);
            self = PyMethod_GET_SELF(callable);
        }
        if (PyFunction_Check(function)) python = PyVectorcall_Function(function);
    }

    PyObject* operator()(PyObject* argument) const {
        PyObject* arguments[] = {self, argument};
        PyObject* const* first = self ? arguments : arguments + 1;
        const std::size_t count = (self ? 1 : 0) + (argument ? 1 : 0);
        return enter_python([&] { return (python ? python : PyObject_Vectorcall)(function, first, count, nullptr); });
    }
};

class StepLoop {
   public:
    StepLoop(nb::object envs, nb::object run, nb::object packer, nb::object beginning)
        : run_(holder.hold(run)),
          packer_(&nb::cast<Packer&>(packer)),
          count_(packer_->count()),
          actions_(run.attr("action"), run.attr("arena").attr("actions"),
                   run.attr("arena").attr("action_objects"), holder) {
        holder.hold(packer);
        nb::object arena = run.attr("arena");
        rewards_ = column<double>(arena.attr("rewards"), NPY_DOUBLE, count_);
        terminations_ = column<npy_bool>(arena.attr("terminations"), NPY_BOOL, count_);
        truncations_ = column<npy_bool>(arena.attr("truncations"), NPY_BOOL, count_);
        mask_ = column<npy_bool>(arena.attr("mask"), NPY_BOOL, count_);
        resets_ = column<npy_bool>(arena.attr("resets"), NPY_BOOL, count_);
        returns_ = column<double>(arena.attr("episode_returns"), NPY_DOUBLE, count_);
        lengths_ = column<npy_int64>(arena.attr("episode_lengths"), NPY_INT64, count_);
        beginning_ = column<npy_bool>(holder.hold(beginning), NPY_BOOL, count_);
        for (nb::handle env : envs) {
            steps_.emplace_back(holder.hold(env.attr("step")));
            restarts_.emplace_back(holder.hold(env.attr("restart")));
        }
        if (static_cast<npy_intp>(steps_.size()) != count_)
            throw std::invalid_argument("expected an env for each row");
        first_env_ = nb::cast<npy_intp>(run.attr("first_env"));
        progress_ = column<npy_int64>(holder.hold(run.attr("progress")), NPY_INT64, 1);
        nb::object mode = nb::module_::import_("gymnasium.vector").attr("AutoresetMode");
        same_step_ = run.attr("mode").is(mode.attr("SAME_STEP"));
        nb::module_ shared = nb::module_::import_("shoal.stepping.row_slice");
        nb::module_ results = nb::module_::import_("shoal.stepping.results");
        deepest_ = nb::cast<npy_intp>(shared.attr("DEEPEST"));
        too_deep_ = holder.hold(shared.attr("too_deep"));
        five_ = holder.hold(results.attr("five"));
        number_ = holder.hold(results.attr("number"));
        checked_ = holder.hold(results.attr("checked"));
        flag_ = holder.hold(results.attr("flag"));
        final_ = holder.hold(results.attr("final"));
        to_raise_ = holder.hold(nb::module_::import_("shoal.stepping.env_faults").attr("to_raise"));
        time_limit_ = holder.hold(nb::str("TimeLimit.truncated"));
    }

    // Step all envs. Returns the infos that are not empty, as (row, info).
    nb::object step() {
        Owned infos = own(PyList_New(0));
        Owned actions = actions_.begin();
        if (!infos.is_valid() || !actions.is_valid()) nb::raise_python_error();
        for (npy_intp row = 0; row < count_; ++row) {
            const char* verb = "step";  // what the env is doing; named in the error if it fails
            *progress_ = first_env_ + row;
            if (mask_[row]) {
                Owned action = own(actions_.read(row, actions));
                if (!action.is_valid() || !act(row, action.ptr(), infos.ptr(), verb)) fail(row, verb);
            } else if (!restart(row, infos.ptr(), verb)) {
                fail(row, verb);
            }
        }
        return infos;
    }

    void clear() {
        count_ = 0;
        actions_.clear();
        holder.release();
    }

    Holder holder;

   private:
    bool act(npy_intp row, PyObject* action, PyObject* infos, const char*& verb) {
        const Method& step = steps_[static_cast<std::size_t>(row)];
        Owned tuple = own(step(action));
        if (!tuple.is_valid()) return false;
        // Check for Ctrl-C. Functions written in Python do so themselves.
        if (!step.python && PyErr_CheckSignals() < 0) return false;
        if (!PyTuple_CheckExact(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != 5) {
            tuple = own(five(tuple.ptr()));
            if (!tuple.is_valid()) return false;
        }
        PyObject* obs = PyTuple_GET_ITEM(tuple.ptr(), 0);
        PyObject* info = PyTuple_GET_ITEM(tuple.ptr(), 4);
        if (!packer_->write(row, obs)) return false;
        double reward = 0.0;
        if (!to_number(PyTuple_GET_ITEM(tuple.ptr(), 1), &reward)) return false;
        const int terminated = is_true(PyTuple_GET_ITEM(tuple.ptr(), 2), "terminated");
        if (terminated < 0) return false;
        const int truncated = is_true(PyTuple_GET_ITEM(tuple.ptr(), 3), "truncated");
        if (truncated < 0) return false;
        const bool ended = terminated || truncated;

        if (beginning_[row]) {
            returns_[row] = 0.0;
            lengths_[row] = 0;
        }
        returns_[row] += reward;
        lengths_[row] += 1;
        rewards_[row] = reward;
        terminations_[row] = static_cast<npy_bool>(terminated);
        truncations_[row] = static_cast<npy_bool>(truncated);
        resets_[row] = NPY_FALSE;
        mask_[row] = same_step_ || !ended;
        beginning_[row] = same_step_ && ended;
        if (!ended || !same_step_) return keep_info(row, info, infos);

        Owned number = own(PyLong_FromSsize_t(row));
        Owned last = own(number.is_valid() ? call(final_, run_, number.ptr(), obs, info) : nullptr);
        return last.is_valid() && append(row, last.ptr(), infos) && begin_episode(row, infos, verb);
    }

    bool restart(npy_intp row, PyObject* infos, const char*& verb) {
        rewards_[row] = returns_[row] = 0.0;
        lengths_[row] = 0;
        terminations_[row] = truncations_[row] = NPY_FALSE;
        resets_[row] = mask_[row] = beginning_[row] = NPY_TRUE;
        return begin_episode(row, infos, verb);
    }

    bool begin_episode(npy_intp row, PyObject* infos, const char*& verb) {
        verb = "reset";
        Owned pair = own(restarts_[static_cast<std::size_t>(row)](nullptr));
        if (!pair.is_valid()) return false;
        if (!PyTuple_CheckExact(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) {
            PyErr_SetString(PyExc_TypeError, "restart() must return a pair");
            return false;
        }
        return packer_->write(row, PyTuple_GET_ITEM(pair.ptr(), 0)) &&
               keep_info(row, PyTuple_GET_ITEM(pair.ptr(), 1), infos);
    }

    // Convert another result to Gymnasium's tuple of five. The tuple of four of old gym is common, so it is read here.
    PyObject* five(PyObject* result) const {
        if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 4 ||
            !PyDict_CheckExact(PyTuple_GET_ITEM(result, 3)))
            return call(five_, result);
        PyObject* info = PyTuple_GET_ITEM(result, 3);
        const int done = is_true(PyTuple_GET_ITEM(result, 2), "done");
        if (done < 0) return nullptr;
        int truncated = 0;
        if (done) {
            PyObject* limit = PyDict_GetItemWithError(info, time_limit_);
            if (!limit && PyErr_Occurred()) return nullptr;
            truncated = limit ? truth_of(limit) : 0;
            if (truncated < 0) return nullptr;
        }
        return PyTuple_Pack(5, PyTuple_GET_ITEM(result, 0), PyTuple_GET_ITEM(result, 1),
                            done && !truncated ? Py_True : Py_False, truncated ? Py_True : Py_False, info);
    }

    bool to_number(PyObject* reward, double* number) const {
        if (PyFloat_CheckExact(reward) || PyArray_IsScalar(reward, Double)) {
            *number = PyFloat_AS_DOUBLE(reward);
            return true;
        }
        if (PyLong_CheckExact(reward)) {
            *number = PyLong_AsDouble(reward);
            if (*number != -1.0 || !PyErr_Occurred()) return true;
            PyErr_Clear();
        }
        Owned made = own(call(number_, reward));
        if (!made.is_valid()) return false;
        *number = PyFloat_AsDouble(made.ptr());
        return *number != -1.0 || !PyErr_Occurred();
    }

    int is_true(PyObject* flag, const char* name) const {
        if (flag == Py_False) return 0;
        if (flag == Py_True) return 1;
        const int set = truth_of(flag);
        if (set >= 0 || !PyErr_ExceptionMatches(PyExc_Exception)) return set;
        PyErr_Clear();
        Owned text = own(PyUnicode_FromString(name));
        Owned made = own(text.is_valid() ? call(flag_, flag, text.ptr()) : nullptr);
        return made.is_valid() ? made.ptr() == Py_True : -1;
    }
    static int truth_of(PyObject* value) {
        return enter_python([value] { return PyObject_IsTrue(value); });
    }

    bool keep_info(npy_intp row, PyObject* info, PyObject* infos) const {
        Owned dict = PyDict_CheckExact(info) ? nb::borrow(info) : own(call(checked_, info));
        if (!dict.is_valid()) return false;
        if (PyDict_GET_SIZE(dict.ptr()) == 0) return true;
        Owned copy = own(copy_of(dict.ptr(), 1));
        return copy.is_valid() && append(row, copy.ptr(), infos);
    }

    // Copy dicts and arrays. The infos are read after all envs have stepped, and until then an env may write to its
    // info again, or share it with another env.
    PyObject* copy_of(PyObject* value, npy_intp depth) const {
        if (PyArray_Check(value)) return PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(value), NPY_KEEPORDER);
        if (depth > deepest_) return call(too_deep_);
        Owned copy = own(PyDict_Copy(value));
        PyObject *key = nullptr, *part = nullptr;
        for (Py_ssize_t at = 0; copy.is_valid() && PyDict_Next(value, &at, &key, &part);) {
            if (!PyDict_Check(part) && !PyArray_Check(part)) continue;
            Owned part_copy = own(copy_of(part, depth + 1));
            if (!part_copy.is_valid() || PyDict_SetItem(copy.ptr(), key, part_copy.ptr()) < 0) return nullptr;
        }
        return copy.release().ptr();
    }

    static bool append(npy_intp row, PyObject* info, PyObject* infos) {
        Owned number = own(PyLong_FromSsize_t(row));
        Owned pair = own(number.is_valid() ? PyTuple_Pack(2, number.ptr(), info) : nullptr);
        return pair.is_valid() && PyList_Append(infos, pair.ptr()) == 0;
    }

    // Raise the error that is set. An env's exception stays as it is, with a note that names the env. A value that does
    // not fit, or an exception that would end this process, becomes an error of Shoal's.
    [[noreturn]] void fail(npy_intp row, const char* verb) const {
        nb::python_error raised;  // takes the error that is set
        const nb::int_ env(first_env_ + row);
        const nb::str name(verb);
        Owned error = own(call(to_raise_, raised.value().ptr(), env.ptr(), name.ptr()));
        if (!error.is_valid()) nb::raise_python_error();
        if (error.is(raised.value())) throw raised;
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
        nb::raise_python_error();
    }

    PyObject* run_;
    Packer* packer_;
    npy_intp count_;
    ActionReader actions_;
    std::vector<Method> steps_, restarts_;
    npy_intp first_env_ = 0, deepest_ = 0;
    bool same_step_ = false;
    double *rewards_, *returns_;
    npy_int64 *lengths_, *progress_;
    npy_bool *terminations_, *truncations_, *mask_, *resets_, *beginning_;
    PyObject *five_, *number_, *flag_, *checked_, *final_, *too_deep_, *to_raise_, *time_limit_;
};

}  // namespace shoal
