// Python and NumPy as the core uses them.
//
// The loops call Python's C API directly, because they run once per env and step: a function that returns
// false, or a null pointer, has set a Python error. Constructors run once and use nanobind, which throws.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <unistd.h>

#include <cxxabi.h>

#include <stdexcept>
#include <string>

namespace shoal {

namespace nb = nanobind;

// A reference that is given back at the end of its scope.
using Owned = nb::object;

inline Owned own(PyObject* object) { return nb::steal(object); }

// Does something in which other threads may get their turn. When the process exits, Python does not give it back to a
// daemon thread: up to 3.13 it ends the thread by pthread_exit, which unwinds the stack. The frames below hold
// references, and Python is gone, so the thread stops here and waits for the end of the process.
//
// What is called must have no C++ object of its own on the stack: it would be destroyed on the way.
template <typename Call>
auto enter_python(const Call& call) -> decltype(call()) {
#ifdef __GLIBCXX__
    try {
        return call();
    } catch (const abi::__forced_unwind&) {
        for (;;) pause();
    }
#else
    return call();
#endif
}

// Calls a function that may be written in Python; null if it raises.
template <typename... Arguments>
PyObject* call(PyObject* function, Arguments... arguments) {
    PyObject* given[] = {arguments..., nullptr};
    return enter_python([&] { return PyObject_Vectorcall(function, given, sizeof...(arguments), nullptr); });
}

// Lets other threads of Python run. Not nanobind's own guard: see `enter_python`.
class OthersMayRun {
   public:
    OthersMayRun() : thread_(PyEval_SaveThread()) {}
    ~OthersMayRun() {
        enter_python([this] { PyEval_RestoreThread(thread_); });
    }
    OthersMayRun(const OthersMayRun&) = delete;
    OthersMayRun& operator=(const OthersMayRun&) = delete;

   private:
    PyThreadState* thread_;
};

// Everything that an object of the core refers to lies in one list, so that Python's garbage collector can
// see all of it at one place; the members that are read in the loops are borrowed from it.
class Holder {
   public:
    PyObject* hold(nb::object object) {
        held_.append(object);
        return object.ptr();
    }
    PyObject* held() const { return held_.ptr(); }
    // What is held may be freed by this, which may run Python or give up the GIL.
    void release() {
        PyObject* held = held_.release().ptr();  // not `reset`, which nothing may leave by an exception
        enter_python([held] { Py_XDECREF(held); });
    }
    Holder() = default;
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    ~Holder() { release(); }

   private:
    nb::list held_;
};

// What Python needs to collect cycles through a class that has a Holder called `holder`.
template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<T>(self)->holder.held());
    return 0;
}

template <typename T>
int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<T>(self)->clear();
    return 0;
}

template <typename T>
inline const PyType_Slot collectable[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
    {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
    {0, nullptr},
};

// By its number and byte order, not its identity: arrays that were pickled have a dtype object of their own.
inline bool has_dtype(PyArrayObject* array, PyArray_Descr* dtype) {
    return PyArray_DESCR(array) == dtype ||
           (PyArray_TYPE(array) == dtype->type_num && PyArray_ISNOTSWAPPED(array));
}

// The data of a column with one number per row. `type` is NumPy's number of T.
template <typename T>
T* column(nb::handle array, int type, npy_intp rows) {
    auto* a = reinterpret_cast<PyArrayObject*>(array.ptr());
    if (!PyArray_Check(array.ptr()) || PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != rows ||
        PyArray_TYPE(a) != type || !PyArray_IS_C_CONTIGUOUS(a) || !PyArray_ISBEHAVED(a)) {
        throw std::invalid_argument("a column of the arena is not as expected");
    }
    return static_cast<T*>(PyArray_DATA(a));
}

// A batch of byte rows.
struct Bytes {
    char* data = nullptr;
    npy_intp stride = 0;
    npy_intp count = 0;

    Bytes() = default;
    Bytes(nb::handle array, npy_intp nbytes) {
        auto* a = reinterpret_cast<PyArrayObject*>(array.ptr());
        if (!PyArray_Check(array.ptr()) || PyArray_NDIM(a) != 2 || PyArray_TYPE(a) != NPY_UINT8 ||
            PyArray_DIM(a, 1) != nbytes || PyArray_STRIDE(a, 1) != 1 || !PyArray_ISWRITEABLE(a)) {
            throw std::invalid_argument("expected writeable byte rows of " + std::to_string(nbytes));
        }
        data = PyArray_BYTES(a);
        stride = PyArray_STRIDE(a, 0);
        count = PyArray_DIM(a, 0);
    }
    char* at(npy_intp row, npy_intp offset) const { return data + row * stride + offset; }
};

}  // namespace shoal
