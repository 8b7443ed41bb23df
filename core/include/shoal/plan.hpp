// The layout's plan as the core sees it: the nodes of shoal/fields.py, and where each field lies in a row.
#pragma once

#include <vector>

#include "shoal/python.hpp"

namespace shoal {

enum class Kind : unsigned char { array, scalar, text, object, dict, tuple, choice };

// Where a field lies: in the bytes of a row, or, for an object, in a column of its own.
struct Place {
    npy_intp offset = 0;
    npy_intp nbytes = 0;
    bool is_object = false;
};

// Pointers to Python objects are borrowed from the layout, which never changes.
struct Node {
    Kind kind = Kind::object;
    PyObject* source = nullptr;  // the node in Python
    PyObject* field = nullptr;   // its field, unless it is a dict or tuple
    PyObject* twin = nullptr;    // what writes it in Python; made when it is first needed
    Place place;
    PyArray_Descr* dtype = nullptr;
    std::vector<npy_intp> shape;
    const unsigned char* codes = nullptr;  // text of ASCII: the code of each byte, 0 if it has none
    std::vector<PyObject*> keys;
    std::vector<Node> children;
    std::vector<Place> members;  // choice: all fields of all choices
};

inline Place place_of(nb::handle field) {
    const bool is_object = nb::cast<std::string>(field.attr("kind").attr("value")) == "object";
    return {nb::cast<npy_intp>(field.attr("offset")), nb::cast<npy_intp>(field.attr("nbytes")), is_object};
}

inline Node plan_of(nb::handle source, nb::handle layout) {
    Node node;
    node.source = source.ptr();
    const bool is_branch = nb::hasattr(source, "is_dict"), is_choice = nb::hasattr(source, "members");
    if (is_branch) {
        node.kind = nb::cast<bool>(source.attr("is_dict")) ? Kind::dict : Kind::tuple;
        for (nb::handle key : source.attr("keys")) node.keys.push_back(key.ptr());
    } else {
        nb::object field = source.attr("field");
        node.field = field.ptr();
        node.place = place_of(field);
        node.dtype = reinterpret_cast<PyArray_Descr*>(nb::object(field.attr("dtype")).ptr());
        for (nb::handle size : field.attr("shape")) node.shape.push_back(nb::cast<npy_intp>(size));
        const auto kind = nb::cast<std::string>(field.attr("kind").attr("value"));
        if (is_choice) {
            node.kind = Kind::choice;
            nb::object fields = layout.attr("fields");
            for (nb::handle group : source.attr("members"))
                for (nb::handle index : group) node.members.push_back(place_of(fields[index]));
        } else if (kind == "text") {
            node.kind = Kind::text;
            nb::object codes = field.attr("byte_codes");
            if (!codes.is_none())
                node.codes = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(codes.ptr()));
        } else {
            node.kind = kind == "array" ? Kind::array : kind == "scalar" ? Kind::scalar : Kind::object;
        }
    }
    if (is_branch || is_choice)
        for (nb::handle child : source.attr("children")) node.children.push_back(plan_of(child, layout));
    return node;
}

}  // namespace shoal
