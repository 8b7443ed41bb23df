// pack: writes a nested value into the fields of a row, as the layout says.
//
// This header writes the usual values. A value that does not fit, or has a rare form, goes to the twin of the node in
// Python, which writes it or raises. So both cores accept the same values, with the same errors.
#pragma once

#include <cstring>

#include "shoal/stepping/copy.hpp"
#include "shoal/stepping/layout_node.hpp"

namespace shoal {

class Packer {
   public:
    Packer(nb::object layout, nb::object rows, nb::object objects, nb::object node, nb::object on_undeclared) {
        layout_ = holder.hold(layout);
        if (!on_undeclared.is_none()) on_undeclared_ = holder.hold(on_undeclared);
        rows_ = holder.hold(rows);
        objects_ = holder.hold(objects);
        bytes_ = Bytes(rows, nb::cast<npy_intp>(layout.attr("nbytes")));
        root_ = make_node(node.is_none() ? nb::object(layout.attr("root")) : node, layout);
        holder.hold(nb::borrow(root_.source));
        const auto num_objects = nb::cast<npy_intp>(layout.attr("num_objects"));
        auto* columns = reinterpret_cast<PyArrayObject*>(objects.ptr());
        if (num_objects > 0 &&
            (!PyArray_Check(objects.ptr()) || PyArray_NDIM(columns) != 2 || PyArray_TYPE(columns) != NPY_OBJECT ||
             PyArray_DIM(columns, 0) != bytes_.count || PyArray_DIM(columns, 1) != num_objects)) {
            throw std::invalid_argument("expected a column for each object of the layout");
        }
    }

    void clear() {
        bytes_.count = 0;
        holder.release();
    }

    npy_intp count() const { return bytes_.count; }

    bool write(npy_intp row, PyObject* value) {
        if (row < 0 || row >= bytes_.count) {
            PyErr_Format(PyExc_IndexError, "row %zd of %zd", row, bytes_.count);
            return false;
        }
        return write(root_, row, value);
    }

    Holder holder;

   private:
    bool write(LayoutNode& node, npy_intp row, PyObject* value) {
        switch (node.kind) {
            case NodeKind::array: return write_array(node, row, value);
            case NodeKind::scalar: return write_scalar(node, row, value);
            case NodeKind::text: return write_text(node, row, value);
            case NodeKind::object: return write_object(node, row, value);
            case NodeKind::dict: return write_dict(node, row, value);
            case NodeKind::tuple: return write_tuple(node, row, value);
            case NodeKind::choice: return write_choice(node, row, value);
        }
        return ask_twin(node, row, value);
    }

    static bool has_shape(const LayoutNode& node, PyArrayObject* array) {
        const auto ndim = static_cast<int>(node.shape.size());
        if (PyArray_NDIM(array) != ndim) return false;
        for (int i = 0; i < ndim; ++i)
            if (PyArray_DIM(array, i) != node.shape[i]) return false;
        return true;
    }

    bool write_array(LayoutNode& node, npy_intp row, PyObject* value) {
        if (!PyArray_CheckExact(value)) return write_any(node, row, value);
        auto* array = reinterpret_cast<PyArrayObject*>(value);
        if (!has_dtype(array, node.dtype) || !PyArray_IS_C_CONTIGUOUS(array) || !has_shape(node, array))
            return write_any(node, row, value);
        copy_bytes(bytes_.at(row, node.place.offset), PyArray_BYTES(array),
                   static_cast<std::size_t>(node.place.nbytes));
        return true;
    }

    bool write_scalar(LayoutNode& node, npy_intp row, PyObject* value) {
        char* at = bytes_.at(row, node.place.offset);
        if (Py_TYPE(value) == node.dtype->typeobj) {
            if (node.dtype->type_num == NPY_LONG)  // np.int64, by far the most common
                std::memcpy(at, &PyArrayScalar_VAL(value, Long), sizeof(npy_long));
            else
                PyArray_ScalarAsCtype(value, at);
            return true;
        }
        if (PyLong_CheckExact(value) && node.dtype->type_num == NPY_INT64) {
            int overflow = 0;
            const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
            if (!overflow) {
                std::memcpy(at, &number, sizeof number);
                return true;
            }
        }
        return write_any(node, row, value);
    }

    // Write any array, number or nested list that NumPy can cast without losing more than precision.
    bool write_any(LayoutNode& node, npy_intp row, PyObject* value) {
        Owned made = own(enter_python([value] { return PyArray_FromAny(value, nullptr, 0, 0, 0, nullptr); }));
        if (!made.is_valid()) return forget_error() && ask_twin(node, row, value);
        auto* array = reinterpret_cast<PyArrayObject*>(made.ptr());
        if (!has_shape(node, array)) return ask_twin(node, row, value);
        if (PyArray_ISINTEGER(array) && PyTypeNum_ISINTEGER(node.dtype->type_num) &&
            !PyArray_CanCastTypeTo(PyArray_DESCR(array), node.dtype, NPY_SAFE_CASTING))
            return write_narrowed(node, row, value, array);
        if (!PyArray_CanCastTypeTo(PyArray_DESCR(array), node.dtype, NPY_SAME_KIND_CASTING))
            return ask_twin(node, row, value);
        return copy_into_row(node, row, array).is_valid();
    }

    // Write integers into a dtype that may be too small for them. They are written, then read back and compared.
    bool write_narrowed(LayoutNode& node, npy_intp row, PyObject* value, PyArrayObject* array) {
        // Python's ints have no dtype of their own: only their values must fit.
        const bool has_no_dtype = !PyArray_Check(value) && !PyArray_IsScalar(value, Generic);
        const bool castable =
            has_no_dtype || PyArray_CanCastTypeTo(PyArray_DESCR(array), node.dtype, NPY_SAME_KIND_CASTING);
        // Otherwise the comparison proves nothing: a large unsigned number that became negative reads back the same.
        const bool can_compare = PyArray_ITEMSIZE(array) > PyDataType_ELSIZE(node.dtype) &&
                             (PyArray_ISSIGNED(array) || PyTypeNum_ISUNSIGNED(node.dtype->type_num));
        if (!castable || !can_compare) return ask_twin(node, row, value);
        Owned written = copy_into_row(node, row, array);
        Owned back = own(written.is_valid() ? PyArray_NewLikeArray(array, NPY_CORDER, nullptr, 0) : nullptr);
        Owned asked = own(back.is_valid() ? PyArray_FromArray(array, nullptr, NPY_ARRAY_CARRAY_RO) : nullptr);
        if (!asked.is_valid()) return false;
        auto* read = reinterpret_cast<PyArrayObject*>(back.ptr());
        auto* wanted = reinterpret_cast<PyArrayObject*>(asked.ptr());
        if (PyArray_CopyInto(read, reinterpret_cast<PyArrayObject*>(written.ptr())) < 0) return false;
        const auto nbytes = static_cast<std::size_t>(PyArray_NBYTES(wanted));
        if (std::memcmp(PyArray_DATA(read), PyArray_DATA(wanted), nbytes) != 0) return ask_twin(node, row, value);
        return true;
    }

    // Copy `array` into the field. Returns the field as an array, or null if that failed.
    Owned copy_into_row(const LayoutNode& node, npy_intp row, PyArrayObject* array) const {
        Py_INCREF(node.dtype);
        Owned view = own(PyArray_NewFromDescr(
            &PyArray_Type, node.dtype, static_cast<int>(node.shape.size()), node.shape.data(), nullptr,
            bytes_.at(row, node.place.offset), NPY_ARRAY_CARRAY, nullptr));
        if (view.is_valid() && PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(view.ptr()), array) < 0)
            view.reset();
        return view;
    }

    bool write_text(LayoutNode& node, npy_intp row, PyObject* value) {
        if (!node.codes || !PyUnicode_CheckExact(value) || !PyUnicode_IS_COMPACT_ASCII(value) ||
            PyUnicode_GET_LENGTH(value) > node.place.nbytes)
            return ask_twin(node, row, value);
        const auto* text = reinterpret_cast<const unsigned char*>(PyUnicode_1BYTE_DATA(value));
        const Py_ssize_t length = PyUnicode_GET_LENGTH(value);
        char* at = bytes_.at(row, node.place.offset);
        for (Py_ssize_t i = 0; i < length; ++i) {
            const unsigned char code = node.codes[text[i]];
            if (code == 0) return ask_twin(node, row, value);
            at[i] = static_cast<char>(code);
        }
        std::memset(at + length, 0, static_cast<std::size_t>(node.place.nbytes - length));
        return true;
    }

    bool write_dict(LayoutNode& node, npy_intp row, PyObject* value) {
        if (!PyDict_CheckExact(value)) {
            if (!PyDict_Check(value)) return ask_twin(node, row, value);
            return write_items(node, row, value) && check_keys(node, value);
        }
        for (std::size_t i = 0; i < node.keys.size(); ++i) {
            PyObject* part = PyDict_GetItemWithError(value, node.keys[i]);
            if (!part) return PyErr_Occurred() ? false : ask_twin(node, row, value);
            // Hold a reference: writing it may run Python code, which may change the dict.
            if (!write(node.children[i], row, nb::borrow(part).ptr())) return false;
        }
        return check_keys(node, value);
    }

    // Report keys that the space does not declare, once per node. All declared keys are there, so the size tells.
    bool check_keys(LayoutNode& node, PyObject* dict) const {
        if (PyDict_GET_SIZE(dict) == static_cast<Py_ssize_t>(node.keys.size())) return true;
        if (!on_undeclared_ || node.reported) return true;
        node.reported = true;
        return own(call(on_undeclared_, node.source, dict)).is_valid();
    }

    bool write_tuple(LayoutNode& node, npy_intp row, PyObject* value) {
        const auto size = static_cast<Py_ssize_t>(node.keys.size());
        if (!PyTuple_CheckExact(value)) {
            if (!PyTuple_Check(value) && !PyList_Check(value)) return ask_twin(node, row, value);
            if (enter_python([value] { return PyObject_Size(value); }) != size)
                return forget_error() && ask_twin(node, row, value);
            return write_items(node, row, value);
        }
        if (PyTuple_GET_SIZE(value) != size) return ask_twin(node, row, value);
        for (Py_ssize_t i = 0; i < size; ++i)
            if (!write(node.children[i], row, PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }

    // Write the items of a container that may run Python code when asked for an item.
    bool write_items(LayoutNode& node, npy_intp row, PyObject* value) {
        for (std::size_t i = 0; i < node.keys.size(); ++i) {
            PyObject* key = node.keys[i];
            Owned part = own(enter_python([&] { return PyObject_GetItem(value, key); }));
            if (!part.is_valid()) return forget_error() && ask_twin(node, row, value);
            if (!write(node.children[i], row, part.ptr())) return false;
        }
        return true;
    }

    bool write_choice(LayoutNode& node, npy_intp row, PyObject* value) {
        if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != 2) return ask_twin(node, row, value);
        PyObject* number = PyTuple_GET_ITEM(value, 0);
        if (!PyIndex_Check(number)) return ask_twin(node, row, value);
        const Py_ssize_t index = enter_python([number] { return PyNumber_AsSsize_t(number, nullptr); });
        if (index == -1 && PyErr_Occurred()) return forget_error() && ask_twin(node, row, value);
        if (index < 0 || index >= static_cast<Py_ssize_t>(node.children.size()))
            return ask_twin(node, row, value);
        for (const FieldPlace& member : node.members) {
            if (!member.is_object)
                std::memset(bytes_.at(row, member.offset), 0, static_cast<std::size_t>(member.nbytes));
            else if (!set_object(member, row, Py_None))
                return false;
        }
        const npy_int64 chosen = index;
        std::memcpy(bytes_.at(row, node.place.offset), &chosen, sizeof chosen);
        return write(node.children[static_cast<std::size_t>(index)], row, PyTuple_GET_ITEM(value, 1));
    }

    // A row owns its objects, so an object that can change is copied. The twin makes the copy.
    bool write_object(LayoutNode& node, npy_intp row, PyObject* value) {
        const bool immutable = value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) ||
                           PyFloat_CheckExact(value) || PyBool_Check(value);
        return immutable ? set_object(node.place, row, value) : ask_twin(node, row, value);
    }

    bool set_object(const FieldPlace& place, npy_intp row, PyObject* value) {
        auto* columns = reinterpret_cast<PyArrayObject*>(objects_);
        auto** slot = static_cast<PyObject**>(PyArray_GETPTR2(columns, row, place.offset));
        PyObject* old = *slot;
        Py_INCREF(value);
        *slot = value;
        Py_XDECREF(old);
        return true;
    }

    // Clear an error that the twin will raise again. Keep others (KeyboardInterrupt), which come only once.
    static bool forget_error() {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
        PyErr_Clear();
        return true;
    }

    // Let the twin in Python write the value, or raise.
    bool ask_twin(LayoutNode& node, npy_intp row, PyObject* value) {
        try {
            if (!node.twin) {
                nb::object twin = nb::module_::import_("shoal._core._reference").attr("Packer");
                nb::handle layout(layout_), rows(rows_), objects(objects_), source(node.source);
                nb::object report = on_undeclared_ ? nb::borrow(on_undeclared_) : nb::none();
                node.twin = holder.hold(twin(layout, rows, objects, source, report).attr("write"));
            }
        } catch (nb::python_error& error) {
            error.restore();
            return false;
        }
        Owned number = own(PyLong_FromSsize_t(row));
        return number.is_valid() && own(call(node.twin, number.ptr(), value)).is_valid();
    }

    PyObject* layout_ = nullptr;
    PyObject* rows_ = nullptr;
    PyObject* objects_ = nullptr;
    PyObject* on_undeclared_ = nullptr;
    Bytes bytes_;
    LayoutNode root_;
};

}  // namespace shoal
