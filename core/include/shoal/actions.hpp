// Actions on both ends of their rows: a batch that goes in, checked, and each env's own that comes out.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "shoal/plan.hpp"

namespace shoal {

// Builds the action of one row the way Gymnasium hands it to an env.
class ActionReader {
   public:
    // Python objects end up in `holder`, whose owner also keeps the layout and the rows.
    ActionReader(nb::handle layout, nb::handle rows, nb::handle objects, Holder& holder)
        : bytes_(rows, nb::cast<npy_intp>(layout.attr("nbytes"))),
          root_(plan_of(nb::object(layout.attr("root")), layout)) {
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

    // What `read` needs besides: for Text, OneOf and custom spaces, which are taken apart in Python, the actions
    // of all rows. The caller's, not a member: an env may step the vec that it is part of, or try to.
    Owned begin() const {
        if (is_plain_ || bytes_.count == 0) return nb::none();
        Owned count = own(PyLong_FromSsize_t(bytes_.count));
        Owned rows = own(call(copy_rows_)), objects = own(rows.is_valid() ? call(copy_objects_) : nullptr);
        Owned columns = own(objects.is_valid() ? call(columns_, rows.ptr(), objects.ptr()) : nullptr);
        Owned parts = own(count.is_valid() && columns.is_valid() ? call(split_, columns.ptr(), count.ptr()) : nullptr);
        return own(parts.is_valid() ? PySequence_List(parts.ptr()) : nullptr);
    }

    // A new reference. An env may keep its action, so it never shares memory with the rows.
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
    static bool is_plain(const Node& node) {
        if (node.kind == Kind::array || node.kind == Kind::scalar) return true;
        if (node.kind != Kind::dict && node.kind != Kind::tuple) return false;
        for (const Node& child : node.children)
            if (!is_plain(child)) return false;
        return true;
    }

    // A Discrete has few values: making each scalar once saves an allocation per env and step.
    void fill_cache(Holder& holder) {
        constexpr npy_int64 most = 1024;
        if (root_.kind != Kind::scalar || root_.dtype->type_num != NPY_INT64) return;
        nb::object space = nb::handle(root_.field).attr("space");
        const auto count = nb::cast<npy_int64>(nb::int_(space.attr("n")));
        if (count > most) return;
        first_ = nb::cast<npy_int64>(nb::int_(space.attr("start")));
        for (npy_int64 i = 0; i < count; ++i) {
            npy_int64 number = first_ + i;
            Owned scalar = own(PyArray_Scalar(&number, root_.dtype, nullptr));
            if (!scalar.is_valid()) nb::raise_python_error();
            cache_.push_back(holder.hold(scalar));
        }
    }

    PyObject* read(const Node& node, npy_intp row) const {
        if (node.kind == Kind::dict) {
            Owned made = own(PyDict_New());
            for (std::size_t i = 0; made.is_valid() && i < node.keys.size(); ++i) {
                Owned part = own(read(node.children[i], row));
                if (!part.is_valid() || PyDict_SetItem(made.ptr(), node.keys[i], part.ptr()) < 0) return nullptr;
            }
            return made.release().ptr();
        }
        if (node.kind == Kind::tuple) {
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
    Node root_;
    bool is_plain_ = false;
    npy_int64 first_ = 0;
    std::vector<PyObject*> cache_;
    PyObject *copy_rows_ = nullptr, *copy_objects_ = nullptr, *columns_ = nullptr, *split_ = nullptr;
};

// What is no number; only floats can be.
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

// Takes a batch of one field that needs no conversion into its column; see the twin in Python.
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
        check_ = check_for(low, high);
    }

    // The number of rows taken, or -1.
    npy_intp take(nb::handle batch, nb::handle needed) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        if (!fits(batch)) return -1;
        return check_->take(PyArray_BYTES(array), column<npy_bool>(needed, NPY_BOOL, shape_[0]), *this);
    }

    // The data of a batch that could be used as it is, but for its values; else null.
    const char* data_of(nb::handle batch) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        return fits(batch) && PyArray_ISALIGNED(array) ? PyArray_BYTES(array) : nullptr;
    }

    // Whether each of these rows that needs an action has a good one there. Needs no Python.
    bool holds(const char* data, const npy_bool* needed, npy_intp first, npy_intp last) const {
        return check_->holds(data, needed, first, last, size_);
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
        virtual bool holds(const char* batch, const npy_bool* needed, npy_intp first, npy_intp last,
                           npy_intp size) const = 0;
        virtual npy_intp take(const char* batch, const npy_bool* needed, const ActionColumn& into) const = 0;
    };

    // As it is: of this dtype and shape, one row after another.
    bool fits(nb::handle batch) const {
        auto* array = reinterpret_cast<PyArrayObject*>(batch.ptr());
        return check_ && PyArray_CheckExact(batch.ptr()) && has_dtype(array, dtype_) &&
               PyArray_IS_C_CONTIGUOUS(array) && PyArray_NDIM(array) == static_cast<int>(shape_.size()) &&
               std::memcmp(PyArray_DIMS(array), shape_.data(), shape_.size() * sizeof(npy_intp)) == 0;
    }

    template <typename T>
    struct CheckOf : Check {
        bool holds(const char* batch, const npy_bool* needed, npy_intp begin, npy_intp end,
                   npy_intp size) const override {
            if constexpr (std::is_same_v<T, npy_int64>) {
                if (size == 1 && !low.empty() && high[0] >= low[0]) {
                    // By sign bits alone, which compilers turn into vectors: a number is outside if its distance
                    // from one of the bounds is negative.
                    const auto* numbers = reinterpret_cast<const npy_uint64*>(batch);
                    const auto first = static_cast<npy_uint64>(low[0]);
                    const auto span = static_cast<npy_uint64>(high[0]) - first;
                    npy_uint64 wrong = 0;
                    for (npy_intp row = begin; row < end; ++row) {
                        const npy_uint64 above = numbers[row] - first;
                        wrong |= (above | (span - above)) & (npy_uint64{0} - (needed[row] & npy_uint64{1}));
                    }
                    return wrong >> 63 == 0 && span >> 63 == 0;
                }
            }
            bool good = true;
            for (npy_intp row = begin; row < end; ++row) {
                if (!needed[row]) continue;
                for (npy_intp i = 0; i < size; ++i) {
                    T value;
                    std::memcpy(&value, batch + (row * size + i) * static_cast<npy_intp>(sizeof(T)), sizeof(T));
                    good &= is_good(value, i);
                }
            }
            return good;
        }
        npy_intp take(const char* batch, const npy_bool* needed, const ActionColumn& into) const override {
            const npy_intp rows = into.shape_[0], size = into.size_;
            npy_intp taken = 0;
            bool good = true;
            for (npy_intp row = 0; row < rows; ++row) {
                if (!needed[row]) continue;
                ++taken;
                for (npy_intp i = 0; i < size; ++i) {
                    T value;
                    const auto at = i * static_cast<npy_intp>(sizeof(T));
                    std::memcpy(&value, batch + row * size * static_cast<npy_intp>(sizeof(T)) + at, sizeof(T));
                    good &= is_good(value, i);
                    std::memcpy(into.data_ + row * into.stride_ + at, &value, sizeof(T));
                }
            }
            return good ? taken : -1;
        }
        bool is_good(T value, npy_intp i) const {
            if constexpr (std::is_integral_v<T>) {
                const auto bound = static_cast<std::size_t>(i);
                return low.empty() || (value >= low[bound] && value <= high[bound]);
            }
            return !is_nan(value);
        }
        std::vector<T> low, high;
    };

    template <typename T>
    std::unique_ptr<Check> make(nb::handle low, nb::handle high) const {
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

    // None for a dtype that is left to the caller.
    std::unique_ptr<Check> check_for(nb::handle low, nb::handle high) const {
        switch (dtype_->type_num) {
            case NPY_INT8: return make<npy_int8>(low, high);
            case NPY_INT16: return make<npy_int16>(low, high);
            case NPY_INT32: return make<npy_int32>(low, high);
            case NPY_INT64: return make<npy_int64>(low, high);
            case NPY_UINT8: return make<npy_uint8>(low, high);
            case NPY_UINT16: return make<npy_uint16>(low, high);
            case NPY_UINT32: return make<npy_uint32>(low, high);
            case NPY_UINT64: return make<npy_uint64>(low, high);
            case NPY_BOOL: return make<npy_bool>(low, high);
            case NPY_FLOAT16: return make<Half>(low, high);
            case NPY_FLOAT32: return make<npy_float32>(low, high);
            case NPY_FLOAT64: return make<npy_float64>(low, high);
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
