// actions: checks a batch of actions and writes it into rows (ActionColumn), and reads the action of each env from its
// row (ActionReader).
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "shoal/stepping/layout_node.hpp"

namespace shoal {

// Builds the action of one row in the form in which Gymnasium passes it to an env.
class ActionReader {
   public:
    // References to Python objects are held by `holder`. Its owner also holds the layout and the rows.
    ActionReader(nb::handle layout, nb::handle rows, nb::handle objects, Holder& holder)
        : bytes_(rows, nb::cast<npy_intp>(layout.attr("nbytes"))),
          root_(make_node(nb::object(layout.attr("root")), layout)) {
        is_plain_ = is_plain(root_);
        if (is_plain_) {
            fill_cache(holder);
        } else {
            copy_rows_ = holder.hold(rows.attr("copy"));
            copy_objects_ = holder.hold(objects.attr("copy"));
            columns_ = holder.hold(layout.attr("columns"));
            split_ = holder.hold(layout.attr("root").attr("split"));
        }
    }

    // Prepare `read`. Actions of Text, OneOf and custom spaces are split in Python, for all rows at once; for other
    // spaces this returns None. The caller keeps the result. It is no member, because an env may try to step the vec
    // that it is part of.
    Owned begin() const {
        if (is_plain_ || bytes_.count == 0) return nb::none();
        Owned count = own(PyLong_FromSsize_t(bytes_.count));
        Owned rows = own(call(copy_rows_)), objects = own(rows.is_valid() ? call(copy_objects_) : nullptr);
        Owned columns = own(objects.is_valid() ? call(columns_, rows.ptr(), objects.ptr()) : nullptr);
        Owned parts = own(count.is_valid() && columns.is_valid() ? call(split_, columns.ptr(), count.ptr()) : nullptr);
        return own(parts.is_valid() ? PySequence_List(parts.ptr()) : nullptr);
    }

    // The action of a row, as a new reference. An env may keep it, so it never shares memory with the rows.
    PyObject* read(npy_intp row, const Owned& batch) const {
        if (!is_plain_) return Py_NewRef(PyList_GET_ITEM(batch.ptr(), row));
        if (!cache_.empty()) {
            npy_int64 number;
            std::memcpy(&number, bytes_.at(row, root_.place.offset), sizeof number);
            const auto index = static_cast<npy_uint64>(number) - static_cast<npy_uint64>(first_);
            if (index < cache_.size()) return Py_NewRef(cache_[index]);
        }
        return read(root_, row);
    }

    void clear() { bytes_.count = 0; }

   private:
    // Whether the node consists of arrays and scalars only.
    static bool is_plain(const LayoutNode& node) {
        if (node.kind == NodeKind::array || node.kind == NodeKind::scalar) return true;
        if (node.kind != NodeKind::dict && node.kind != NodeKind::tuple) return false;
        for (const LayoutNode& child : node.children)
            if (!is_plain(child)) return false;
        return true;
    }

    // A Discrete space has few values. To make each scalar once saves an allocation per env and step.
    void fill_cache(Holder& holder) {
        constexpr npy_int64 max_cached = 1024;
        if (root_.kind != NodeKind::scalar || root_.dtype->type_num != NPY_INT64) return;
        nb::object space = nb::handle(root_.field).attr("space");
        const auto count = nb::cast<npy_int64>(nb::int_(space.attr("n")));
        if (count > max_cached) return;
        first_ = nb::cast<npy_int64>(nb::int_(space.attr("start")));
        for (npy_int64 i = 0; i < count; ++i) {
            npy_int64 number = first_ + i;
            Owned scalar = own(PyArray_Scalar(&number, root_.dtype, nullptr));
            if (!scalar.is_valid()) nb::raise_python_error();
            cache_.push_back(holder.hold(scalar));
        }
    }

    PyObject* read(const LayoutNode& node, npy_intp row) const {
        if (node.kind == NodeKind::dict) {
            Owned made = own(PyDict_New());
            for (std::size_t i = 0; made.is_valid() && i < node.keys.size(); ++i) {
                Owned part = own(read(node.children[i], row));
                if (!part.is_valid() || PyDict_SetItem(made.ptr(), node.keys[i], part.ptr()) < 0) return nullptr;
            }
            return made.release().ptr();
        }
        if (node.kind == NodeKind::tuple) {
            Owned made = own(PyTuple_New(static_cast<Py_ssize_t>(node.children.size())));
            for (std::size_t i = 0; made.is_valid() && i < node.children.size(); ++i) {
                PyObject* part = read(node.children[i], row);
                if (!part) return nullptr;
                PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), part);
            }
            return made.release().ptr();
        }
        char* at = bytes_.at(row, node.place.offset);
        if (node.shape.empty()) return PyArray_Scalar(at, node.dtype, nullptr);
        Py_INCREF(node.dtype);
        PyObject* array = PyArray_NewFromDescr(&PyArray_Type, node.dtype, static_cast<int>(node.shape.size()),
                                               node.shape.data(), nullptr, nullptr, 0, nullptr);
        if (array)
            std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)), at,
                        static_cast<std::size_t>(node.place.nbytes));
        return array;
    }

    Bytes bytes_;
    LayoutNode root_;
    bool is_plain_ = false;
    npy_int64 first_ = 0;
    std::vector<PyObject*> cache_;
    PyObject *copy_rows_ = nullptr, *copy_objects_ = nullptr, *columns_ = nullptr, *split_ = nullptr;
};

// A float16; C++17 has no type for it.
struct Half {
    npy_uint16 bits;
};
template <typename T>
bool is_nan(T value) {
    if constexpr (std::is_same_v<T, Half>)
        return (value.bits & 0x7fffu) > 0x7c00u;
    else if constexpr (std::is_floating_point_v<T>)
        return std::isnan(value);
    else
        return false;
}

// Checks a batch of actions of one field that needs no conversion, and copies it into its column. See the twin in
// Python.
class ActionColumn {
   public:
    ActionColumn(nb::object column, nb::object low, nb::object high) {
        auto* array = reinterpret_cast<PyArrayObject*>(holder.hold(column));
        if (!PyArray_Check(column.ptr()) || PyArray_NDIM(array) < 1 || !PyArray_ISWRITEABLE(array))
            throw std::invalid_argument("expected a writeable column");
        data_ = PyArray_BYTES(array);
        stride_ = PyArray_STRIDE(array, 0);
        dtype_ = PyArray_DESCR(array);
        shape_.assign(PyArray_DIMS(array), PyArray_DIMS(array) + PyArray_NDIM(array));
        for (std::size_t i = 1; i < shape_.size(); ++i) size_ *= shape_[i];
        check_ = make_check(low, high);
    }

    // Copy the actions of the rows that need one. Returns the number of these rows, or -1 if an action is not valid.
    npy_intp take(nb::handle batch, nb::handle needed) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        if (!fits(batch)) return -1;
        return check_->take(PyArray_BYTES(array), column<npy_bool>(needed, NPY_BOOL, shape_[0]), *this);
    }

    // The data of a batch with the right dtype and shape, whose values are not yet checked; null if it needs
    // conversion.
    const char* data_of(nb::handle batch) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        return fits(batch) && PyArray_ISALIGNED(array) ? PyArray_BYTES(array) : nullptr;
    }

    // Whether each of these rows that needs an action has a valid one in `data`. Works without the GIL.
    bool are_valid(const char* data, const npy_bool* needed, npy_intp first, npy_intp last) const {
        return check_->are_valid(data, needed, first, last, size_);
    }
    npy_intp rows() const { return shape_[0]; }

    void clear() {
        check_.reset();
        holder.release();
    }

    Holder holder;

   private:
    struct Check {
        virtual ~Check() = default;
        virtual bool are_valid(const char* batch, const npy_bool* needed, npy_intp first, npy_intp last,
                           npy_intp size) const = 0;
        virtual npy_intp take(const char* batch, const npy_bool* needed, const ActionColumn& into) const = 0;
    };

    // Whether a batch needs no conversion: it has this dtype and shape, and is contiguous.
    bool fits(nb::handle batch) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        return check_ && PyArray_CheckExact(batch.ptr()) && has_dtype(array, dtype_) &&
               PyArray_IS_C_CONTIGUOUS(array) && PyArray_NDIM(array) == static_cast<int>(shape_.size()) &&
               std::memcmp(PyArray_DIMS(array), shape_.data(), shape_.size() * sizeof(npy_intp)) == 0;
    }

    template <typename T>
    struct CheckOf : Check {
        bool are_valid(const char* batch, const npy_bool* needed, npy_intp begin, npy_intp end,
                   npy_intp size) const override {
            if constexpr (std::is_same_v<T, npy_int64>) {
                if (size == 1 && !low.empty() && high[0] >= low[0]) {
                    // Only sign bits are used, so that compilers vectorize the loop: a number is outside if its
                    // distance from one of the bounds is negative.
                    const auto* numbers = reinterpret_cast<const npy_uint64*>(batch);
                    const auto first = static_cast<npy_uint64>(low[0]);
                    const auto span = static_cast<npy_uint64>(high[0]) - first;
                    npy_uint64 outside = 0;
                    for (npy_intp row = begin; row < end; ++row) {
                        const npy_uint64 above = numbers[row] - first;
                        outside |= (above | (span - above)) & (npy_uint64{0} - (needed[row] & npy_uint64{1}));
                    }
                    return outside >> 63 == 0 && span >> 63 == 0;
                }
            }
            bool valid = true;
            for (npy_intp row = begin; row < end; ++row) {
                if (!needed[row]) continue;
                for (npy_intp i = 0; i < size; ++i) {
                    T value;
                    std::memcpy(&value, batch + (row * size + i) * static_cast<npy_intp>(sizeof(T)), sizeof(T));
                    valid &= is_valid(value, i);
                }
            }
            return valid;
        }
        npy_intp take(const char* batch, const npy_bool* needed, const ActionColumn& into) const override {
            const npy_intp rows = into.shape_[0], size = into.size_;
            npy_intp taken = 0;
            bool valid = true;
            for (npy_intp row = 0; row < rows; ++row) {
                if (!needed[row]) continue;
                ++taken;
                for (npy_intp i = 0; i < size; ++i) {
                    T value;
                    const auto at = i * static_cast<npy_intp>(sizeof(T));
                    std::memcpy(&value, batch + row * size * static_cast<npy_intp>(sizeof(T)) + at, sizeof(T));
                    valid &= is_valid(value, i);
                    std::memcpy(into.data_ + row * into.stride_ + at, &value, sizeof(T));
                }
            }
            return valid ? taken : -1;
        }
        bool is_valid(T value, npy_intp i) const {
            if constexpr (std::is_integral_v<T>) {
                const auto bound = static_cast<std::size_t>(i);
                return low.empty() || (value >= low[bound] && value <= high[bound]);
            }
            return !is_nan(value);
        }
        std::vector<T> low, high;
    };

    template <typename T>
    std::unique_ptr<Check> make_typed(nb::handle low, nb::handle high) const {
        auto check = std::make_unique<CheckOf<T>>();
        if (!low.is_none()) {
            check->low = values_of<T>(low);
            check->high = values_of<T>(high);
        }
        return check;
    }

    template <typename T>
    std::vector<T> values_of(nb::handle bounds) const {
        Py_INCREF(dtype_);
        Owned made = own(PyArray_FromAny(bounds.ptr(), dtype_, 0, 0, NPY_ARRAY_CARRAY, nullptr));
        if (!made.is_valid()) nb::raise_python_error();
        auto* array = reinterpret_cast<PyArrayObject*>(made.ptr());
        if (PyArray_SIZE(array) != size_) throw std::invalid_argument("expected a bound for each element");
        const auto* data = static_cast<const T*>(PyArray_DATA(array));
        return {data, data + size_};
    }

    // The check for this dtype; null for a dtype that the caller must handle.
    std::unique_ptr<Check> make_check(nb::handle low, nb::handle high) const {
        switch (dtype_->type_num) {
            case NPY_INT8: return make_typed<npy_int8>(low, high);
            case NPY_INT16: return make_typed<npy_int16>(low, high);
            case NPY_INT32: return make_typed<npy_int32>(low, high);
            case NPY_INT64: return make_typed<npy_int64>(low, high);
            case NPY_UINT8: return make_typed<npy_uint8>(low, high);
            case NPY_UINT16: return make_typed<npy_uint16>(low, high);
            case NPY_UINT32: return make_typed<npy_uint32>(low, high);
            case NPY_UINT64: return make_typed<npy_uint64>(low, high);
            case NPY_BOOL: return make_typed<npy_bool>(low, high);
            case NPY_FLOAT16: return make_typed<Half>(low, high);
            case NPY_FLOAT32: return make_typed<npy_float32>(low, high);
            case NPY_FLOAT64: return make_typed<npy_float64>(low, high);
            default: return nullptr;
        }
    }

    char* data_ = nullptr;
    npy_intp stride_ = 0;
    npy_intp size_ = 1;
    PyArray_Descr* dtype_ = nullptr;
    std::vector<npy_intp> shape_;
    std::unique_ptr<Check> check_;
};

}  // namespace shoal
