// python: how the core uses Python and NumPy.
//
// The loops call Python's C API directly, because they run once per env and step. A function that returns false, or a
// null pointer, has set a Python error. Constructors run once and use nanobind, which throws.
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

// A reference that is released at the end of its scope.
using Owned = nb::object;

inline Owned own(PyObject* object) { return nb::steal(object); }

// Call a function that may release the GIL. While the process exits, a daemon thread does not get the GIL back: Python
// up to 3.13 ends the thread by pthread_exit, which unwinds the stack. The frames of the caller hold references, and
// the interpreter does not exist any more. So the thread stops here, and waits for the end of the process.
//
// The function must have no C++ object with a destructor on its own stack: the unwinding would destroy it.
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

// Call a function that may be written in Python. Returns null if it raises.
template <typename... Arguments>
PyObject* call(PyObject* function, Arguments... arguments) {
    PyObject* given[] = {arguments..., nullptr};
    return enter_python([&] { return PyObject_Vectorcall(function, given, sizeof...(arguments), nullptr); });
}

// Releases the GIL until the end of its scope. nanobind's guard cannot be used: see `enter_python`.
class GilRelease {
   public:
    GilRelease() : thread_(PyEval_SaveThread()) {}
    ~GilRelease() {
        enter_python([this] { PyEval_RestoreThread(thread_); });
    }
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

   private:
    PyThreadState* thread_;
};

// Holds all references of an object of the core in one list, so that Python's garbage collector finds them in one
// place. Members that the loops read are borrowed from it.
class Holder {
   public:
    PyObject* hold(nb::object object) {
        held_.append(object);
        return object.ptr();
    }
    PyObject* held() const { return held_.ptr(); }
    // This may free the objects, which may run Python code or release the GIL.
    void release() {
        PyObject* held = held_.release().ptr();  // not `reset`: it is noexcept, and unwinding must pass
        enter_python([held] { Py_XDECREF(held); });
    }
    Holder() = default;
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    ~Holder() { release(); }

   private:
    nb::list held_;
};

// Lets Python's garbage collector see a class that has a Holder named `holder`.
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

// Compare dtypes by number and byte order, not by identity: unpickled arrays have their own dtype objects.
inline bool has_dtype(PyArrayObject* array, PyArray_Descr* dtype) {
    return PyArray_DESCR(array) == dtype ||
           (PyArray_TYPE(array) == dtype->type_num && PyArray_ISNOTSWAPPED(array));
}

// The data of a column with one value per row. `type` is NumPy's type number of T.
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
