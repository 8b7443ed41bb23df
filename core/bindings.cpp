// The Python face of the core; its classes are documented on their twins in shoal/_core/_reference.py.
#include "shoal/actions.hpp"
#include "shoal/pack.hpp"
#include "shoal/python.hpp"
#include "shoal/step_loop.hpp"
#include "shoal/transitions.hpp"
#include "shoal/version.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, module) {
    if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
    // A vec that is alive when Python exits, held by a traceback say, is no leak worth a page of warnings.
    nb::set_leak_warnings(false);

    module.doc() = "Shoal's compiled core; use it through shoal._core.";
    // By this a build left over from another version can be told from the package's own.
    module.attr("__version__") = nb::str(shoal::version);
#ifdef SHOAL_SANITIZED
    module.attr("__sanitized__") = true;
#endif

    nb::class_<shoal::Packer>(module, "Packer", nb::type_slots(shoal::collectable<shoal::Packer>))
        .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), "layout"_a, "rows"_a,
             "objects"_a = nb::none(), "node"_a = nb::none())
        .def("write", [](shoal::Packer& self, npy_intp row, nb::handle value) {
            if (!self.write(row, value.ptr())) nb::raise_python_error();
        }, nb::arg(), nb::arg().none());

    nb::class_<shoal::StepLoop>(module, "StepLoop", nb::type_slots(shoal::collectable<shoal::StepLoop>))
        .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), "envs"_a, "run"_a, "packer"_a,
             "beginning"_a)
        .def("step", &shoal::StepLoop::step);

    nb::class_<shoal::ActionColumn>(module, "ActionColumn",
                                    nb::type_slots(shoal::collectable<shoal::ActionColumn>))
        .def(nb::init<nb::object, nb::object, nb::object>(), "column"_a, "low"_a = nb::none(),
             "high"_a = nb::none())
        .def("take", &shoal::ActionColumn::take, nb::arg().none(), nb::arg());

    nb::class_<shoal::Transitions>(module, "Transitions",
                                   nb::type_slots(shoal::collectable<shoal::Transitions>))
        .def(nb::init<nb::object>(), "arena"_a)
        .def("begin", &shoal::Transitions::begin)
        .def("take", &shoal::Transitions::take)
        .def("figures", &shoal::Transitions::figures);
}
