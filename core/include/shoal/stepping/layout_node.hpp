// layout_node: the nodes of a layout (shoal/rows/fields.py) in C++, and where each field is stored in a row.
#pragma once

#include <vector>

#include "shoal/python.hpp"

namespace shoal {

enum class NodeKind : unsigned char { array, scalar, text, object, dict, tuple, choice };

// Where a field is stored: at an offset in the bytes of a row or, for an object, in a column of its own.
struct FieldPlace {
    npy_intp offset = 0;
    npy_intp nbytes = 0;
    bool is_object = false;
};

// References to Python objects are borrowed from the layout, which never changes.
struct LayoutNode {
    NodeKind kind = NodeKind::object;
    PyObject* source = nullptr;  // the same node in Python
    PyObject* field = nullptr;   // its field; null for a dict or tuple
    PyObject* twin = nullptr;    // the function that writes it in Python; made when first needed
    FieldPlace place;
    PyArray_Descr* dtype = nullptr;
    std::vector<npy_intp> shape;
    const unsigned char* codes = nullptr;  // ASCII text: the code of each byte, 0 for a byte that is not allowed
    std::vector<PyObject*> keys;
    bool reported = false;  // dict: whether keys that the space does not declare were reported
    std::vector<LayoutNode> children;
    std::vector<FieldPlace> members;  // choice: the fields of all alternatives
};

inline FieldPlace place_of(nb::handle field) {
    const bool is_object = nb::cast<std::string>(field.attr("kind").attr("value")) == "object";
    return {nb::cast<npy_intp>(field.attr("offset")), nb::cast<npy_intp>(field.attr("nbytes")), is_object};
}

// Build the C++ node of a Python node, with all its children.
inline LayoutNode make_node(nb::handle source, nb::handle layout) {
    LayoutNode node;
    node.source = source.ptr();
    const bool is_branch = nb::hasattr(source, "is_dict"), is_choice = nb::hasattr(source, "members");
    if (is_branch) {
        node.kind = nb::cast<bool>(source.attr("is_dict")) ? NodeKind::dict : NodeKind::tuple;
        for (nb::handle key : source.attr("keys")) node.keys.push_back(key.ptr());
    } else {
        nb::object field = source.attr("field");
        node.field = field.ptr();
        node.place = place_of(field);
        node.dtype = reinterpret_cast<PyArray_Descr*>(nb::object(field.attr("dtype")).ptr());
        for (nb::handle size : field.attr("shape")) node.shape.push_back(nb::cast<npy_intp>(size));
        const auto kind = nb::cast<std::string>(field.attr("kind").attr("value"));
        if (is_choice) {
            node.kind = NodeKind::choice;
            nb::object fields = layout.attr("fields");
            for (nb::handle group : source.attr("members"))
                for (nb::handle index : group) node.members.push_back(place_of(fields[index]));
        } else if (kind == "text") {
            node.kind = NodeKind::text;
            nb::object codes = field.attr("byte_codes");
            if (!codes.is_none())
                node.codes = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(codes.ptr()));
        } else {
            node.kind = kind == "array" ? NodeKind::array : kind == "scalar" ? NodeKind::scalar : NodeKind::object;
        }
    }
    if (is_branch || is_choice)
        for (nb::handle child : source.attr("children")) node.children.push_back(make_node(child, layout));
    return node;
}

}  // namespace shoal
